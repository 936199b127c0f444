"""Lanes that are quick for one frame *and* for many, for models of many blocks.

Keeping every undominated pair of latency and period takes long where there are many blocks.  With the
period given, the smallest latency is one ordinary dynamic programme for all core counts at once
(``IntervalTable.quickest``), so a few dozen periods give a front that is good, though not proved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.interval_dp import IntervalTable, Span, useful_slots
from solvers.lanes import frontier_of
from solvers.limits import Limits
from solvers.order_costs import NEVER, Links, OrderCosts, exact_links
from solvers.problem import Goal, IntArray, Problem
from solvers.topology import Blocks, orders

N_PERIODS = 12
SPREAD = 20.0
"""Largest period tried over the shortest, where nothing else says."""
MULTIPLES = (1, 1.5, 2, 3, 4, 6, 8, 12)
"""Lanes with so many times the period of the floor on throughput."""
N_ORDERS = 2
ANY_PERIOD = NEVER - 1


@dataclass(frozen=True, slots=True)
class QuickLane:
    """A lane: cores, and spans of an order of the blocks."""

    use: tuple[int, ...]
    order: tuple[int, ...]
    spans: tuple[Span, ...]


def quick_lanes(blocks: Blocks, limits: Limits) -> tuple[list[QuickLane], bool]:
    """Return lanes that no other one found beats in cores, latency and period; and whether that is proved.

    Latency counts as the sum of busy times.  Proved means: the lane with the smallest latency that
    reaches the floor on throughput is among them, and no lane at all has a smaller latency.
    """
    found: list[QuickLane] = []
    proved = blocks.has_one_order and blocks.problem.objective.goal is Goal.LATENCY
    for order in orders(blocks, N_ORDERS, limits.seed):
        links = exact_links(blocks, order)
        table = IntervalTable(
            OrderCosts(blocks, order, links or Links.PREVIOUS), useful_slots(blocks), limits
        )
        lanes, is_least = _lanes_of(table, blocks.problem, order, limits)
        found += lanes
        proved &= is_least and links is not None
    return found, proved


def _lanes_of(
    table: IntervalTable, problem: Problem, order: tuple[int, ...], limits: Limits
) -> tuple[list[QuickLane], bool]:
    found: list[QuickLane] = []
    least: IntArray | None = None
    absolute = int(table.quickest(ANY_PERIOD).latency_ns.min())
    for number, period in enumerate(_periods(problem, table)):
        limits.check()
        lanes = table.quickest(period)
        better = lanes.latency_ns
        if least is not None:  # a longer period must buy latency
            better = np.where(better < least, better, NEVER)
        least = lanes.latency_ns if least is None else np.minimum(least, lanes.latency_ns)
        found += [QuickLane(use, order, lanes.lane(use)) for use in frontier_of(better)]
        if problem.objective.goal is Goal.LATENCY and int(least.min()) == absolute:
            return found, number == 0  # in the first period one lane reaches the floor
    return found, False


def _periods(problem: Problem, table: IntervalTable) -> list[int]:
    """Return the periods to try, ascending."""
    objective = problem.objective
    floor = objective.min_throughput_hz
    if objective.goal is Goal.LATENCY:
        # A lane that is faster than the floor asks for is of no use beside others.
        return [ANY_PERIOD] if floor is None else [int(k * 1e9 / floor) for k in MULTIPLES] + [ANY_PERIOD]
    shortest = int(table.periods().min())
    if shortest >= NEVER:
        return []
    return [int(period) for period in np.geomspace(shortest, shortest * SPREAD, N_PERIODS)] + [ANY_PERIOD]
