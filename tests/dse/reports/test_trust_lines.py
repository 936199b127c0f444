from __future__ import annotations

from dse.costs import Cost, CostTable, StageCost, WholeCost
from dse.graph import Layer, LayerGraph, Tensor
from dse.platforms import Cluster, Platform, Slot
from dse.problems import build_problem
from dse.reports.costs import costs_text, trust_lines
from solvers.evaluate import stage_compute_ns


def table(*costs: Cost, **conditions: object) -> CostTable:
    rows = tuple((cost,) for cost in costs)
    return CostTable("h", "m", "p", (Slot("cpu", 1),), rows, (0,), (None,), conditions=dict(conditions))


def test_everything_that_makes_numbers_doubtful_is_told() -> None:
    found = table(
        Cost(5, (5,), "in_situ"),
        Cost(5, (5,), "in_situ"),
        Cost(5, (5,), "in_situ"),
        Cost(7, (7,), "extracted"),
        Cost(None, reason="unsupported"),
        precision={"asked": 0.03, "n_within": 2, "n_measured": 4, "median": 0.0512, "stopped_by": "budget"},
        n_visits=90,
        n_disturbed_visits=12,
        machine={"warnings": ["the hypervisor gave 9% of the time to others " + "and more " * 12]},
    )
    lines = trust_lines(found)
    text = " ".join(line.strip() for line in lines)
    assert "inside the whole model 75%" in text
    assert "as models of their own 25%" in text
    assert "within 3%: 2 of 4 costs (median 5.1%); stopped by budget" in text
    assert "12 of 90 visits" in text
    assert "warning: the hypervisor" in text
    assert max(map(len, lines)) <= 80


def test_nothing_to_tell() -> None:
    assert trust_lines(table()) == []
    assert trust_lines(table(Cost(3, source="analytic")))[0] == "layers timed or predicted: analytic 100%"


def test_17_sums_that_do_not_meet_the_total_are_told_and_measured_stages_win() -> None:
    """Three layers of 100 us each take 330 us together with 9 us overhead; the first two take 150 us as a stage."""
    layers = tuple(
        Layer(n, f"l{n}", "ABS", (n,), (n,), (n + 1,), (), None, None, 0, f"key{n}") for n in range(3)
    )
    tensors = tuple(Tensor(n, f"t{n}", "float32", (4,), 16, "activation") for n in range(4))
    graph = LayerGraph("m", layers, tensors, (0,), (3,))
    slot = Slot("cpu", 1)
    known = CostTable(
        "h", "m", "p", (slot,), ((Cost(100_000, (100_000,), "extracted"),),) * 3, (9_000,),
        (WholeCost(330_000, (330_000,)),), stages=(StageCost((0, 1), slot, 150_000),),
    )  # fmt: skip
    text = costs_text(graph, known)
    (total,) = [line for line in text.splitlines() if line.startswith("1 cpu ") and "us" in line]
    assert total.split() == ["1", "cpu", "300", "us", "9", "us", "330", "us", "1.07", "none"]
    (stage,) = [line for line in text.splitlines() if line.startswith("0:1 on 1 cpu")]
    assert "150 us" in stage
    assert "223 us" in stage, "the sum of its layers, scaled to the whole model, and the overhead"
    problem = build_problem(graph, Platform("p", (Cluster("cpu", (0,)),)), known)
    assert stage_compute_ns(problem, (0, 1, 2), 0) == 330_000, "the residual is spread over all layers alike"
    assert stage_compute_ns(problem, (0, 1), 0) == 150_000
