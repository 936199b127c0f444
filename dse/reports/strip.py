"""The layer strip: layers in order, width is cost, colour is stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dse.graph import LayerGraph
from dse.placement import PlacedLane, PlacedStage
from dse.reports.drawing import N_COLOURS, busy_ns, stage_letter, stage_numbers
from dse.results import RunResult, StageNumbers
from dse.units import format_bytes, format_ns

MAX_STRIPS = 4


@dataclass(frozen=True, slots=True)
class StripLayer:
    """A layer in the strip; ``share`` of the whole model's time."""

    share: float
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class StripRun:
    """Layers in a row that belong to one stage; ``cut`` says what crosses into it."""

    colour: int
    text: str
    share: float
    cut: str
    layers: tuple[StripLayer, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The layers of the model in order, coloured by the stages of one kind of lane."""

    title: str
    runs: tuple[StripRun, ...]


def strips(result: RunResult) -> tuple[Strip, ...]:
    """Draw the layers in order, once per kind of lane of the winner."""
    mapping = result.best.mapping
    numbers = {stage.name: stage for stage in result.best.stages}
    colours = stage_numbers(mapping)
    kinds: dict[tuple[tuple[tuple[int, ...], str], ...], list[PlacedLane]] = {}
    for lane in mapping.lanes:
        kinds.setdefault(tuple((stage.layers, stage.slot) for stage in lane.stages), []).append(lane)
    found = []
    for lanes in list(kinds.values())[:MAX_STRIPS]:
        title = " > ".join(stage.slot for stage in lanes[0].stages)
        if len(mapping.lanes) > 1:
            title = f"{len(lanes)} lanes of {title}" if len(lanes) > 1 else f"one lane of {title}"
        found.append(Strip(title, _runs(result, lanes[0], numbers, colours)))
    return tuple(found)


def _runs(
    result: RunResult, lane: PlacedLane, numbers: dict[str, StageNumbers], colours: dict[str, int]
) -> tuple[StripRun, ...]:
    graph = result.graph
    slots = {str(slot): column for column, slot in enumerate(result.costs.slots)}
    stage_of = {layer: stage for stage in lane.stages for layer in stage.layers}
    calibrated = result.costs.calibrated_ns
    costs = [
        (calibrated[layer.index][slots[stage_of[layer.index].slot]] or 0)
        if stage_of[layer.index].slot in slots
        else 0
        for layer in graph.layers
    ]
    total = max(1, sum(costs))
    groups: list[tuple[PlacedStage, list[int]]] = []
    for layer in graph.layers:
        stage = stage_of[layer.index]
        if not groups or groups[-1][0] is not stage:
            groups.append((stage, []))
        groups[-1][1].append(layer.index)
    runs: list[StripRun] = []
    for stage, layers in groups:
        measured = numbers[stage.name].measured_busy_ns is not None
        crossing = 0 if not runs else _crossing_bytes(graph, stage, layers)
        runs.append(
            StripRun(
                colour=colours[stage.name] % N_COLOURS,
                text=f"{stage_letter(colours[stage.name])} · {stage.slot} · "
                f"{format_ns(busy_ns(numbers[stage.name], measured))}",
                share=round(100 * sum(costs[layer] for layer in layers) / total, 3),
                cut=format_bytes(crossing) if crossing else "",
                layers=tuple(
                    StripLayer(
                        share=round(100 * costs[layer] / total, 3),
                        title=f"{layer}: {graph.layers[layer].op} {graph.layers[layer].name}, "
                        f"{format_ns(costs[layer])} on {stage.slot}",
                        text=graph.layers[layer].op if costs[layer] > 0.06 * total else "",
                    )
                    for layer in layers
                ),
            )
        )
    return tuple(runs)


def _crossing_bytes(graph: LayerGraph, stage: PlacedStage, layers: Sequence[int]) -> int:
    """Return the bytes that these layers of a stage get from other stages, each tensor once."""
    inside = set(stage.layers)
    needed = {
        tensor
        for layer in layers
        for tensor in graph.layers[layer].inputs
        if graph.producer.get(tensor, layer) not in inside
    }
    return sum(graph.tensors[tensor].n_bytes for tensor in needed)
