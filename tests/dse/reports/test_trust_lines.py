from __future__ import annotations

from dse.costs import Cost, CostTable
from dse.platforms import Slot
from dse.reports.costs import trust_lines


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
