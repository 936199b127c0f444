"""Busy times of every interval of one topological order, a column (all starts, one end) at a time."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from solvers.problem import IntArray, Problem
from solvers.topology import Blocks

NEVER = int(np.iinfo(np.int64).max // 4)
"""Busy time of a stage that can not be: only inside the dynamic programmes, never in an answer."""


class Links(Enum):
    """Which cluster a stage's live-in tensors are taken to come from.

    TARGET
        Costs do not depend on it: exact.
    PREVIOUS
        From the stage before: exact when only neighbours in the order exchange tensors.
    CHEAPEST, DEAREST
        From whichever cluster makes it cheapest (a valid lower bound) or dearest (upper).
    """

    TARGET = "target"
    PREVIOUS = "previous"
    CHEAPEST = "cheapest"
    DEAREST = "dearest"


class OrderCosts:
    """Busy times of intervals of blocks in one order.

    Parameters
    ----------
    blocks, order
        The order holds every block once, topologically.
    links
        How receive costs are taken.

    Notes
    -----
    An interval [j, i) means the blocks at places j..i-1.  A column holds all starts j < i, all
    source clusters (one unless links is PREVIOUS) and all slots.
    """

    def __init__(self, blocks: Blocks, order: tuple[int, ...], links: Links) -> None:
        problem = blocks.problem
        self.blocks = blocks
        self.order = order
        self.links = links
        self.n_sources = len(problem.cluster_sizes) if links is Links.PREVIOUS else 1
        self.cluster_of_slot = np.array([slot.cluster for slot in problem.slots])
        place = np.empty(blocks.n_blocks, np.int64)
        place[list(order)] = np.arange(blocks.n_blocks)
        self._place_of_layer = place[list(blocks.of_layer)]
        self._prefix = self._prefix_costs(problem)
        self._first_start = self._first_starts()
        self._entries = self._flow_entries(problem)
        self._sends = self._flow_sends(problem)
        self.measured = self._measured_intervals(problem)

    @property
    def n(self) -> int:
        """Number of blocks."""
        return len(self.order)

    def columns(self) -> Iterator[tuple[int, IntArray]]:
        """Yield (i, busy) for i = 1..n; busy is int64 (i, sources, slots), ``NEVER`` where impossible."""
        problem = self.blocks.problem
        n_clusters = len(problem.cluster_sizes)
        receive = np.zeros((self.n, self.n_sources, n_clusters), np.int64)
        send = np.zeros((self.n, n_clusters), np.int64)
        starts = np.arange(self.n)[:, None]
        for i in range(1, self.n + 1):
            for first, last, table in self._entries[i - 1]:
                receive[first:last] += table
            for last, row in self._sends[i - 1]:
                send[:last] += row
            compute = self._prefix[i] - self._prefix[:i] + problem.overhead
            for j, slot, measured in self.measured[i]:
                compute[j, slot] = measured
            moving = (receive[:i] + send[:i, None, :])[:, :, self.cluster_of_slot]
            if problem.overlap:
                busy = np.maximum(compute[:, None, :], moving)
            else:
                busy = compute[:, None, :] + moving
            impossible = starts[:i] < self._first_start[i]
            busy[np.broadcast_to(impossible[:, None, :], busy.shape)] = NEVER
            yield i, busy

    def _prefix_costs(self, problem: Problem) -> IntArray:
        cost = np.where(problem.supported, problem.cost_ns, 0)
        rows = np.zeros((self.n + 1, len(problem.slots)), np.int64)
        np.add.at(rows, self._place_of_layer + 1, cost)
        sums: IntArray = np.cumsum(rows, axis=0)
        return sums

    def _first_starts(self) -> IntArray:
        """int64 (n + 1, slots): the smallest start j from which [j, i) may run on a slot (i if none).

        The interval must not hold a block that the slot does not allow, nor blocks of two pins.
        """
        first = np.zeros((self.n + 1, self.blocks.allowed.shape[1]), np.int64)
        pins = [self.blocks.pin[block] for block in self.order]
        since = 0  # smallest start that keeps to one pin
        last_pinned: int | None = None
        for i in range(1, self.n + 1):
            if pins[i - 1] is not None:
                since = since if last_pinned is None else last_pinned + 1
                last_pinned = i - 1
            allowed = self.blocks.allowed[self.order[i - 1]]
            first[i] = np.where(allowed, np.maximum(first[i - 1], since), i)
        return first

    def _flow_entries(self, problem: Problem) -> list[list[tuple[int, int, IntArray]]]:
        """Per last place: (first start, end of starts, times) of the flows that begin to enter there."""
        entries: list[list[tuple[int, int, IntArray]]] = [[] for _ in range(self.n)]
        for number, flow in enumerate(problem.flows):
            if flow.producer is None:
                continue
            source = int(self._place_of_layer[flow.producer])
            users = sorted({int(self._place_of_layer[user]) for user in flow.consumers} - {source})
            if not users:
                continue
            table = self._times(problem, number)
            if not table.any():
                continue
            after = source
            for user in users:
                entries[user].append((after + 1, user + 1, table))
                after = user
        return entries

    def _flow_sends(self, problem: Problem) -> list[list[tuple[int, IntArray]]]:
        """Per last place: (end of starts, times) of flows that begin to leave there, or no longer do."""
        sends: list[list[tuple[int, IntArray]]] = [[] for _ in range(self.n)]
        for flow in problem.flows:
            if flow.producer is None or not flow.consumers:
                continue
            source = int(self._place_of_layer[flow.producer])
            last = max(int(self._place_of_layer[user]) for user in flow.consumers)
            row = np.array(
                [problem.send_ns(c, flow.n_bytes) for c in range(len(problem.cluster_sizes))], np.int64
            )
            if last > source and row.any():
                sends[source].append((source + 1, row))
                sends[last].append((source + 1, -row))
        return sends

    def _times(self, problem: Problem, number: int) -> IntArray:
        """int64 (sources, clusters): hand-over time of a flow, by the cluster it is taken to come from."""
        flow = problem.flows[number]
        clusters = range(len(problem.cluster_sizes))
        table = np.array(
            [[problem.transfer_ns(a, b, flow.n_bytes) for b in clusters] for a in clusters], np.int64
        )
        if self.links is Links.PREVIOUS:
            return table
        assert flow.producer is not None  # noqa: S101 - inputs of the model were left out
        allowed = self.blocks.allowed[self.blocks.of_layer[flow.producer]]
        possible = table[sorted({int(c) for c in self.cluster_of_slot[allowed]})]
        worst = self.links is Links.DEAREST
        chosen: IntArray = (
            possible.max(axis=0, keepdims=True) if worst else possible.min(axis=0, keepdims=True)
        )
        return chosen

    def _measured_intervals(self, problem: Problem) -> list[list[tuple[int, int, int]]]:
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.n + 1)]
        for (layers, slot), time in problem.measured_ns.items():
            if max(layers) >= problem.n_layers or min(layers) < 0:
                continue
            places = {int(self._place_of_layer[layer]) for layer in layers}
            j, i = min(places), max(places) + 1
            held = {layer for block in self.order[j:i] for layer in self.blocks.members[block]}
            if held == layers:
                found[i].append((j, slot, time))
        return found


def exact_links(blocks: Blocks, order: tuple[int, ...]) -> Links | None:
    """Return the way to take links that is exact for this order, or None when there is none."""
    problem = blocks.problem
    used = sorted({slot.cluster for slot in problem.slots})
    setup, bandwidth = problem.setup[used][:, used], problem.bandwidth[used][:, used]
    if (setup == setup[:1]).all() and (bandwidth == bandwidth[:1]).all():
        return Links.TARGET
    place = {block: number for number, block in enumerate(order)}
    for a, b in problem.edges:
        if place[blocks.of_layer[b]] - place[blocks.of_layer[a]] > 1:
            return None
    return Links.PREVIOUS
