"""What the product knows about operator kinds beyond their names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from dse.flatbuffer.records import Model, Operator, Options, Tensor
from dse.flatbuffer.schema import builtin, enum_name, schema

# Not the same answer for the same inputs, so never a constant even when the inputs are.
RANDOM = frozenset({"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"})
# Make a handle to state that lives outside the tensors.
HANDLES = frozenset({"VAR_HANDLE", "HASHTABLE"})
# Change that state.
WRITES_STATE = frozenset({"ASSIGN_VARIABLE", "HASHTABLE_IMPORT"})
# Only read it.
READS_STATE = frozenset({"READ_VARIABLE", "HASHTABLE_FIND", "HASHTABLE_SIZE"})

# Run other subgraphs, which their options name.
CONTROL_FLOW = frozenset(
    {"CALL", "IF", "WHILE", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE"}
)
# Where blockwise quantisation names other tensors.
_QUANTIZATION_TENSORS = ("scales", "zero_points")
_SUBGRAPH_VECTORS = frozenset({"called_computations", "branch_subgraph_indices"})


def operator_name(model: Model, operator: Operator) -> str:
    """Return an operator's type, for example ``CONV_2D`` or ``CUSTOM:Name``."""
    code = model.operator_codes[operator.opcode_index]
    if code.builtin_code == builtin("CUSTOM"):
        return f"CUSTOM:{clean(code.custom_code or '')}"
    return enum_name("BuiltinOperator", code.builtin_code) or f"BUILTIN_{code.builtin_code}"


def subgraph_references(options: Options | None) -> Iterator[tuple[str, int]]:
    """Yield (field, subgraph index) for each subgraph that an operator's options name."""
    if options is None:
        return
    for name in subgraph_fields(options.table):
        value = options.get(name, () if name in _SUBGRAPH_VECTORS else 0)
        if isinstance(value, int):
            yield name, value
        else:
            yield from ((name, index) for index in value)


def operator_subgraphs(operator: Operator) -> tuple[int, ...]:
    """Return the subgraphs that an operator can run, in the order its options name them."""
    found = [index for _, index in subgraph_references(operator.builtin_options)]
    found += [index for _, index in subgraph_references(operator.builtin_options_2)]
    return tuple(found)


def renumber_subgraphs(options: Options | None, numbers: dict[int, int]) -> Options | None:
    """Return the options with every subgraph index replaced."""
    if options is None:
        return None
    fields = dict(options.fields)
    for name in subgraph_fields(options.table):
        if name not in _SUBGRAPH_VECTORS:
            fields[name] = numbers[options.get(name)]
        elif name in fields:
            fields[name] = tuple(numbers[index] for index in fields[name])
    return Options(options.table, fields)


def quantization_tensors(tensor: Tensor) -> list[tuple[str, int]]:
    """Return (field, tensor index) where blockwise quantisation names other tensors."""
    details = tensor.quantization.details if tensor.quantization else None
    if details is None:
        return []
    return [
        (name, details.fields[name])
        for name in _QUANTIZATION_TENSORS
        if name in details.fields and details.fields[name] >= 0
    ]


def clean(text: str) -> str:
    """Return a name as text that can be printed and put in JSON (bytes that are not UTF-8 replaced)."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@cache
def subgraph_fields(table: str) -> tuple[str, ...]:
    """Return the fields of an options table that hold subgraph indices."""
    found = schema().tables.get(table)
    if found is None:
        return ()
    return tuple(
        field.name
        for field in found.fields
        if field.name == "subgraph"
        or field.name.endswith("subgraph_index")
        or field.name in _SUBGRAPH_VECTORS
    )
