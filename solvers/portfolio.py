"""Everything that fits into the time limit, the best answer with the best bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

from solvers.assignment import better_of, improve, solve_by_prices
from solvers.errors import CapError, InfeasibleError
from solvers.evaluate import score_key
from solvers.limits import Limits
from solvers.mapping import Family, Solution, Status
from solvers.mix import solve_ideal_dp, solve_lanes
from solvers.pieces import improve_pieces
from solvers.problem import Goal, Problem
from solvers.topology import contract
from solvers.turns import plan_with_turns

TURNS_SHARE = 0.3
"""Share of the time to look for a plan with turns that keeps the limits, where there is no other."""


def solve_portfolio(problem: Problem, limits: Limits) -> Solution:
    """Run ``lanes``, on branching graphs ``ideal_dp``, and ``assignment`` on the best that is known then.

    Rounded prices are known as well.  What one of them leaves of its time the next ones get.  Where there
    is no contiguous plan, a plan with turns on the same cores is looked for instead.  Stops when an answer
    is proved best of all mappings, or within ``Limits.gap`` of that.  Plans may be non-contiguous (stages
    that share a unit), whatever the goal and the limits.  The same seed gives the same answer as long as no
    solver runs into the time limit.

    Raises
    ------
    InfeasibleError, CapError
    """
    start = time.monotonic()
    rounded = solve_by_prices(problem, limits)
    answers = [_first(problem, limits, rounded)]
    if rounded is not None:
        answers.append(rounded)
    steps: list[Callable[[Limits], Solution]] = []
    branching = answers[0].family is Family.ORDER and not contract(problem).has_one_order
    if branching and problem.objective.goal is Goal.THROUGHPUT:
        steps.append(lambda given: solve_ideal_dp(problem, given))
    steps.append(lambda given: improve(problem, reduce(partial(better_of, problem), answers), given))
    for number, step in enumerate(steps):
        proved = any(answer.status is Status.OPTIMAL and answer.family is Family.ALL for answer in answers)
        if proved or limits.close_enough:
            break
        left = limits.time_s - (time.monotonic() - start)
        if left <= 0:
            break
        try:
            answers.append(step(replace(limits, time_s=left / (len(steps) - number))))
        except CapError:
            continue
    return _combined(problem, answers)


def _first(problem: Problem, limits: Limits, rounded: Solution | None) -> Solution:
    """Return the best contiguous answer; where there is none, one with turns."""
    try:
        contiguous = solve_lanes(problem, limits)
    except InfeasibleError:
        found = _not_contiguous(problem, limits, rounded)
        if found is None:
            raise
        return found
    if contiguous.mapping is None:
        return _not_contiguous(problem, limits, rounded) or contiguous
    return contiguous


def _not_contiguous(problem: Problem, limits: Limits, rounded: Solution | None) -> Solution | None:
    """Return a plan with turns where there is no contiguous one, else None."""
    found = rounded or plan_with_turns(problem, limits)
    if found is None:
        nothing = Solution("", Status.UNKNOWN, Family.ALL, None, None, None)
        found = improve_pieces(problem, nothing, replace(limits, time_s=TURNS_SHARE * limits.time_s))
    return found if found.mapping is not None else None


def _combined(problem: Problem, answers: list[Solution]) -> Solution:
    """Return the best answer with the best bound; of equal ones the one that says most."""
    found = [answer for answer in answers if answer.evaluation is not None]
    bounds = [answer.bound_hz for answer in answers if answer.bound_hz is not None]
    bound = min(bounds, default=None)
    latencies = [answer.bound_latency_ns for answer in answers if answer.bound_latency_ns is not None]
    energies = [answer.bound_energy_nj for answer in answers if answer.bound_energy_nj is not None]
    if not found:
        return replace(answers[0], solver="portfolio", bound_hz=bound)

    def rank(answer: Solution) -> tuple[object, ...]:
        assert answer.evaluation is not None  # noqa: S101 - filtered above
        proved = 0 if answer.status is Status.OPTIMAL else 1
        return (score_key(problem, answer.evaluation), proved, list(Family).index(answer.family) * -1)

    return replace(
        min(found, key=rank),
        solver="portfolio",
        bound_hz=bound,
        bound_latency_ns=max(latencies, default=None),
        bound_energy_nj=max(energies, default=None),
    )
