"""The best mix of lanes when memory, latency, power or energy count."""

from __future__ import annotations

import time

from solvers.binding import what_binds
from solvers.errors import InfeasibleError
from solvers.evaluate import Evaluation, is_better, keep_better
from solvers.infeasible import why_no_lane
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.offer_mix import best_mix
from solvers.offers import find_offers
from solvers.topology import Blocks
from solvers.whole_models import without_search


def solve_constrained(name: str, blocks: Blocks, limits: Limits, max_lanes: int | None) -> Solution:
    """Solve a problem under every goal and limit.

    Exact for graphs with one topological order whose hand-over costs are exact there, unless the
    cap on labels is hit (then FEASIBLE); on branching graphs latency is taken as the sum of busy
    times while searching, and the evaluator decides.

    Raises
    ------
    InfeasibleError
        Proved; names the limit that binds.
    """
    problem = blocks.problem
    family = Family.CONTIGUOUS if blocks.has_one_order else Family.ORDER
    start = time.monotonic()
    simple: tuple[Mapping, Evaluation] | None = None
    for mapping in without_search(problem):
        if max_lanes is None or len(mapping.lanes) <= max_lanes:
            simple = keep_better(problem, simple, mapping)
    if simple is not None:
        limits.found(*simple)
    search = find_offers(blocks, limits)
    found, mix_exact = best_mix(problem, search.offers, max_lanes, limits)
    if simple is not None and (found is None or is_better(problem, simple[1], found[1])):
        found = simple
    exact = search.exact and mix_exact
    if found is None:
        reason = None if search.offers else why_no_lane(blocks)
        if reason is not None:
            raise InfeasibleError(reason)
        if exact:
            raise InfeasibleError(what_binds(problem, limits, max_lanes, None))
        left = limits.time_s - (time.monotonic() - start)
        reason = f"no mapping within the limits found; {what_binds(problem, limits, max_lanes, left)}"
        return Solution(name, Status.UNKNOWN, family, None, None, None, reason)
    mapping, evaluation = found
    return Solution(name, Status.OPTIMAL if exact else Status.FEASIBLE, family, mapping, evaluation, None)
