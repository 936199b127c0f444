"""Published cost tables: phone and PipeDream profiles."""

from __future__ import annotations

import pytest

from benchmarks.branching import main as branching
from benchmarks.graph_files import read_bettertogether, read_pipedream
from benchmarks.solvers import METHODS, compare, judge, main, table
from solvers.limits import Limits
from solvers.mapping import Status
from solvers.published import PUBLISHED
from solvers.registry import solve

PROFILES = ["densenet121", "inception_v3", "resnet50", "squeezenet1_0", "vgg16"]


def test_phone_optimum_on_loaded_means(corpus):
    problem = read_bettertogether(corpus / "cost-graphs" / "bettertogether_pixel.csv", "loaded")
    solution = solve(problem, "lanes")
    assert solution.status is Status.OPTIMAL
    assert solution.evaluation.lanes[0].period_ns == pytest.approx(11_544_500, abs=100)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_on_big_and_little(corpus, name):
    problem = read_pipedream(corpus / "cost-graphs" / "pipedream" / f"{name}.txt", (4, 4), (1.0, 2.5))
    solution = solve(problem, "lanes")
    assert solution.evaluation is not None
    assert solution.gap < 0.12
    chain = len(problem.edges) == problem.n_layers - 1
    assert solution.status is Status.OPTIMAL or not chain


BRANCHING = [name for name in PROFILES if name != "inception_v3"]


@pytest.mark.parametrize("name", [*BRANCHING, pytest.param("inception_v3", marks=pytest.mark.slow)])
def test_contiguous_plans_of_profiles_are_proved(corpus, capsys, name):
    folder = corpus / "cost-graphs" / "pipedream"
    assert branching([str(folder), "--only", name]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 3
    assert all(line.startswith(f"| {name} |") for line in lines)


def test_what_is_not_proved_is_told(corpus, capsys):
    folder = corpus / "cost-graphs" / "pipedream"
    assert branching([str(folder), "--only", "inception_v3", "--time-limit", "0"]) == 1
    assert capsys.readouterr().out.count("feasible") == 3


def test_no_heuristic_wins_on_a_profile(corpus):
    problem = read_pipedream(corpus / "cost-graphs" / "pipedream" / "vgg16.txt", (4, 4), (1.0, 2.5))
    lines = compare("vgg16", problem, Limits(time_s=1.0))
    ours = min(line.period_ms for line in lines if line.method == "portfolio")
    assert {line.method for line in lines} == {*METHODS, *PUBLISHED}
    assert judge(lines)[1] is None
    assert "| portfolio |" in table({"vgg16": lines})
    assert all(line.period_ms >= ours for line in lines if line.period_ms is not None)


def test_an_interrupted_comparison_continues(corpus, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    arguments = [str(corpus / "cost-graphs"), "--only", "pixel", "--time-limit", "1", "--rows", str(rows)]
    assert main(arguments) == 0
    first, kept = capsys.readouterr(), rows.read_text()
    assert main(arguments) == 0
    assert capsys.readouterr().out == first.out
    assert rows.read_text() == kept
    assert first.out.endswith("Published heuristics won: nowhere.\n\n")


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match=":1: expected a node"):
        read_pipedream(path, (1,), (1.0,))
    path.write_text("stage,processor,condition,mean_ms\n")
    with pytest.raises(ValueError, match="loaded"):
        read_bettertogether(path, "loaded")
