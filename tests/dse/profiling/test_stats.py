from __future__ import annotations

import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.profiling.stats import (
    median,
    median_interval,
    relative_half_width,
    repeatable_interval,
    surely_more,
)

times = st.lists(st.integers(0, 10**10), min_size=1, max_size=60)


@given(times)
def test_median_is_the_usual_one(values: list[int]) -> None:
    assert abs(median(values) - statistics.median(values)) <= 0.5


def test_no_values() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])
    assert median_interval([]) is None


@given(times)
def test_interval_encloses_the_median_and_ignores_order(values: list[int]) -> None:
    interval = median_interval(values)
    if len(values) < 6:
        assert interval is None
        return
    assert interval is not None
    assert interval[0] <= median(values) <= interval[1]
    assert median_interval(sorted(values, reverse=True)) == interval


@pytest.mark.parametrize(("n", "rank"), [(6, 0), (8, 0), (9, 1), (10, 1), (20, 5), (50, 17), (100, 39)])
def test_ranks_of_the_binomial_table(n: int, rank: int) -> None:
    assert median_interval(range(n)) == (rank, n - 1 - rank)
    # Oracle: the probability that Bin(n, 1/2) lies in rank+1 .. n-rank-1 is the coverage.
    coverage = sum(math.comb(n, k) for k in range(rank + 1, n - rank)) / 2**n
    assert coverage >= 0.95
    tighter = sum(math.comb(n, k) for k in range(rank + 2, n - rank - 1)) / 2**n
    assert tighter < 0.95


def test_coverage_on_a_skewed_distribution() -> None:
    draw = random.Random(3)
    true_median = math.exp(10)
    hits = 0
    for _ in range(400):
        low, high = median_interval([round(draw.lognormvariate(10, 1)) for _ in range(11)]) or (0, 0)
        hits += low <= true_median <= high
    assert hits >= 0.93 * 400


def test_half_width() -> None:
    assert relative_half_width([90, 100, 110], (90, 110)) == pytest.approx(0.1)
    assert relative_half_width([0, 0, 0], (0, 0)) == 0.0


def test_stated_interval_contains_the_usual_one_and_the_drift() -> None:
    steady = [1000] * 12
    assert repeatable_interval(steady) == (980, 1020), "sessions scatter even where visits do not"
    assert repeatable_interval(steady, 250) == (750, 1250), "nothing is known beyond the clock"
    rising = list(range(1000, 1240, 20))
    low, high = repeatable_interval(rising) or (0, 0)
    narrow = median_interval(rising) or (0, 0)
    assert low < narrow[0] <= narrow[1] < high
    assert low <= median(rising[:6]) < median(rising[6:]) <= high
    assert repeatable_interval(steady[:5]) is None


def test_sessions_with_a_luck_of_their_own_agree_as_stated() -> None:
    draw = random.Random(5)

    def session() -> tuple[int, int]:
        luck = draw.gauss(1, 0.015)
        interval = repeatable_interval([round(1e5 * luck * draw.gauss(1, 0.02)) for _ in range(12)])
        assert interval is not None
        return interval

    pairs = [(session(), session()) for _ in range(400)]
    assert sum(a[0] <= b[1] and b[0] <= a[1] for a, b in pairs) >= 0.95 * len(pairs)


@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=5), st.lists(st.integers(0, 9), min_size=3, max_size=4)
)
def test_the_rank_test_counts_orders(first: list[int], second: list[int]) -> None:
    def wrong(ranks: tuple[int, ...]) -> int:
        others = set(range(len(first) + len(second))) - set(ranks)
        return sum(a < b for a in ranks for b in others)

    observed = sum((a < b) + (a == b) / 2 for a in first for b in second)
    orders = [wrong(ranks) for ranks in combinations(range(len(first) + len(second)), len(first))]
    chance = sum(order <= math.ceil(observed) for order in orders) / len(orders)
    assert surely_more(first, second) == (chance <= 0.05)


def test_few_values_tell_nothing() -> None:
    assert surely_more([2, 3], [0, 1]) is None
    assert surely_more([], []) is None
    assert surely_more([4, 5, 6], [1, 2, 3])
    assert surely_more([4, 5, 2], [1, 2, 3]) is False


def test_equal_plans_are_rarely_told_apart() -> None:
    random.seed(1)
    draws = [[random.gauss(0, 1) for _ in range(16)] for _ in range(2000)]
    assert sum(bool(surely_more(draw[:8], draw[8:])) for draw in draws) / len(draws) < 0.06
