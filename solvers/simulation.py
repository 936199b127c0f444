"""What a simulated run shows: periods, latencies, queues, busy and idle time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.problem import FloatArray, IntArray
from solvers.queueing import SOURCE, Network, Times, Trace

LONGEST_PATTERN = 512
"""Departures that repeat after at most so many frames count as a steady state."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long frames take, from where they enter a lane (or arrive, where they arrive) to their end."""

    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class LaneResult:
    """One lane: frames simulated, mean time between departures (None below two frames), latency.

    ``steady`` says that departures repeat in a fixed pattern, so that the period is exact.
    """

    n_frames: int
    period_ns: float | None
    steady: bool
    latency: Latency | None

    @property
    def throughput_hz(self) -> float:
        """Frames per second."""
        if self.period_ns is None:
            return 0.0
        return 1e9 / self.period_ns if self.period_ns else float("inf")


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Frames that wait between two stages of a lane.

    ``source`` is None where frames enter the lane; ``room`` is None for any number; ``mean`` is
    over time.
    """

    lane: int
    source: int | None
    target: int
    room: int | None
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class StageResult:
    """Shares of the time: at work, holding a frame that nobody takes, waiting for work or cores."""

    lane: int
    stage: int
    busy: float
    blocked: float
    waiting: float


@dataclass(frozen=True, slots=True)
class UnitResult:
    """A set of cores: share of the time at work, and the gaps in between."""

    unit: int
    slot: int
    utilisation: float
    n_gaps: int
    mean_gap_ns: float
    longest_gap_ns: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated run shows, warm-up left out."""

    lanes: tuple[LaneResult, ...]
    latency: Latency
    queues: tuple[QueueResult, ...]
    stages: tuple[StageResult, ...]
    units: tuple[UnitResult, ...]

    @property
    def throughput_hz(self) -> float:
        """Frames per second: sum over lanes."""
        return sum(lane.throughput_hz for lane in self.lanes)


def summarise(
    networks: Sequence[Network],
    traces: Sequence[Trace],
    arrivals: Sequence[IntArray],
    warm_up: float,
    *,
    arriving: bool,
) -> Simulation:
    """Turn traces into figures.

    Parameters
    ----------
    networks, traces, arrivals
        One per lane.
    warm_up
        Share of each lane's first frames that no figure counts.
    arriving
        Whether frames arrive at their times, instead of lanes being kept full.
    """
    lanes: list[LaneResult] = []
    queues: list[QueueResult] = []
    stages: list[StageResult] = []
    units: list[UnitResult] = []
    latencies: list[FloatArray] = []
    for number, (network, trace) in enumerate(zip(networks, traces)):
        departures = trace.departures
        n_frames = len(departures)
        first = min(int(n_frames * warm_up), max(0, n_frames - 1))
        entered: Times = arrivals[number][:n_frames]
        if not arriving:
            entered = np.minimum.reduce(
                [trace.handed_over(SOURCE, consumer, room) for consumer, room in network.rooms[SOURCE]]
            )
        latency = (departures - entered)[first:].astype(np.float64)
        latencies.append(latency)
        period, steady = steady_period(departures, warm_up)
        lanes.append(LaneResult(n_frames, period, steady, _latency(latency) if n_frames else None))
        if n_frames:
            # At the end the first stages have nothing left to do: look no further than the last entry.
            start, end = float(departures[first]), float(trace.finishes[SOURCE][n_frames - 1])
            window = start, end if end > start else float(departures[-1])
            queues += _queues(number, network, trace, window)
            stages += _stages(number, network, trace, window)
            units += _units(network, trace, window)
    return Simulation(
        tuple(lanes), _latency(np.concatenate(latencies)), tuple(queues), tuple(stages), tuple(units)
    )


def steady_period(departures: Times, warm_up: float = 0.2) -> tuple[float | None, bool]:
    """Return the mean time between departures, and whether it is exact.

    Where the departures of the last half repeat in a pattern (as those of constant times do, sooner
    or later) the period is that of the pattern; else it is the mean after the warm-up.

    Parameters
    ----------
    departures
        (frames,) ascending.
    warm_up
        Share of the first frames that do not count.

    Returns
    -------
    float or None, bool
        None below two frames.
    """
    if len(departures) < 2:
        return None, False
    gaps = np.diff(departures)
    tail = gaps[len(gaps) // 2 :]
    for length in range(1, min(LONGEST_PATTERN, len(tail) // 3) + 1):
        if tail[-1] == tail[-1 - length] and np.array_equal(tail[length:], tail[:-length]):
            return float(tail[-length:].sum()) / length, True
    first = min(int(len(departures) * warm_up), len(departures) - 2)
    return float(departures[-1] - departures[first]) / (len(departures) - 1 - first), False


def _latency(values: FloatArray) -> Latency:
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return Latency(float(values.mean()), float(p50), float(p90), float(p99), float(values.max()))


def _overlap(starts: Times, ends: Times, window: tuple[float, float]) -> float:
    """Total length of intervals within a window."""
    return float(np.maximum(np.minimum(ends, window[1]) - np.maximum(starts, window[0]), 0).sum())


def _share(part: float, window: tuple[float, float]) -> float:
    length = window[1] - window[0]
    return part / length if length > 0 else 0.0


def _queues(lane: int, network: Network, trace: Trace, window: tuple[float, float]) -> list[QueueResult]:
    found = []
    for node, rooms in enumerate(network.rooms):
        for consumer, room in rooms:
            entered, left = trace.handed_over(node, consumer, room), trace.starts[consumer]
            # Frames waiting when the k-th enters: those before it and itself, less those that left.
            waiting = np.arange(1, len(entered) + 1) - np.searchsorted(left, entered, side="right")
            inside = (entered >= window[0]) & (entered <= window[1])
            found.append(
                QueueResult(
                    lane,
                    None if node == SOURCE else node - 1,
                    consumer - 1,
                    room,
                    _share(_overlap(entered, left, window), window),
                    max(0, int(waiting[inside].max(initial=0))),
                )
            )
    return found


def _stages(lane: int, network: Network, trace: Trace, window: tuple[float, float]) -> list[StageResult]:
    found = []
    for node in range(1, network.n_nodes):
        starts, finishes = trace.starts[node], trace.finishes[node]
        released = np.maximum.reduce(
            [finishes, *(trace.handed_over(node, consumer, room) for consumer, room in network.rooms[node])]
        )
        busy = _share(_overlap(starts, finishes, window), window)
        blocked = _share(_overlap(finishes, released, window), window)
        found.append(StageResult(lane, node - 1, busy, blocked, max(0.0, 1 - busy - blocked)))
    return found


def _units(network: Network, trace: Trace, window: tuple[float, float]) -> list[UnitResult]:
    found = []
    for unit in sorted(set(network.units[1:])):
        nodes = [node for node in range(1, network.n_nodes) if network.units[node] == unit]
        starts = np.concatenate([trace.starts[node] for node in nodes])
        finishes = np.concatenate([trace.finishes[node] for node in nodes])
        order = np.lexsort((finishes, starts))
        edges = np.concatenate(([window[0]], np.clip(finishes[order], *window)))
        gaps = np.concatenate((np.clip(starts[order], *window), [window[1]])) - np.maximum.accumulate(edges)
        gaps = gaps[gaps > 0]
        slot = network.slots[nodes[0]]
        found.append(
            UnitResult(
                unit,
                0 if slot is None else slot,
                _share(_overlap(starts, finishes, window), window),
                len(gaps),
                float(gaps.mean()) if len(gaps) else 0.0,
                float(gaps.max(initial=0)),
            )
        )
    return found
