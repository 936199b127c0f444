"""Loads of units under an assignment of elements, kept up to date move by move.

An element is a set of layers that must share a unit.  Stages need not be convex here: a unit may hold
several pieces.  Hand-over is charged per unit (``free_within_unit``): the sender once if any consumer is
elsewhere, each other unit that holds a consumer once.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx as nx
import numpy as np

from solvers.errors import MappingError
from solvers.mapping import Lane, Stage
from solvers.problem import Problem
from solvers.topology import Blocks, contract


@dataclass(frozen=True)
class Elements:
    """Layers by element, and the tensors between elements.

    Parameters
    ----------
    problem
        Where they come from.
    members
        Layers of each element.
    flows
        (producer element, consumer elements, flow index) for flows that cross elements.
    touching
        Numbers of ``flows`` by element.
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]
    flows: tuple[tuple[int, tuple[int, ...], int], ...]
    touching: tuple[tuple[int, ...], ...]


def elements(problem: Problem) -> Elements:
    """Join colocated sets, groups and pins to elements (groups with what must be convex with them)."""
    blocks = contract(replace(problem, colocated=()))
    graph = nx.Graph()
    graph.add_nodes_from(range(blocks.n_blocks))
    for together in problem.colocated:
        for first, second in pairwise(together):
            graph.add_edge(blocks.of_layer[first], blocks.of_layer[second])
    parts = sorted(tuple(sorted(part)) for part in nx.connected_components(graph))
    members = tuple(
        tuple(sorted(layer for block in part for layer in blocks.members[block])) for part in parts
    )
    of_layer = {layer: number for number, layers in enumerate(members) for layer in layers}
    flows: list[tuple[int, tuple[int, ...], int]] = []
    touching: list[list[int]] = [[] for _ in members]
    for index, flow in enumerate(problem.flows):
        if flow.producer is None:
            continue
        source = of_layer[flow.producer]
        users = tuple(sorted({of_layer[user] for user in flow.consumers} - {source}))
        if users:
            for element in (source, *users):
                touching[element].append(len(flows))
            flows.append((source, users, index))
    return Elements(problem, members, tuple(flows), tuple(map(tuple, touching)))


