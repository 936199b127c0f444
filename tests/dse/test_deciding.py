"""Who is repeated: plans that may be the fastest and are not known well enough, and nobody else."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

import pytest

from dse.deciding import Decision, half_width, interval_hz


@dataclass
class Repeat:
    throughput_hz: float


@dataclass
class Measured:
    """As much of a ``PlanMeasurement`` as is asked for."""

    plan: str
    rates: list[float]

    @property
    def repeats(self) -> list[Repeat]:
        return [Repeat(rate) for rate in self.rates]

    counted = repeats

    @property
    def throughput_hz(self) -> float:
        return statistics.median(self.rates)


def decision(*rivals: str, precision: float = 0.02, most: int = 12) -> Decision:
    return Decision(frozenset(rivals), precision, most)


def test_a_clear_winner_needs_no_more():
    calm = [Measured("a", [100, 101, 99]), Measured("b", [50, 70, 60])]
    assert decision("a", "b")(calm) == ()


def test_plans_that_overlap_are_repeated_and_slower_ones_are_not():
    found = [
        Measured("a", [100, 110, 90]),
        Measured("b", [97, 85, 99]),
        Measured("lucky", [95, 95.1, 95.2]),
        Measured("slow", [20, 80, 40]),
        Measured("not allowed", [90, 120, 100]),
    ]
    assert decision("a", "b", "lucky", "slow")(found) == {"a", "b", "lucky"}


def test_it_ends():
    assert decision("a", most=3)([Measured("a", [1, 5, 3])]) == frozenset()
    assert decision()([Measured("a", [1, 5, 3])]) == ()


def test_who_asks_for_one_repeat_gets_one():
    assert decision("a", "b")([Measured("a", [100, 150]), Measured("b", [90, 140])]) == ()


@pytest.mark.parametrize("scatter", [0.0, 0.05, 0.3])
def test_the_faster_of_two_is_told_apart_or_time_is_up(scatter):
    random.seed(scatter)
    decide = decision("a", "b", most=40)
    plans = [Measured("a", []), Measured("b", [])]
    again = {"a", "b"}
    while again:
        for plan in plans:
            rate = 100 if plan.plan == "a" else 90
            plan.rates += [random.gauss(rate, rate * scatter)] * (plan.plan in again)
            if len(plan.rates) < 4:
                plan.rates += [random.gauss(rate, rate * scatter) for _ in range(3)]
        again = set(decide(plans))
    fast, slow = plans
    apart = interval_hz(slow)[1] < interval_hz(fast)[0]
    assert len(fast.rates) == 40 or apart or max(map(half_width, plans)) <= 0.02
    if scatter <= 0.05:
        assert apart
        assert fast.throughput_hz > slow.throughput_hz
