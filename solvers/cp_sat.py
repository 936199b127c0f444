"""CP-SAT of OR-Tools: how it is run, and the model of loads for assignments that need not be contiguous.

Times are scaled to integers well below 2^31 and the answer is scored again in full precision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from solvers.errors import StoppedError
from solvers.limits import Limits
from solvers.loads import Loads

T = TypeVar("T")

POLL_S = 0.05
MOST_STEPS = 200_000_000
"""The best known period in integer steps, at most; nanoseconds where they fit."""


@dataclass(frozen=True, slots=True)
class Polished:
    """Best assignment found, and what no assignment to these units undercuts.

    Costs are rounded down when they are scaled, so that ``bound_ns`` stays a bound.
    """

    assignment: list[int]
    bound_ns: float


def polish(
    loads: Loads, time_s: float, limits: Limits, on_better: Callable[[list[int]], None] | None = None
) -> Polished:
    """Improve an assignment and bound it.

    Parameters
    ----------
    loads
        The warm start.
    time_s
        Wall time.
    limits
        Workers, seed, gap, and who may stop it.
    on_better
        Told better assignments while the search goes on.

    Raises
    ------
    StoppedError
        After the last assignment was told.
    """
    from ortools.sat.python import cp_model

    best = max(loads.load)
    unit = max(best / MOST_STEPS, 1.0)
    model = cp_model.CpModel()
    n_units = len(loads.slots)
    terms: list[list[Any]] = [[] for _ in range(n_units)]
    x: list[list[Any]] = []
    for element, row in enumerate(loads.allowed):
        choices = [model.new_bool_var(f"x{element}_{u}") if ok else None for u, ok in enumerate(row)]
        model.add_exactly_one(variable for variable in choices if variable is not None)
        for u, variable in enumerate(choices):
            if variable is not None:
                model.add_hint(variable, loads.unit_of[element] == u)
                terms[u].append(int(loads.cost[element][u] / unit) * variable)
        x.append(choices)
    for number, (source, users, _) in enumerate(loads.parts.flows):
        for u in range(n_units):
            send = int(loads.send[number][u] / unit)
            receive = int(min(row[u] for row in loads.receive[number]) / unit)
            for cost, first, others in ((send, [source], users), (receive, list(users), (source,))):
                if cost == 0:
                    continue
                paid = model.new_bool_var("")
                terms[u].append(cost * paid)
                for a in first:
                    here = x[a][u]
                    if here is None:
                        continue
                    for b in others:
                        there = x[b][u]
                        elsewhere = [] if there is None else [there]
                        model.add_bool_or([paid, here.negated(), *elsewhere])
    top = model.new_int_var(0, int(best / unit) + 1, "period")
    for u in range(n_units):
        overhead = int(int(loads.parts.problem.overhead[loads.slots[u]]) / unit)
        model.add(sum(terms[u]) + overhead <= top)
    model.minimize(top)
    found = run_cp_sat(model, partial(_read, x), time_s, limits, on_better)
    bound = 0.0 if found.bound is None else found.bound * unit
    return Polished(list(loads.unit_of) if found.best is None else found.best, bound)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What a run of CP-SAT found: the best solution as it was read, and the bound on the objective.

    ``bound`` is None where there is none, in particular where the model is ``infeasible``.
    """

    best: T | None
    bound: float | None
    infeasible: bool = False


def run_cp_sat(
    model: Any,
    read: Callable[[Any], T],
    time_s: float,
    limits: Limits,
    on_better: Callable[[T], None] | None = None,
    workers: int | None = None,
) -> Found[T]:
    """Minimise a model's objective.

    Parameters
    ----------
    model
        A ``CpModel``.
    read
        Makes what is wanted out of an object with the method ``value``.
    time_s
        Wall time.
    limits
        Workers, seed, gap, and who may stop it.
    on_better
        Told better solutions while the search goes on.
    workers
        Threads, where fewer than ``limits`` allows are enough.

    Raises
    ------
    StoppedError
        After the last solution was told.
    """
    from ortools.sat.python import cp_model

    workers = workers or limits.workers
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(time_s, 0.1)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.interleave_search = workers > 1  # workers take turns: runs repeat
    solver.parameters.relative_gap_limit = limits.gap / (1 + limits.gap)  # of CP-SAT's: the period's share
    solver.parameters.catch_sigint_signal = False
    status = _Run(solver, model, read, limits, on_better).status()
    if status == cp_model.INFEASIBLE:
        return Found(None, None, infeasible=True)
    bound = None if status == cp_model.MODEL_INVALID else float(solver.best_objective_bound)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Found(read(solver) if solved else None, bound)


def _read(x: list[list[Any]], values: Any) -> list[int]:
    return [
        next(u for u, variable in enumerate(choices) if variable is not None and values.value(variable))
        for choices in x
    ]


class _Run(Generic[T]):
    """One call of CP-SAT in a thread of its own: native code would keep Ctrl-C and progress waiting."""

    def __init__(
        self,
        solver: Any,
        model: Any,
        read: Callable[[Any], T],
        limits: Limits,
        on_better: Callable[[T], None] | None,
    ) -> None:
        from ortools.sat.python import cp_model

        self._limits = limits
        self._on_better = on_better
        self._newest: T | None = None
        self._solver = solver
        self._status: Any = cp_model.UNKNOWN
        self._error: BaseException | None = None
        run = self

        class Callback(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
            def on_solution_callback(self) -> None:
                run._newest = read(self)

        def solve() -> None:
            try:
                self._status = solver.solve(model, Callback())
            except BaseException as error:  # raised again by the thread that waits
                self._error = error

        self._thread = threading.Thread(target=solve, daemon=True)

    def status(self) -> Any:
        """Run it and return CP-SAT's status."""
        self._thread.start()
        try:
            while self._thread.is_alive():
                self._thread.join(POLL_S)
                self._tell()
                if self._limits.ends_early:
                    self._solver.stop_search()
        except BaseException:
            self._solver.stop_search()
            self._thread.join()
            self._tell()
            raise
        if self._error is not None:
            raise self._error
        if self._limits.stopped:
            raise StoppedError("the search was stopped")
        return self._status

    def _tell(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None and self._on_better is not None:
            self._on_better(newest)
