"""The plans that every answer is compared with: whole models, copies, best pipeline, best mix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from solvers.errors import SolverError
from solvers.evaluate import Evaluation, evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Limits, Problem
from solvers.registry import solve


class Role(Enum):
    """What a named plan is for."""

    WHOLE = "whole model on one slot"
    COPIES = "one copy per core"
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


def slot_names(problem: Problem, cluster_names: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return names such as ``2 big`` for the slots; clusters are called c0, c1, ... without names."""
    names = cluster_names or tuple(f"c{number}" for number in range(len(problem.cluster_sizes)))
    return tuple(f"{slot.threads} {names[slot.cluster]}" for slot in problem.slots)


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
        that keep cores busy; the best single pipeline; the best mix.  The last two are missing when
        the search finds none.
    """
    names = names or slot_names(problem, cluster_names)
    plans = [*_wholes(problem, names), *_copies(problem, names)]
    for role, solver in ((Role.PIPELINE, "interval_dp"), (Role.MIX, "lanes")):
        try:
            solution = solve(problem, solver, limits)
        except SolverError:
            continue
        if solution.mapping is not None and solution.evaluation is not None:
            plans.append(NamedPlan(role.value, role, solution.mapping, solution.evaluation))
    return tuple(plans)


def _wholes(problem: Problem, names: tuple[str, ...]) -> list[NamedPlan]:
    layers = tuple(range(problem.n_layers))
    plans = []
    for slot, name in enumerate(names):
        if problem.supported[:, slot].all():
            mapping = Mapping((Lane((Stage(layers, slot, 0),)),))
            plans.append(NamedPlan(f"whole, {name}", Role.WHOLE, mapping, evaluate(problem, mapping)))
    return plans


def _copies(problem: Problem, names: tuple[str, ...]) -> list[NamedPlan]:
    """One copy per core, fastest cores first, so that a cap on lanes leaves out the slowest."""
    layers = tuple(range(problem.n_layers))
    notes = []
    single: list[tuple[int, int]] = []  # (whole-model time, slot)
    for cluster in range(len(problem.cluster_sizes)):
        ways = [n for n, s in enumerate(problem.slots) if s.cluster == cluster and s.threads == 1]
        able = [slot for slot in ways if problem.supported[:, slot].all()]
        if not ways:
            notes.append(f"cluster {cluster} has no one-core slot")
        elif not able:
            notes.append(f"{names[ways[0]]} can not run every layer")
        else:
            times = [evaluate(problem, Mapping((Lane((Stage(layers, s, 0),)),))) for s in able]
            single.append(min((t.lanes[0].period_ns, s) for t, s in zip(times, able)))
    alone = [(time, slot) for time, slot in single if problem.slots[slot].host_cluster is None]
    found = [_one_per_core(problem, names, single, notes)]
    if 0 < len(alone) < len(single):
        found.append(_one_per_core(problem, names, alone, notes))
    return [plan for plan in found if plan is not None]


def _one_per_core(
    problem: Problem, names: tuple[str, ...], single: list[tuple[int, int]], notes: list[str]
) -> NamedPlan | None:
    """Fill the cores with copies, each on a slot of ``single`` (time of the whole model, slot)."""
    layers = tuple(range(problem.n_layers))
    notes = list(notes)
    slots: list[int] = []
    left = list(problem.cluster_sizes)
    for _, slot in sorted(single):
        while all(int(n) <= free for n, free in zip(problem.cores[slot], left)):
            left = [free - int(n) for n, free in zip(problem.cores[slot], left)]
            slots.append(slot)
    if problem.lane_limit is not None and len(slots) > problem.lane_limit:
        notes.append(f"{len(slots) - problem.lane_limit} copies left out: at most {problem.lane_limit} lanes")
        slots = slots[: problem.lane_limit]
    if not slots:
        return None
    mapping = Mapping(tuple(Lane((Stage(layers, slot, unit),)) for unit, slot in enumerate(slots)))
    counts = Counter(slots)
    name = "copies, " + " + ".join(f"{n} x {names[slot]}" for slot, n in counts.items())
    return NamedPlan(name, Role.COPIES, mapping, evaluate(problem, mapping), "; ".join(notes))
