"""The layers and resources that are worth most: a table of at most 80 columns, and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dse.graph import LayerGraph
from dse.platforms import Platform, Slot
from dse.reports.console import WIDTH, shorten
from dse.reports.wording import format_share
from dse.results import RunResult
from dse.units import format_ns
from solvers.what_if import Known, LayerGain, Resource, ResourceGain, Step, WhatIf

MOST_ROWS = 12
SMALL = 5e-4
"""Gains below are shown as none: they would read +0.0 %."""


def what_if_text(result: RunResult, found: WhatIf, slots: Sequence[Slot]) -> str:
    """Write the tables of layers and resources, best first.

    Parameters
    ----------
    result
        The search that the gains are over.
    found
        The gains.
    slots
        Of the problem, in the platform's terms.
    """
    worth = [gain for gain in found.layers if gain.gain >= SMALL]
    lines = [
        f"What if: gain in {result.goal} if a layer took that much less, searched again",
        "         (unmoved: for the last of these, if the mapping stays what it is)",
        "",
    ]
    lines += _layer_table(result, worth[:MOST_ROWS], slots)
    rest = worth[MOST_ROWS:]
    if rest:
        lines.append(f"  ... and {len(rest)} more, {format_share(rest[0].gain)} and less each")
    n_idle = len(found.layers) - len(worth)
    if n_idle and worth:
        lines.append(f"  {n_idle} of {len(found.layers)} layers gain nothing, even for free")
    elif n_idle:
        lines.append("  No layer gains anything, even for free")
    if found.resources:
        lines += ["", *_resource_table(found.resources, result.platform)]
    if not found.complete:
        lines += ["", ">: at least; the time was up (a longer search.time_s searches all)"]
    return "\n".join(lines)


def _layer_table(result: RunResult, gains: Sequence[LayerGain], slots: Sequence[Slot]) -> list[str]:
    if not gains:
        return []
    heads = ["on", "takes", *(f"-{step.change * 100:.0f} %" for step in gains[0].steps), "unmoved"]
    rows = [_layer_row(result, gain, slots) for gain in gains]
    widths = [max(len(head), *(len(row[n]) for row in rows)) for n, head in enumerate(heads)]
    room = WIDTH - 3 - sum(width + 2 for width in widths)
    names = [_layer_name(result.graph, gain.layer) for gain in gains]
    first = min(room, max(len("layer"), *map(len, names)))

    def line(name: str, cells: Sequence[str]) -> str:
        texts = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:]))]
        return "  ".join([f"   {shorten(name, first).ljust(first)}", *texts]).rstrip()

    return [line("layer", heads), *(line(n, row) for n, row in zip(names, rows))]


def _layer_name(graph: LayerGraph, index: int) -> str:
    return f"{index} {graph.layers[index].name}"


def _layer_row(result: RunResult, gain: LayerGain, slots: Sequence[Slot]) -> list[str]:
    table = result.costs.calibrated_ns
    names = [slots[slot] for slot in gain.slots]
    costs = [table[gain.layer][result.costs.slots.index(slot)] for slot in names]
    known = [cost for cost in costs if cost is not None]
    return [
        shorten(", ".join(map(str, names)), 16),
        format_ns(max(known)) if known else "-",
        *(_share(step) for step in gain.steps),
        _percent(gain.steps[-1].same_mapping),
    ]


def _share(step: Step) -> str:
    return ("> " if step.known is Known.LEFT_OUT else "") + _percent(step.gain)


def _percent(value: float) -> str:
    if value < SMALL:
        return "0 %"
    return "no end" if math.isinf(value) else format_share(value)


def _resource_table(gains: Sequence[ResourceGain], platform: Platform) -> list[str]:
    rows = [
        (_resource_name(gain, step, platform), _share(step))
        for gain in gains
        for step in (gain.steps if gain.gain >= SMALL else gain.steps[-1:])
    ]
    width = max(len(name) for name, _ in rows)
    return [
        "   more of a resource",
        *(f"   {shorten(name, WIDTH - 15).ljust(min(width, WIDTH - 15))}  {share}" for name, share in rows),
    ]


def _resource_name(gain: ResourceGain, step: Step, platform: Platform) -> str:
    cluster = None if gain.cluster is None else platform.clusters[gain.cluster].name
    if gain.resource is Resource.CORE:
        return f"{step.change:.0f} more core of {cluster}"
    memory = "memory in all" if cluster is None else f"memory of {cluster}"
    return f"{memory} without limit" if math.isinf(step.change) else f"{memory} times {step.change:g}"


def what_if_json(result: RunResult, found: WhatIf, slots: Sequence[Slot]) -> dict[str, Any]:
    """Return the gains for machines; what has no end (no limit, infinite gain) is null.

    Parameters
    ----------
    result, found, slots
        As for ``what_if_text``.
    """
    return {
        "goal": result.goal,
        "complete": found.complete,
        "n_searches": found.n_searches,
        "layers": [
            {
                "layer": gain.layer,
                "name": result.graph.layers[gain.layer].name,
                "slots": [str(slots[slot]) for slot in gain.slots],
                "steps": [_step_json("cheaper_by", step) for step in gain.steps],
            }
            for gain in found.layers
        ],
        "resources": [
            {
                "resource": gain.resource.value,
                "cluster": None if gain.cluster is None else result.platform.clusters[gain.cluster].name,
                "steps": [
                    _step_json("more" if gain.resource is Resource.CORE else "times", step)
                    for step in gain.steps
                ],
            }
            for gain in found.resources
        ],
    }


def _step_json(change: str, step: Step) -> dict[str, Any]:
    return {
        change: _finite(step.change),
        "gain": _finite(step.gain),
        "same_mapping_gain": _finite(step.same_mapping),
        "at_most": None if step.at_most is None else _finite(step.at_most),
        "known": step.known.value,
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
