"""The solvers ``interval_dp`` (one lane) and ``lanes`` (any mix of lanes)."""

from __future__ import annotations

from dataclasses import replace

from solvers.errors import InfeasibleError, UnsupportedProblemError
from solvers.evaluate import Evaluation, evaluate
from solvers.lanes import LanePool, best_mix, optimistic_rate
from solvers.mapping import Family, Lane, Mapping, Solution, Status
from solvers.order_costs import exact_links
from solvers.problem import Goal, Limits, Problem
from solvers.topology import Blocks, contract


def solve_interval_dp(problem: Problem, limits: Limits) -> Solution:
    """Find the best single pipeline.

    Searches contiguous cuts of one topological order for a graph that has only one, of several
    seeded orders otherwise; exact for those orders, and for all convex plans where there is only
    one order.  Cost: blocks^2 * slots * core counts element operations per order.  See
    ``solvers.interval_dp`` for the source.

    Raises
    ------
    InfeasibleError, UnsupportedProblemError, CapError
    """
    return _solve("interval_dp", problem, limits, 1)


def solve_lanes(problem: Problem, limits: Limits) -> Solution:
    """Find the best mix of pipelines and copies.

    Lanes as in ``solve_interval_dp``; the mix of lanes is exact by a knapsack over core counts.

    Raises
    ------
    InfeasibleError, UnsupportedProblemError, CapError
    """
    return _solve("lanes", problem, limits, problem.lane_limit)


def _solve(name: str, problem: Problem, limits: Limits, max_lanes: int | None) -> Solution:
    if problem.objective.goal is not Goal.THROUGHPUT:
        raise UnsupportedProblemError(
            f"{name} makes throughput best, the goal is {problem.objective.goal.value}; "
            "'exhaustive' takes every goal on small problems"
        )
    blocks = contract(problem)
    pool = LanePool(blocks, limits)
    family = Family.CONTIGUOUS if blocks.has_one_order else Family.ORDER
    mapping = best_mix(pool, max_lanes)
    if mapping is None:
        reason = why_no_lane(blocks)
        if reason is not None:
            raise InfeasibleError(reason)
        return Solution(name, Status.UNKNOWN, family, None, None, None, "no lane found in the orders tried")
    evaluation = evaluate(problem, mapping)
    if not evaluation.feasible:
        return _not_kept(name, family, evaluation)
    exact = exact_links(blocks, tuple(range(blocks.n_blocks))) is not None
    rate = float(evaluation.frames_per_ns)
    proved = exact or rate >= optimistic_rate(pool, max_lanes) * (1 - 1e-12)
    status = Status.OPTIMAL if proved else Status.FEASIBLE
    return Solution(name, status, family, mapping, evaluation, None)


def _not_kept(name: str, family: Family, evaluation: Evaluation) -> Solution:
    broken = "; ".join(
        f"{v.constraint} ({v.detail}): demand {v.demand:g} {v.unit}, limit {v.limit:g}"
        for v in evaluation.violations
    )
    return Solution(name, Status.UNKNOWN, family, None, None, None, f"the fastest mapping breaks {broken}")


def why_no_lane(blocks: Blocks) -> str | None:
    """Say which resource no lane can do with, or None when that is not proved.

    Cores are added to one cluster at a time (and the cap on stages lifted) until a lane appears.
    Proved only where the graph has one order; pins are counted for any graph.
    """
    problem = blocks.problem
    pinned = sum(pin is not None for pin in blocks.pin)
    if problem.max_stages is not None and pinned > problem.max_stages:
        return f"max_stages: the pins need {pinned} stages, limit {problem.max_stages} stages"
    for cluster, size in enumerate(problem.cluster_sizes):
        demand = sum(
            int(problem.cores[blocks.allowed[block], cluster].min())
            for block, pin in enumerate(blocks.pin)
            if pin is not None
        )
        if demand > size:
            return f"cores: the pins need {demand} cores of cluster {cluster}, limit {size} cores"
    if not blocks.has_one_order:
        return None
    return _least_addition(problem)


def _least_addition(problem: Problem) -> str:
    if problem.max_stages is not None:
        mapping = _any_lane(replace(problem, max_stages=None))
        if mapping is not None:
            demand = mapping.n_stages
            return f"max_stages: demand {demand} stages, limit {problem.max_stages} stages"
    most = problem.n_layers * max(int(n) for n in problem.cores.max(axis=0))
    for cluster, size in enumerate(problem.cluster_sizes):
        sizes = list(problem.cluster_sizes)
        sizes[cluster] = size + min(most, 64)
        larger = replace(problem, cluster_sizes=tuple(sizes))
        mapping = _any_lane(larger)
        if mapping is not None:
            demand = evaluate(larger, mapping).cores_used[cluster]
            return f"cores: a lane takes {demand} cores of cluster {cluster}, limit {size} cores"
    return f"cores: no lane fits {problem.cluster_sizes} cores per cluster, even with more of any one cluster"


def _any_lane(problem: Problem) -> Mapping | None:
    pool = LanePool(contract(problem), Limits(), 1)
    frontier = pool.frontier()
    if not frontier:
        return None

    return Mapping((Lane(pool.score(min(frontier, key=sum)).stages),))
