"""Discrete-event model of a running mapping: queues, lanes, shared units, times that vary.

Tells what the evaluator can not: what finite queues, scattered stage times and contention do to the
throughput and to the latency of single frames.  Where stage times are constant and nothing slows
anything down, a lane runs at the evaluator's period, and a frame in an empty lane takes the
evaluator's latency; both exactly.  Stages that take turns on one unit do so in patterns that can be
long: with unlimited queues their mean over a long run is the evaluator's period too, with short ones
they may wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.errors import MappingError, ProblemError
from solvers.evaluate import Evaluation, evaluate
from solvers.mapping import Mapping
from solvers.problem import FloatArray, IntArray, Problem
from solvers.queueing import (
    SOURCE,
    EventSimulation,
    Network,
    Times,
    Trace,
    build_network,
    run_recurrences,
)

LEAST_FRAMES = 64
"""A lane that is kept full gets at least so many frames, however slow it is."""
LONGEST_PATTERN = 512
"""Departures that repeat after at most so many frames count as a steady state."""

Samples = MappingOf[tuple[int, int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How a mapping is run.

    Parameters
    ----------
    n_frames
        Frames in all; lanes get them in proportion to their predicted rates.
    seed
        Of the times that are drawn; each stage has a stream of its own.
    queue_depth
        Frames that may wait in front of a stage; None takes the problem's.
    unlimited_queues
        Let any number of frames wait instead.
    interval_ns
        Time between two frames that arrive; None keeps every lane full.
    in_flight
        Most frames inside each lane (1: every frame meets an empty lane), or None.
    contention
        Per slot: factor of at least 1 by which stages slow down while another cluster is busy.
    warm_up
        Share of each lane's first frames that no figure counts.
    """

    n_frames: int = 10_000
    seed: int = 0
    queue_depth: int | None = None
    unlimited_queues: bool = False
    interval_ns: int | None = None
    in_flight: int | None = None
    contention: tuple[float, ...] | None = None
    warm_up: float = 0.2

    def __post_init__(self) -> None:
        for name, value, least in (
            ("n_frames", self.n_frames, 1),
            ("queue_depth", self.queue_depth, 0),
            ("interval_ns", self.interval_ns, 0),
            ("in_flight", self.in_flight, 1),
        ):
            if value is not None and value < least:
                raise ProblemError(f"{name} is {value}, expected at least {least}")
        if not 0 <= self.warm_up < 1:
            raise ProblemError(f"warm_up is {self.warm_up}, expected a share from 0 to below 1")
        if self.contention is not None and min(self.contention, default=1) < 1:
            raise ProblemError(f"contention is {self.contention}, expected factors of at least 1")


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


def simulate(
    problem: Problem,
    mapping: Mapping,
    options: SimulationOptions | None = None,
    samples: Samples | None = None,
) -> Simulation:
    """Run a mapping in simulation.

    Parameters
    ----------
    problem, mapping
        Every layer in one stage of each lane, in topological order; other limits may be broken.
    options
        Defaults to ``SimulationOptions()``.
    samples
        Busy times in nanoseconds by (lane, stage), drawn at random with equal chances; a stage that
        is not named takes the evaluator's busy time every time.

    Raises
    ------
    MappingError
        The mapping can not be run.
    ProblemError
        Samples for a stage that does not exist, none or negative ones; contention for another
        number of slots.
    """
    options = options or SimulationOptions()
    evaluation = evaluate(problem, mapping)
    for violation in evaluation.violations:
        if violation.constraint in ("coverage", "stage order", "unit"):
            raise MappingError(f"can not simulate: {violation.constraint}: {violation.detail}")
    if options.contention is not None and len(options.contention) != len(problem.slots):
        raise ProblemError(f"contention has {len(options.contention)} factors for {len(problem.slots)} slots")
    depth = problem.queue_depth if options.queue_depth is None else options.queue_depth
    networks = [
        build_network(problem, lane, None if options.unlimited_queues else depth) for lane in mapping.lanes
    ]
    arrivals = _deal(evaluation, options)
    times = _draw(evaluation, [len(row) for row in arrivals], samples or {}, options.seed)
    if options.contention is not None and len(problem.cluster_sizes) > 1:
        traces = EventSimulation(
            networks,
            times,
            arrivals,
            options.in_flight,
            options.contention,
            until_first=options.interval_ns is None,
        ).run()
    else:
        traces = [
            EventSimulation([network], [rows], [row], options.in_flight).run()[0]
            if network.shares
            else run_recurrences(network, rows, row, options.in_flight)
            for network, rows, row in zip(networks, times, arrivals)
        ]
    return _summarise(networks, traces, arrivals, options)


def _deal(evaluation: Evaluation, options: SimulationOptions) -> list[IntArray]:
    """Arrival times of each lane's frames: every frame goes where it is due first.

    Lanes that are kept full find their frames there from the start.
    """
    periods = [lane.period_ns for lane in evaluation.lanes]
    if options.interval_ns is None:
        rates = [1 / period if period else 1.0 for period in periods]
        share = options.n_frames / sum(rates)
        return [np.zeros(max(LEAST_FRAMES, round(rate * share)), np.int64) for rate in rates]
    given: list[list[int]] = [[] for _ in periods]
    for frame in range(options.n_frames):
        lane = min(range(len(periods)), key=lambda n: ((len(given[n]) + 1) * periods[n], len(given[n]), n))
        given[lane].append(frame * options.interval_ns)
    return [np.array(row, np.int64) for row in given]


def _draw(
    evaluation: Evaluation, n_frames: Sequence[int], samples: Samples, seed: int
) -> list[list[IntArray]]:
    """Busy times per lane and node; those of the source are 0."""
    unknown = [
        (lane, stage)
        for lane, stage in samples
        if not (0 <= lane < len(evaluation.lanes) and 0 <= stage < len(evaluation.lanes[lane].stages))
    ]
    if unknown:
        raise ProblemError(f"samples name lane {unknown[0][0]}, stage {unknown[0][1]}, which is not there")
    drawn = []
    for number, lane in enumerate(evaluation.lanes):
        rows = [np.zeros(n_frames[number], np.int64)]
        for stage, scored in enumerate(lane.stages):
            known = samples.get((number, stage))
            if known is None:
                rows.append(np.full(n_frames[number], scored.busy_ns, np.int64))
                continue
            values = np.array(known, np.int64)
            if values.ndim != 1 or not len(values) or values.min() < 0:
                raise ProblemError(
                    f"samples of lane {number}, stage {stage}: expected one and more times >= 0"
                )
            rng = np.random.default_rng([seed, number, stage])
            rows.append(values[rng.integers(len(values), size=n_frames[number])])
        drawn.append(rows)
    return drawn


def _summarise(
    networks: Sequence[Network],
    traces: Sequence[Trace],
    arrivals: Sequence[IntArray],
    options: SimulationOptions,
) -> Simulation:
    lanes: list[LaneResult] = []
    queues: list[QueueResult] = []
    stages: list[StageResult] = []
    units: list[UnitResult] = []
    latencies: list[FloatArray] = []
    for number, (network, trace) in enumerate(zip(networks, traces)):
        departures = trace.departures
        n_frames = len(departures)
        first = min(int(n_frames * options.warm_up), max(0, n_frames - 1))
        entered: Times = arrivals[number][:n_frames]
        if options.interval_ns is None:
            entered = np.minimum.reduce(
                [trace.handed_over(SOURCE, consumer, room) for consumer, room in network.rooms[SOURCE]]
            )
        latency = (departures - entered)[first:].astype(np.float64)
        latencies.append(latency)
        period, steady = steady_period(departures, options.warm_up)
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
