"""What can be said of a lane that is cut along an order, as literals of CP-SAT.

Each position of the order has a unit, and between two positions there may be a cut; what lies between two
cuts is a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from solvers.mapping import Lane, Stage
from solvers.problem import Flow
from solvers.topology import Blocks


class LaneLiterals:
    """The variables of a lane, what holds between them, and literals made of them.

    Parameters
    ----------
    blocks
        The problem's, joined by everything but ``colocated``.
    order
        A topological order of the blocks.
    units
        Slot of each unit that may be used; those of one slot next to each other.
    cores
        How many there are per cluster.
    """

    def __init__(
        self, blocks: Blocks, order: Sequence[int], units: Sequence[int], cores: Sequence[int]
    ) -> None:
        from ortools.sat.python import cp_model

        self.blocks, self.order, self.units = blocks, tuple(order), tuple(units)
        self._problem = blocks.problem
        self._model = cp_model.CpModel()
        self._position = {block: number for number, block in enumerate(self.order)}
        self._clusters = [self._problem.slots[slot].cluster for slot in self.units]
        self._true = self._model.new_constant(1)
        self._known: dict[tuple[object, ...], Any] = {}
        self._flows = [(flow, *self._ends(flow)) for flow in self._problem.flows]
        self._x = [
            {
                u: self._model.new_bool_var(f"x{i}_{u}")
                for u, slot in enumerate(self.units)
                if blocks.allowed[block, slot]
            }
            for i, block in enumerate(self.order)
        ]
        self._cut = [self._model.new_bool_var(f"cut{i}") for i in range(len(self.order))]
        self._add_structure(cores)

    def hint(self, lane: Lane, unit_of: dict[int, int]) -> None:
        """Start from a lane whose units are named by ``unit_of``; its stages follow the order."""
        before = None
        for i, block in enumerate(self.order):
            layer = self.blocks.members[block][0]
            number = next(n for n, stage in enumerate(lane.stages) if layer in stage.layers)
            for u, choice in self._x[i].items():
                self._model.add_hint(choice, u == unit_of[lane.stages[number].unit])
            self._model.add_hint(self._cut[i], number != before)
            before = number

    def _read(self, values: Any) -> Lane:
        stages: list[tuple[int, list[int]]] = []
        for i, block in enumerate(self.order):
            unit = next(u for u, choice in self._x[i].items() if values.value(choice))
            if i == 0 or values.value(self._cut[i]):
                stages.append((unit, []))
            stages[-1][1].extend(self.blocks.members[block])
        return Lane(tuple(Stage(tuple(sorted(layers)), self.units[unit], unit) for unit, layers in stages))

    def _add_structure(self, cores: Sequence[int]) -> None:
        """Each position on one unit, stages on one, units within the cores, pins apart."""
        model, problem, x, cut = self._model, self._problem, self._x, self._cut
        model.add(cut[0] == 1)
        for i, choices in enumerate(x):
            model.add_exactly_one(choices.values())
            for u, choice in choices.items() if i else ():
                before = x[i - 1].get(u)
                model.add_bool_or([cut[i], choice.negated(), *([] if before is None else [before])])
        used = [model.new_bool_var(f"used{u}") for u in range(len(self.units))]
        for choices in x:
            for u, choice in choices.items():
                model.add_implication(choice, used[u])
        for cluster, size in enumerate(cores):
            taken = [int(problem.cores[slot, cluster]) for slot in self.units]
            model.add(sum(n * one for n, one in zip(taken, used)) <= size)
        for u, (slot, other) in enumerate(pairwise(self.units)):
            if slot == other:
                model.add_implication(used[u + 1], used[u])
        pinned = [i for i, block in enumerate(self.order) if self.blocks.pin[block] is not None]
        for u in range(len(self.units)):
            model.add_at_most_one(x[i][u] for i in pinned if u in x[i])
        for together in problem.colocated:
            places = sorted({self._position[self.blocks.of_layer[layer]] for layer in together})
            for i, j in pairwise(places):
                for u in range(len(self.units)):
                    if u in x[i] or u in x[j]:
                        model.add(x[i].get(u, 0) == x[j].get(u, 0))
        if problem.max_stages is not None:
            model.add(sum(cut) <= problem.max_stages)

    def _ends(self, flow: Flow) -> tuple[int | None, list[int]]:
        """Return the position of a flow's producer, and the other ones where it is used, ascending."""
        of_layer = self.blocks.of_layer
        home = None if flow.producer is None else self._position[of_layer[flow.producer]]
        return home, sorted({self._position[of_layer[user]] for user in flow.consumers} - {home})

    def _arrivals(self, home: int | None, users: list[int]) -> Iterator[tuple[int, list[Any]]]:
        """Yield where a tensor may enter a stage, and when it does: once per stage that uses it."""
        for before, j in zip([home, *users], users):
            yield j, [] if before is None else [self._between(before, j)]

    def _between(self, i: int, j: int) -> Any:
        """Return whether there is a cut after position i up to j, so that they are in different stages."""
        if j == i + 1:
            return self._cut[j]
        key = ("between", i, j)
        if key not in self._known:
            self._known[key] = self._all([one.negated() for one in self._cut[i + 1 : j + 1]]).negated()
        return self._known[key]

    def _on(self, i: int, cluster: int) -> list[Any] | None:
        """Return literals that say that a position is on a cluster: none when it must be, None for never."""
        there = [choice for u, choice in self._x[i].items() if self._clusters[u] == cluster]
        if len(there) == len(self._x[i]):
            return []
        if not there:
            return None
        key = ("on", i, cluster)
        if key not in self._known:
            literal = self._model.new_bool_var("")
            self._model.add(sum(there) == literal)
            self._known[key] = literal
        return [self._known[key]]

    def _all(self, literals: Sequence[Any]) -> Any:
        """Return a literal that holds exactly when all of these do."""
        distinct = {literal.index: literal for literal in literals}
        if not distinct:
            return self._true
        if len(distinct) == 1:
            return next(iter(distinct.values()))
        key = ("all", *sorted(distinct))
        if key not in self._known:
            literal = self._model.new_bool_var("")
            self._model.add_bool_and(distinct.values()).only_enforce_if(literal)
            self._model.add_bool_or([literal, *(one.negated() for one in distinct.values())])
            self._known[key] = literal
        return self._known[key]
