"""From a model file to the layer graph that the rest of the product works on."""

from __future__ import annotations

from dataclasses import replace

from dse.flatbuffer.keys import LayerKeys
from dse.flatbuffer.macs import Call, Work, operator_work
from dse.flatbuffer.networks import read_networks
from dse.flatbuffer.operators import clean, operator_name, operator_subgraphs, quantization_tensors
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.records import Model, Operator, SubGraph
from dse.flatbuffer.records import Tensor as TensorRecord
from dse.flatbuffer.sizes import dense_bytes, dtype_name
from dse.flatbuffer.state import describe
from dse.flatbuffer.structure import Structure, build_structure
from dse.graph import Layer, LayerGraph, Tensor, TensorKind

# Called bodies that run exactly once per invocation; IF and WHILE depend on data.
_RUNS_ONCE = frozenset({"CALL", "STABLEHLO_COMPOSITE"})


def build_graph(file: ModelFile) -> LayerGraph:
    """Build the layer graph of a model's main subgraph.

    Parameters
    ----------
    file
        A checked model, from ``read_model`` or ``model_from_bytes``.

    Returns
    -------
    LayerGraph
        Layers in execution order.  Control flow is one layer; operators that only prepare
        constants belong to each layer that uses them; layers that share changing state have one
        group number.
    """
    model = file.model
    main = model.subgraphs[0]
    structure = build_structure(model)
    tensors = _tensors(model, structure)
    keys = LayerKeys(model, structure.stored)
    work = _WorkCounter(model)
    networks = read_networks(model, structure.layers)
    layers = [
        _layer(model, structure, tensors, index, operators, keys.key(operators), work)
        for index, operators in enumerate(structure.layers)
    ]
    for network in networks:
        for index in network.layers:
            if not layers[index].outputs:  # all others are named after a tensor of the network
                layers[index] = replace(layers[index], name=f"{network.name}/{layers[index].name}")
    return LayerGraph(
        name=file.name,
        layers=tuple(layers),
        tensors=tensors,
        inputs=tuple(dict.fromkeys(main.inputs)),
        outputs=tuple(dict.fromkeys(main.outputs)),
        stateful=structure.stateful,
        shared=_shared(model, structure, tensors),
        networks=networks,
    )


def _shared(model: Model, structure: Structure, tensors: tuple[Tensor, ...]) -> tuple[str, ...]:
    """Say what each group of layers shares."""
    main = model.subgraphs[0]
    found = []
    for group, resources in enumerate(structure.shared):
        words = [describe(resource) for resource in sorted(resources)]
        used = {
            index
            for operators, number in zip(structure.layers, structure.groups, strict=True)
            if number == group
            for index in main.operators[operators[-1]].inputs
            if index >= 0 and main.tensors[index].is_variable
        }
        words += [f"state tensor {tensors[index].name!r}" for index in sorted(used)]
        found.append(", ".join(words) or "a resource handle")
    return tuple(found)


def resolved_shape(tensor: TensorRecord) -> tuple[int, ...]:
    """Return a tensor's shape with 1 for what is only known at run time."""
    return tuple(1 if dim < 0 else dim for dim in tensor.shape or ())


def is_dynamic(tensor: TensorRecord) -> bool:
    """Whether some dimension is only known at run time."""
    return any(dim < 0 for dim in (*(tensor.shape_signature or ()), *(tensor.shape or ())))


def _tensors(model: Model, structure: Structure) -> tuple[Tensor, ...]:
    main = model.subgraphs[0]
    inputs = set(main.inputs)
    made = inputs.union(*(operator.outputs for operator in main.operators))
    return tuple(
        Tensor(
            index=index,
            name=clean(tensor.name or "") or f"tensor_{index}",
            dtype=dtype_name(tensor.type),
            shape=resolved_shape(tensor),
            n_bytes=_size(model, tensor, index in structure.stored),
            kind=_kind(tensor, index, inputs, made, structure),
            dynamic=is_dynamic(tensor),
        )
        for index, tensor in enumerate(main.tensors)
    )


def _kind(
    tensor: TensorRecord, index: int, inputs: set[int], made: set[int], structure: Structure
) -> TensorKind:
    if tensor.is_variable:
        return "variable"
    if index in inputs:
        return "input"
    if index in structure.stored or index in structure.prepared or index not in made:
        return "constant"
    return "activation"


def _size(model: Model, tensor: TensorRecord, is_stored: bool) -> int:
    dense = dense_bytes(dtype_name(tensor.type), resolved_shape(tensor))
    data = model.buffers[tensor.buffer].data
    if is_stored and data is not None and (dense is None or tensor.sparsity is not None):
        return len(data)
    return dense or 0


def _layer(
    model: Model,
    structure: Structure,
    tensors: tuple[Tensor, ...],
    index: int,
    operators: tuple[int, ...],
    key: str,
    counter: _WorkCounter,
) -> Layer:
    main = model.subgraphs[0]
    operator = main.operators[operators[-1]]
    name = structure.names[operators[-1]]
    outputs = tuple(dict.fromkeys(i for i in operator.outputs if i >= 0))
    constants = sorted(_shipped(model, structure, operators))
    work = counter.work(main, operator)
    return Layer(
        index=index,
        name=tensors[outputs[0]].name if outputs else f"{name.lower()}_{operators[-1]}",
        op=name,
        operators=operators,
        inputs=tuple(
            dict.fromkeys(i for i in operator.inputs if i >= 0 and tensors[i].kind in {"input", "activation"})
        ),
        outputs=outputs,
        constants=tuple(constants),
        macs=work.macs,
        element_ops=work.element_ops,
        weight_bytes=sum(tensors[i].n_bytes for i in constants),
        key=key,
        group=structure.groups[index],
    )


def _shipped(model: Model, structure: Structure, operators: tuple[int, ...]) -> set[int]:
    """Return the constants with data that operators use, also as scales of other constants."""
    main = model.subgraphs[0]
    used = {i for number in operators for i in main.operators[number].inputs if i in structure.stored}
    used |= {scale for i in used for _, scale in quantization_tensors(main.tensors[i])}
    return {i for i in used if i in structure.stored and model.buffers[main.tensors[i].buffer].data}


class _WorkCounter:
    """Counts the arithmetic of operators; bodies that are called are counted once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._bodies: dict[int, Work] = {}

    def work(self, subgraph: SubGraph, operator: Operator) -> Work:
        name = operator_name(self._model, operator)
        if name in _RUNS_ONCE:
            return self._body(operator_subgraphs(operator)[0])
        tensors = subgraph.tensors
        return operator_work(
            Call(
                name=name,
                options=operator.builtin_options or operator.builtin_options_2,
                inputs=tuple(None if i < 0 else resolved_shape(tensors[i]) for i in operator.inputs),
                outputs=tuple(resolved_shape(tensors[i]) for i in operator.outputs if i >= 0),
            )
        )

    def _body(self, index: int) -> Work:
        if index not in self._bodies:
            body = self._model.subgraphs[index]
            works = [self.work(body, operator) for operator in body.operators]
            macs = [work.macs for work in works if work.macs is not None]
            element_ops = [work.element_ops for work in works if work.element_ops is not None]
            self._bodies[index] = Work(
                sum(macs) if len(macs) == len(works) else None,
                sum(element_ops) if len(element_ops) == len(works) else None,
            )
        return self._bodies[index]
