"""CP-SAT of OR-Tools for assignments that need not be contiguous: polish and bound.

The only importer of ``ortools.sat``.  Times are scaled to integers well below 2^31 and the answer is
scored again in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from solvers.loads import Loads
from solvers.problem import Limits

MOST_STEPS = 200_000_000
"""The best known period in integer steps, at most; nanoseconds where they fit."""


@dataclass(frozen=True, slots=True)
class Polished:
    """Best assignment found, and what no assignment to these units undercuts.

    Costs are rounded down when they are scaled, so that ``bound_ns`` stays a bound.
    """

    assignment: list[int]
    bound_ns: float


def polish(loads: Loads, time_s: float, limits: Limits) -> Polished:
    """Improve an assignment and bound it.

    Parameters
    ----------
    loads
        The warm start.
    time_s
        Wall time.
    limits
        Workers and seed.
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
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(time_s, 0.1)
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    status = solver.solve(model)
    bound = float(solver.best_objective_bound) * unit if status != cp_model.MODEL_INVALID else 0.0
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Polished(list(loads.unit_of), bound)
    assignment = [
        next(u for u, variable in enumerate(choices) if variable is not None and solver.value(variable))
        for choices in x
    ]
    return Polished(assignment, bound)
