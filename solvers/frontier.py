"""The most value that one unit can hold within a load, hand-over included: exact, by a frontier programme.

Elements are decided one after another, inside the unit or not.  A tensor is *open* while some of the
elements that touch it are decided and some are not; all that later elements need to know about it is
whether the decided ones are all outside, all inside, or mixed.  So the state is one of three values
per open tensor, and the programme keeps, for every state, the best value within every load (cf. the
frontier or path-width method: Kinnersley, "The vertex separation number of a graph equals its
path-width", IPL 42, 1992).  Layer graphs have few open tensors at a time in a good order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.problem import BoolArray, FloatArray, IntArray

OUTSIDE, INSIDE, MIXED = 0, 1, 2
N_STARTS = 12
"""Elements from which a good order is looked for."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a unit pays for a tensor, in steps of load.

    Parameters
    ----------
    source, users
        Elements; the source is none of the users.
    send
        Paid by the unit that holds the source when some user is outside.
    receive
        Paid by a unit that holds some user but not the source.
    """

    source: int
    users: tuple[int, ...]
    send: int
    receive: int


_Move = tuple[int, bool, int, int]
"""(state before, element inside, state after, load added by tensors)"""


class Frontier:
    """The states and moves of one order of the elements.

    Parameters
    ----------
    order
        Every element once; any order is valid, a good one has few states.
    tensors
        Those without any cost are left out.
    """

    def __init__(self, order: Sequence[int], tensors: Sequence[Tensor]) -> None:
        self.order = tuple(order)
        self._tensors = [tensor for tensor in tensors if tensor.send or tensor.receive]
        place = {element: number for number, element in enumerate(self.order)}
        touched = [[place[t.source], *(place[user] for user in t.users)] for t in self._tensors]
        first, last = [min(places) for places in touched], [max(places) for places in touched]
        touching: list[list[int]] = [[] for _ in self.order]
        for number, places in enumerate(touched):
            for at in places:
                touching[at].append(number)
        self._moves: list[list[_Move]] = []
        self._n_after: list[int] = []
        open_now: list[int] = []
        states: dict[tuple[int, ...], int] = {(): 0}
        for at in range(len(self.order)):
            open_next = [t for t in open_now if last[t] > at]
            open_next += [t for t in touching[at] if first[t] == at and last[t] > at]
            after: dict[tuple[int, ...], int] = {}
            moves = []
            for state, number in states.items():
                for inside in (False, True):
                    what = dict(zip(open_now, state))
                    load = 0
                    for t in touching[at]:
                        source_at = place[self._tensors[t].source]
                        what[t], paid = self._decide(t, what.get(t), inside, source_at, at)
                        load += paid
                    key = tuple(what[t] for t in open_next)
                    moves.append((number, inside, after.setdefault(key, len(after)), load))
            open_now, states = open_next, after
            self._moves.append(moves)
            self._n_after.append(len(states))

    @property
    def n_states(self) -> int:
        """States after all elements together."""
        return sum(self._n_after)

    def _decide(self, t: int, before: int | None, inside: bool, source_at: int, at: int) -> tuple[int, int]:
        """What an open tensor becomes when an element that touches it is decided, and what that costs."""
        tensor, here = self._tensors[t], INSIDE if inside else OUTSIDE
        if before is None or before == here:
            return here, 0
        if at == source_at:
            return MIXED, tensor.send if inside else tensor.receive
        if before == MIXED or source_at > at:
            return MIXED, 0
        return MIXED, tensor.send if before == INSIDE else tensor.receive

    def table(self, load: IntArray, allowed: BoolArray, value: FloatArray, most: int, trace: bool) -> Table:
        """Fill in the best values within every load 0..most.

        Parameters
        ----------
        load, allowed, value
            Per element: steps of load, whether the unit can run it, and what holding it is worth.
        most
            Largest load.
        trace
            Keep what ``Table.members`` needs.
        """
        best = np.zeros((1, most + 1))
        taken: list[np.ndarray] = []
        for element, moves, n_states in zip(self.order, self._moves, self._n_after):
            after = np.full((n_states, most + 1), -np.inf)
            how = np.zeros((n_states, most + 1), np.uint8 if len(moves) < 256 else np.uint16)
            for number, (old, inside, new, paid) in enumerate(moves):
                step = paid + int(load[element]) if inside else paid
                if step > most or (inside and not allowed[element]):
                    continue
                reached = best[old, : most + 1 - step]
                if inside:
                    reached = reached + value[element]
                known = after[new, step:]
                if trace:
                    np.copyto(how[new, step:], number, where=reached > known)
                np.maximum(known, reached, out=known)
            best = after
            if trace:
                taken.append(how)
        return Table(self, load, best[0], taken)


class Table:
    """Best values of one unit; ``best[b]`` is the most value within load b, never less than 0."""

    def __init__(self, frontier: Frontier, load: IntArray, best: FloatArray, taken: list[np.ndarray]) -> None:
        self._frontier = frontier
        self._load = load
        self.best = best
        self._taken = taken

    def members(self, most: int) -> BoolArray:
        """Return bool (elements,): a set with the value ``best[most]``."""
        state = 0
        inside = np.zeros(len(self._frontier.order), np.bool_)
        for at in range(len(inside) - 1, -1, -1):
            element = self._frontier.order[at]
            old, chosen, _, paid = self._frontier._moves[at][int(self._taken[at][state, most])]
            inside[element] = chosen
            most -= paid + (int(self._load[element]) if chosen else 0)
            state = old
        return inside


def good_order(n_elements: int, members: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], float]:
    """Return an order with few open tensors at a time, and about how many states it has in all.

    Greedy from several starts: the next element is the one next to the decided ones that opens the
    fewest tensors and closes the most.

    Parameters
    ----------
    n_elements
        How many there are.
    members
        Per tensor the elements that touch it.
    """
    touching: list[list[int]] = [[] for _ in range(n_elements)]
    for number, elements in enumerate(members):
        for element in elements:
            touching[element].append(number)
    weight = [math.log2(3) if len(elements) > 2 else 1.0 for elements in members]
    found = [
        _greedy_order(start, members, touching, weight)
        for start in range(0, n_elements, max(1, n_elements // N_STARTS))
    ]
    return min(found, key=lambda pair: pair[1])


def _greedy_order(
    start: int, members: Sequence[tuple[int, ...]], touching: list[list[int]], weight: list[float]
) -> tuple[tuple[int, ...], float]:
    """An order from one start, and the states that it has in all, at most about."""
    waiting = [len(elements) for elements in members]
    decided = [False] * len(touching)
    order: list[int] = []
    near: set[int] = set()
    width = total = 0.0

    def opens(element: int) -> float:
        change = 0.0
        for t in touching[element]:
            change += weight[t] * ((waiting[t] == len(members[t])) - (waiting[t] == 1))
        return change

    chosen = start
    while True:
        width += opens(chosen)
        total += 2.0 ** min(width, 60.0)
        decided[chosen] = True
        order.append(chosen)
        near.discard(chosen)
        for t in touching[chosen]:
            waiting[t] -= 1
            near.update(element for element in members[t] if not decided[element])
        if len(order) == len(touching):
            return tuple(order), total
        chosen = min(near or {decided.index(False)}, key=lambda element: (opens(element), element))
