"""Studies that are asked and told: exact budgets, trials that are taken over, seeds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from solvers.errors import ProblemError
from solvers.studies import Choice, Range, Study, StudyOptions

OPTIONS = StudyOptions(
    parameters={"kind": Choice(3), "count": Range(1, 8), "share": Range(0.1, 1.0, log=True)},
    directions=("maximize",),
    budget=20,
)


def test_many_at_once_begin_exactly_the_budget(tmp_path):
    file = tmp_path / "journal"

    def work(number: int) -> list[int]:
        study, mine = Study("s", file, OPTIONS), []
        while trial := study.claim(f"worker {number}"):
            study.tell(trial.number, [trial.parameters["count"] - trial.parameters["share"]])
            mine.append(trial.number)
        return mine

    with ThreadPoolExecutor(4) as threads:
        begun = [number for mine in threads.map(work, range(4)) for number in mine]
    assert sorted(begun) == list(range(20))
    study = Study("s", file, OPTIONS)
    assert (study.counts.complete, study.counts.running, study.counts.failed) == (20, 0, 0)
    assert study.claim("late") is None
    ((_, (best,)),) = study.best()
    assert best == max(trial.value for trial in study._trials())


def test_trials_stay_within_their_ranges_and_follow_the_seed(tmp_path):
    def trials(name: str, options: StudyOptions) -> list[dict]:
        study, found = Study(name, tmp_path / "journal", options), []
        while trial := study.claim("me"):
            assert set(trial.parameters) == {"kind", "count", "share"}
            assert trial.parameters["kind"] in (0, 1, 2)
            assert trial.parameters["count"] in range(1, 9)
            assert isinstance(trial.parameters["count"], int)
            assert 0.1 <= trial.parameters["share"] <= 1.0
            study.tell(trial.number, [trial.parameters["share"]])
            found.append(dict(trial.parameters))
        return found

    for sampler in ("random", "tpe", "nsga2"):
        options = replace(OPTIONS, sampler=sampler, parallel=False)
        assert options.reproducible
        first = trials(f"{sampler} a", options)
        assert trials(f"{sampler} b", options) == first
        assert trials(f"{sampler} c", replace(options, seed=1)) != first
    assert not OPTIONS.reproducible
    assert replace(OPTIONS, sampler="random").reproducible


def test_trials_whose_owner_is_gone_are_taken_over_with_their_parameters(tmp_path):
    study = Study("s", tmp_path / "journal", OPTIONS)
    dead, alive = study.claim("dead"), study.claim("alive")
    cut_off = study._study.ask()  # the process died before it could draw or sign
    taken = study.adopt("me", lambda owner: owner == "dead")
    assert [trial.number for trial in taken] == [dead.number, cut_off.number]
    assert taken[0] == dead
    assert set(taken[1].parameters) == set(OPTIONS.parameters)
    assert study.adopt("another", lambda owner: owner == "dead") == ()
    for trial in (*taken, alive):
        study.tell(trial.number, [1.0])
    study.tell(dead.number, [2.0])  # too late: it has ended
    assert [trial.value for trial in study._trials()] == [1.0, 1.0, 1.0]
    assert study.counts.complete == 3


def test_a_failed_trial_counts_and_keeps_why(tmp_path):
    study = Study("s", tmp_path / "journal", replace(OPTIONS, budget=1))
    study.tell(study.claim("me").number, None, "out of memory")
    assert study.counts.failed == 1
    assert study.claim("me") is None
    assert study._trials()[0].user_attrs["note"] == "out of memory"


@pytest.mark.parametrize(
    "changed",
    [{"parameters": {"kind": Choice(2)}}, {"directions": ("minimize",)}],
    ids=["parameters", "directions"],
)
def test_another_search_under_the_same_name_is_refused(tmp_path, changed):
    Study("s", tmp_path / "journal", OPTIONS)
    with pytest.raises(ProblemError, match="another name or storage"):
        Study("s", tmp_path / "journal", replace(OPTIONS, **changed))
    assert Study("s", tmp_path / "journal", replace(OPTIONS, budget=99)).claim("me") is not None


def test_a_database_needs_a_lock():
    with pytest.raises(ProblemError, match="needs a lock"):
        Study("s", "sqlite://", OPTIONS)
