"""The solvers ``interval_dp`` (one lane) and ``lanes`` (any mix of lanes)."""

from __future__ import annotations

from solvers.constrained import solve_constrained
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate
from solvers.infeasible import why_no_lane
from solvers.lanes import LanePool, best_mix, optimistic_rate
from solvers.mapping import Family, Solution, Status
from solvers.order_costs import exact_links
from solvers.problem import Goal, Limits, Problem
from solvers.topology import contract


def solve_interval_dp(problem: Problem, limits: Limits) -> Solution:
    """Find the best single pipeline.

    Searches contiguous cuts of one topological order for a graph that has only one, of several
    seeded orders otherwise; exact for those orders, and for all convex plans where there is only
    one order.  Cost: blocks^2 * slots * core counts element operations per order.  See
    ``solvers.interval_dp`` for the source.

    Raises
    ------
    InfeasibleError, CapError
    """
    return _solve("interval_dp", problem, limits, 1)


def solve_lanes(problem: Problem, limits: Limits) -> Solution:
    """Find the best mix of pipelines and copies.

    Lanes as in ``solve_interval_dp``; the mix of lanes is exact by a knapsack over core counts.
    Where a limit on memory, latency or power binds, or for another goal than throughput, the search
    of ``solvers.constrained`` takes over.

    Raises
    ------
    InfeasibleError, CapError
    """
    return _solve("lanes", problem, limits, problem.lane_limit)


def _solve(name: str, problem: Problem, limits: Limits, max_lanes: int | None) -> Solution:
    blocks = contract(problem)
    family = Family.CONTIGUOUS if blocks.has_one_order else Family.ORDER
    if problem.objective.goal is not Goal.THROUGHPUT:
        return solve_constrained(name, blocks, limits, max_lanes)
    pool = LanePool(blocks, limits)
    mapping = best_mix(pool, max_lanes)
    if mapping is None:
        reason = why_no_lane(blocks)
        if reason is not None:
            raise InfeasibleError(reason)
        return Solution(name, Status.UNKNOWN, family, None, None, None, "no lane found in the orders tried")
    evaluation = evaluate(problem, mapping)
    if not evaluation.feasible:  # a limit on memory, latency, power or throughput binds
        return solve_constrained(name, blocks, limits, max_lanes)
    exact = exact_links(blocks, tuple(range(blocks.n_blocks))) is not None
    rate = float(evaluation.frames_per_ns)
    proved = exact or rate >= optimistic_rate(pool, max_lanes) * (1 - 1e-12)
    status = Status.OPTIMAL if proved else Status.FEASIBLE
    return Solution(name, status, family, mapping, evaluation, None)
