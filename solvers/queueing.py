"""Frames through the stages of lanes: when each stage starts and finishes each frame.

A lane is a network of nodes: node 0 is the source that hands frames in, node ``s + 1`` is stage
``s``.  Every node works on the frames in order, one at a time.  With ``S``, ``F`` and ``R`` for start,
finish and release of frame k at a node::

    S_n(k) = max( R_n(k - 1), F_p(k) for every producer p, what the cores allow )
    F_n(k) = S_n(k) + time of the frame at the node
    R_n(k) = max( F_n(k), S_c(k - room) for every consumer c )

so a node whose frame finds no room in the queue of a consumer keeps it and waits (blocking after
service).  Without shared cores this is a max-plus recurrence (Baccelli, Cohen, Olsder and Quadrat,
*Synchronization and Linearity*, 1992, chapter 2); with shared cores, or times that depend on what
else runs, events are simulated (``solvers.events``).  Integer times stay integers, so both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.mapping import Lane
from solvers.problem import FloatArray, IntArray, Problem

Times = IntArray | FloatArray
SOURCE = 0


@dataclass(frozen=True, slots=True)
class Network:
    """The nodes of one lane.

    Parameters
    ----------
    producers
        Per node: nodes whose frame it needs.
    rooms
        Per node: (consumer, frames that may wait between the two, None for any number).
    units
        Per node: number of its set of cores; the source has one of its own.
    before
        Per node: the node of the same unit that comes before it within a frame, or None.
    clusters
        Per node: clusters whose cores it occupies.
    slots
        Per node: slot of the problem, None for the source.
    """

    producers: tuple[tuple[int, ...], ...]
    rooms: tuple[tuple[tuple[int, int | None], ...], ...]
    units: tuple[int, ...]
    before: tuple[int | None, ...]
    clusters: tuple[frozenset[int], ...]
    slots: tuple[int | None, ...]

    @property
    def n_nodes(self) -> int:
        """Stages and the source."""
        return len(self.producers)

    @property
    def shares(self) -> bool:
        """Whether two stages take turns on one unit."""
        return any(node is not None for node in self.before)


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened to the frames of one lane: arrays (frames,) per node, in nanoseconds."""

    starts: tuple[Times, ...]
    finishes: tuple[Times, ...]

    @property
    def departures(self) -> Times:
        """When each frame has left the last of its stages."""
        return np.array(self.finishes).max(axis=0)  # type: ignore[no-any-return]

    def handed_over(self, node: int, consumer: int, room: int | None) -> Times:
        """When each frame entered the queue between two nodes."""
        entered = self.finishes[node].copy()
        if room is not None and room < len(entered):
            taken = self.starts[consumer][: len(entered) - room]
            entered[room:] = np.maximum(entered[room:], taken)
        return entered


def build_network(problem: Problem, lane: Lane, queue_depth: int | None) -> Network:
    """Build the network of a lane.

    A queue that passes other stages by is as much longer as they hold frames: between nodes that
    are ``d`` levels apart ``d * (queue_depth + 1) - 1`` frames may wait.

    Parameters
    ----------
    problem, lane
        Every layer in exactly one stage, stages in topological order.
    queue_depth
        Frames that may wait between neighbours; None for any number.
    """
    home = {layer: node for node, stage in enumerate(lane.stages, 1) for layer in stage.layers}
    producers: list[set[int]] = [set() for _ in range(len(lane.stages) + 1)]
    for flow in problem.flows:
        origin = SOURCE if flow.producer is None else home[flow.producer]
        for user in flow.consumers:
            if home[user] != origin:
                producers[home[user]].add(origin)
    for node in range(1, len(producers)):
        if not producers[node]:
            producers[node].add(SOURCE)
    levels = [0]
    for node in range(1, len(producers)):
        levels.append(1 + max(levels[other] for other in producers[node]))
    rooms: list[list[tuple[int, int | None]]] = [[] for _ in producers]
    for node, origins in enumerate(producers):
        for origin in sorted(origins):
            apart = levels[node] - levels[origin]
            rooms[origin].append((node, None if queue_depth is None else apart * (queue_depth + 1) - 1))
    units = [1 + max(stage.unit for stage in lane.stages)] + [stage.unit for stage in lane.stages]
    before: list[int | None] = []
    for node, unit in enumerate(units):
        earlier = [other for other in range(node) if units[other] == unit]
        before.append(earlier[-1] if earlier else None)
    clusters = [frozenset[int]()]
    for stage in lane.stages:
        clusters.append(frozenset(np.flatnonzero(problem.cores[stage.slot]).tolist()))
    return Network(
        tuple(tuple(sorted(origins)) for origins in producers),
        tuple(map(tuple, rooms)),
        tuple(units),
        tuple(before),
        tuple(clusters),
        (None, *(stage.slot for stage in lane.stages)),
    )


def run_recurrences(
    network: Network, times: Sequence[IntArray], arrivals: IntArray, in_flight: int | None = None
) -> Trace:
    """Trace a lane whose stages share no cores.

    Parameters
    ----------
    network
        Without shared units.
    times
        Per node int64 (frames,).
    arrivals
        int64 (frames,), ascending: when each frame is there for the source.
    in_flight
        Most frames inside the lane, or None.
    """
    if in_flight is None and all(room is None for rooms in network.rooms for _, room in rooms):
        return _run_unlimited(network, times, arrivals)
    n_nodes, n_frames = network.n_nodes, len(arrivals)
    rows = [row.tolist() for row in times]
    starts: list[list[int]] = [[] for _ in range(n_nodes)]
    finishes: list[list[int]] = [[] for _ in range(n_nodes)]
    free = [0] * n_nodes
    now = [0] * n_nodes
    departed: list[int] = []
    limited = [
        (node, tuple((starts[consumer], room) for consumer, room in rooms if room is not None))
        for node, rooms in enumerate(network.rooms)
    ]
    entries = arrivals.tolist()
    for frame in range(n_frames):
        free[SOURCE] = max(free[SOURCE], entries[frame])
        if in_flight is not None and frame >= in_flight:
            free[SOURCE] = max(free[SOURCE], departed[frame - in_flight])
        for node, origins in enumerate(network.producers):
            start = free[node]
            for origin in origins:
                start = max(start, now[origin])
            starts[node].append(start)
            now[node] = start + rows[node][frame]
            finishes[node].append(now[node])
        departed.append(max(now))
        for node, rooms in limited:
            release = now[node]
            for taken, room in rooms:
                if frame >= room and taken[frame - room] > release:
                    release = taken[frame - room]
            free[node] = release
    return Trace(as_arrays(starts), as_arrays(finishes))


def _run_unlimited(network: Network, times: Sequence[IntArray], arrivals: IntArray) -> Trace:
    """Queues of any length: a running maximum per node over all frames at once."""
    starts: list[IntArray] = []
    finishes: list[IntArray] = []
    for node, origins in enumerate(network.producers):
        ready: IntArray = arrivals
        for origin in origins:
            ready = np.maximum(ready, finishes[origin])
        spent = np.cumsum(times[node]) - times[node]  # by earlier frames
        start = np.maximum.accumulate(ready - spent) + spent
        starts.append(start)
        finishes.append(start + times[node])
    return Trace(tuple(starts), tuple(finishes))


def as_arrays(rows: Sequence[Sequence[float]], whole: bool = True) -> tuple[Times, ...]:
    """Return one array per node, of integers or of floats."""
    if whole:
        return tuple(np.array(row, np.int64) for row in rows)
    return tuple(np.array(row, np.float64) for row in rows)
