"""From a problem to plans in the user's terms: the search, the baselines, the alternatives."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dse.config import Experiment
from dse.costs import CostTable
from dse.errors import DseError, InputError
from dse.placement import PlacedMapping
from dse.platforms import Platform, Slot
from dse.problems import ResolvedPin, place
from dse.progress import Task
from dse.results import NUMBERED, Goal, PlanResult, Predicted, Proof, Role, StageNumbers, merit
from dse.trials import Trials
from dse.units import format_hz, format_ns
from solvers.alternatives import alternatives
from solvers.baselines import NamedPlan, plans_without_search, searched_baselines
from solvers.baselines import Role as SolverRole
from solvers.evaluate import Evaluation, evaluate
from solvers.limits import Limits, SearchState, available_cores
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.problem import Goal as SolverGoal
from solvers.problem import Problem
from solvers.registry import SOLVERS, solve

_GOALS: dict[SolverGoal, Goal] = {
    SolverGoal.THROUGHPUT: "throughput",
    SolverGoal.LATENCY: "latency",
    SolverGoal.ENERGY: "energy",
}
BEST_NAME = "best found"
BASELINES_SHARE = 0.25
"""Of the time of the search, for each of the best pipeline and the best mix."""


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
    costs
        The cost table behind the problem, for what waiting adds to a stage.
    trials
        Where mappings are tried out instead of being built by a solver.
    """

    problem: Problem
    platform: Platform
    slots: tuple[Slot, ...]
    pins: tuple[ResolvedPin, ...] = ()
    costs: CostTable | None = None
    trials: Trials | None = None

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
        violations=tuple(str(violation) for violation in evaluation.violations),
    )


def check_solver(name: str) -> None:
    """Raise ``InputError`` when no solver has that name."""
    if name not in SOLVERS and name != "auto":
        raise InputError(f"unknown solver {name!r}: expected auto or one of {', '.join(sorted(SOLVERS))}")


def search_limits(experiment: Experiment, task: Task | None = None) -> Limits:
    """Return what a search may spend; the task shows how far it is."""
    section = experiment.search
    goal = section.goal
    return Limits(
        time_s=section.time_s,
        gap=section.gap,
        workers=section.threads or available_cores(),
        seed=experiment.seed,
        progress=None if task is None else lambda state: task.advance(0, search_text(state, goal)),
        stop=threading.Event(),
    )


def search_text(state: SearchState, goal: Goal) -> str:
    """Say how far a search is, for example ``best 98.1 frames/s, at most 104 (gap 6.0 %)``."""
    best, bound = state.evaluation, state.bound_hz
    if best is None:
        return "" if bound is None else f"nothing yet, at most {format_hz(bound)} frames/s"
    if goal == "latency":
        return f"best {format_ns(best.latency_ns)}"
    if goal == "energy" and best.energy_nj is not None:
        return f"best {best.energy_nj / 1e6:.3g} mJ"
    text = f"best {format_hz(best.throughput_hz)} frames/s"
    if bound is not None and state.gap is not None:
        text += f", at most {format_hz(bound)} (gap {state.gap:.1%})"
    return text


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
        with ``=``), best prediction first.  After Ctrl-C the best so far, with what needs no search.

    Raises
    ------
    NoMappingError
        Proved infeasible, or nothing found in time; says which.
    KeyboardInterrupt
        Ctrl-C before a mapping was found.
    InputError
        The solver's name is unknown.
    """
    problem = planner.problem
    goal = _GOALS[problem.objective.goal]
    check_solver(solver)
    tried: tuple[Mapping, ...] = ()
    if planner.trials is not None:
        solution, tried = planner.trials.search(problem, limits)
    else:
        solution = solve(problem, solver, limits)
    if solution.mapping is None or solution.evaluation is None:
        if solution.interrupted:
            raise KeyboardInterrupt
        raise NoMappingError(f"{_outcome(solution)}: {solution.reason}")
    proof = Proof(
        solver=solution.solver,
        status=solution.status.value,
        family=solution.family.value,
        bound_hz=solution.bound_hz,
        gap=solution.gap,
        wall_ns=solution.wall_ns,
        interrupted=solution.interrupted,
        bound_latency_ns=solution.bound_latency_ns,
        bound_energy_nj=solution.bound_energy_nj,
    )
    names = tuple(map(str, planner.slots))
    plans = [_named(planner, known) for known in plans_without_search(problem, names)]
    best = planner.plan(BEST_NAME, "candidate", solution.mapping)
    numbered: list[PlanResult] = []
    try:
        if not proof.interrupted:
            fewer = replace(limits, time_s=limits.time_s * BASELINES_SHARE)
            plans += [_named(planner, known) for known in searched_baselines(problem, fewer)]
            n_wanted = n_candidates + len(plans) + 1  # some of them will turn out to be baselines
            others = (*tried[1:], *alternatives(problem, n_wanted, limits, solution.mapping))
            numbered = [
                planner.plan(f"{NUMBERED}{n}", "candidate", mapping) for n, mapping in enumerate(others, 1)
            ]
    except KeyboardInterrupt:
        proof = replace(proof, interrupted=True)
    return proof, merge([*plans, best, *numbered], goal)


def _outcome(solution: Solution) -> str:
    """Say what is known when there is no mapping: proved, proved for most mappings, or only not found."""
    if solution.status is not Status.INFEASIBLE:
        return "no mapping was found (that there is none is not proved)"
    if solution.family is Family.ALL:
        return "no mapping is possible"
    return f"no mapping is possible among {solution.family.value}, and no other was found"


def _named(planner: Planner, known: NamedPlan) -> PlanResult:
    return planner.plan(known.name, role_of(known), known.mapping)


def role_of(plan: NamedPlan) -> Role:
    """What needs no search is a baseline: whole models, copies, whole networks; the rest a candidate."""
    searched = (SolverRole.PIPELINE, SolverRole.MIX, SolverRole.PUBLISHED)
    return "candidate" if plan.role in searched else "baseline"


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
