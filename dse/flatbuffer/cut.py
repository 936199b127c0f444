"""Cutting a model into stages that are models of their own, and saying when that can not be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dse.errors import CutError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.extraction import minimal_model
from dse.flatbuffer.manifest import manifest
from dse.flatbuffer.positions import group_members, possible_cuts, stages_at
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.stages import SplitModel, StageModel, StageTensor
from dse.graph import LayerGraph

__all__ = [
    "SplitModel",
    "StageModel",
    "StageTensor",
    "check_cut",
    "extract",
    "group_members",
    "live_tensors",
    "manifest",
    "possible_cuts",
    "split",
    "stages_at",
    "tensor_names",
]

# Custom operators that stand for a model compiled for one accelerator.
COMPILED_OPERATORS = {
    "CUSTOM:edgetpu-custom-op": "the Edge TPU",
    "CUSTOM:ethos-u": "an Arm Ethos-U",
    "CUSTOM:DISPATCH_OP": "an accelerator, ahead of time",
}
_N_NEAREST = 2
_MAX_NAME = 48


def extract(
    file: ModelFile, graph: LayerGraph, layers: Sequence[int], *, name: str = "", also: Sequence[int] = ()
) -> StageModel:
    """Make a model of some layers, with everything they need and nothing else.

    Parameters
    ----------
    file, graph
        The whole model.
    layers
        Layer indices, in any order.
    name
        Name of the stage; by default of its layers.
    also
        Tensors made inside that are to come out although nothing outside uses them: to look at.

    Raises
    ------
    CutError
        A layer is not there or named twice, or a tensor of ``also`` is not made by these layers.
    ModelError
        The part uses something that can not be written.

    Notes
    -----
    The part need not be convex: running it as a stage of a pipeline is what ``check_cut`` guards.
    """
    _check_layers(graph, layers)
    chosen = tuple(sorted(layers))
    inputs, outputs = live_tensors(graph, chosen)
    for tensor in also:
        if graph.producer.get(tensor) not in chosen:
            raise CutError(f"tensor {graph.tensors[tensor].name!r} is not made by the chosen layers")
    outputs = tuple(dict.fromkeys((*outputs, *also)))
    names = tensor_names(graph)
    model = minimal_model(
        file.model,
        [number for layer in chosen for number in graph.layers[layer].operators],
        [(tensor, names[tensor]) for tensor in inputs],
        [(tensor, names[tensor]) for tensor in outputs],
    )
    default = f"layer_{chosen[0]}" if len(chosen) == 1 else f"layers_{chosen[0]}_{chosen[-1]}"
    return StageModel(
        name=name or default,
        layers=chosen,
        inputs=_stage_tensors(graph, inputs, names),
        outputs=_stage_tensors(graph, outputs, names),
        data=encode(model),
    )


def split(file: ModelFile, graph: LayerGraph, stages: Sequence[Sequence[int]]) -> SplitModel:
    """Cut a model into stages.

    Parameters
    ----------
    stages
        Layer indices of each stage; together every layer exactly once.

    Raises
    ------
    CutError
        The cut is not possible; the message says why and what is.
    """
    check_cut(graph, stages)
    names = tensor_names(graph)
    return SplitModel(
        name=graph.name,
        stages=tuple(
            extract(file, graph, layers, name=f"stage_{number}") for number, layers in enumerate(stages)
        ),
        inputs=_stage_tensors(graph, graph.inputs, names),
        outputs=_stage_tensors(graph, graph.outputs, names),
    )


def live_tensors(graph: LayerGraph, layers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tensors that a stage takes in and gives out.

    Notes
    -----
    Model outputs that no layer makes (constants, or inputs handed through) come out of the stage
    with the last layer, so that every model output comes out of exactly one stage.
    """
    inside = set(layers)
    made = {tensor for layer in layers for tensor in graph.layers[layer].outputs}
    used = {tensor for layer in layers for tensor in graph.layers[layer].inputs}
    unmade = set()
    if graph.layers and len(graph.layers) - 1 in inside:
        unmade = {tensor for tensor in graph.outputs if tensor not in graph.producer}
    needed = (used - made) | {tensor for tensor in unmade if graph.tensors[tensor].kind == "input"}
    leaving = {
        tensor
        for tensor in made
        if tensor in graph.outputs or any(user not in inside for user in graph.consumers.get(tensor, ()))
    } | unmade
    return _ordered(graph, needed, graph.inputs), _ordered(graph, leaving, graph.outputs)


def tensor_names(graph: LayerGraph) -> dict[int, str]:
    """Return a name for every tensor that can cross a cut, unique over the model."""
    crossing = [tensor for tensor in graph.tensors if tensor.index in graph.producer]
    crossing += [graph.tensors[index] for index in (*graph.inputs, *graph.outputs)]
    by_name: dict[str, set[int]] = {}
    for tensor in crossing:
        by_name.setdefault(tensor.name, set()).add(tensor.index)
    return {
        tensor.index: tensor.name if len(by_name[tensor.name]) == 1 else f"{tensor.name}#{tensor.index}"
        for tensor in crossing
    }


