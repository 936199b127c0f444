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
from solvers.events import EventSimulation
from solvers.mapping import Mapping
from solvers.problem import IntArray, Problem
from solvers.problem_checks import check_least
from solvers.queueing import build_network, run_recurrences
from solvers.simulation import Simulation, summarise

LEAST_FRAMES = 64
"""A lane that is kept full gets at least so many frames, however slow it is."""

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
        check_least(
            ("n_frames", self.n_frames, 1),
            ("queue_depth", self.queue_depth, 0),
            ("interval_ns", self.interval_ns, 0),
            ("in_flight", self.in_flight, 1),
        )
        if not 0 <= self.warm_up < 1:
            raise ProblemError(f"warm_up is {self.warm_up}, expected a share from 0 to below 1")
        if self.contention is not None and min(self.contention, default=1) < 1:
            raise ProblemError(f"contention is {self.contention}, expected factors of at least 1")


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
    return summarise(networks, traces, arrivals, options.warm_up, arriving=options.interval_ns is not None)


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
