"""Bounds on latency, energy, and throughput under power and memory limits: close where they should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_baselines import big_little

from solvers.bounds import memory_room_bytes, most_lanes
from solvers.mapping import Status
from solvers.problem import Constant, Goal, Objective
from solvers.registry import solve

POWER = {"active_power_mw": (1000, 1900, 2700, 3400, 200, 390, 570, 740), "idle_power_mw": 100}


def test_energy_of_a_chain_is_within_a_few_percent_of_its_bound():
    problem = big_little(14, **POWER)
    fastest = solve(problem, "lanes").evaluation.throughput_hz
    for share, most in ((None, 0.05), (0.3, 0.08), (0.7, 0.1)):
        floor = None if share is None else share * fastest
        found = solve(replace(problem, objective=Objective(Goal.ENERGY, min_throughput_hz=floor)))
        assert found.bound_energy_nj <= found.evaluation.energy_nj
        assert found.gap == pytest.approx(1 - found.bound_energy_nj / found.evaluation.energy_nj)
        assert found.gap < most
        # A single lane is a mix too, whatever was left out while lanes were combined.
        alone = solve(
            replace(problem, objective=Objective(Goal.ENERGY, min_throughput_hz=floor)), "interval_dp"
        )
        assert found.evaluation.energy_nj <= alone.evaluation.energy_nj


def test_latency_counts_hand_over_and_the_floor():
    problem = big_little(30, max_lanes=1)
    free = solve(replace(problem, objective=Objective(Goal.LATENCY)))
    assert free.status is Status.OPTIMAL
    assert free.gap < 0.01
    fastest = solve(problem, "lanes").evaluation.throughput_hz
    floored = solve(replace(problem, objective=Objective(Goal.LATENCY, min_throughput_hz=0.9 * fastest)))
    assert free.bound_latency_ns < floored.bound_latency_ns <= floored.evaluation.latency_ns


def test_a_power_limit_bounds_the_throughput():
    problem = big_little(14, **POWER)
    free = solve(problem, "lanes")
    limited = solve(replace(problem, max_power_mw=900), "lanes")
    assert limited.evaluation.throughput_hz <= limited.bound_hz < 0.7 * free.bound_hz
    assert limited.gap < 0.12


@pytest.mark.parametrize(
    ("limits", "room", "lanes"),
    [
        ({}, None, 8),
        ({"total_memory_limit_bytes": 25_000}, 25_000, 2),
        ({"memory_limits_bytes": (20_000, None)}, None, 8),
        ({"memory_limits_bytes": (20_000, 16_000), "total_memory_limit_bytes": 50_000}, 36_000, 3),
        ({"total_memory_limit_bytes": 5}, 5, 1),
    ],
)
def test_memory_bounds_the_number_of_lanes(limits, room, lanes):
    problem = big_little(10, constants=(Constant(10_000, (3,)),), **limits)
    assert memory_room_bytes(problem) == room
    assert most_lanes(problem) == lanes


def test_what_costs_nothing_has_no_gap():
    problem = big_little(3, objective=Objective(Goal.LATENCY))
    problem = replace(problem, cost_ns=np.zeros_like(problem.cost_ns))
    found = solve(problem)
    assert found.evaluation.latency_ns == 0
    assert found.gap == 0