def check_cut(graph: LayerGraph, stages: Sequence[Sequence[int]]) -> None:
    """Check that stages can be made and run one after the other.

    Raises
    ------
    CutError
        A layer is missing, twice or unknown, a stage is empty, state would be parted, stages would
        wait for each other, or the model is compiled.  The message names the nearest cuts that are
        possible.
    """
    for number, layers in enumerate(stages):
        if not layers:
            raise CutError(f"stage {number} has no layers; every stage needs at least one")
    _check_layers(graph, [layer for layers in stages for layer in layers])
    stage_of = {layer: number for number, layers in enumerate(stages) for layer in layers}
    missing = [layer for layer in range(len(graph.layers)) if layer not in stage_of]
    if missing:
        raise CutError(f"{_layers_text(graph, missing)} in no stage; every layer must be in exactly one")
    if len(stages) > 1:
        _check_compiled(graph)
    _check_groups(graph, stage_of)
    _check_order(graph, stages, stage_of)


def _check_layers(graph: LayerGraph, layers: Sequence[int]) -> None:
    if not layers:
        raise CutError("no layers were chosen")
    seen: set[int] = set()
    for layer in layers:
        if not 0 <= layer < len(graph.layers):
            raise CutError(f"there is no layer {layer}; {graph.name} has layers 0 to {len(graph.layers) - 1}")
        if layer in seen:
            raise CutError(f"layer {layer} ({graph.layers[layer].name!r}) is in the cut twice")
        seen.add(layer)


def _check_compiled(graph: LayerGraph) -> None:
    for layer in graph.layers:
        target = COMPILED_OPERATORS.get(layer.op)
        if target is not None:
            raise CutError(
                f"{graph.name} is already compiled for {target} (operator {layer.op!r}): what is inside "
                "can not be cut; start from the model before compilation"
            )


def _check_groups(graph: LayerGraph, stage_of: dict[int, int]) -> None:
    # The shortest reach first: readers of a wider one could often move, see ``positions``.
    for group, layers in sorted(group_members(graph).items(), key=lambda item: item[1][-1] - item[1][0]):
        stages = sorted({stage_of[layer] for layer in layers})
        if len(stages) > 1:
            what = graph.shared[group] if group < len(graph.shared) else "state"
            listed = ", ".join(str(layer) for layer in layers)
            border = min(layer for layer, stage in stage_of.items() if stage == stages[1])
            raise CutError(
                f"layers {listed} share {what} and must be in one stage, but are in stages "
                f"{', '.join(map(str, stages))}{_nearest(graph, border)}"
            )


def _check_order(graph: LayerGraph, stages: Sequence[Sequence[int]], stage_of: dict[int, int]) -> None:
    """Look for a circle by taking away stages that wait for nothing."""
    waits: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in range(len(stages))}
    for producer, user in graph.edges:
        if stage_of[producer] != stage_of[user]:
            waits[stage_of[user]].setdefault(stage_of[producer], (producer, user))
    left = set(waits)
    while ready := {number for number in left if left.isdisjoint(waits[number])}:
        left -= ready
    if not left:
        return
    # Every stage that is left waits for another one that is left: walk until one comes again.
    walk = [min(left)]
    while walk.count(walk[-1]) == 1:
        walk.append(min(number for number in waits[walk[-1]] if number in left))
    circle = walk[walk.index(walk[-1]) :]
    reasons = [
        "stage {} waits for stage {} (layer {} uses layer {})".format(
            user, maker, *reversed(waits[user][maker])
        )
        for user, maker in pairwise(circle)
    ]
    raise CutError(
        f"the stages wait for each other, so none can start: {', '.join(reasons)}; "
        "move one of these layers into the other's stage"
    )


def _nearest(graph: LayerGraph, border: int) -> str:
    positions = possible_cuts(graph)
    before = [position for position in positions if position < border][-_N_NEAREST:]
    after = [position for position in positions if position > border][:_N_NEAREST]
    if not before + after:
        return "; this model can not be cut at any position of its order"
    words = [
        f"after layer {position - 1} ({_short(graph.layers[position - 1].name)!r})"
        for position in before + after
    ]
    return f"; the nearest possible cuts are {', '.join(words)}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."


def _layers_text(graph: LayerGraph, layers: Sequence[int]) -> str:
    shown = ", ".join(f"{layer} ({graph.layers[layer].name!r})" for layer in layers[:3])
    more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    return f"layer {shown}{more} is" if len(layers) == 1 else f"layers {shown}{more} are"


def _ordered(graph: LayerGraph, wanted: set[int], first: Sequence[int]) -> tuple[int, ...]:
    leading = [tensor for tensor in first if tensor in wanted]
    made = [tensor for layer in graph.layers for tensor in layer.outputs if tensor in wanted]
    return tuple(dict.fromkeys(leading + made + sorted(wanted)))


def _stage_tensors(
    graph: LayerGraph, tensors: Sequence[int], names: dict[int, str]
) -> tuple[StageTensor, ...]:
    found = [graph.tensors[index] for index in tensors]
    return tuple(StageTensor(t.index, names[t.index], t.dtype, t.shape, t.n_bytes) for t in found)
