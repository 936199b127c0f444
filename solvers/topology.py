"""Blocks of layers that must stay together, and topological orders of them.

Groups and pins force layers into one stage, and a stage must be convex, so everything on a path
between two such layers joins them.  Contracting these *blocks* loses no feasible mapping: solvers
work on the acyclic graph of blocks.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

from solvers.errors import InfeasibleError
from solvers.problem import BoolArray, Problem


@dataclass(frozen=True)
class Blocks:
    """The problem's layers contracted to blocks, numbered in a topological order.

    Parameters
    ----------
    problem
        Where they come from.
    members
        Ascending layers of each block.
    pin
        The pin that a block belongs to, or None.
    allowed
        bool array (blocks, slots): every layer is supported there and the pin agrees.
    successors
        Blocks that need a block's tensors, ascending.
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]
    pin: tuple[int | None, ...]
    allowed: BoolArray
    successors: tuple[tuple[int, ...], ...]

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.members)

    @cached_property
    def of_layer(self) -> tuple[int, ...]:
        """Block of each layer."""
        home = [0] * self.problem.n_layers
        for block, layers in enumerate(self.members):
            for layer in layers:
                home[layer] = block
        return tuple(home)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Blocks whose tensors a block needs, ascending."""
        found: list[list[int]] = [[] for _ in self.members]
        for block, others in enumerate(self.successors):
            for other in others:
                found[other].append(block)
        return tuple(map(tuple, found))

    def measured_sets(self) -> Iterator[tuple[int, int, int]]:
        """Yield (blocks as a bit mask, slot, compute time in ns) of the measured stages of whole blocks."""
        for (layers, slot), time in self.problem.measured_ns.items():
            members = {self.of_layer[layer] for layer in layers if 0 <= layer < self.problem.n_layers}
            if layers == {layer for block in members for layer in self.members[block]}:
                yield sum(1 << block for block in members), slot, time

    @cached_property
    def has_one_order(self) -> bool:
        """Whether only one topological order exists (each block feeds the next one)."""
        return all(block + 1 in self.successors[block] for block in range(self.n_blocks - 1))


def contract(problem: Problem, together: Sequence[tuple[int, ...]] = ()) -> Blocks:
    """Contract groups, colocated sets and pins to blocks, for one stage per unit.

    Parameters
    ----------
    problem
        Where the layers are.
    together
        Further sets of layers to keep in one stage, for example from ``solvers.free_layers``.

    Raises
    ------
    InfeasibleError
        A block is wanted by two pins, or no slot can run all of it; the message names layers.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.n_layers))
    graph.add_edges_from(problem.edges)
    for members in (*problem.groups, *problem.colocated, *(pin.layers for pin in problem.pins), *together):
        for first, second in zip(members, (*members[1:], members[0])):
            graph.add_edge(first, second)  # a cycle, so that they share a strong component
    component = {}
    parts = [tuple(sorted(part)) for part in nx.strongly_connected_components(graph)]
    for number, part in enumerate(parts):
        for layer in part:
            component[layer] = number
    following: list[set[int]] = [set() for _ in parts]
    for a, b in problem.edges:
        if component[a] != component[b]:
            following[component[a]].add(component[b])
    order = _smallest_first(parts, following)
    rank = {number: place for place, number in enumerate(order)}
    members_in_order = tuple(parts[number] for number in order)
    pins = _pins_of(problem, members_in_order)
    return Blocks(
        problem,
        members_in_order,
        pins,
        _allowed(problem, members_in_order, pins),
        tuple(tuple(sorted(rank[other] for other in following[number])) for number in order),
    )


def _smallest_first(parts: list[tuple[int, ...]], following: list[set[int]]) -> list[int]:
    """Order the parts topologically, keeping the problem's own order as far as it goes."""
    waiting = [0] * len(parts)
    for others in following:
        for other in others:
            waiting[other] += 1
    ready = [(part[0], number) for number, part in enumerate(parts) if not waiting[number]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for other in following[number]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (parts[other][0], other))
    return order


