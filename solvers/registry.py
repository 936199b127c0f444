"""All solvers by name, and the one way to call them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from solvers.assignment import solve_assignment
from solvers.black_box import solve_black_box
from solvers.bounds import most_lanes
from solvers.errors import EvaluationMismatchError, InfeasibleError, ProblemError, StoppedError
from solvers.evaluate import evaluate, is_better
from solvers.exhaustive import solve_exhaustive
from solvers.goal_bounds import energy_bound_nj, latency_bound_ns
from solvers.infeasible import refuse_impossible
from solvers.limits import NO_GAP, Limits, Watch
from solvers.mapping import Family, Solution, Status
from solvers.mix import solve_ideal_dp, solve_interval_dp, solve_lanes
from solvers.portfolio import solve_portfolio
from solvers.problem import Goal, Problem
from solvers.topology import contract
from solvers.under_load import one_unit_bound_hz, rate_bound_hz, solve_under_load
from solvers.whole_models import without_search

Solver = Callable[[Problem, Limits], Solution]

SOLVERS: MappingOf[str, Solver] = MappingProxyType(
    {
        "interval_dp": solve_interval_dp,
        "lanes": solve_lanes,
        "ideal_dp": solve_ideal_dp,
        "assignment": solve_assignment,
        "portfolio": solve_portfolio,
        "exhaustive": solve_exhaustive,
        "black_box": solve_black_box,
    }
)
"""Solvers by name; each docstring says what is searched, whether exactly, at what cost."""

DEFAULT = "portfolio"
SCORE_BY_EVALUATOR = frozenset({"exhaustive", "black_box"})
"""Solvers that leave costs to the evaluator; the others know one table of costs at a time."""


def solve(problem: Problem, solver: str = "auto", limits: Limits | None = None) -> Solution:
    """Solve a problem and let the evaluator score the answer again.

    Parameters
    ----------
    problem
        What to map.
    solver
        A name of ``SOLVERS``, or ``auto``.
    limits
        Defaults to ``Limits()``.

    Returns
    -------
    Solution
        With ``bound_hz``, for other goals than throughput a bound on those too, and ``wall_ns``
        filled in.  A problem that is
        proved infeasible is an answer too (status INFEASIBLE with the binding constraint), not an
        error.  Ctrl-C (and ``Limits.stop``) ends the search with the best found until then, marked
        ``interrupted``; a second Ctrl-C while that is put together is raised.

    Raises
    ------
    ProblemError
        No such solver.
    UnsupportedProblemError
        The solver does not take this kind of problem.
    EvaluationMismatchError
        The solver's own figures differ from the evaluator's (a bug).
    """
    name = DEFAULT if solver == "auto" else solver
    if name not in SOLVERS:
        raise ProblemError(f"no solver is called {name!r}; there are auto, {', '.join(sorted(SOLVERS))}")
    start = time.monotonic_ns()
    limits = limits or Limits()
    watch = Watch(name, partial(evaluate, problem), partial(is_better, problem), limits)
    searched = False
    try:
        blocks = contract(replace(problem, colocated=()))
        watch.least_bound_hz = one_unit_bound_hz(problem, blocks)
        watch.rescores = problem.load_matters
        watch.rate_counts = problem.objective.goal is Goal.THROUGHPUT
        bound = rate_bound_hz(problem, blocks)
        watch.bounded(bound)
        refuse_impossible(blocks, bound)
        searched = True
        solution = _run(name, _lanes_capped(problem), replace(limits, watch=watch))
        if solution.mapping is not None:
            watch.found(solution.mapping, solution.evaluation)
    except InfeasibleError as error:
        wall = time.monotonic_ns() - start
        # What holds for every mapping is known before the search; solvers prove it for their own.
        family = Family.CONTIGUOUS if searched else Family.ALL
        return Solution(name, Status.INFEASIBLE, family, None, None, None, str(error), wall)
    except StoppedError:
        solution = _ended(problem, name, watch, interrupted=limits.stopped)
    except KeyboardInterrupt:
        if limits.stop is not None:
            limits.stop.set()
        solution = _ended(problem, name, watch, interrupted=True)
    solution = replace(solution, wall_ns=time.monotonic_ns() - start)
    return _checked(problem, solution, watch.bound_hz)


def _lanes_capped(problem: Problem) -> Problem:
    """Say as a cap on lanes how many copies of the weights memory has room for: searches can use that."""
    most = most_lanes(problem)
    known = problem.lane_limit or sum(problem.cluster_sizes)
    return replace(problem, max_lanes=most) if most < known else problem


def _run(name: str, problem: Problem, limits: Limits) -> Solution:
    if not problem.load_matters or name in SCORE_BY_EVALUATOR:
        return SOLVERS[name](problem, limits)
    return replace(solve_under_load(problem, limits, SOLVERS[name]), solver=name)


def _ended(problem: Problem, name: str, watch: Watch, *, interrupted: bool) -> Solution:
    """Return the incumbent of a search that ended early, or what needs no search where that is better."""
    why = "the search was interrupted" if interrupted else "the time was up"
    for mapping in without_search(problem):
        if name != "interval_dp" or len(mapping.lanes) == 1:
            watch.found(mapping)
    if watch.mapping is None:
        reason = f"{why} before a mapping was found"
        return Solution(name, Status.UNKNOWN, Family.ALL, None, None, None, reason, interrupted=interrupted)
    return Solution(
        name, Status.FEASIBLE, Family.ALL, watch.mapping, watch.evaluation, None, why, interrupted=interrupted
    )


def _checked(problem: Problem, solution: Solution, bound_hz: float | None) -> Solution:
    if solution.mapping is None or bound_hz is None:
        return replace(solution, bound_hz=bound_hz)
    again = evaluate(problem, solution.mapping)
    if again != solution.evaluation:
        raise EvaluationMismatchError(
            f"{solution.solver} says {solution.evaluation}, the evaluator says {again}"
        )
    if not again.feasible:
        raise EvaluationMismatchError(f"{solution.solver} answers a mapping that breaks {again.violations}")
    if again.throughput_hz > bound_hz * (1 + 1e-9):
        raise EvaluationMismatchError(
            f"{solution.solver} finds {again.throughput_hz} frames/s, above the bound {bound_hz}"
        )
    if solution.bound_hz is not None:
        bound_hz = min(bound_hz, solution.bound_hz)
    solution = _bounded(problem, replace(solution, bound_hz=bound_hz))
    if solution.gap is not None and solution.gap <= NO_GAP:
        return replace(solution, status=Status.OPTIMAL, family=Family.ALL)
    return solution


def _bounded(problem: Problem, solution: Solution) -> Solution:
    """Return the solution with the best bound on the latency or energy, where that is the goal."""
    goal, found = problem.objective.goal, solution.evaluation
    if goal is Goal.THROUGHPUT or found is None:
        return solution
    blocks = contract(replace(problem, colocated=()))
    bound_hz = solution.bound_hz or float("inf")
    if goal is Goal.LATENCY:
        value: float = found.latency_ns
        bound = max(latency_bound_ns(blocks, bound_hz), solution.bound_latency_ns or 0)
        solution = replace(solution, bound_latency_ns=bound)
    else:
        value = found.energy_nj or 0
        bound = max(energy_bound_nj(blocks, bound_hz), solution.bound_energy_nj or 0)
        solution = replace(solution, bound_energy_nj=bound)
    if value < bound:
        raise EvaluationMismatchError(
            f"{solution.solver} finds {goal.value} {value}, below the bound {bound}"
        )
    return solution
