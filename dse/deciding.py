"""Which plans have to be measured once more before the fastest is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dse.pipeline.measurement import PlanMeasurement
from dse.profiling.stats import median_interval

_FEWEST = 3
"""Repeats below which a user wants it quick, whatever the precision."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Tells which plans to repeat, until the fastest is known well enough.

    Plans that are surely slower than another are left alone, so the time goes where the decision is
    made (as in racing, [1]_).

    Parameters
    ----------
    rivals
        Names of the plans that may become the answer.
    precision
        Half the width of the interval of a plan's throughput, as a share, that is good enough.
    most
        Repeats of a plan, with those that every plan has.

    References
    ----------
    .. [1] O. Maron, A. W. Moore, The Racing Algorithm: Model Selection for Lazy Learners, Artificial
       Intelligence Review 11, 1997.
    """

    rivals: frozenset[str]
    precision: float
    most: int

    def __call__(self, measured: Sequence[PlanMeasurement]) -> Collection[str]:
        """Return the names of the plans to repeat; none when it is decided or time is up."""
        rivals = [one for one in measured if one.plan in self.rivals]
        if not rivals or min(len(one.repeats) for one in rivals) < _FEWEST:
            return ()
        best = max(rivals, key=lambda one: one.throughput_hz)
        floor = interval_hz(best)[0]
        open_ones = [one for one in rivals if interval_hz(one)[1] >= floor]
        if all(half_width(one) <= self.precision for one in open_ones):
            return ()
        # All of them: who was lucky in a few repeats would win against those that are known better.
        return frozenset(one.plan for one in open_ones if len(one.repeats) < self.most)


def interval_hz(measured: PlanMeasurement) -> tuple[float, float]:
    """Return an interval of the throughput's median at 95 %; of fewer than six repeats, the ends."""
    rates = [repeat.throughput_hz for repeat in measured.counted]
    found = median_interval([round(1000 * rate) for rate in rates])
    return (min(rates), max(rates)) if found is None else (found[0] / 1000, found[1] / 1000)


def half_width(measured: PlanMeasurement) -> float:
    """Return half the width of the interval, as a share of the throughput."""
    low, high = interval_hz(measured)
    return (high - low) / (2 * measured.throughput_hz)
