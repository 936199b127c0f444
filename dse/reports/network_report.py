"""A workload's answer by its networks, in words: times, bottleneck, idle cores, what the plan gains."""

from __future__ import annotations

from dataclasses import dataclass

from dse.networks import NetworkGap, NetworkTime, PlanNetworks, plan_networks
from dse.reports.wording import first_name, format_share
from dse.results import PlanResult, RunResult, merit
from dse.units import format_bytes, format_count, format_ns

MAX_GAPS = 4
LEAST_GAP = 0.01
"""Gaps that take less of the time are not told."""


@dataclass(frozen=True)
class NetworkView:
    """What the report shows of a workload."""

    plan: PlanNetworks
    rows: tuple[tuple[str, ...], ...]
    cores: tuple[tuple[str, ...], ...]
    gaps: tuple[str, ...]
    summary: str


HEADS = ("network", "layers", "MACs", "weights", "on", "a frame", "share")
CORE_HEADS = ("cores", "networks", "busy", "idle a frame")


def network_view(result: RunResult) -> NetworkView | None:
    """Gather what is to be told about a workload's networks; None for a plain model."""
    view = plan_networks(result.graph, result.costs, result.best)
    if view is None:
        return None
    total = sum(_ns(network) for network in view.networks) or 1
    rows = tuple(
        (
            network.name + (" (bottleneck)" if network.name == view.bottleneck else ""),
            str(network.n_layers),
            "?" if network.macs is None else format_count(network.macs),
            format_bytes(network.weight_bytes),
            ", ".join(network.slots),
            format_ns(_ns(network)),
            f"{_ns(network) / total:.0%}",
        )
        for network in view.networks
    )
    cores = tuple(
        (
            f"{use.cluster} {','.join(map(str, use.cores))}",
            ", ".join(use.networks),
            f"{use.busy:.0%}",
            format_ns(use.idle_ns),
        )
        for use in view.cores
    )
    gaps = tuple(_gap(gap) for gap in view.gaps[:MAX_GAPS] if gap.share >= LEAST_GAP)
    return NetworkView(view, rows, cores, gaps, _summary(result, view))


def network_lines(result: RunResult) -> list[str]:
    """Return lines for a terminal; none for a plain model."""
    view = network_view(result)
    if view is None:
        return []
    lines = ["", "The networks"]
    for table in ((HEADS, *view.rows), (CORE_HEADS, *view.cores)):
        widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
        lines += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
        ]
    return [*lines, *(f"  {gap}" for gap in view.gaps)]


def _ns(network: NetworkTime) -> int:
    return network.predicted_ns if network.measured_ns is None else network.measured_ns


def _gap(gap: NetworkGap) -> str:
    cores = ",".join(map(str, gap.cores))
    between = (
        f"after {gap.after}, before {gap.before}"
        if gap.after != gap.before
        else f"between frames of {gap.after}"
    )
    return f"core {cores} idle {gap.share:.0%} of the time {between} (median {format_ns(gap.median_ns)})"


def _summary(result: RunResult, view: PlanNetworks) -> str:
    """Say what limits the answer, and what it does better than running the networks in turn."""
    slowest = max(view.networks, key=_ns)
    text = (
        f"{view.bottleneck} sets the pace; {slowest.name} takes most of the time "
        f"({format_ns(_ns(slowest))} of {format_ns(sum(_ns(n) for n in view.networks))} a frame). "
        if slowest.name != view.bottleneck
        else f"{slowest.name} sets the pace ({format_ns(_ns(slowest))} of "
        f"{format_ns(sum(_ns(n) for n in view.networks))} a frame). "
    )
    text += f"The cores in use are busy for {view.busy:.0%} of the time"
    told = [result.best]
    for start in ("in turn, ", "apart, "):
        rival = _named(result, start)
        if rival is None or rival in told:
            continue
        told.append(rival)
        other = plan_networks(result.graph, result.costs, rival)
        # A machine's speed drifts between rounds: measurements of two rounds can not be compared.
        both = bool(rival.measured) == bool(result.best.measured) and rival.round == result.best.round
        worth = merit(rival, result.goal, predicted=not both)
        if other is None or worth <= 0:
            continue
        gained = merit(result.best, result.goal, predicted=not both) / worth - 1
        used = sum(len(use.cores) for use in other.cores)
        text += (
            f"; {first_name(rival)!r} keeps {used} core{'s' if used > 1 else ''} busy for {other.busy:.0%}, "
            f"the answer is {format_share(gained)} against it in {result.goal}"
            f"{'' if both else ' (predicted)'}"
        )
    return text + "."


def _named(result: RunResult, start: str) -> PlanResult | None:
    return next(
        (plan for plan in result.plans if any(part.startswith(start) for part in plan.name.split(" = "))),
        None,
    )
