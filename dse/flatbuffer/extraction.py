"""A part of a model as a valid, minimal model: only what it needs, everything renumbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dse.flatbuffer.operators import operator_subgraphs, quantization_tensors, renumber_subgraphs
from dse.flatbuffer.records import (
    Buffer,
    Metadata,
    Model,
    Operator,
    OperatorCode,
    Options,
    SignatureDef,
    SubGraph,
    Tensor,
    TensorMap,
)
from dse.flatbuffer.state import Resource, is_initialiser, operator_effects

STAGE_SIGNATURE = "stage"
# Metadata that describe the runtime or the converter, not the inputs and outputs.
_KEPT_METADATA = frozenset({"min_runtime_version", "CONVERSION_METADATA"})

NamedTensor = tuple[int, str]


def minimal_model(
    model: Model, operators: Iterable[int], inputs: Sequence[NamedTensor], outputs: Sequence[NamedTensor]
) -> Model:
    """Return a model of some operators of the main subgraph.

    Parameters
    ----------
    model
        The whole, checked model.
    operators
        Operator indices; repeats are dropped and execution order is restored.
    inputs, outputs
        Tensors of the part with their names for the ``stage`` signature, in order.

    Notes
    -----
    Kept: names, operator versions, quantisation, sparsity, the runtime version that the file asks
    for, and each signature all of whose tensors are there.  Renumbered: tensors (also where operators or
    blockwise quantisation refer to them), buffers, operator codes, subgraphs, signatures.
    """
    numbers = sorted(set(operators))
    taken, given = [tensor for tensor, _ in inputs], [tensor for tensor, _ in outputs]
    main = _trim(model.subgraphs[0], numbers, taken, given)
    bodies, body_numbers = _bodies(model, numbers)
    kept = _Renumbering(model, body_numbers)
    subgraphs = [kept.subgraph(subgraph) for subgraph in (main, *bodies)]
    tensor_numbers = _tensor_numbers(model.subgraphs[0], numbers, taken, given)
    metadata = tuple(
        Metadata(entry.name, kept.buffer(entry.buffer))
        for entry in model.metadata
        if entry.name in _KEPT_METADATA
    )
    stage = SignatureDef(
        inputs=tuple(TensorMap(name, tensor_numbers[tensor]) for tensor, name in inputs),
        outputs=tuple(TensorMap(name, tensor_numbers[tensor]) for tensor, name in outputs),
        signature_key=STAGE_SIGNATURE,
    )
    return Model(
        subgraphs=tuple(subgraphs),
        operator_codes=tuple(kept.operator_codes),
        buffers=tuple(kept.buffers),
        description=model.description,
        version=model.version,
        metadata=metadata,
        signature_defs=(stage, *_signatures(model, tensor_numbers, set(taken), set(given))),
        unknown=model.unknown,
    )


class _Renumbering:
    """New numbers of buffers and operator codes, given out at first use."""

    def __init__(self, model: Model, subgraph_numbers: dict[int, int]) -> None:
        self.buffers: list[Buffer] = [Buffer()]
        self.operator_codes: list[OperatorCode] = []
        self._model = model
        self._subgraphs = subgraph_numbers
        self._buffer_numbers: dict[int, int] = {}
        self._code_numbers: dict[int, int] = {}

    def buffer(self, old: int) -> int:
        """Return a buffer's new number; all buffers without data become buffer 0."""
        buffer = self._model.buffers[old]
        if buffer.data is None and not buffer.unknown:
            return 0
        if old not in self._buffer_numbers:
            self._buffer_numbers[old] = len(self.buffers)
            self.buffers.append(buffer)
        return self._buffer_numbers[old]

    def subgraph(self, subgraph: SubGraph) -> SubGraph:
        """Renumber what a subgraph refers to outside itself."""
        return replace(
            subgraph,
            tensors=tuple(replace(t, buffer=self.buffer(t.buffer)) for t in subgraph.tensors),
            operators=tuple(self._operator(operator) for operator in subgraph.operators),
            # Points into a metadata buffer that describes the whole model.
            debug_metadata_index=-1,
        )

    def _operator(self, operator: Operator) -> Operator:
        old = operator.opcode_index
        if old not in self._code_numbers:
            self._code_numbers[old] = len(self.operator_codes)
            self.operator_codes.append(self._model.operator_codes[old])
        return replace(
            operator,
            opcode_index=self._code_numbers[old],
            builtin_options=renumber_subgraphs(operator.builtin_options, self._subgraphs),
            builtin_options_2=renumber_subgraphs(operator.builtin_options_2, self._subgraphs),
            debug_metadata_index=-1,
        )


