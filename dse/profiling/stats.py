"""Medians of timings and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

CONFIDENCE = 0.95
SESSION_FACTOR, SESSION_SHARE = 1.5, 0.02


def median(values: Sequence[int]) -> int:
    """Return the median, rounded to an integer.

    Raises
    ------
    ValueError
        There are no values.
    """
    if not values:
        raise ValueError("the median of no values does not exist")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle] + 1) // 2


def mean(values: Sequence[int]) -> int:
    """Return the mean, rounded to an integer.

    Raises
    ------
    statistics.StatisticsError
        There are no values.
    """
    return round(fmean(values))


def median_interval(values: Sequence[int], confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Return a confidence interval of the median that needs no assumption on the distribution.

    Parameters
    ----------
    values
        Independent observations.
    confidence
        Least coverage.

    Returns
    -------
    tuple of int or None
        None when there are too few values for this confidence (five or fewer at 95 %).

    Notes
    -----
    The interval between the k-th smallest and the k-th largest value misses the median only if
    fewer than k values fall on one side of it, which has a binomial probability [1]_.

    References
    ----------
    .. [1] W. J. Conover, Practical Nonparametric Statistics, 3rd ed., Wiley 1999, section 3.2.
    """
    rank = _interval_rank(len(values), confidence)
    if rank is None:
        return None
    ordered = sorted(values)
    return ordered[rank], ordered[-1 - rank]


@lru_cache(maxsize=1024)
def _interval_rank(n: int, confidence: float) -> int | None:
    """Return the largest k such that ranks k and n-1-k (from 0) enclose the median often enough."""
    missed = 0.0
    best = None
    for k in range((n + 1) // 2):
        missed += 2 * math.comb(n, k) / 2.0**n
        if missed > 1 - confidence:
            break
        best = k
    return best


def relative_half_width(values: Sequence[int], interval: tuple[int, int]) -> float:
    """Return half the width of an interval in units of the median (0 for a median of 0)."""
    middle = median(values)
    return (interval[1] - interval[0]) / (2 * middle) if middle else 0.0


def repeatable_interval(visits: Sequence[int], resolution_ns: int = 0) -> tuple[int, int] | None:
    """Return an interval that the median of another session should share, at 95 %.

    Parameters
    ----------
    visits
        One value per visit, in the order taken.
    resolution_ns
        What the clock can tell apart.

    Returns
    -------
    tuple of int or None
        None when there are too few visits.

    Notes
    -----
    Visits of one session share its luck: where memory lies, who works next door.  So medians of
    sessions scatter more than ``median_interval`` of one session says, by a factor and a share that
    were measured (``benchmarks/agreement.py``).  What drifts within a session counts as well: the
    medians of its two halves lie inside.
    """
    interval = median_interval(visits)
    if interval is None:
        return None
    middle = median(visits)
    halves = (median(visits[: len(visits) // 2]), median(visits[len(visits) // 2 :]))
    least = max(round(SESSION_SHARE * middle), resolution_ns)
    low = middle - max(round(SESSION_FACTOR * (middle - interval[0])), middle - min(halves), least)
    high = middle + max(round(SESSION_FACTOR * (interval[1] - middle)), max(halves) - middle, least)
    return max(0, low), high


def visit_interval(visits: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Return the interval of the median over visits, see ``repeatable_interval``.

    Runs of one visit share the moment and are not independent; their medians are, more nearly.
    """
    return repeatable_interval([median(visit) for visit in visits])


def reached_precision(visits: Sequence[Sequence[int]]) -> float | None:
    """Return the relative half-width of ``median_interval`` over visits, or None with too few of them."""
    medians = [median(visit) for visit in visits]
    interval = median_interval(medians)
    return None if interval is None else relative_half_width(medians, interval)


def surely_more(
    first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE
) -> bool | None:
    """Tell whether values of one kind tend to be larger than those of another, whatever their distributions.

    Returns
    -------
    bool or None
        None where there are too few values for this confidence (two of each, for example).

    Notes
    -----
    The rank test of [1]_, one-sided and exact: the chance that so few of the pairs have the smaller value
    first, where all orders of the values are equally likely.  Equal values count as half.

    References
    ----------
    .. [1] H. B. Mann, D. R. Whitney, On a Test of Whether one of Two Random Variables is Stochastically
       Larger than the Other, Annals of Mathematical Statistics 18, 1947.
    """
    n_orders = math.comb(len(first) + len(second), len(first))
    allowed = (1 - confidence) * n_orders
    if allowed < 1:
        return None
    wrong = sum((a < b) + (a == b) / 2 for a in first for b in second)
    return sum(_orders(len(first), len(second))[: math.ceil(wrong) + 1]) <= allowed


@lru_cache(maxsize=256)
def _orders(n: int, m: int) -> tuple[int, ...]:
    """Return in how many orders of n and m values each number of pairs is the wrong way round."""
    if n == 0 or m == 0:
        return (1,)
    # The largest value is one of the first kind, or it is larger than all of the first kind.
    found = [0] * (n * m + 1)
    for at, count in enumerate(_orders(n - 1, m)):
        found[at] += count
    for at, count in enumerate(_orders(n, m - 1)):
        found[at + n] += count
    return tuple(found)


def middle_mean(values: Sequence[int]) -> float:
    """Return the mean without the lowest and the highest quarter of the values.

    Against outliers as robust as needed, and not rounded as the median of whole microseconds is.

    Raises
    ------
    ValueError
        There are no values.
    """
    if not values:
        raise ValueError("the mean of no values does not exist")
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
