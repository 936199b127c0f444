"""When do two layers cost the same?  Equal keys: same operators, options, shapes and types.

Values of weights do not matter; what matters of them is how many there are (sparse weights), and
small integer constants that steer an operator (axes, permutations, paddings).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from dse.flatbuffer.operators import HANDLES, operator_name, operator_subgraphs
from dse.flatbuffer.records import Model, Operator, Options, Quantization, Tensor
from dse.flatbuffer.schema import enum_value, schema

# More values than this are data, not steering.
_MAX_STEERING_BYTES = 512
_KEY_DIGITS = 24


def layer_key(model: Model, operators: Sequence[int], stored: frozenset[int]) -> str:
    """Return the key of a layer of the main subgraph.

    Parameters
    ----------
    operators
        Operator indices, the layer itself last.
    stored
        Tensors whose value is in the file.
    """
    facts = _operators_facts(model, 0, operators, stored)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:_KEY_DIGITS]


def _operators_facts(
    model: Model, subgraph_index: int, numbers: Iterable[int], stored: frozenset[int]
) -> list[Any]:
    """Describe operators so that only numbering within them matters."""
    subgraph = model.subgraphs[subgraph_index]
    local: dict[int, int] = {}
    facts: list[Any] = []
    for number in numbers:
        operator = subgraph.operators[number]
        name = operator_name(model, operator)
        steering = not _has_weights(name)
        inputs: list[Any] = []
        for index in operator.inputs:
            if index < 0:
                inputs.append(None)
                continue
            tensor = subgraph.tensors[index]
            place = local.setdefault(index, len(local))
            value = _steering_value(model, tensor) if steering and index in stored else None
            inputs.append((place, index in stored, _tensor_facts(model, tensor, index in stored), value))
        outputs = []
        for index in operator.outputs:
            if index >= 0:
                local.setdefault(index, len(local))
                outputs.append(_tensor_facts(model, subgraph.tensors[index], False))
        facts.append((name, _operator_facts(model, operator, name), inputs, outputs))
    return facts


def _operator_facts(model: Model, operator: Operator, name: str) -> Any:
    if name in HANDLES:  # which resource it is does not matter
        return None
    custom = operator.custom_options
    bodies = [
        _operators_facts(model, called, range(len(model.subgraphs[called].operators)), frozenset())
        for called in operator_subgraphs(operator)
        if name != "CALL_ONCE"
    ]
    return (
        model.operator_codes[operator.opcode_index].version,
        _options_facts(operator.builtin_options),
        _options_facts(operator.builtin_options_2),
        None if custom is None else hashlib.sha256(custom).hexdigest(),
        operator.mutating_variable_inputs,
        bodies,
    )


def _options_facts(options: Options | None) -> Any:
    if options is None:
        return None
    table = schema().tables.get(options.table)
    known = {} if table is None else {field.name: field for field in table.fields}
    facts = []
    for name, value in sorted(options.fields.items()):
        if name.endswith("subgraph_index") or name == "subgraph":
            continue  # the body is described instead of its number
        if name in known and known[name].type.kind == "scalar" and value == known[name].default:
            continue
        facts.append((name, _options_facts(value) if isinstance(value, Options) else value))
    return options.table, facts


def _tensor_facts(model: Model, tensor: Tensor, is_stored: bool) -> Any:
    sparse = None
    if tensor.sparsity is not None:
        data = model.buffers[tensor.buffer].data if is_stored else None
        sparse = (
            tensor.sparsity.get("block_map", ()),
            tensor.sparsity.get("traversal_order", ()),
            [dim.get("format") for dim in tensor.sparsity.get("dim_metadata", ())],
            None if data is None else len(data),
        )
    return (
        tensor.type,
        tensor.shape or (),
        tensor.is_variable,
        _quantization_facts(tensor.quantization),
        sparse,
    )


def _quantization_facts(quantization: Quantization | None) -> Any:
    """Scales' values cost nothing; per-axis or not, and zero points of 0, choose other kernels."""
    if quantization is None or not quantization.scale:
        return None
    n_scales = len(quantization.scale)
    details = quantization.details
    return (
        n_scales,
        quantization.quantized_dimension if n_scales > 1 else 0,
        not any(quantization.zero_point or ()),
        None if details is None else (details.table, details.get("block_size")),
    )


def _steering_value(model: Model, tensor: Tensor) -> bytes | None:
    integers = {enum_value("TensorType", name) for name in ("INT32", "INT64", "BOOL")}
    data = model.buffers[tensor.buffer].data
    scaled = tensor.quantization is not None and bool(tensor.quantization.scale)
    if tensor.type not in integers or scaled or data is None or len(data) > _MAX_STEERING_BYTES:
        return None
    return bytes(data)


def _has_weights(name: str) -> bool:
    """Whether integer constants of this operator can be weights or biases."""
    return (
        "CONV" in name
        or name in {"FULLY_CONNECTED", "BATCH_MATMUL", "SVDF"}
        or "LSTM" in name
        or "RNN" in name
    )
