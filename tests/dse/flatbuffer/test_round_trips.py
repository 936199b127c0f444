"""Random tables of every kind come back as they were written, here and in an independent reader."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dse.flatbuffer.encode import encode_tables
from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import SCALARS, schema
from dse.flatbuffer.tables import TableReader

INTEGERS = {
    code: (0, 2 ** (8 * size) - 1) if code[0] == "u" else (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
    for code, (_, size) in SCALARS.items()
    if code not in {"bool", "f32"}
}


def scalars(name):
    if name == "bool":
        return st.booleans()
    if name == "f32":
        return st.floats(width=32, allow_nan=False)
    return st.integers(*INTEGERS[name])


def values(kind, depth):
    if kind.kind == "scalar":
        return scalars(kind.name)
    if kind.kind == "string":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if kind.kind == "table":
        return tables(kind.name, depth + 1)
    if kind.kind == "union":
        return st.sampled_from(schema().unions[kind.name]).flatmap(lambda name: tables(name, depth + 1))
    if kind.element.kind == "scalar" and kind.element.name == "u8":
        return st.binary(max_size=9)
    return st.lists(values(kind.element, depth), max_size=3).map(tuple)


@st.composite
def tables(draw, name, depth=0):
    fields = {}
    for field in schema().tables[name].fields:
        nested = field.type.kind in {"table", "union"} or (
            field.type.element is not None and field.type.element.kind == "table"
        )
        if draw(st.booleans()) and not (nested and depth > 3):
            fields[field.name] = draw(values(field.type, depth))
    return Options(name, fields)


def plain(value):
    """Views become bytes, so that trees can be compared."""
    if isinstance(value, Options):
        return value.table, {name: plain(inner) for name, inner in value.fields.items()}
    if isinstance(value, tuple):
        return tuple(plain(inner) for inner in value)
    return bytes(value) if isinstance(value, memoryview) else value


def read(data, table):
    reader = TableReader(memoryview(data), "test")
    found = reader.read_root(table, b"TFL3")
    assert not reader.unknown
    return found


@pytest.mark.parametrize("name", sorted(schema().tables))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_table_comes_back_as_it_was_written(name, data):
    tree = data.draw(tables(name))
    assert plain(read(encode_tables(tree), name)) == plain(tree)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=tables("Operator"))
def test_an_independent_reader_sees_the_same_operator(tree):
    generated = pytest.importorskip("ai_edge_litert.schema_py_generated")
    theirs = generated.OperatorT.InitFromPackedBuf(bytes(encode_tables(tree)), 0)
    get = tree.get
    assert theirs.opcodeIndex == get("opcode_index")
    assert list(theirs.inputs if theirs.inputs is not None else ()) == list(get("inputs", ()))
    assert theirs.debugMetadataIndex == get("debug_metadata_index", -1)
    options = get("builtin_options", None)
    if options is None:
        assert theirs.builtinOptions is None
        return
    assert type(theirs.builtinOptions).__name__ == f"{options.table}T"
    for field in schema().tables[options.table].fields:
        if field.type.kind != "scalar":
            continue
        first, *rest = field.name.split("_")
        found = getattr(theirs.builtinOptions, first + "".join(word.capitalize() for word in rest), None)
        if found is not None:
            assert math.isclose(found, get_scalar(options, field), rel_tol=1e-6)


def get_scalar(options, field):
    return options.get(field.name, field.default)


@given(st.integers(4000, 4200), st.sampled_from(["scale", "zero_point"]))
@settings(max_examples=10, deadline=None)
def test_long_vectors_survive_as_views(n, name):
    numbers = tuple(range(n))
    tree = Options("QuantizationParameters", {name: numbers})
    found = read(encode_tables(tree), "QuantizationParameters").fields[name]
    assert len(found) == n
    assert list(found) == list(numbers)
    again = encode_tables(Options("QuantizationParameters", {name: found}))
    assert list(read(again, "QuantizationParameters").fields[name]) == list(numbers)
