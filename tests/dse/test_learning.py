"""What was measured corrects the problem: whole stages win, contention reaches what was not measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dse.learning import corrected, learn, stage_costs, summarise
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.planning import Planner
from dse.platforms import Cluster, Platform
from dse.results import Measured, PlanResult, Predicted
from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Flow, Problem
from solvers.problem import Slot as SolverSlot

PLATFORM = Platform("two", (Cluster("cpu", (0, 1)),))
COST = np.array([[100, 60], [200, 110], [300, 160]]) * 1000


@dataclass
class Timed:
    """The part of a measurement that learning looks at."""

    stages: tuple
    plan: str = "p"

    @property
    def rates(self):
        return tuple(SimpleNamespace(compute_ns=stage.compute_ns, excess_ns=0.0) for stage in self.stages)


@dataclass
class StageTimed:
    compute_ns: int
    receive_ns: int = 0
    utilisation: float = 1.0


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


def test_contention_reaches_stages_that_were_not_measured(planner):
    # Both stages took 1.5 times their sum of layers.
    learned = learn(planner, [(pipeline((0, 1), (2,)), timed(450_000, 450_000))])
    mapping = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 0, 1))),))
    stages = evaluate(learned.problem, mapping).lanes[0].stages
    assert [stage.compute_ns for stage in stages] == [150_000, 750_000]
    # A slot without any measurement gets the typical factor.
    assert (learned.problem.cost_ns[:, 1] == COST[:, 1] * 1.5).all()


def test_the_plan_with_more_load_decides(planner):
    alone = PlacedMapping((PlacedLane((PlacedStage("w", (0, 1, 2), "cpu", 1, (0,)),)),))
    copies = PlacedMapping(
        tuple(PlacedLane((PlacedStage(f"w{n}", (0, 1, 2), "cpu", 1, (n,)),)) for n in range(2))
    )
    for order in (1, -1):
        seen = [(alone, timed(600_000)), (copies, timed(900_000, 900_000))][::order]
        (time,) = learn(planner, seen).problem.stage_times
        assert time.compute_ns == 900_000


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
    copies = PlacedMapping(
        tuple(PlacedLane((PlacedStage(f"w{n}", (0, 1, 2), "cpu", 1, (n,)),)) for n in range(2))
    )
    alone = PlacedMapping((PlacedLane((PlacedStage("w", (0, 1, 2), "cpu", 1, (0,)),)),))
    one = Repeated((StageTimed(300),), counted=(lanes([300]),))
    for seen in ([(copies, two), (alone, one)], [(alone, one), (copies, two)]):
        (cost,) = stage_costs(planner, seen)
        assert cost.layers == (0, 1, 2)
        assert cost.slot == PLATFORM.slots[0]
        assert cost.median_ns == 480  # two lanes at 1/400 and 1/600
        assert cost.samples_ns == (390, 610, 410, 590)
        assert cost.under_load


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
