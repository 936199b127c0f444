"""The simulator against the evaluator, a second implementation, queueing theory and figures by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from random_problems import all_features, problems

from solvers.errors import MappingError, ProblemError
from solvers.evaluate import evaluate
from solvers.events import EventSimulation
from solvers.exhaustive import topological_orders
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Flow, Problem, Slot
from solvers.queueing import build_network, run_recurrences
from solvers.simulate import SimulationOptions, simulate
from solvers.simulation import steady_period

RELAXED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate),
)
CANNOT_RUN = {"coverage", "stage order", "unit"}


@st.composite
def running(draw, shared=True, max_layers=6):
    """A problem and a mapping of one or two lanes that can be run, whatever other limits it breaks."""
    problem = draw(st.one_of(problems(max_layers=max_layers, memory=True), all_features(max_layers)))
    lanes, unit = [], 0
    for _ in range(draw(st.integers(1, 2))):
        labels = [draw(st.integers(0, 4)) for _ in range(problem.n_layers)]
        parts = tuple(
            tuple(n for n, own in enumerate(labels) if own == label) for label in sorted(set(labels))
        )
        orders = topological_orders(problem, parts)
        assume(orders)
        stages = [parts[number] for number in draw(st.sampled_from(orders))]
        units = {}
        lane = []
        for number, layers in enumerate(stages):
            slot = draw(st.integers(0, len(problem.slots) - 1))
            turn = draw(st.integers(0, 1)) if shared else number
            lane.append(Stage(layers, slot, unit + units.setdefault((slot, turn), len(units))))
        unit += len(units)
        lanes.append(Lane(tuple(lane)))
    return problem, Mapping(tuple(lanes))


def line(*cost_ns):
    """Stages in a row on cores of their own, which cost nothing to hand over."""
    n = len(cost_ns)
    flows = tuple(Flow(a, (a + 1,), 1) for a in range(n - 1))
    problem = Problem(
        np.array(cost_ns)[:, None], np.ones((n, 1), bool), (Slot(0, 1),), (n,), (Flow(None, (0,), 1), *flows)
    )
    return problem, Mapping((Lane(tuple(Stage((k,), 0, k) for k in range(n))),))


@RELAXED
@given(case=running(), depth=st.one_of(st.none(), st.integers(0, 3)))
def test_a_frame_in_an_empty_lane_takes_the_latency_of_the_evaluator(case, depth):
    problem, mapping = case
    evaluation = evaluate(problem, mapping)
    options = SimulationOptions(n_frames=20, queue_depth=depth, unlimited_queues=depth is None, in_flight=1)
    result = simulate(problem, mapping, options)
    for lane, scored in zip(result.lanes, evaluation.lanes, strict=True):
        assert lane.latency.mean_ns == lane.latency.max_ns == scored.latency_ns
    spaced = SimulationOptions(n_frames=20, queue_depth=depth, interval_ns=evaluation.latency_ns)
    assert simulate(problem, mapping, spaced).latency.max_ns <= evaluation.latency_ns


@RELAXED
@given(case=running(shared=False), depth=st.integers(0, 3))
def test_the_period_is_that_of_the_evaluator_with_any_queue(case, depth):
    problem, mapping = case
    evaluation = evaluate(problem, mapping)
    for options in (
        SimulationOptions(n_frames=2000, queue_depth=depth),
        SimulationOptions(n_frames=2000, unlimited_queues=True),
    ):
        result = simulate(problem, mapping, options)
        assert [lane.period_ns for lane in result.lanes] == [lane.period_ns for lane in evaluation.lanes]
        assert all(lane.steady for lane in result.lanes)
        assert result.throughput_hz == pytest.approx(evaluation.throughput_hz, rel=1e-12)


@RELAXED
@given(case=running())
def test_the_period_is_that_of_the_evaluator_where_stages_take_turns(case):
    problem, mapping = case
    evaluation = evaluate(problem, mapping)
    result = simulate(
        problem, mapping, SimulationOptions(n_frames=1500, unlimited_queues=True, in_flight=100)
    )
    for lane, scored in zip(result.lanes, evaluation.lanes, strict=True):
        # Who takes turns may follow a very long pattern: no frame more or less over the whole run.
        off_ns = abs(lane.period_ns - scored.period_ns) * lane.n_frames
        assert off_ns <= (0 if lane.steady else 2 * scored.latency_ns)
    short = simulate(problem, mapping, SimulationOptions(n_frames=600, queue_depth=1))
    for lane, scored in zip(short.lanes, evaluation.lanes, strict=True):
        assert (scored.period_ns - lane.period_ns) * lane.n_frames <= (
            0 if lane.steady else 2 * scored.latency_ns
        )


@RELAXED
@given(case=running(shared=False), depth=st.one_of(st.none(), st.integers(0, 2)), data=st.data())
def test_events_and_recurrences_give_the_same_trace(case, depth, data):
    problem, mapping = case
    lane = mapping.lanes[0]
    network = build_network(problem, lane, depth)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    times = [np.zeros(40, np.int64), *(rng.integers(0, 9, 40) for _ in lane.stages)]
    arrivals = np.cumsum(rng.integers(0, 12, 40)) * data.draw(st.integers(0, 1))
    in_flight = data.draw(st.one_of(st.none(), st.integers(1, 3)))
    fast = run_recurrences(network, times, arrivals, in_flight)
    (slow,) = EventSimulation([network], [times], [arrivals], in_flight).run()
    assert all(np.array_equal(a, b) for a, b in zip(fast.starts, slow.starts, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(fast.finishes, slow.finishes, strict=True))
    (factor_one,) = EventSimulation(
        [network], [times], [arrivals], in_flight, [1.0] * len(problem.slots)
    ).run()
    assert np.array_equal(factor_one.departures, fast.departures)


@RELAXED
@given(case=running(), data=st.data())
def test_nothing_breaks_the_rules_of_the_road(case, data):
    problem, mapping = case
    lane = mapping.lanes[0]
    depth = data.draw(st.integers(0, 2))
    network = build_network(problem, lane, depth)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    times = [np.zeros(30, np.int64), *(rng.integers(1, 9, 30) for _ in lane.stages)]
    factors = [data.draw(st.sampled_from([1.0, 1.5, 2.0])) for _ in problem.slots]
    for contention in (None, factors):
        (trace,) = EventSimulation([network], [times], [np.zeros(30, np.int64)], None, contention).run()
        assert len(trace.departures) == 30
        for node in range(network.n_nodes):
            spent = trace.finishes[node] - trace.starts[node]
            most = 1.0 if contention is None or node == 0 else contention[network.slots[node]]
            assert (spent >= times[node] - 1e-6).all()
            assert (spent <= times[node] * most + 1e-6).all()
            for origin in network.producers[node]:
                assert (trace.starts[node] >= trace.finishes[origin]).all()
            for consumer, room in network.rooms[node]:
                held = trace.starts[node][room + 1 :]  # the frame room + 1 earlier was taken by then
                assert (held >= trace.starts[consumer][: len(held)]).all()
        for unit in set(network.units):
            jobs = sorted(
                (float(start), float(finish))
                for node in range(network.n_nodes)
                if network.units[node] == unit
                for start, finish in zip(trace.starts[node], trace.finishes[node])
            )
            assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(jobs))


@RELAXED
@given(case=running(shared=False), data=st.data())
def test_longer_queues_and_shorter_times_never_delay_a_frame(case, data):
    problem, mapping = case
    lane = mapping.lanes[0]
    depth = data.draw(st.integers(0, 2))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    times = [np.zeros(40, np.int64), *(rng.integers(1, 9, 40) for _ in lane.stages)]
    now = np.zeros(40, np.int64)
    base = run_recurrences(build_network(problem, lane, depth), times, now).departures
    longer = run_recurrences(build_network(problem, lane, depth + 1), times, now).departures
    shorter = run_recurrences(
        build_network(problem, lane, depth), [row // 2 for row in times], now
    ).departures
    assert (longer <= base).all()
    assert (shorter <= base).all()


def test_contention_by_hand():
    # Two lanes of one stage on two clusters: 10 ns and 30 ns, each twice as slow while the other runs.
    problem = Problem(
        np.array([[10, 30]]), np.ones((1, 2), bool), (Slot(0, 1), Slot(1, 1)), (1, 1), (Flow(None, (0,), 1),)
    )
    mapping = Mapping((Lane((Stage((0,), 0, 0),)), Lane((Stage((0,), 1, 1),))))
    result = simulate(problem, mapping, SimulationOptions(n_frames=400, contention=(2.0, 1.5)))
    assert [lane.period_ns for lane in result.lanes] == [pytest.approx(20), pytest.approx(45)]
    # Arriving one at a time, 100 ns apart, a frame has the chip to itself.
    alone = simulate(
        problem, mapping, SimulationOptions(n_frames=400, contention=(2.0, 1.5), interval_ns=100)
    )
    assert [lane.latency.max_ns for lane in alone.lanes] == [pytest.approx(10), pytest.approx(30)]


def test_contention_that_begins_midway():
    # The first stage (30 ns on cluster 0) hands over to the second (10 ns on cluster 1): while the
    # second works the first is twice as slow, so 10 ns of its time count for 5.
    problem = Problem(
        np.array([[30, 1], [1, 10]]),
        np.ones((2, 2), bool),
        (Slot(0, 1), Slot(1, 1)),
        (1, 1),
        (Flow(None, (0,), 1), Flow(0, (1,), 1)),
    )
    mapping = Mapping((Lane((Stage((0,), 0, 0), Stage((1,), 1, 1))),))
    result = simulate(problem, mapping, SimulationOptions(n_frames=300, contention=(2.0, 1.0)))
    assert result.lanes[0].period_ns == pytest.approx(35)


def test_frames_are_dealt_by_rate():
    problem = Problem(
        np.array([[10, 30]]), np.ones((1, 2), bool), (Slot(0, 1), Slot(1, 1)), (1, 1), (Flow(None, (0,), 1),)
    )
    mapping = Mapping((Lane((Stage((0,), 0, 0),)), Lane((Stage((0,), 1, 1),))))
    for interval in (None, 8):
        result = simulate(problem, mapping, SimulationOptions(n_frames=4000, interval_ns=interval))
        assert [lane.n_frames for lane in result.lanes] == [3000, 1000]


def test_the_mean_wait_is_that_of_queueing_theory():
    # Deterministic arrivals and two equally likely times: a D/G/1 queue, whose waits follow Lindley's
    # recurrence; simulated here once more, by its definition.
    problem, mapping = line(10)
    samples = {(0, 0): [2, 16]}
    options = SimulationOptions(n_frames=5000, interval_ns=10, unlimited_queues=True, warm_up=0.0, seed=4)
    result = simulate(problem, mapping, options, samples)
    rng = np.random.default_rng([4, 0, 0])
    drawn = np.array([2, 16])[rng.integers(2, size=5000)]
    wait, waits = 0, []
    for time in drawn:
        waits.append(wait)
        wait = max(0, wait + int(time) - 10)
    assert result.latency.mean_ns == pytest.approx(np.mean(waits) + drawn.mean())
    (queue,) = result.queues
    assert queue.mean == pytest.approx(np.mean(waits) / 10, rel=0.02)  # Little's law
    begins = 10 * np.arange(5000) + np.array(waits)
    assert queue.most == max(int((begins[: n + 1] > 10 * n).sum()) for n in range(5000))


def test_scattered_times_cost_throughput_and_queues_win_it_back():
    problem, mapping = line(10, 10, 10, 10)
    samples = {(0, stage): [5, 15] for stage in range(4)}
    rates = [
        simulate(problem, mapping, SimulationOptions(queue_depth=depth, n_frames=6000), samples).throughput_hz
        for depth in (0, 1, 2, 8, 64)
    ]
    assert rates == sorted(rates)
    assert rates[0] < 0.85e8
    assert 0.97e8 < rates[-1] < 1.01e8
    # Two stages without a queue between them: each frame takes the longer of two times, 12.5 on average.
    problem, mapping = line(10, 10)
    pair = simulate(problem, mapping, SimulationOptions(queue_depth=0), {(0, 0): [5, 15], (0, 1): [5, 15]})
    assert pair.lanes[0].period_ns == pytest.approx(12.5, rel=0.02)


def test_figures_of_a_pipeline_by_hand():
    problem, mapping = line(10, 20, 5)
    result = simulate(problem, mapping, SimulationOptions(n_frames=1000, queue_depth=2))
    first, second, third = result.stages
    assert (first.busy, first.blocked) == (pytest.approx(0.5, abs=1e-3), pytest.approx(0.5, abs=1e-3))
    assert second.busy == pytest.approx(1)
    assert (third.busy, third.waiting) == (pytest.approx(0.25, abs=1e-3), pytest.approx(0.75, abs=1e-3))
    assert [unit.utilisation for unit in result.units] == pytest.approx([0.5, 1, 0.25], abs=1e-3)
    assert [unit.longest_gap_ns for unit in result.units] == [10, 0, 15]
    assert result.units[0].mean_gap_ns == pytest.approx(10, rel=0.01)
    into_first, into_second, into_third = result.queues
    assert (into_first.source, into_first.target) == (None, 0)
    assert (into_second.mean, into_second.most) == (pytest.approx(2, abs=1e-2), 2)  # always full
    assert (into_third.mean, into_third.most) == (0, 0)  # taken the moment they come
    # Inside are two waiting in front of each of the first two stages, and one being worked on or held.
    assert result.latency.max_ns == result.latency.p50_ns == 2 * 20 + 20 + 2 * 20 + 20 + 5


def test_same_seed_same_run_and_other_seeds_differ():
    problem, mapping = line(10, 20)
    samples = {(0, 0): [5, 15, 40], (0, 1): [10, 30]}
    runs = [simulate(problem, mapping, SimulationOptions(n_frames=300, seed=s), samples) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_period_of_a_pattern_is_exact():
    gaps = np.tile([3, 4, 4], 50)
    assert steady_period(np.cumsum(np.concatenate(([100, 1, 9], gaps)))) == (11 / 3, True)
    assert steady_period(np.array([5])) == (None, False)
    period, steady = steady_period(np.cumsum(np.arange(100) ** 2 % 17 + np.arange(100)))
    assert not steady
    assert period > 0


@pytest.mark.parametrize(
    "extra",
    [
        {"n_frames": 0},
        {"queue_depth": -1},
        {"interval_ns": -1},
        {"in_flight": 0},
        {"warm_up": 1.0},
        {"contention": (0.5,)},
    ],
)
def test_bad_options_are_refused(extra):
    with pytest.raises(ProblemError):
        SimulationOptions(**extra)


def test_bad_samples_and_mappings_are_refused():
    problem, mapping = line(10, 20)
    for samples in ({(0, 2): [1]}, {(1, 0): [1]}, {(0, 0): []}, {(0, 0): [-1]}):
        with pytest.raises(ProblemError, match="samples"):
            simulate(problem, mapping, samples=samples)
    with pytest.raises(ProblemError, match="contention has 2 factors for 1 slots"):
        simulate(problem, mapping, SimulationOptions(contention=(1.0, 2.0)))
    with pytest.raises(MappingError, match="coverage"):
        simulate(problem, Mapping((Lane((Stage((0,), 0, 0),)),)))
    with pytest.raises(MappingError, match="stage order"):
        simulate(problem, Mapping((Lane((Stage((1,), 0, 0), Stage((0,), 0, 1))),)))
    # Limits that have nothing to do with running are no hindrance.
    over = replace(problem, total_memory_limit_bytes=1)
    assert simulate(over, mapping, SimulationOptions(n_frames=200)).lanes[0].period_ns == 20
