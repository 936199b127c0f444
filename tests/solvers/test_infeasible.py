"""Impossible problems name what binds, with demand, limit and unit; not found is something else."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_problems import all_features, examples
from test_baselines import big_little

from solvers.errors import ProblemError
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.mapping import Family, Status
from solvers.names import Names
from solvers.problem import Constant, Flow, Goal, Objective, Pin, Problem, Slot
from solvers.registry import solve

POWER = (1000, 1900, 2700, 3400, 200, 390, 570, 740)


def board(**extra):
    """Eight layers on 4 big + 4 LITTLE cores; slots 0-3 are 1-4 big, 4-7 are 1-4 LITTLE."""
    return replace(big_little(8), **extra)


def supported(*missing):
    mask = np.ones((8, 8), bool)
    for layer, slots in missing:
        mask[layer, list(slots)] = False
    return mask


BIG, LITTLE, ALL = range(4), range(4, 8), range(8)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (
            {"supported": supported((3, ALL))},
            "layer 3 is unsupported on all 8 slots (demand 1 slot, limit 0)",
        ),
        (
            {"supported": supported((1, BIG), (2, LITTLE)), "groups": ((1, 2),)},
            "layers (1, 2) must share a stage, but no slot supports all of them (demand 1 slot, limit 0)",
        ),
        (
            {"supported": supported((5, BIG)), "pins": (Pin((4, 5), (2,)),)},
            "layer 5 is supported on none of them",
        ),
        ({"pins": (Pin((0, 1), (2,)), Pin((1,), (5,)))}, "layer 1 is in pins 0 and 1: 2 pins, limit 1"),
        (
            {"pins": (Pin((0, 1), (3,)), Pin((2, 3), (0,)))},
            "cores: the pins need 5 cores of cluster 0, limit 4 cores",
        ),
        (
            {"pins": (Pin((0,), (0,)), Pin((2,), (4,)), Pin((4,), (5,))), "max_stages": 2},
            "max_stages: the pins need 3 stages, limit 2 stages",
        ),
        ({"total_memory_limit_bytes": 1999}, "memory: the whole model demands 2000 bytes, however it is cut"),
        (
            {"memory_limits_bytes": (400, 500)},
            "memory: the whole model demands 2000 bytes, however it is cut; limit 900",
        ),
        ({"objective": Objective(max_latency_ns=1000)}, "limit 1000 ns"),
        ({"objective": Objective(min_throughput_hz=1e6)}, "throughput floor: demand 1e+06 frames/s, limit"),
        (
            {"active_power_mw": POWER, "idle_power_mw": 100, "max_power_mw": 299},
            "power: one busy slot and what idles demand at least 300 mW, limit 299 mW",
        ),
    ],
)
@pytest.mark.parametrize("solver", ["auto", "lanes"])
def test_what_binds_is_named(extra, text, solver):
    found = solve(board(**extra), solver)
    assert found.status is Status.INFEASIBLE
    assert text in found.reason
    assert found.mapping is None


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        # Layer 0 needs a big core, and what it works on does not fit there beside its weights.
        (
            {
                "supported": supported((0, LITTLE)),
                "constants": (Constant(5000, (0,)),),
                "memory_limits_bytes": (5100, None),
            },
            "memory of cluster 0: demand at least 6000 bytes within the other limits, limit 5100 bytes",
        ),
        (
            {
                "max_lanes": 1,
                "objective": Objective(Goal.LATENCY, min_throughput_hz=850.0, max_latency_ns=2_500_000),
            },
            "latency: demand at least 2829272 ns within the other limits, limit 2500000 ns",
        ),
        (
            {"objective": Objective(min_throughput_hz=1190.3)},
            "throughput floor: demand 1190.3 frames/s, limit 1134 frames/s within the other limits",
        ),
    ],
)
def test_limits_that_bind_in_the_search_are_named(extra, text):
    found = solve(board(**extra), "lanes")
    assert found.status is Status.INFEASIBLE, found
    assert found.reason == text


def test_what_a_search_says_is_demanded_is_enough():
    extra = {"supported": supported((0, LITTLE)), "constants": (Constant(5000, (0,)),)}
    for limit, status in ((5999, Status.INFEASIBLE), (6000, Status.OPTIMAL)):
        assert solve(board(memory_limits_bytes=(limit, None), **extra), "lanes").status is status
    objective = Objective(Goal.LATENCY, min_throughput_hz=850.0, max_latency_ns=2_829_272)
    found = solve(board(max_lanes=1, objective=objective), "lanes")
    assert found.evaluation.latency_ns == 2_829_272


def test_of_branching_graphs_the_least_found_is_told():
    flows = (Flow(0, (1, 2), 100), Flow(1, (3,), 100), Flow(2, (3,), 100))
    found = solve(board(flows=flows, objective=Objective(min_throughput_hz=1190.3)), "lanes")
    assert found.status is Status.UNKNOWN
    assert "demand 1190.3 frames/s, best found 1137.2 frames/s within the other limits" in found.reason


def test_names_are_told_where_there_are_any():
    layers = (*(f"conv_{n}" for n in range(7)), "fused;" * 20)
    slots = tuple(f"{n} {name}" for name in ("big", "LITTLE") for n in (1, 2, 3, 4))
    names = Names(layers, slots, ("big", "LITTLE"))
    for extra, text in (
        ({"supported": supported((3, ALL))}, "layer 3 (conv_3) is unsupported"),
        ({"pins": (Pin((0, 1), (3,)), Pin((2, 3), (0,)))}, "5 cores of cluster big"),
        (
            {"pins": (Pin((4, 5), (2,)),), "supported": supported((5, BIG))},
            "layers (4, 5) (conv_4 to conv_5) on slots 3 big",
        ),
        ({"pins": (Pin((0, 7), (3,)), Pin((1,), (3,)))}, "(conv_0 to fused;fused;"),
    ):
        reason = solve(board(names=names, **extra)).reason
        assert text in reason
        assert len(reason) < 300
    with pytest.raises(ProblemError, match="7 names for 8 layers"):
        board(names=Names(layers[:7]))


@pytest.mark.parametrize(
    ("name", "least"),
    [("total_memory_limit_bytes", 2000), ("max_power_mw", 300)],
)
def test_what_is_demanded_is_enough_to_be_allowed(name, least):
    problem = board(active_power_mw=POWER, idle_power_mw=100)
    assert solve(replace(problem, **{name: least - 1})).status is Status.INFEASIBLE
    assert solve(replace(problem, **{name: least})).mapping is not None


def between():
    """An accelerator that refuses the layer in the middle: contiguous plans need it twice."""
    cost = np.array([[10, 100], [10, 20], [10, 100]])
    mask = np.array([[True, False], [False, True], [True, False]])
    flows = (Flow(0, (1,), 1), Flow(1, (2,), 1))
    return Problem(cost, mask, (Slot(0, 1), Slot(1, 1)), (1, 1), flows)


def test_turns_are_found_where_nothing_contiguous_is():
    found = solve(between())
    assert found.family is Family.ALL
    assert found.evaluation.lanes[0].period_ns == 20
    assert [stage.slot for stage in found.mapping.lanes[0].stages] == [0, 1, 0]
    lanes = solve(between(), "lanes")
    assert lanes.status is Status.INFEASIBLE
    assert lanes.family is Family.CONTIGUOUS
    assert lanes.reason == "cores: a lane takes 2 cores of cluster 0, limit 1 cores"


def test_not_found_is_not_impossible():
    problem = board(total_memory_limit_bytes=2001, pins=(Pin((0,), (0,)), Pin((4,), (4,))))
    stop = threading.Event()
    stop.set()
    found = solve(problem, limits=Limits(stop=stop))
    assert found.status is Status.UNKNOWN
    assert "before a mapping was found" in found.reason


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=all_features())
def test_impossible_for_every_mapping_is_so(problem):
    found = solve(problem)
    if found.mapping is None:
        assert found.reason
        if found.family is Family.ALL and found.status is Status.INFEASIBLE:
            assert search_exhaustively(problem, True).mapping is None, found.reason
            assert re.search(r"limit|need|2 pins", found.reason)