def _bodies(model: Model, numbers: Sequence[int]) -> tuple[list[SubGraph], dict[int, int]]:
    """Return the subgraphs that the operators run, and their new numbers.

    Initialisers are cut down to the resources that the part uses.
    """
    main = model.subgraphs[0]
    if not any(operator_subgraphs(main.operators[n]) for n in numbers):
        return [], {}
    effects = operator_effects(model)
    initialisers = {n for n in numbers if is_initialiser(model, main.operators[n])}
    touched = frozenset().union(
        *(effects[n].reads | effects[n].writes for n in numbers if n not in initialisers)
    )
    trimmed = {body for n in initialisers for body in operator_subgraphs(main.operators[n])}
    reached: set[int] = set()
    waiting = [body for n in numbers for body in operator_subgraphs(main.operators[n])]
    while waiting:
        body = waiting.pop()
        if body not in reached:
            reached.add(body)
            for operator in model.subgraphs[body].operators:
                waiting += operator_subgraphs(operator)
    found: list[SubGraph] = []
    body_numbers: dict[int, int] = {}
    for body in sorted(reached):
        body_numbers[body] = len(found) + 1
        subgraph = model.subgraphs[body]
        found.append(_initialiser_for(model, body, touched) if body in trimmed else subgraph)
    return found, body_numbers


def _initialiser_for(model: Model, body: int, resources: frozenset[Resource]) -> SubGraph:
    subgraph = model.subgraphs[body]
    effects = operator_effects(model, body)
    maker = {index: n for n, operator in enumerate(subgraph.operators) for index in operator.outputs}
    kept = {n for n in range(len(subgraph.operators)) if effects[n].writes & resources}
    waiting = list(kept)
    while waiting:
        for index in subgraph.operators[waiting.pop()].inputs:
            if index in maker and maker[index] not in kept:
                kept.add(maker[index])
                waiting.append(maker[index])
    return _trim(subgraph, sorted(kept), [], [])


def _tensor_numbers(
    subgraph: SubGraph, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]
) -> dict[int, int]:
    """Return new numbers of the tensors that are needed, in the old order."""
    needed = {*inputs, *outputs}
    for number in operators:
        operator = subgraph.operators[number]
        needed.update(operator.inputs, operator.outputs, operator.intermediates or ())
    for index in [index for index in needed if index >= 0]:
        needed.update(index for _, index in quantization_tensors(subgraph.tensors[index]))
    return {old: new for new, old in enumerate(sorted(index for index in needed if index >= 0))}


def _trim(
    subgraph: SubGraph, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]
) -> SubGraph:
    """Keep some operators and their tensors."""
    numbers = _tensor_numbers(subgraph, operators, inputs, outputs)
    # Left-out optional tensors stay -1.
    numbers[-1] = -1
    return replace(
        subgraph,
        tensors=tuple(_tensor(subgraph.tensors[old], numbers) for old in numbers if old >= 0),
        inputs=tuple(numbers[index] for index in inputs),
        outputs=tuple(numbers[index] for index in outputs),
        operators=tuple(
            replace(
                operator,
                inputs=tuple(numbers[index] for index in operator.inputs),
                outputs=tuple(numbers[index] for index in operator.outputs),
                intermediates=None
                if operator.intermediates is None
                else tuple(numbers[index] for index in operator.intermediates),
            )
            for operator in (subgraph.operators[number] for number in operators)
        ),
    )


def _tensor(tensor: Tensor, numbers: dict[int, int]) -> Tensor:
    named = quantization_tensors(tensor)
    quantization = tensor.quantization
    if not named or quantization is None or quantization.details is None:
        return tensor
    fields = dict(quantization.details.fields)
    fields.update((name, numbers[index]) for name, index in named)
    details = Options(quantization.details.table, fields)
    return replace(tensor, quantization=replace(quantization, details=details))


def _signatures(
    model: Model, numbers: dict[int, int], inputs: set[int], outputs: set[int]
) -> list[SignatureDef]:
    """Return the model's signatures all of whose tensors go in and out of the part."""
    found = []
    for signature in model.signature_defs:
        applies = (
            signature.subgraph_index == 0
            and signature.signature_key != STAGE_SIGNATURE
            and {entry.tensor_index for entry in signature.inputs} == inputs
            and {entry.tensor_index for entry in signature.outputs} == outputs
        )
        if applies:
            found.append(
                replace(
                    signature,
                    inputs=_renamed(signature.inputs, numbers),
                    outputs=_renamed(signature.outputs, numbers),
                )
            )
    return found


def _renamed(maps: Sequence[TensorMap], numbers: dict[int, int]) -> tuple[TensorMap, ...]:
    return tuple(TensorMap(entry.name, numbers[entry.tensor_index]) for entry in maps)
