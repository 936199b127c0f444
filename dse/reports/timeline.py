"""The picture of the winning mapping: cores as rows, one period of time as columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dse.placement import PlacedLane, PlacedStage
from dse.reports.console import stage_cores
from dse.reports.drawing import N_COLOURS, Tick, busy_ns, nice_ticks, stage_letter, stage_numbers
from dse.results import RunResult, StageNumbers
from dse.units import format_ns

MAX_FRAMES = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One stage working on one frame; ``receive`` is the share of the bar spent on receiving."""

    left: float
    width: float
    receive: float
    colour: int
    text: str
    title: str
    bottleneck: bool
    predicted_at: float | None
    faded: bool


@dataclass(frozen=True, slots=True)
class CoreRow:
    """A core over one period; ``bars`` is empty for a core that the mapping leaves free."""

    cluster: str
    core: int
    first: bool
    busy: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Cores as rows, one period of time as columns."""

    rows: tuple[CoreRow, ...]
    ticks: tuple[Tick, ...]
    measured: bool
    caption: str


def timeline(result: RunResult) -> Timeline:
    """Draw one period of the winner (the longest of its lanes; faster lanes show several frames)."""
    best = result.best
    numbers = {stage.name: stage for stage in best.stages}
    measured = all(stage.measured_busy_ns is not None for stage in best.stages)
    colours = stage_numbers(best.mapping)
    periods = [_period_ns(lane, numbers, measured) for lane in best.mapping.lanes]
    window_ns = max(1, min(max(periods), MAX_FRAMES * min(period for period in periods)))
    bars: dict[int, list[Bar]] = {}
    for lane, period_ns in zip(best.mapping.lanes, periods):
        slowest = _bottleneck(lane, numbers, measured)
        taken: dict[tuple[int, ...], int] = {}
        for place, stage in enumerate(lane.stages):
            start_ns = taken.get(stage.cores, 0)
            own = numbers[stage.name]
            taken[stage.cores] = start_ns + busy_ns(own, measured)
            marked = len(lane.stages) > 1 and stage.cores == slowest
            drawn = _frames(
                stage, own, place, start_ns, period_ns, window_ns, measured, colours[stage.name], marked
            )
            networks = result.graph.networks_of(stage.layers)
            if networks:
                text = ", ".join(networks)
                drawn = [
                    replace(bar, text=f"{text} · {bar.text}", title=f"{text}: {bar.title}") for bar in drawn
                ]
            for core in stage.cores:
                bars.setdefault(core, []).extend(drawn)
    rows = []
    for cluster in result.platform.clusters:
        for number, core in enumerate(cluster.core_ids):
            own_bars = tuple(bars.get(core, ()))
            busy = min(100.0, sum(bar.width for bar in own_bars))
            rows.append(CoreRow(cluster.name, core, number == 0, round(busy, 1), own_bars))
    ticks = [tick for tick in nice_ticks(window_ns, 4) if tick <= window_ns * 1.0001]
    lanes = len(best.mapping.lanes)
    caption = f"One period of {format_ns(window_ns)}" + (
        f" (the slowest of {lanes} lanes; faster lanes finish several frames in it)"
        if lanes > 1 and len(set(periods)) > 1
        else f" ({lanes} lanes, a frame each)"
        if lanes > 1
        else ": every stage works on a frame of its own"
        if len(best.mapping.stages) > 1
        else ""
    )
    return Timeline(
        tuple(rows),
        tuple(Tick(round(100 * tick / window_ns, 3), format_ns(tick) if tick else "0") for tick in ticks),
        measured,
        caption,
    )


def _period_ns(lane: PlacedLane, numbers: dict[str, StageNumbers], measured: bool) -> int:
    return max(1, *_unit_loads(lane, numbers, measured).values())


def _unit_loads(
    lane: PlacedLane, numbers: dict[str, StageNumbers], measured: bool
) -> dict[tuple[int, ...], int]:
    """Return the time per frame of each set of cores: stages that share cores add up."""
    loads: dict[tuple[int, ...], int] = {}
    for stage in lane.stages:
        loads[stage.cores] = loads.get(stage.cores, 0) + busy_ns(numbers[stage.name], measured)
    return loads


def _bottleneck(lane: PlacedLane, numbers: dict[str, StageNumbers], measured: bool) -> tuple[int, ...]:
    loads = _unit_loads(lane, numbers, measured)
    return max(loads, key=lambda cores: loads[cores])


def _frames(
    stage: PlacedStage,
    numbers: StageNumbers,
    place: int,
    start_ns: int,
    period_ns: int,
    window_ns: int,
    measured: bool,
    colour: int,
    bottleneck: bool,
) -> list[Bar]:
    """Return a stage's bars: one per frame that begins within the window."""
    busy = busy_ns(numbers, measured)
    receive_ns = numbers.measured_receive_ns if measured else numbers.predicted_receive_ns
    predicted_ns = numbers.predicted_busy_ns
    found = []
    for frame in range(math.ceil(window_ns / period_ns)):
        begin = frame * period_ns + start_ns
        if begin >= window_ns:
            break
        end = min(begin + busy, window_ns)
        title = (
            f"{stage.name}: layers {stage.span} on {stage.slot} (cores {stage_cores(stage)}), "
            f"predicted {format_ns(predicted_ns)}"
        )
        if numbers.measured_busy_ns is not None:
            title += f", measured {format_ns(numbers.measured_busy_ns)}"
        mark = begin + predicted_ns
        found.append(
            Bar(
                left=round(100 * begin / window_ns, 3),
                width=round(100 * (end - begin) / window_ns, 3),
                receive=round(100 * min(1.0, (receive_ns or 0) / busy), 2) if busy else 0.0,
                colour=colour % N_COLOURS,
                text=f"{stage_letter(colour)} · {format_ns(busy)}",
                title=title,
                bottleneck=bottleneck,
                predicted_at=round(100 * mark / window_ns, 3) if measured and mark <= window_ns else None,
                faded=frame % 2 == 1,
            )
        )
    return found
