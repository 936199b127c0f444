"""Mappings that need no search: the whole model on one slot, and one copy of it on every core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of the whole model on one core each.

    Parameters
    ----------
    slots
        Slot of every copy.
    mapping
        What they are.
    notes
        What had to be left out and why.
    """

    slots: tuple[int, ...]
    mapping: Mapping
    notes: tuple[str, ...]


def slot_names(problem: Problem, cluster_names: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return names such as ``2 big`` for the slots; clusters are called c0, c1, ... without names."""
    names = cluster_names or tuple(f"c{number}" for number in range(len(problem.cluster_sizes)))
    return tuple(f"{slot.threads} {names[slot.cluster]}" for slot in problem.slots)


def without_search(problem: Problem) -> Iterator[Mapping]:
    """Yield all mappings of this module; they may break constraints."""
    for _, mapping in whole_models(problem):
        yield mapping
    for found in copies(problem):
        yield found.mapping


def whole_models(problem: Problem) -> Iterator[tuple[int, Mapping]]:
    """Yield (slot, the whole model on it) for every slot that can run every layer."""
    for slot in range(len(problem.slots)):
        if problem.supported[:, slot].all():
            yield slot, _one_each(problem, (slot,))


def copies(problem: Problem, names: tuple[str, ...] | None = None) -> Iterator[Copies]:
    """Yield one copy per core, and the same without accelerators that keep cores busy.

    Parameters
    ----------
    names
        Of the slots, for the notes.
    """
    names = names or slot_names(problem)
    notes = []
    single: list[tuple[int, int]] = []  # (time of the whole model, slot)
    for cluster in range(len(problem.cluster_sizes)):
        ways = [n for n, s in enumerate(problem.slots) if s.cluster == cluster and s.threads == 1]
        able = [slot for slot in ways if problem.supported[:, slot].all()]
        if not ways:
            notes.append(f"cluster {cluster} has no one-core slot")
        elif not able:
            notes.append(f"{names[ways[0]]} can not run every layer")
        else:
            times = [evaluate(problem, _one_each(problem, (slot,))).lanes[0].period_ns for slot in able]
            single.append(min(zip(times, able)))
    alone = [(time, slot) for time, slot in single if problem.slots[slot].host_cluster is None]
    before: tuple[int, ...] = ()
    for chosen in (single, alone):
        found = _one_per_core(problem, chosen, notes)
        if found is not None and found.slots != before:
            yield found
            before = found.slots


def _one_per_core(problem: Problem, single: list[tuple[int, int]], notes: list[str]) -> Copies | None:
    """Fill the cores with copies, fastest first, so that a cap on lanes leaves out the slowest."""
    slots: list[int] = []
    left = list(problem.cluster_sizes)
    for _, slot in sorted(single):
        while all(int(n) <= free for n, free in zip(problem.cores[slot], left)):
            left = [free - int(n) for n, free in zip(problem.cores[slot], left)]
            slots.append(slot)
    limit = problem.lane_limit
    if limit is not None and len(slots) > limit:
        notes = [*notes, f"{len(slots) - limit} copies left out: at most {limit} lanes"]
        slots = slots[:limit]
    if not slots:
        return None
    return Copies(tuple(slots), _one_each(problem, slots), tuple(notes))


def _one_each(problem: Problem, slots: Iterable[int]) -> Mapping:
    layers = tuple(range(problem.n_layers))
    return Mapping(tuple(Lane((Stage(layers, slot, unit),)) for unit, slot in enumerate(slots)))