def _pins_of(problem: Problem, members: tuple[tuple[int, ...], ...]) -> tuple[int | None, ...]:
    pin_of_layer: dict[int, int] = {}
    for number, pin in enumerate(problem.pins):
        for layer in pin.layers:
            other = pin_of_layer.setdefault(layer, number)
            if other != number:
                raise InfeasibleError(
                    f"{problem.names.layer(layer)} is in pins {other} and {number}: 2 pins, limit 1"
                )
    found: list[int | None] = []
    for layers in members:
        pins = sorted({pin_of_layer[layer] for layer in layers if layer in pin_of_layer})
        if len(pins) > 1:
            raise InfeasibleError(
                f"pins {pins[0]} and {pins[1]} want different stages, but "
                f"{problem.names.some_layers(layers)} must share one (state, or layers of one pin lie "
                f"between those of the other): {len(pins)} pins, limit 1"
            )
        found.append(pins[0] if pins else None)
    return tuple(found)


def _allowed(
    problem: Problem, members: tuple[tuple[int, ...], ...], pins: tuple[int | None, ...]
) -> BoolArray:
    fits = (problem.cores <= np.array(problem.cluster_sizes)).all(axis=1)
    allowed = np.zeros((len(members), len(problem.slots)), np.bool_)
    for block, (layers, pin) in enumerate(zip(members, pins)):
        row = problem.supported[list(layers)].all(axis=0) & fits
        if not row.any():
            raise InfeasibleError(_unsupported_message(problem, layers))
        if pin is not None:
            wanted = np.zeros(len(problem.slots), np.bool_)
            wanted[list(problem.pins[pin].slots)] = True
            if not (row & wanted).any():
                bad = next(
                    (
                        f"{problem.names.layer(layer)} is supported on none of them"
                        for layer in layers
                        if not (problem.supported[layer] & wanted).any()
                    ),
                    "its layers are supported on different ones, or they need more cores than there are",
                )
                raise InfeasibleError(
                    f"pin {pin} puts {problem.names.some_layers(layers)} on "
                    f"{problem.names.some_slots(problem.pins[pin].slots)}: {bad} "
                    "(demand 1 slot, limit 0)"
                )
            row = row & wanted
        allowed[block] = row
    allowed.setflags(write=False)
    return allowed


def _unsupported_message(problem: Problem, layers: tuple[int, ...]) -> str:
    for layer in layers:
        if not problem.supported[layer].any():
            return (
                f"{problem.names.layer(layer)} is unsupported on all {len(problem.slots)} slots "
                "(demand 1 slot, limit 0)"
            )
    return (
        f"{problem.names.some_layers(layers)} must share a stage, but no slot supports all of them "
        "(demand 1 slot, limit 0)"
    )


def orders(blocks: Blocks, n_orders: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield topological orders of the blocks: the problem's own first, then seeded random ones.

    Random orders alternate between a uniformly random ready block and a mostly depth-first walk,
    which keeps branches together and so cuts fewer tensors.  Orders that came before are left out,
    so fewer than ``n_orders`` may come.

    Parameters
    ----------
    blocks
        From ``contract``.
    n_orders
        Most orders to yield; a graph with only one order yields one.
    seed
        Same seed, same orders.
    """
    own = tuple(range(blocks.n_blocks))
    yield own
    if blocks.has_one_order:
        return
    rng = random.Random(seed)  # noqa: S311 - reproducible search, not cryptography
    seen = {own}
    for attempt in range(1, n_orders):
        order = _random_order(blocks, rng, depth_first=attempt % 2 == 1)
        if order not in seen:
            seen.add(order)
            yield order


def _random_order(blocks: Blocks, rng: random.Random, depth_first: bool) -> tuple[int, ...]:
    waiting = [len(before) for before in blocks.predecessors]
    ready = [block for block, count in enumerate(waiting) if not count]
    order = []
    while ready:
        newest = depth_first and rng.random() < 0.9
        place = len(ready) - 1 if newest else rng.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        block = ready.pop()
        order.append(block)
        fresh = []
        for other in blocks.successors[block]:
            waiting[other] -= 1
            if not waiting[other]:
                fresh.append(other)
        rng.shuffle(fresh)
        ready.extend(fresh)
    return tuple(order)
