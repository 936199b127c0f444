"""The solvers ``interval_dp`` (one lane) and ``lanes`` (any mix of lanes)."""

from __future__ import annotations

from solvers.coarse import search_coarsely, work_of_pass
from solvers.constrained import solve_constrained
from solvers.errors import CapError, InfeasibleError
from solvers.evaluate import evaluate
from solvers.ideal_dp import MOST_IDEALS
from solvers.infeasible import why_no_lane
from solvers.lanes import FEW_IDEALS, LanePool, best_mix, optimistic_rate
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.order_costs import Links, exact_links
from solvers.problem import Goal, Problem
from solvers.topology import Blocks, contract
from solvers.whole_networks import or_whole_networks

MANY_BLOCKS, MUCH_WORK = 600, 150_000_000
"""With more blocks *and* more work, neighbours are joined first (``solvers.coarse``), without proof."""
HUGE_WORK = 5_000_000_000
"""With more work than this (many cores of several clusters), they are joined however few there are."""


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
    Models of many hundred layers are joined to coarse blocks first (status FEASIBLE, judged by the
    bound). Where a limit on memory, latency or power binds, or for another goal than throughput, the search
    of ``solvers.constrained`` takes over.

    Raises
    ------
    InfeasibleError, CapError
    """
    return _solve("lanes", problem, limits, problem.lane_limit)


def solve_ideal_dp(problem: Problem, limits: Limits) -> Solution:
    """Find the best mix of lanes over *all* contiguous (convex) plans.

    Exact for branching graphs too (where hand-over costs depend on the producer's cluster: unless a
    lower bound stays below the best found).  Cost: some dozens of sweeps over the ideals, each linear
    in their number (``solvers.lane_proof``); with up to 1,000 ideals, or where the sweeps do not tell,
    one pass over pairs of them (``solvers.ideal_dp``, with the source).  Refuses more than 500,000
    ideals.

    Raises
    ------
    InfeasibleError, CapError
    """
    return _solve("ideal_dp", problem, limits, problem.lane_limit, MOST_IDEALS)


def _solve(
    name: str, problem: Problem, limits: Limits, max_lanes: int | None, most_ideals: int | None = None
) -> Solution:
    blocks = contract(problem)
    if problem.objective.goal is not Goal.THROUGHPUT:
        return or_whole_networks(problem, solve_constrained(name, blocks, limits, max_lanes))
    if is_coarse(blocks):
        return _solve_coarsely(name, blocks, limits, max_lanes)
    pool = LanePool(blocks, limits, n_orders=4)
    if not blocks.has_one_order:
        _tell(limits, best_mix(pool, max_lanes))
    every_plan = blocks.has_one_order or _search_ideals(pool, limits, most_ideals, max_lanes)
    if not every_plan:
        pool = LanePool(blocks, limits)
    family = Family.CONTIGUOUS if every_plan else Family.ORDER
    mapping = best_mix(pool, max_lanes)
    if mapping is None:
        reason = why_no_lane(blocks, proved=every_plan)
        if reason is not None:
            raise InfeasibleError(reason)
        return Solution(name, Status.UNKNOWN, family, None, None, None, "no lane found in the orders tried")
    evaluation = evaluate(problem, mapping)
    limits.found(mapping, evaluation)
    if not evaluation.feasible:  # a limit on memory, latency, power or throughput binds
        return or_whole_networks(problem, solve_constrained(name, blocks, limits, max_lanes))
    links = exact_links(blocks, tuple(range(blocks.n_blocks)))
    # Where the producer's cluster counts, it is known of stages along one order only.
    exact = links is Links.TARGET or (links is not None and blocks.has_one_order)
    rate = float(evaluation.frames_per_ns)
    proved = (exact and pool.is_exact) or rate >= optimistic_rate(pool, max_lanes) * (1 - 1e-12)
    status = Status.OPTIMAL if proved else Status.FEASIBLE
    return or_whole_networks(problem, Solution(name, status, family, mapping, evaluation, None))


def is_coarse(blocks: Blocks) -> bool:
    """Whether there are so many blocks that neighbours are joined first."""
    work = work_of_pass(blocks.problem, blocks.n_blocks)
    return work > HUGE_WORK or (blocks.n_blocks > MANY_BLOCKS and work > MUCH_WORK)


def _solve_coarsely(name: str, blocks: Blocks, limits: Limits, max_lanes: int | None) -> Solution:
    problem = blocks.problem
    mapping = search_coarsely(blocks, limits, max_lanes)
    evaluation = None if mapping is None else evaluate(problem, mapping)
    if evaluation is None or not evaluation.feasible:
        broken = "" if evaluation is None else f"; the fastest breaks {evaluation.violations[0].constraint}"
        reason = f"no mapping found among coarse cuts of {blocks.n_blocks} blocks{broken}"
        return Solution(name, Status.UNKNOWN, Family.ORDER, None, None, None, reason)
    return or_whole_networks(
        problem, Solution(name, Status.FEASIBLE, Family.ORDER, mapping, evaluation, None)
    )


def _tell(limits: Limits, mapping: Mapping | None) -> None:
    if mapping is not None:
        limits.found(mapping)


def _search_ideals(pool: LanePool, limits: Limits, most_ideals: int | None, max_lanes: int | None) -> bool:
    """Search all ideals when asked to, or when there are few; say whether it was done."""
    try:
        pool.search_ideals(limits, most_ideals or FEW_IDEALS, max_lanes)
    except CapError:
        if most_ideals is not None:
            raise
        return False
    return True
