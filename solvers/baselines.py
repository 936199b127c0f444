"""The plans that every answer is compared with: whole models, copies, best pipeline, best mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from solvers.errors import SolverError
from solvers.evaluate import Evaluation, evaluate
from solvers.limits import Limits
from solvers.mapping import Mapping
from solvers.problem import Problem
from solvers.registry import solve
from solvers.whole_models import copies, slot_names, whole_models
from solvers.whole_networks import in_turn, place_networks


class Role(Enum):
    """What a named plan is for."""

    WHOLE = "whole model on one slot"
    COPIES = "one copy per core"
    IN_TURN = "networks one after another"
    APART = "whole networks on slots of their own"
    PIPELINE = "best pipeline"
    MIX = "best mix"
    PUBLISHED = "published heuristic"


@dataclass(frozen=True, slots=True)
class NamedPlan:
    """A plan for the table.

    Parameters
    ----------
    name
        For people, for example ``whole, 2 big``.
    role
        See ``Role``.
    mapping, evaluation
        May break constraints (pins, memory): it is a point to compare with.
    note
        What had to be left out, or empty.
    """

    name: str
    role: Role
    mapping: Mapping
    evaluation: Evaluation
    note: str = ""


def baselines(
    problem: Problem,
    cluster_names: tuple[str, ...] | None = None,
    limits: Limits | None = None,
    names: tuple[str, ...] | None = None,
) -> tuple[NamedPlan, ...]:
    """Return the plans that every report shows.

    Parameters
    ----------
    problem
        What is mapped.
    cluster_names
        For the names of the plans.
    limits
        For the searches of the best pipeline and the best mix.
    names
        Of the slots, where clusters and numbers of cores do not tell them apart.

    Returns
    -------
    tuple of NamedPlan
        The whole model on every slot that can run it; one single-core copy on every core (of the
        clusters that can; with state at most one per stream), and the same without the accelerators
        that keep cores busy; of a workload the networks one after another on the slot where that is
        quickest, each in a stage of its own (what an app does that runs one interpreter after the other),
        and the best placement of whole networks on slots (what a person would try by hand); the best
        single pipeline; the best mix.  The last two are missing when the search finds none.
    """
    names = names or slot_names(problem, cluster_names)
    return (*plans_without_search(problem, names), *searched_baselines(problem, limits))


def searched_baselines(problem: Problem, limits: Limits | None = None) -> tuple[NamedPlan, ...]:
    """Return the best single pipeline and the best mix, as far as there are any.

    Raises
    ------
    KeyboardInterrupt
        A search was interrupted.
    """
    plans: list[NamedPlan] = []
    for role, solver in ((Role.PIPELINE, "interval_dp"), (Role.MIX, "lanes")):
        try:
            solution = solve(problem, solver, limits)
        except SolverError:
            continue
        if solution.interrupted:
            raise KeyboardInterrupt
        if solution.mapping is not None and solution.evaluation is not None:
            plans.append(NamedPlan(role.value, role, solution.mapping, solution.evaluation))
    return tuple(plans)


def plans_without_search(problem: Problem, names: tuple[str, ...]) -> Iterator[NamedPlan]:
    """Yield whole models on every slot, copies, and whole networks; ``names`` are those of the slots."""
    quickest: tuple[int, int] | None = None
    for slot, mapping in whole_models(problem):
        scored = evaluate(problem, mapping)
        quickest = min(quickest or (scored.lanes[0].period_ns, slot), (scored.lanes[0].period_ns, slot))
        yield NamedPlan(f"whole, {names[slot]}", Role.WHOLE, mapping, scored)
    for found in copies(problem, names):
        counts = Counter(found.slots)
        name = "copies, " + " + ".join(f"{n} x {names[slot]}" for slot, n in counts.items())
        scored = evaluate(problem, found.mapping)
        yield NamedPlan(name, Role.COPIES, found.mapping, scored, "; ".join(found.notes))
    if quickest is not None and len(problem.networks) > 1:
        mapping = in_turn(problem, quickest[1])
        name = f"in turn, {names[quickest[1]]}"
        yield NamedPlan(name, Role.IN_TURN, mapping, evaluate(problem, mapping))
    apart = place_networks(problem)
    if apart is not None:
        name = f"apart, {' / '.join(names[stage.slot] for stage in apart.lanes[0].stages)}"
        yield NamedPlan(name, Role.APART, apart, evaluate(problem, apart))
