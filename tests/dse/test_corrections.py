"""Factors on costs that a run learned: they come back from the cost table as they were applied in the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dse.corrections import Corrections
from dse.costs import Cost, CostTable
from dse.errors import InputError
from dse.platforms import Slot
from solvers.problem import Problem
from solvers.problem import Slot as SolverSlot

SLOTS = (Slot("big", 1), Slot("LITTLE core", 2, "builtin"))
FOUND = Corrections({SLOTS[0]: 1.1, SLOTS[1]: 0.9}, {SLOTS[0]: 1.5, SLOTS[1]: 2.0}, {"LITTLE core": 3.0})


def problem() -> Problem:
    return Problem(
        np.array([[100, 400], [200, 600]]), np.ones((2, 2), bool), (SolverSlot(0, 1), SolverSlot(1, 2)), (1, 2),
        setup_ns=np.array([[10, 20], [30, 40]]), bandwidth_bytes_per_s=np.full((2, 2), 6e9),
    )  # fmt: skip


def table(corrections: Corrections | None) -> CostTable:
    cost = Cost(100)
    return CostTable("h", "m", "p", SLOTS, ((cost, cost),), (0, 0), (None, None), corrections=corrections)


def test_costs_are_scaled_by_slot_and_condition_and_hand_overs_by_who_receives():
    found = FOUND.apply(problem(), SLOTS, ("big", "LITTLE core"))
    assert found.isolated.cost_ns.tolist() == [[110, 360], [220, 540]]
    assert found.under_load.cost_ns.tolist() == [[150, 800], [300, 1200]]
    assert found.setup.tolist() == [[10, 60], [30, 120]]
    assert found.bandwidth.tolist() == [[6e9, 2e9]] * 2


def test_load_makes_nothing_faster():
    found = Corrections({SLOTS[0]: 2.0}, {SLOTS[0]: 1.5}).apply(problem(), SLOTS, ("big", "LITTLE core"))
    assert found.isolated.cost_ns.tolist() == found.under_load.cost_ns.tolist() == [[150, 400], [300, 600]]


def test_corrections_of_corrected_costs_multiply():
    both = Corrections({SLOTS[0]: 2.0}, {}, {"big": 0.5}).after(FOUND)
    assert both.alone == {SLOTS[0]: 2.2, SLOTS[1]: 0.9}
    assert both.receiving == {"LITTLE core": 3.0, "big": 0.5}
    assert both.under_load == FOUND.under_load
    assert FOUND.after(None) is FOUND
    assert table(FOUND).corrected_by(None).corrections is FOUND


def test_they_survive_the_file():
    data = json.loads(json.dumps(table(FOUND).to_json()))
    assert CostTable.from_json(data, "x").corrections == FOUND
    assert "corrections" not in table(None).to_json()


@pytest.mark.parametrize(
    "entry",
    [
        {"slots": {"big": {"alone": 1, "under_load": 1}}, "receiving": {}},
        {"slots": {"1 big": {"alone": 0, "under_load": 1}}, "receiving": {}},
        {"slots": {"1 big": {"alone": 1}}, "receiving": {}},
        {"slots": {}, "receiving": {"big": float("inf")}},
        {"slots": []},
    ],
)
def test_bad_factors_are_told(entry):
    data = {**table(None).to_json(), "corrections": entry}
    with pytest.raises(InputError, match="damaged cost table"):
        CostTable.from_json(data, "x")
