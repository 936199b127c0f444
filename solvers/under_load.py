"""Costs that are higher while other cores work: two cases, each with one table of costs.

A mapping of one unit pays isolated costs, every other mapping the costs under load (``solvers.evaluate``).
Of the first kind only the whole model on one slot matters: further stages on the same cores only add
overhead and hand-over.  The second kind is an ordinary problem.  Its answer may turn out to have one unit;
then it is at least as good as it seemed, because no cost under load is below the isolated one.  So
the better of both answers is the optimum of the whole problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from solvers.bounds import SAFETY, throughput_bound_hz
from solvers.errors import InfeasibleError
from solvers.evaluate import Evaluation, evaluate, keep_better
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.overhead_bound import overhead_bound_hz, whole_model_ns
from solvers.problem import Problem
from solvers.topology import Blocks, contract
from solvers.whole_models import whole_models


def rate_bound_hz(problem: Problem, blocks: Blocks | None = None) -> float:
    """Return frames per second that no mapping exceeds, whichever costs it pays.

    Parameters
    ----------
    blocks
        The problem's without ``colocated``, if they are known.

    Raises
    ------
    InfeasibleError
        See ``topology.contract``.
    """
    blocks = blocks or contract(replace(problem, colocated=()))
    loaded = problem.under_load
    under_load = replace(blocks, problem=loaded)
    return max(
        min(throughput_bound_hz(loaded, under_load), overhead_bound_hz(loaded, under_load)),
        one_unit_bound_hz(problem, blocks),
    )


def one_unit_bound_hz(problem: Problem, blocks: Blocks) -> float:
    """Return frames per second that no mapping of one unit exceeds; 0 where load changes nothing."""
    if not problem.load_matters:
        return 0.0
    alone = replace(blocks, problem=problem.isolated)
    least = float(whole_model_ns(alone.problem, alone).min()) * (1 - SAFETY)
    return 1e9 / least if least > 0 else float("inf")


def solve_under_load(
    problem: Problem, limits: Limits, solver: Callable[[Problem, Limits], Solution]
) -> Solution:
    """Solve a problem with a solver that knows one table of costs.

    Raises
    ------
    InfeasibleError, CapError
        As the solver, where the whole model on one slot is no answer either.
    """
    best: tuple[Mapping, Evaluation] | None = None
    for _, mapping in whole_models(problem):
        best = keep_better(problem, best, mapping)
    if best is not None:
        limits.found(best[0])
    try:
        answer = solver(problem.under_load, limits)
    except InfeasibleError:
        if best is None:
            raise
        return Solution("", Status.OPTIMAL, Family.CONTIGUOUS, *best, None)
    alone = best
    if answer.mapping is not None:
        best = keep_better(problem, best, answer.mapping)
    if best is None:
        return replace(answer, mapping=None, evaluation=None, status=Status.UNKNOWN)
    # More power at a higher rate: an answer may keep a limit under load and break it alone.
    broken = answer.mapping is not None and best is alone and not evaluate(problem, answer.mapping).feasible
    proved = answer.status is Status.OPTIMAL and not broken
    bound = (
        None
        if answer.bound_hz is None
        else max(answer.bound_hz, one_unit_bound_hz(problem, contract(replace(problem, colocated=()))))
    )
    return replace(
        answer,
        status=Status.OPTIMAL if proved else Status.FEASIBLE,
        mapping=best[0],
        evaluation=best[1],
        bound_hz=bound,
        bound_latency_ns=None,  # one unit may do with less
        bound_energy_nj=None,
    )
