"""Everything that fits into the time limit, the best answer with the best bound."""

from __future__ import annotations

import time
from dataclasses import replace

from solvers.assignment import solve_assignment
from solvers.errors import CapError
from solvers.evaluate import score_key
from solvers.mapping import Family, Solution, Status
from solvers.mix import solve_ideal_dp, solve_lanes
from solvers.problem import Goal, Limits, Problem
from solvers.topology import contract


def solve_portfolio(problem: Problem, limits: Limits) -> Solution:
    """Run ``lanes``, then ``ideal_dp`` on branching graphs, then ``assignment``.

    Stops when an answer is proved best of all mappings.  Plans may be non-contiguous (stages that
    share a unit).  The same seed gives the same answer as long as no solver runs into the time limit.

    Raises
    ------
    InfeasibleError, CapError
    """
    start = time.monotonic()
    answers = [solve_lanes(problem, limits)]
    if problem.objective.goal is not Goal.THROUGHPUT:
        return replace(answers[0], solver="portfolio")
    solvers = [solve_assignment]
    if not contract(problem).has_one_order and answers[0].family is Family.ORDER:
        solvers.insert(0, solve_ideal_dp)
    for number, solver in enumerate(solvers):
        if any(answer.status is Status.OPTIMAL and answer.family is Family.ALL for answer in answers):
            break
        left = limits.time_s - (time.monotonic() - start)
        if left <= 0:
            break
        share = left / (len(solvers) - number)
        try:
            answers.append(solver(problem, replace(limits, time_s=share)))
        except CapError:
            continue
    return _combined(problem, answers)


def _combined(problem: Problem, answers: list[Solution]) -> Solution:
    """Return the best answer with the best bound; of equal ones the one that says most."""
    found = [answer for answer in answers if answer.evaluation is not None]
    bounds = [answer.bound_hz for answer in answers if answer.bound_hz is not None]
    bound = min(bounds, default=None)
    if not found:
        return replace(answers[0], solver="portfolio", bound_hz=bound)

    def rank(answer: Solution) -> tuple[object, ...]:
        assert answer.evaluation is not None  # noqa: S101 - filtered above
        proved = 0 if answer.status is Status.OPTIMAL else 1
        return (score_key(problem, answer.evaluation), proved, list(Family).index(answer.family) * -1)

    return replace(min(found, key=rank), solver="portfolio", bound_hz=bound)
