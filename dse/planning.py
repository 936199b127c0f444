"""From a problem to plans in the user's terms: the search, the baselines, the alternatives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dse.config import Experiment
from dse.errors import DseError, InputError
from dse.placement import PlacedMapping
from dse.platforms import Platform, Slot
from dse.problems import ResolvedPin, place
from dse.results import NUMBERED, Goal, PlanResult, Predicted, Proof, Role, StageNumbers, merit
from solvers.alternatives import alternatives
from solvers.baselines import NamedPlan, baselines
from solvers.baselines import Role as SolverRole
from solvers.evaluate import Evaluation, evaluate
from solvers.mapping import Mapping
from solvers.problem import Goal as SolverGoal
from solvers.problem import Limits, Problem
from solvers.registry import SOLVERS, solve

_GOALS: dict[SolverGoal, Goal] = {
    SolverGoal.THROUGHPUT: "throughput",
    SolverGoal.LATENCY: "latency",
    SolverGoal.ENERGY: "energy",
}
BEST_NAME = "best found"


class NoMappingError(DseError):
    """No mapping fulfils the user's constraints (proved), or none was found in time."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Turns a solver's mappings into plans on cores.

    Parameters
    ----------
    problem
        What is solved.
    platform, slots
        ``slots`` are the problem's columns in the platform's terms.
    pins
        Which cores pinned layers get.
    """

    problem: Problem
    platform: Platform
    slots: tuple[Slot, ...]
    pins: tuple[ResolvedPin, ...] = ()

    def plan(self, name: str, role: Role, mapping: Mapping) -> PlanResult:
        """Place and predict one mapping."""
        placed = place(mapping, self.platform, self.slots, self.pins)
        return predict(self.problem, name, role, mapping, placed)


def predict(problem: Problem, name: str, role: Role, mapping: Mapping, placed: PlacedMapping) -> PlanResult:
    """Score a mapping with the one evaluator."""
    evaluation = evaluate(problem, mapping)
    return PlanResult(
        name=name,
        role=role,
        mapping=placed,
        predicted=_predicted(evaluation),
        stages=tuple(
            StageNumbers(stage.name, numbers.busy_ns, numbers.compute_ns, numbers.receive_ns, numbers.send_ns)
            for lane, scored in zip(placed.lanes, evaluation.lanes, strict=True)
            for stage, numbers in zip(lane.stages, scored.stages, strict=True)
        ),
    )


def _predicted(evaluation: Evaluation) -> Predicted:
    return Predicted(
        throughput_hz=evaluation.throughput_hz,
        latency_ns=evaluation.latency_ns,
        memory_bytes=sum(evaluation.memory_bytes),
        energy_nj=evaluation.energy_nj,
        violations=tuple(
            f"{v.constraint}: {v.detail} ({v.demand:g} {v.unit}, limit {v.limit:g} {v.unit})"
            for v in evaluation.violations
        ),
    )


def check_solver(name: str) -> None:
    """Raise ``InputError`` when no solver has that name."""
    if name not in SOLVERS and name != "auto":
        raise InputError(f"unknown solver {name!r}: expected auto or one of {', '.join(sorted(SOLVERS))}")


def search_limits(experiment: Experiment) -> Limits:
    """Return what a search may spend."""
    workers = experiment.search.threads or len(os.sched_getaffinity(0))
    return Limits(time_s=experiment.search.time_s, workers=workers, seed=experiment.seed)


def find_plans(
    planner: Planner, solver: str, limits: Limits, n_candidates: int
) -> tuple[Proof, tuple[PlanResult, ...]]:
    """Search, and gather every plan worth a comparison.

    Parameters
    ----------
    solver
        Name in the registry of solvers.
    n_candidates
        How many structurally different plans to return besides the baselines.

    Returns
    -------
    Proof, tuple of PlanResult
        What the solver says, and the plans: each mapping once (names of equal mappings are joined
        with ``=``), best prediction first.

    Raises
    ------
    NoMappingError
        Proved infeasible, or nothing found in time; says which.
    InputError
        The solver's name is unknown.
    """
    problem = planner.problem
    check_solver(solver)
    solution = solve(problem, solver, limits)
    if solution.mapping is None or solution.evaluation is None:
        outcome = (
            "no mapping is possible" if solution.status.value == "infeasible" else "no mapping was found"
        )
        raise NoMappingError(f"{outcome}: {solution.reason}")
    proof = Proof(
        solver=solution.solver,
        status=solution.status.value,
        family=solution.family.value,
        bound_hz=solution.bound_hz,
        # The gap is between rates: it says nothing about latency or energy.
        gap=solution.gap if problem.objective.goal is SolverGoal.THROUGHPUT else None,
        wall_ns=solution.wall_ns,
    )
    plans: list[PlanResult] = []
    for known in baselines(problem, limits=limits, names=tuple(map(str, planner.slots))):
        plans.append(planner.plan(known.name, role_of(known), known.mapping))
    plans.append(planner.plan(BEST_NAME, "candidate", solution.mapping))
    # Some of the alternatives will turn out to be baselines.
    others = alternatives(problem, n_candidates + len(plans), limits)
    plans += [planner.plan(f"{NUMBERED}{n}", "candidate", mapping) for n, mapping in enumerate(others, 1)]
    return proof, merge(plans, _GOALS[problem.objective.goal])


def role_of(plan: NamedPlan) -> Role:
    """Whole models and copies are baselines; what was searched for is a candidate."""
    return "baseline" if plan.role in (SolverRole.WHOLE, SolverRole.COPIES) else "candidate"


def merge(plans: Sequence[PlanResult], goal: Goal = "throughput") -> tuple[PlanResult, ...]:
    """Keep each mapping once; best prediction first, infeasible plans last.

    A mapping keeps the name under which it came first; a later name of a searched plan is added
    (``copies, 2 x 1 cpu = best mix``), numbered names are dropped.
    """
    kept: dict[object, PlanResult] = {}
    for plan in plans:
        twin = kept.get(plan.mapping.signature)
        if twin is None:
            kept[plan.mapping.signature] = plan
        elif not plan.is_numbered and plan.name != BEST_NAME:
            role: Role = "baseline" if "baseline" in (twin.role, plan.role) else "candidate"
            kept[plan.mapping.signature] = replace(twin, name=f"{twin.name} = {plan.name}", role=role)
    number = 0
    named = []
    for plan in sorted(kept.values(), key=lambda plan: _rank(plan, goal)):
        if plan.is_numbered:
            number += 1
            named.append(replace(plan, name=f"{NUMBERED}{number}"))
        else:
            named.append(plan)
    return tuple(named)


def _rank(plan: PlanResult, goal: Goal) -> tuple[bool, float, int, int, int]:
    """Best first; ties as in the formulation: fewer cores, lower latency, fewer stages."""
    return (
        not plan.feasible,
        -merit(plan, goal, predicted=True),
        len(plan.mapping.cores),
        plan.predicted.latency_ns,
        len(plan.mapping.stages),
    )
