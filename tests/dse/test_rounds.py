"""Rounds: what is measured again, so that the answer is never worse than what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from dse import rounds
from dse.config import experiment_for_model
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.progress import SilentProgress
from dse.results import Measured, PlanResult, Predicted, Proof, RunResult

PROOF = Proof("lanes", "optimal", "all", None, None, 0)
PLANNER = SimpleNamespace(problem="costs as learned")


def plan(name: str, layers: int, predicted: float, role: str = "candidate") -> PlanResult:
    stages = (PlacedStage("s", tuple(range(layers)), "cpu", 1, (0,)),)
    mapping = PlacedMapping((PlacedLane(stages),))
    return PlanResult(name, role, mapping, Predicted(predicted, 1, 1, None), ())  # type: ignore[arg-type]


@dataclass
class FakeTrial:
    """Measures by a table of rates per round; the machine is slower in later rounds."""

    experiment: Any
    rates: dict[str, float]
    drift: float = 1.0
    progress: Any = field(default_factory=SilentProgress)
    check_text: str = ""
    warnings: tuple[str, ...] = ()
    batches: list[list[str]] = field(default_factory=list)
    refuses: tuple[str, ...] = ()

    def measure(self, plans, number=1):
        self.batches.append([p.name for p in plans])
        found = []
        for p in plans:
            if p.name in self.refuses:
                found.append(replace(p, predicted=replace(p.predicted, violations=("outputs: wrong",))))
                continue
            rate = self.rates[p.name] * self.drift ** (number - 1)
            found.append(
                replace(p, measured=Measured(rate, (rate,), 1, 1, 1, 1, 1, disturbed=False), round=number)
            )
        return tuple(found)

    def measurement(self, plan):
        return None


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "m.tflite").write_bytes(b"x")
    return experiment_for_model(tmp_path / "m.tflite", ["measure.rounds=3", "search.candidates=2"])


@pytest.fixture
def searching(monkeypatch):
    """Replaces learning and searching by a list of what each search finds."""

    def use(*finds):
        answers = iter(finds)
        monkeypatch.setattr(rounds, "learn", lambda planner, measured: planner)
        monkeypatch.setattr(rounds, "rate_bound_hz", {PLANNER.problem: 321.0}.__getitem__)
        monkeypatch.setattr(rounds, "corrected", lambda planner, plans: tuple(plans))
        monkeypatch.setattr(rounds, "corrections", lambda planner, measured: None)
        monkeypatch.setattr(rounds, "stage_costs", lambda planner, measured: ())
        monkeypatch.setattr(rounds, "find_plans", lambda *a: (PROOF, tuple(next(answers))))

    return use


START = (plan("copies", 9, 100, "baseline"), plan("whole", 8, 50, "baseline"), plan("best pipeline", 7, 99))


def test_a_slower_machine_in_a_later_round_can_not_make_a_worse_plan_win(experiment, searching):
    new = plan("x", 6, 98)
    searching([new], [new])
    trial = FakeTrial(
        experiment, {"copies": 100, "whole": 50, "best pipeline": 97, "plan 2.1": 95}, drift=0.8
    )
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START)
    assert trial.batches[1] == ["plan 2.1", "copies", "best pipeline"], (
        "all that may still win, not only the best"
    )
    result = RunResult(None, None, None, PROOF, outcome.plans, 0, "")
    from dse.answer import choose

    winner = outcome.plans[choose(outcome.plans)]
    assert winner.name == "copies"
    assert winner.round == 2
    assert replace(result, winner=outcome.plans.index(winner)).best_baseline.name == "copies"


def test_the_best_baseline_is_always_measured_again(experiment, searching):
    searching([plan("x", 6, 300)], [])
    trial = FakeTrial(experiment, {"copies": 100, "whole": 50, "best pipeline": 200, "plan 2.1": 250})
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START)
    assert trial.batches[1] == ["plan 2.1", "copies", "best pipeline"]
    assert [entry.n_new for entry in outcome.rounds] == [3, 1]
    assert [entry.bound_hz for entry in outcome.rounds] == [321.0, 321.0]


def test_it_stops_when_nothing_is_new(experiment, searching):
    searching([START[0], START[2]])
    trial = FakeTrial(experiment, {"copies": 100, "whole": 50, "best pipeline": 97})
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START)
    assert len(trial.batches) == len(outcome.rounds) == 1


def test_a_plan_that_is_refused_is_not_tried_in_every_round(experiment, searching):
    searching([plan("x", 6, 300)], [plan("x", 6, 300)])
    rates = {"copies": 100, "whole": 50, "best pipeline": 97}
    trial = FakeTrial(experiment, rates, refuses=("plan 2.1",))
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START)
    assert len(trial.batches) == 2
    assert [(one.name, one.feasible) for one in outcome.plans if one.round == 2][-1] == ("plan 2.1", False)


def test_it_stops_when_predictions_hold_and_nothing_is_better(experiment, searching):
    searching([plan("x", 6, 90)], [plan("y", 5, 90)])
    trial = FakeTrial(experiment, {"copies": 100, "whole": 50, "best pipeline": 97, "plan 2.1": 89})
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START)
    assert len(outcome.rounds) == 2


def test_it_goes_on_while_something_better_turns_up(experiment, searching):
    searching([plan("x", 6, 120)], [plan("y", 5, 130)])
    rates = {"copies": 100, "whole": 50, "best pipeline": 97, "plan 2.1": 120, "plan 3.1": 130}
    trial = FakeTrial(experiment, rates)
    told = []
    outcome = rounds.measure_in_rounds(trial, PLANNER, PROOF, START, told.append)
    assert [entry.best_hz for entry in outcome.rounds] == [100, 120, 130]
    assert [len(one.rounds) for one in told] == [1, 2, 3]
    assert told[-1].plans == outcome.plans
    assert outcome.proof == replace(PROOF, corrected=True), "of the last search, which knew the measurements"
    assert trial.batches[2] == ["plan 3.1", "copies", "plan 2.1"]


def shared(name: str, *cores: int, predicted: float = 200.0) -> PlanResult:
    """A lane whose stages run on these cores."""
    stages = tuple(PlacedStage(f"s{n}", (n,), "cpu", 1, (core,)) for n, core in enumerate(cores))
    mapping = PlacedMapping((PlacedLane(stages),))
    return PlanResult(name, "candidate", mapping, Predicted(predicted, 1, 1, None), ())  # type: ignore[arg-type]


def test_stages_that_share_cores_are_another_plan():
    turns, apart, twin = shared("a", 0, 1, 0), shared("b", 0, 1, 2), shared("c", 4, 2, 4)
    assert turns.mapping.takes_turns
    assert not apart.mapping.takes_turns
    assert turns.mapping.signature != apart.mapping.signature
    assert turns.mapping.signature == twin.mapping.signature


def test_a_plan_without_shared_cores_is_measured_too(experiment):
    turns = [shared(f"plan {n}", *[0, 1] * (n + 1), predicted=300 - n) for n in range(1, 4)]
    apart = [shared("plan 4", 0, 1, 2, predicted=200), shared("plan 5", 0, 1, predicted=190)]
    chosen = rounds.worth_measuring([*turns, *apart], experiment)
    assert [plan.name for plan in chosen] == ["plan 1", "plan 2", "plan 4"]


@pytest.mark.parametrize(("rate", "second"), [(60, ["plan 2.1"]), (190, ["plan 2.1", "plan 2.2"])])
def test_plans_in_turns_that_disappointed_are_not_proposed_again(experiment, searching, rate, second):
    """Predicted 200 frames/s, they reach 60, of other plans' 100: further ones would not be the answer."""
    searching([shared("again", 0, 1, 0, 1), plan("plain", 5, 99)], [])
    start = (shared("turns", 0, 1, 0), *START)
    rates = {"turns": rate, "copies": 100, "whole": 50, "best pipeline": 97, "plan 2.1": 96, "plan 2.2": 96}
    trial = FakeTrial(experiment, rates)
    rounds.measure_in_rounds(trial, PLANNER, PROOF, start)
    assert [name for name in trial.batches[1] if name.startswith("plan")] == second
