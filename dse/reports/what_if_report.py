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
EXACT = "exact"
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
        f"What if: gain in {result.goal} if a layer took that much less, mapped anew",
        "         (unmoved: for the last of these, if the mapping stays what it is)",
        "",
    ]
    lines += _layer_table(result, worth[:MOST_ROWS], slots)
    rest = worth[MOST_ROWS:]
    if rest:
        lines.append(f"  ... and {len(rest)} more, {format_share(rest[0].gain)} and less each")
    lines += _without_gain(found, [gain for gain in found.layers if gain.gain < SMALL])
    if found.resources:
        lines += ["", *_resource_table(found.resources, result.platform)]
    return "\n".join([*lines, "", *_legend(found)])


def _without_gain(found: WhatIf, idle: Sequence[LayerGain]) -> list[str]:
    """Tell of the layers that gain nothing on their own: two that hold up two stages may together."""
    if not idle:
        return []
    sure = ", even for free" if _gap([step for gain in idle for step in gain.steps]) == EXACT else ""
    if len(idle) == len(found.layers):
        return [f"  No layer gains anything on its own{sure or ' that was found'}"]
    less = f"gain less than {SMALL:.2%} on their own".replace("%", " %")
    return [f"  {len(idle)} of {len(found.layers)} layers {less}{sure or ', as far as was found'}"]


def _legend(found: WhatIf) -> list[str]:
    """Say how sure the gains are."""
    steps = [step for layer in found.layers for step in layer.steps]
    steps += [step for resource in found.resources for step in resource.steps]
    lines = []
    if steps and all(step.gap == 0 for step in steps):
        lines.append("All exact: no mapping with one piece of the model per set of cores gains more")
    elif any(step.gap == 0 for step in steps):
        lines.append("exact: no mapping with one piece of the model per set of cores gains more")
    if any(step.gap != 0 for step in steps):
        lines.append("gap: how much better than what was found a mapping may be at most")
    if found.interrupted:
        lines.append(">: at least; the search was interrupted")
    elif not found.complete:
        lines.append(">: at least; the time was up (a longer search.time_s searches all)")
    return lines


def _layer_table(result: RunResult, gains: Sequence[LayerGain], slots: Sequence[Slot]) -> list[str]:
    if not gains:
        return []
    heads = ["on", "takes", *(f"-{step.change * 100:.0f} %" for step in gains[0].steps), "unmoved", "gap"]
    rows = [_layer_row(result, gain, slots) for gain in gains]
    if all(row[-1] == EXACT for row in rows):  # room for names; the legend says so
        heads, rows = heads[:-1], [row[:-1] for row in rows]
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
        _gap(gain.steps),
    ]


def _gap(steps: Sequence[Step]) -> str:
    """Write the largest gap, rounded up."""
    gaps = [step.gap for step in steps]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return "-"
    largest = max(known, default=0.0)
    if math.isinf(largest):
        return "no end"
    tenths = math.ceil(largest * 1000)
    return f"{tenths / 10:.1f} %" if 0 < tenths < 100 else f"{math.ceil(tenths / 10)} %" if tenths else EXACT


def _share(step: Step) -> str:
    return ("> " if step.known is Known.LEFT_OUT else "") + _percent(step.gain)


def _percent(value: float) -> str:
    if value < SMALL:
        return "0 %"
    return "no end" if math.isinf(value) else format_share(value)


def _resource_table(gains: Sequence[ResourceGain], platform: Platform) -> list[str]:
    rows = [
        (shorten(_resource_name(gain, step, platform), WIDTH - 27), _share(step), _gap([step]))
        for gain in gains
        for step in (gain.steps if gain.gain >= SMALL else gain.steps[-1:])
    ]
    head = ("more of a resource", "gain", "gap")
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(3)]
    return [
        f"   {name.ljust(widths[0])}  {share.rjust(widths[1])}  {gap.rjust(widths[2])}"
        for name, share, gap in (head, *rows)
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
        "interrupted": found.interrupted,
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
        "gap": None if step.gap is None else _finite(step.gap),
        "known": step.known.value,
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
