"""The compact schema agrees with an independent rendering of the same schema."""

from __future__ import annotations

import inspect
import re

import pytest

from dse.flatbuffer.schema import SCALARS, builtin, enum_name, enum_value, schema

SLOTS = {
    "Bool": "bool",
    "Byte": "u8",
    "Uint8": "u8",
    "Int8": "i8",
    "Int32": "i32",
    "Uint32": "u32",
    "Int64": "i64",
    "Uint64": "u64",
    "Float32": "f32",
}


@pytest.fixture(scope="module")
def generated():
    return pytest.importorskip("ai_edge_litert.schema_py_generated")


def snake(name):
    """DilationWFactor -> dilation_w_factor, BuiltinOptions2Type -> builtin_options_2_type."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"options2", "options_2", name.lower())


def test_tables_have_the_same_slots(generated):
    names = {
        name.removesuffix("Start")
        for name, thing in vars(generated).items()
        if name.endswith("Start") and inspect.isfunction(thing)
    }
    assert names == set(schema().tables)
    for name in names:
        table = schema().tables[name]
        (n_slots,) = re.findall(
            r"StartObject\((\d+)\)", inspect.getsource(getattr(generated, f"{name}Start"))
        )
        assert table.n_slots == int(n_slots), name
        fields = {field.name: field for field in table.fields}
        for function_name, function in vars(generated).items():
            match = re.fullmatch(f"{name}Add([A-Z].*)", function_name)
            if not match or not inspect.isfunction(function):
                continue
            source = inspect.getsource(function)
            kind, slot, default = re.search(r"Prepend(\w+?)Slot\((\d+), .*, ([^,]+)\)\s*$", source).groups()
            field_name = snake(match[1])
            if field_name.endswith("_type") and field_name.removesuffix("_type") in fields:
                union = fields[field_name.removesuffix("_type")]
                if union.type.kind == "union":
                    assert union.slot == int(slot)
                    continue
            field = fields[field_name]
            shift = 1 if field.type.kind == "union" else 0
            assert field.slot + shift == int(slot), (name, field_name)
            if kind == "UOffsetTRelative":
                assert field.type.kind != "scalar", (name, field_name)
            else:
                assert field.type.name == SLOTS[kind], (name, field_name)
                assert field.default == float({"True": 1, "False": 0}.get(default, default)), (
                    name,
                    field_name,
                )


@pytest.mark.parametrize(
    "enum",
    ["BuiltinOperator", "TensorType", "ActivationFunctionType", "Padding", "MirrorPadMode", "DimensionType"],
)
def test_enums_have_the_same_values(generated, enum):
    theirs = {v: k for k, v in vars(getattr(generated, enum)).items() if not k.startswith("_")}
    assert schema().enums[enum] == theirs


@pytest.mark.parametrize(
    "union", ["BuiltinOptions", "BuiltinOptions2", "QuantizationDetails", "SparseIndexVector"]
)
def test_unions_have_the_same_members(generated, union):
    theirs = {v: k for k, v in vars(getattr(generated, union)).items() if not k.startswith("_")}
    assert dict(enumerate(schema().unions[union], start=1)) == {k: v for k, v in theirs.items() if k}


def test_names_and_numbers_go_both_ways():
    assert builtin("CONV_2D") == 3
    assert enum_name("BuiltinOperator", 3) == "CONV_2D"
    assert enum_name("BuiltinOperator", 5000) is None
    assert enum_value("TensorType", "INT4") == 17
    with pytest.raises(KeyError):
        enum_value("TensorType", "INT3")


def test_every_scalar_type_is_known():
    for table in schema().tables.values():
        for field in table.fields:
            kind = field.type.element or field.type
            assert kind.kind != "scalar" or kind.name in SCALARS
            assert kind.kind != "table" or kind.name in schema().tables
