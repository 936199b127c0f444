"""A cost table on a terminal: totals of every slot, and the layers that cost most."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dse.costs import CostTable
from dse.elsewhere import elsewhere
from dse.graph import LayerGraph
from dse.platforms import Slot
from dse.reports.console import WIDTH, shorten
from dse.units import format_bytes, format_ns

MAX_LAYERS = 15
MAX_SLOTS = 5
HOW = {"in_situ": "in", "extracted": "ex", "imported": "im", "analytic": "an", "learned": "le"}
MAX_ELSEWHERE = 8


def costs_text(graph: LayerGraph, costs: CostTable, *, every: bool = False) -> str:
    """Write totals per slot and the costliest layers (or ``every`` layer): at most 80 columns."""
    columns = shown_slots(costs.slots)
    measured = "measured" if costs.measured else "predicted"
    lines = [
        shorten(f"{graph.name} on {costs.platform_name}: {len(graph.layers)} layers, {measured}", WIDTH),
        "",
        *_totals(costs),
        *elsewhere_lines(costs),
        "",
        *trust_lines(costs),
    ]
    numbers = list(range(len(graph.layers)))
    if not every and len(numbers) > MAX_LAYERS:
        numbers = sorted(numbers, key=lambda n: -_largest(costs, n))[:MAX_LAYERS]
        lines.append(f"the {MAX_LAYERS} costliest layers (--layers shows all {len(graph.layers)}):")
    heads = [shorten(str(costs.slots[column]), 9) for column in columns]
    room = WIDTH - 9 - 10 * len(columns)
    lines.append(f"{'layer':>5}    {'operator, name':<{room}}" + "".join(f"{head:>10}" for head in heads))
    for number in numbers:
        layer = graph.layers[number]
        cells = [costs.costs[number][column].median_ns for column in columns]
        texts = ["-" if cell is None else format_ns(cell) for cell in cells]
        name = shorten(f"{layer.op} {layer.name}", room)
        how = {HOW[cost.source] for cost in costs.costs[number] if cost.median_ns is not None}
        mark = next(iter(how)) if len(how) == 1 else "*" if how else "-"
        lines.append(f"{number:>5} {mark:<2} {name:<{room}}" + "".join(f"{text:>10}" for text in texts))
    lines.append(_legend(costs))
    hidden = len(costs.slots) - len(columns)
    if hidden:
        lines.append(f"{hidden} more slots are in the cost table (--output FILE or --json)")
    lines += _stages(costs)
    return "\n".join(line.rstrip() for line in lines)


def _legend(costs: CostTable) -> str:
    words = {
        "in_situ": "in: inside the whole model",
        "extracted": "ex: as a model of its own",
        "imported": "im: imported",
        "analytic": "an: predicted from peaks",
        "learned": "le: learned from examples",
    }
    used = dict.fromkeys(c.source for row in costs.costs for c in row if c.median_ns is not None)
    return "; ".join(words[source] for source in used) + ("; *: differs by slot" if len(used) > 1 else "")


def _stages(costs: CostTable) -> list[str]:
    """Return a line per measured stage, beside the sum of its layers."""
    if not costs.stages:
        return []
    lines = [
        "",
        f"{'measured as one stage':<24} {'time':>9} {'within':>7} {'its layers':>11} {'weights':>9} "
        f"{'arena':>8} {'peak RSS':>9}",
    ]
    for stage in costs.stages:
        slot = costs.slots.index(stage.slot) if stage.slot in costs.slots else None
        medians = [] if slot is None else [costs.calibrated_ns[layer][slot] for layer in stage.layers]
        total = None if slot is None or None in medians else sum(value or 0 for value in medians)
        text = f"{stage.layers[0]}:{stage.layers[-1]} on {stage.slot}{' *' if stage.under_load else ''}"
        if stage.median_ns is None:
            lines.append(shorten(f"{text}: not supported: {stage.reason}", WIDTH))
            continue
        low, high = stage.interval_ns or (0, 0)
        within = f"{(high - low) / (2 * stage.median_ns):.1%}" if stage.interval_ns else "?"
        lines.append(
            f"{shorten(text, 24):<24} {format_ns(stage.median_ns):>9} {within:>7} "
            f"{'-' if total is None or slot is None else format_ns(total + costs.overhead_ns[slot]):>11} "
            f"{format_bytes(stage.weight_bytes):>9} {format_bytes(stage.arena_bytes):>8} "
            f"{'?' if stage.peak_rss_bytes is None else format_bytes(stage.peak_rss_bytes):>9}"
        )
    if any(stage.under_load for stage in costs.stages):
        lines.append("*: in a running pipeline, while other cores worked")
    return lines


def _load_text(costs: CostTable) -> str:
    """Say how much more layers cost under load, by cluster: ``1.3 times as much on big``."""
    sums: dict[str, list[int]] = {}
    for row, busy_row in zip(costs.calibrated_ns, costs.loaded_ns or (), strict=True):
        for slot, alone, busy in zip(costs.slots, row, busy_row, strict=True):
            if alone is not None and busy is not None:
                total = sums.setdefault(slot.cluster, [0, 0])
                total[0] += alone
                total[1] += busy
    told = [f"{busy / alone:.2f} times on {name}" for name, (alone, busy) in sums.items() if alone]
    return ", ".join(told)


def trust_lines(costs: CostTable) -> list[str]:
    """Return how the numbers came about and how far to trust them; at most 80 columns."""
    conditions = costs.conditions
    sources: dict[str, int] = {}
    for row in costs.costs:
        for cost in row:
            if cost.median_ns is not None:
                sources[cost.source] = sources.get(cost.source, 0) + 1
    names = {"in_situ": "inside the whole model", "extracted": "as models of their own"}
    total = sum(sources.values())
    told = [f"{names.get(source, source)} {n / total:.0%}" for source, n in sorted(sources.items())]
    lines = [f"layers timed or predicted: {', '.join(told)}"] if told else []
    if costs.loaded_ns is not None:
        lines.append(f"under load (all other cores busy) layers cost {_load_text(costs)}")
    if conditions.get("emulated"):
        lines.append("the unlike cores of this platform are emulated")
    precision = conditions.get("precision")
    if precision:
        lines.append(
            f"within {precision['asked']:.0%}: {precision['n_within']} of {precision['n_measured']} costs"
            + ("" if precision["median"] is None else f" (median {precision['median']:.1%})")
            + f"; stopped by {precision['stopped_by']}"
        )
    reused = conditions.get("reused")
    if reused:
        slots = ", ".join(f"{n} layers on {slot}" for slot, n in reused["layers"].items())
        lines.append(f"reused, not measured now: {slots or 'nothing'}")
    if conditions.get("n_disturbed_visits"):
        lines.append(
            f"disturbed: {conditions['n_disturbed_visits']} of {conditions['n_visits']} visits;"
            " where too few were calm, the fastest third of all counts"
        )
    machine = conditions.get("machine") or {}
    lines += [f"warning: {warning}" for warning in machine.get("warnings", ())]
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]
    return [*wrapped, ""] if wrapped else []


def elsewhere_lines(costs: CostTable, most: int = MAX_ELSEWHERE) -> list[str]:
    """Return what a slot does not run and what ran elsewhere, with reasons; at most 80 columns."""
    entries = elsewhere(costs)
    lines = [shorten(str(entry), WIDTH * 2) for entry in entries[:most]]
    if len(entries) > most:
        lines.append(f"{len(entries) - most} more reasons are in the cost table (--output FILE or --json)")
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def shown_slots(slots: Sequence[Slot]) -> list[int]:
    """Return at most five columns: the fewest and the most threads of each cluster first."""
    ends: list[int] = []
    for cluster in dict.fromkeys(slot.cluster for slot in slots):
        own = [number for number, slot in enumerate(slots) if slot.cluster == cluster]
        ends += list(dict.fromkeys((own[0], own[-1])))
    rest = [number for number in range(len(slots)) if number not in ends]
    return sorted((ends + rest)[:MAX_SLOTS])


def _largest(costs: CostTable, layer: int) -> int:
    return max((cost.median_ns or 0 for cost in costs.costs[layer]), default=0)


def _totals(costs: CostTable) -> list[str]:
    lines = [
        f"{'slot':<16} {'layers':>10} {'overhead':>10} {'whole model':>12} {'whole/layers':>13}  unsupported"
    ]
    for column, slot in enumerate(costs.slots):
        medians = [row[column].median_ns for row in costs.costs]
        total = sum(value for value in medians if value is not None)
        refused = medians.count(None)
        whole = costs.whole[column]
        overhead_ns = costs.overhead_ns[column]
        ratio = (
            "-" if whole is None or refused or not total else f"{whole.median_ns / (total + overhead_ns):.2f}"
        )
        lines.append(
            f"{shorten(str(slot), 16):<16} {format_ns(total):>10} {format_ns(overhead_ns):>10} "
            f"{'-' if whole is None else format_ns(whole.median_ns):>12} {ratio:>13}  "
            f"{f'{refused} layers' if refused else 'none'}"
        )
    return lines
