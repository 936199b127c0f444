"""What was measured corrects the problem: whole stages win, contention reaches what was not measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dse.learning import corrected, learn, stage_costs, summarise
from dse.pipeline.measurement import StageRate
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.planning import Planner
from dse.platforms import Cluster, Platform
from dse.problems import unplace
from dse.results import Measured, PlanResult, Predicted
from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Flow, Problem, StageTime
from solvers.problem import Slot as SolverSlot

PLATFORM = Platform("two", (Cluster("cpu", (0, 1)),))
COST = np.array([[100, 60], [200, 110], [300, 160]]) * 1000


@dataclass
class Timed:
    """The part of a measurement that learning looks at."""

    stages: tuple
    plan: str = "p"
    throughput_hz: float = 1000.0

    @property
    def rates(self):
        return tuple(StageRate(0, 0.0, stage.compute_ns, 0.0) for stage in self.stages)

    @property
    def rates_by_repeat(self):
        return (self.rates,)


@dataclass
class StageTimed:
    compute_ns: int
    receive_ns: int = 0
    tightness: float = 1.0


@pytest.fixture
def planner():
    problem = Problem(
        COST, np.ones((3, 2), bool), (SolverSlot(0, 1), SolverSlot(0, 2)), (2,),
        flows=(Flow(None, (0,), 10), Flow(0, (1,), 10), Flow(1, (2,), 10), Flow(2, (), 10, is_output=True)),
    )  # fmt: skip
    return Planner(problem, PLATFORM, PLATFORM.slots)


def pipeline(*spans) -> PlacedMapping:
    stages = tuple(PlacedStage(f"s{n}", span, "cpu", 1, (n,)) for n, span in enumerate(spans))
    return PlacedMapping((PlacedLane(stages),))


def timed(*times_ns) -> Timed:
    return Timed(tuple(StageTimed(time) for time in times_ns))


def test_measured_stages_are_predicted_as_measured(planner):
    learned = learn(planner, [(pipeline((0, 1), (2,)), timed(450_000, 390_000))])
    mapping = Mapping((Lane((Stage((0, 1), 0, 0), Stage((2,), 0, 1))),))
    stages = evaluate(learned.problem, mapping).lanes[0].stages
    assert [stage.compute_ns for stage in stages] == [450_000, 390_000]


def test_time_between_frames_stays_with_the_stages_that_lost_it(planner):
    class Slow(Timed):
        @property
        def rates(self):
            return tuple(StageRate(0, 0.0, stage.compute_ns, 150_000.0) for stage in self.stages)

    seen = Slow((StageTimed(300_000), StageTimed(300_000)))
    learned = learn(planner, [(pipeline((0, 1), (2,)), seen)])
    measured = Mapping((Lane((Stage((0, 1), 0, 0), Stage((2,), 0, 1))),))
    assert [stage.compute_ns for stage in evaluate(learned.problem, measured).lanes[0].stages] == [
        450_000
    ] * 2
    other = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 0, 1))),))
    assert [s.compute_ns for s in evaluate(learned.problem, other).lanes[0].stages] == [100_000, 500_000]


def test_contention_reaches_stages_that_were_not_measured(planner):
    # Both stages took 1.5 times their sum of layers.
    learned = learn(planner, [(pipeline((0, 1), (2,)), timed(450_000, 450_000))])
    mapping = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 0, 1))),))
    stages = evaluate(learned.problem, mapping).lanes[0].stages
    assert [stage.compute_ns for stage in stages] == [150_000, 750_000]
    # A slot without any measurement gets the typical factor.
    assert (learned.problem.cost_ns[:, 1] == COST[:, 1] * 1.5).all()


WHOLE = (0, 1, 2)


def copies(n: int, threads: int = 1) -> PlacedMapping:
    """The whole model ``n`` times; one copy works alone."""
    cores = [tuple(range(k * threads, (k + 1) * threads)) for k in range(n)]
    stages = [PlacedStage(f"w{k}", WHOLE, "cpu", threads, own) for k, own in enumerate(cores)]
    return PlacedMapping(tuple(PlacedLane((stage,)) for stage in stages))


def period_ns(planner, placed) -> int:
    mapping = unplace(placed, planner.platform, planner.slots)
    return evaluate(planner.problem, mapping).lanes[0].period_ns


@pytest.mark.parametrize("order", [1, -1])
def test_a_stage_alone_and_under_load_are_two_things(planner, order):
    seen = [(copies(1), timed(660_000)), (copies(2), timed(900_000, 900_000))]
    learned = learn(planner, seen[::order])
    # Both plans are predicted as they were measured.
    assert period_ns(learned, copies(1)) == 660_000
    assert period_ns(learned, copies(2)) == 900_000
    # So are plans that were not: a pipeline pays for load, networks in turn on one core do not.
    load = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 0, 1))),))
    turns = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 0, 0))),))
    compute = [
        [stage.compute_ns for stage in evaluate(learned.problem, mapping).lanes[0].stages]
        for mapping in (load, turns)
    ]
    assert compute == [[150_000, 750_000], [110_000, 550_000]]
    # The other slot was not seen: it slows down in the same way.
    assert learned.problem.loaded_cost_ns[:, 1].tolist() == pytest.approx(COST[:, 1] * 1.5)
    assert learned.problem.cost_ns[:, 1].tolist() == pytest.approx(COST[:, 1] * 1.1)


def test_a_whole_model_seen_alone_is_expected_to_slow_down_in_company(planner):
    four = Platform("four", (Cluster("cpu", (0, 1, 2, 3), threads=(1, 2)),))
    planner = replace(planner, problem=replace(planner.problem, cluster_sizes=(4,)), platform=four)
    seen = [
        (copies(1), timed(600_000)),
        (copies(1, threads=2), timed(330_000)),
        (copies(4), timed(*[720_000] * 4)),
    ]
    learned = learn(planner, seen)
    assert period_ns(learned, copies(1, threads=2)) == 330_000
    assert period_ns(learned, copies(2, threads=2)) == 330_000 * 1.2


def test_load_that_seems_to_help_is_noise(planner):
    learned = learn(planner, [(copies(1), timed(660_000)), (copies(2), timed(600_000, 600_000))])
    assert period_ns(learned, copies(1)) == period_ns(learned, copies(2)) == 600_000
    assert (learned.problem.loaded_cost_ns >= learned.problem.cost_ns).all()


def test_the_plan_with_more_load_decides(planner):
    three = Platform("three", (Cluster("cpu", (0, 1, 2), threads=(1, 2)),))
    planner = replace(planner, problem=replace(planner.problem, cluster_sizes=(3,)), platform=three)
    seen = [(copies(2), timed(*[700_000] * 2)), (copies(3), timed(*[900_000] * 3))]
    for order in (1, -1):
        assert period_ns(learn(planner, seen[::order]), copies(2)) == 900_000


def test_a_plan_of_many_pieces_that_ran_badly_does_not_decide(planner):
    # Three pieces that took turns badly, at a third of the rate; copies 1.1 times as long as expected.
    pieces = replace(timed(300_000, 600_000, 900_000), throughput_hz=400.0)
    turns = PlacedMapping(
        (PlacedLane(tuple(PlacedStage(f"s{n}", (n,), "cpu", 1, (n % 2,)) for n in range(3))),)
    )
    seen = [(turns, pieces), (copies(2), timed(*[660_000] * 2))]
    for order in (1, -1):
        learned = learn(planner, seen[::order])
        assert learned.problem.loaded_cost_ns[:, 0].tolist() == pytest.approx(COST[:, 0] * 1.1)


def test_what_was_known_of_stages_before_is_kept(planner):
    span = StageTime(frozenset({0, 1}), 0, 320_000, loaded=False)
    before = replace(planner, problem=replace(planner.problem, stage_times=(span,)))
    learned = learn(before, [(copies(1), timed(600_000))])
    assert learned.problem.measured_ns[span.layers, 0] == 320_000


def test_absurd_ratios_are_limited_and_the_original_is_left_alone(planner):
    before = planner.problem.cost_ns.copy()
    learned = learn(planner, [(pipeline((0, 1), (2,)), timed(300_000 * 100, 300_000 * 100))])
    assert (learned.problem.cost_ns == COST * 4).all()
    assert (planner.problem.cost_ns == before).all()


def test_hand_overs_are_corrected_by_cluster(planner):
    problem = replace(
        planner.problem, setup_ns=np.full((1, 1), 1000), bandwidth_bytes_per_s=np.full((1, 1), 1e6)
    )
    mapping = Mapping((Lane((Stage((0, 1), 0, 0), Stage((2,), 0, 1))),))
    assert evaluate(problem, mapping).lanes[0].stages[1].receive_ns == 11_000
    seen = Timed((StageTimed(300_000), StageTimed(300_000, receive_ns=5_500)))
    learned = learn(replace(planner, problem=problem), [(pipeline((0, 1), (2,)), seen)])
    assert evaluate(learned.problem, mapping).lanes[0].stages[1].receive_ns == 5_500


def test_measured_plans_are_predicted_again_with_what_was_learned(planner):
    placed = pipeline((0, 1), (2,))
    mapping = Mapping((Lane((Stage((0, 1), 0, 0), Stage((2,), 0, 1))),))
    before = replace(
        planner.plan("p", "candidate", mapping),
        measured=Measured(1e9 / 450_000, (1.0,), 1, 1, 1, 1, 1, disturbed=False),
    )
    fresh = planner.plan("q", "candidate", mapping)
    learned = learn(planner, [(placed, timed(450_000, 390_000))])
    after, other = corrected(learned, [before, fresh])
    assert before.error == pytest.approx(0.5)
    assert after.predicted == before.predicted
    assert after.corrected_error == pytest.approx(0.0)
    assert other.corrected is None


def test_measured_stages_go_into_the_cost_table_with_their_samples(planner):
    @dataclass
    class Repeated(Timed):
        counted: tuple = ()

    def lanes(*times):
        return SimpleNamespace(lanes=[Timed(tuple(map(StageTimed, lane))) for lane in times])

    two = Repeated((StageTimed(400), StageTimed(600)), counted=(lanes([390], [610]), lanes([410], [590])))
    one = Repeated((StageTimed(300),), counted=(lanes([300]),))
    seen = [(copies(2), two), (copies(1), one)]
    for order in (1, -1):
        loaded, alone = sorted(stage_costs(planner, seen[::order]), key=lambda cost: not cost.under_load)
        assert loaded.layers == alone.layers == WHOLE
        assert loaded.slot == alone.slot == PLATFORM.slots[0]
        # Two lanes at 1/400 and 1/600.
        assert (loaded.median_ns, loaded.samples_ns) == (480, (390, 610, 410, 590))
        assert (alone.median_ns, alone.samples_ns, alone.under_load) == (300, (300,), False)


def test_a_round_is_summarised_without_sign():
    def plan(predicted, real, violations=()):
        measured = Measured(real, (real,), 1, 1, 1, 1, 1, disturbed=False)
        return PlanResult(
            "x", "candidate", pipeline((0,)), Predicted(predicted, 1, 1, None, violations), (), measured
        )

    plans = [plan(110, 100), plan(80, 100), plan(500, 400, ("pin",))]
    entry = summarise(2, plans, plans[:2])
    assert (entry.number, entry.n_measured, entry.n_new) == (2, 3, 2)
    assert entry.median_error == pytest.approx(0.15)
    assert entry.worst_error == pytest.approx(0.2)
    assert entry.best_hz == 100
