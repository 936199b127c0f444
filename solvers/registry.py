"""All solvers by name, and the one way to call them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from types import MappingProxyType

from solvers.assignment import solve_assignment
from solvers.black_box import solve_black_box
from solvers.bounds import throughput_bound_hz
from solvers.errors import EvaluationMismatchError, InfeasibleError, ProblemError
from solvers.evaluate import evaluate
from solvers.exhaustive import solve_exhaustive
from solvers.infeasible import refuse_impossible
from solvers.mapping import Family, Solution, Status
from solvers.mix import solve_ideal_dp, solve_interval_dp, solve_lanes
from solvers.portfolio import solve_portfolio
from solvers.problem import Goal, Limits, Problem
from solvers.topology import contract

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

DEFAULT = "lanes"


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
        With ``bound_hz`` for the goal throughput, and ``wall_ns`` filled in.  A problem that is
        proved infeasible is an answer too (status INFEASIBLE with the binding constraint), not an
        error.

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
    try:
        blocks = contract(replace(problem, colocated=()))
        bound = throughput_bound_hz(problem, blocks)
        refuse_impossible(blocks, bound)
        solution = SOLVERS[name](problem, limits or Limits())
    except InfeasibleError as error:
        wall = time.monotonic_ns() - start
        return Solution(name, Status.INFEASIBLE, Family.ALL, None, None, None, str(error), wall)
    solution = replace(solution, wall_ns=time.monotonic_ns() - start)
    return _checked(problem, solution, bound)


def _checked(problem: Problem, solution: Solution, bound_hz: float) -> Solution:
    if solution.mapping is None:
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
    solution = replace(solution, bound_hz=bound_hz)
    if problem.objective.goal is Goal.THROUGHPUT and solution.gap is not None and solution.gap <= 1e-9:
        return replace(solution, status=Status.OPTIMAL, family=Family.ALL)
    return solution