class Loads:
    """An assignment of elements to units with the load of every unit.

    Parameters
    ----------
    parts
        From ``elements``.
    slots
        Slot of each unit.
    assignment
        Unit of each element.

    Raises
    ------
    MappingError
        An element is not allowed on any of the units.
    """

    def __init__(self, parts: Elements, slots: tuple[int, ...], assignment: list[int]) -> None:
        problem = parts.problem
        self.parts = parts
        self.slots = slots
        self.unit_of = list(assignment)
        clusters = [problem.slots[slot].cluster for slot in slots]
        cost = np.where(problem.supported, problem.cost_ns, 0)
        self.cost = [[int(cost[list(layers), slot].sum()) for slot in slots] for layers in parts.members]
        self.allowed = [[allowed_on(problem, layers, slot) for slot in slots] for layers in parts.members]
        if not all(any(row) for row in self.allowed):
            raise MappingError(f"an element is unsupported on all units, which are slots {slots}")
        sizes = [problem.flows[index].n_bytes for _, _, index in parts.flows]
        self.send = [[problem.send_ns(c, size) for c in clusters] for size in sizes]
        self.receive = [
            [[problem.transfer_ns(a, b, size) for b in clusters] for a in clusters] for size in sizes
        ]
        self.count = [[0] * len(slots) for _ in sizes]
        for number, (_, users, _) in enumerate(parts.flows):
            for user in users:
                self.count[number][self.unit_of[user]] += 1
        self.load = [int(problem.overhead[slot]) for slot in slots]
        for element, unit in enumerate(self.unit_of):
            self.load[unit] += self.cost[element][unit]
        for number in range(len(parts.flows)):
            for unit in range(len(slots)):
                self.load[unit] += self._share(number, unit)

    def with_cheaper(self, element: int, saved_ns: Sequence[int]) -> Loads:
        """Return the same with an element that takes so much less on each unit."""
        changed = copy(self)
        changed.unit_of, changed.load, changed.cost = list(self.unit_of), list(self.load), list(self.cost)
        changed.count = [list(row) for row in self.count]
        changed.cost[element] = [cost - saved for cost, saved in zip(self.cost[element], saved_ns)]
        home = self.unit_of[element]
        changed.load[home] -= saved_ns[home]
        return changed

    def _share(self, number: int, unit: int) -> int:
        """What a flow costs a unit now."""
        source, users, _ = self.parts.flows[number]
        home = self.unit_of[source]
        if home == unit:
            return self.send[number][unit] if self.count[number][unit] < len(users) else 0
        return self.receive[number][home][unit] if self.count[number][unit] else 0

    def change(self, element: int, target: int) -> dict[int, int]:
        """Return how loads change when the element moves to the target unit (and undo nothing)."""
        origin = self.unit_of[element]
        before = self._local(element, origin, target)
        self._shift(element, target)
        after = self._local(element, origin, target)
        self._shift(element, origin)
        change = {unit: after[unit] - before[unit] for unit in after}
        change[origin] = change.get(origin, 0) - self.cost[element][origin]
        change[target] = change.get(target, 0) + self.cost[element][target]
        return change

    def move(self, element: int, target: int, change: dict[int, int]) -> None:
        """Carry out a move whose change is known."""
        self._shift(element, target)
        for unit, delta in change.items():
            self.load[unit] += delta

    def _shift(self, element: int, target: int) -> None:
        origin = self.unit_of[element]
        for number in self.parts.touching[element]:
            if self.parts.flows[number][0] != element:
                self.count[number][origin] -= 1
                self.count[number][target] += 1
        self.unit_of[element] = target

    def _local(self, element: int, origin: int, target: int) -> dict[int, int]:
        """Hand-over costs of the element's flows, on the units that its move may touch."""
        total = {origin: 0, target: 0}
        for number in self.parts.touching[element]:
            units = (origin, target)
            if self.parts.flows[number][0] == element:  # receivers may pay another price
                units = range(len(self.slots))  # type: ignore[assignment]
            for unit in units:
                total[unit] = total.get(unit, 0) + self._share(number, unit)
        return total


def allowed_on(problem: Problem, layers: tuple[int, ...], slot: int) -> bool:
    """Whether a slot runs all these layers, and their pins agree."""
    inside = set(layers)
    return bool(problem.supported[list(layers), slot].all()) and all(
        slot in pin.slots for pin in problem.pins if inside & set(pin.layers)
    )


def pieces(
    problem: Problem, unit_of_layer: dict[int, int], slots: tuple[int, ...], blocks: Blocks | None = None
) -> Lane:
    """Return a lane for an assignment of layers to units: few stages, listed in topological order.

    Walks the graph and stays with a unit as long as it has a layer that is ready.

    Parameters
    ----------
    blocks
        The problem's without ``colocated``, if they are known.
    """
    blocks = blocks or contract(replace(problem, colocated=()))
    waiting = [len(before) for before in blocks.predecessors]
    ready: dict[int, list[int]] = {}
    unit_of = [unit_of_layer[layers[0]] for layers in blocks.members]
    for block, count in enumerate(waiting):
        if not count:
            ready.setdefault(unit_of[block], []).append(block)
    stages = []
    while ready:
        unit = max(sorted(ready), key=lambda u: len(ready[u]))
        held: list[int] = []
        queue = ready.pop(unit)
        while queue:
            block = queue.pop()
            held.extend(blocks.members[block])
            for other in blocks.successors[block]:
                waiting[other] -= 1
                if not waiting[other]:
                    if unit_of[other] == unit:
                        queue.append(other)
                    else:
                        ready.setdefault(unit_of[other], []).append(other)
        stages.append(Stage(tuple(sorted(held)), slots[unit], unit))
    return Lane(tuple(stages))
