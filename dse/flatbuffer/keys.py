"""When do two layers cost the same?  Equal keys: same operators, options, shapes and types.

Values of weights do not matter; what matters of them is how many there are (sparse weights), and
small integer constants that steer an operator (axes, permutations, paddings).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from dse.flatbuffer.checks import is_constant
from dse.flatbuffer.operators import HANDLES, operator_name, operator_subgraphs, subgraph_fields
from dse.flatbuffer.records import Model, Operator, Options, Quantization, Tensor
from dse.flatbuffer.schema import enum_value, schema

# More values than this are data, not steering.
_MAX_STEERING_BYTES = 512
_KEY_DIGITS = 24


class LayerKeys:
    """Makes the keys of a model's layers.

    Parameters
    ----------
    model
        A checked model.
    stored
        Tensors of the main subgraph whose value is in the file.
    """

    def __init__(self, model: Model, stored: frozenset[int]) -> None:
        self._model = model
        self._stored = stored
        # Bodies are described by a digest: nested calls would double a description at every level.
        self._bodies: dict[int, str] = {}

    def key(self, operators: Sequence[int]) -> str:
        """Return the key of a layer: its operators in the main subgraph, the layer itself last."""
        return _digest(self._operators(0, operators, self._stored))[:_KEY_DIGITS]

    def _operators(self, subgraph_index: int, numbers: Iterable[int], stored: frozenset[int]) -> list[Any]:
        """Describe operators so that only numbering within them matters."""
        model = self._model
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
            facts.append((name, self._operator(operator, name), inputs, outputs))
        return facts

    def _operator(self, operator: Operator, name: str) -> Any:
        if name in HANDLES:  # which resource it is does not matter
            return None
        custom = operator.custom_options
        bodies = () if name == "CALL_ONCE" else operator_subgraphs(operator)
        return (
            self._model.operator_codes[operator.opcode_index].version,
            _options_facts(operator.builtin_options),
            _options_facts(operator.builtin_options_2),
            None if custom is None else hashlib.sha256(custom).hexdigest(),
            operator.mutating_variable_inputs,
            [self._body(body) for body in bodies],
        )

    def _body(self, subgraph_index: int) -> str:
        if subgraph_index not in self._bodies:
            body = self._model.subgraphs[subgraph_index]
            stored = frozenset(i for i, tensor in enumerate(body.tensors) if is_constant(self._model, tensor))
            facts = self._operators(subgraph_index, range(len(body.operators)), stored)
            self._bodies[subgraph_index] = _digest(facts)
        return self._bodies[subgraph_index]


def _digest(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _options_facts(options: Options | None) -> Any:
    if options is None:
        return None
    table = schema().tables.get(options.table)
    known = {} if table is None else {field.name: field for field in table.fields}
    facts = []
    for name, value in sorted(options.fields.items()):
        if name in subgraph_fields(options.table):
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
        _all_zero(quantization.zero_point or ()),
        None if details is None else (details.table, details.get("block_size")),
    )


def _all_zero(values: Sequence[int]) -> bool:
    if isinstance(values, memoryview):  # a long one: compare bytes, not numbers
        return not bytes(values).strip(b"\0")
    return not any(values)


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
