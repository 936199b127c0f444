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
else runs, events are simulated.  Integer times stay integers, so both are exact.
"""

from __future__ import annotations

import heapq
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
    return Trace(_arrays(starts), _arrays(finishes))


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


def _arrays(rows: Sequence[Sequence[float]], whole: bool = True) -> tuple[Times, ...]:
    if whole:
        return tuple(np.array(row, np.int64) for row in rows)
    return tuple(np.array(row, np.float64) for row in rows)


@dataclass(slots=True)
class _Job:
    """A frame at a node that is being worked on; ``left`` is the work at the time ``since``.

    ``ends_with`` is the number of the event that ends it; earlier guesses of its end stay in the heap.
    """

    lane: int
    node: int
    left: float
    since: float
    factor: float
    ends_with: int = 0


class EventSimulation:
    """Stages that take turns on cores, and slow down while other clusters are busy.

    A free unit takes the oldest frame that waits for it; within a frame its stages go in the order
    of the lane.

    Parameters
    ----------
    networks
        Of lanes on disjoint units.
    times, arrivals
        Per lane, as in ``run_recurrences``.
    in_flight
        Most frames inside each lane, or None.
    contention
        Per slot: factor by which a stage slows down while any cluster but its own is busy; None for
        no such effect (then all times stay integers).
    until_first
        Stop when the first lane has done all its frames: the others' last frames would run
        without their company.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        times: Sequence[Sequence[IntArray]],
        arrivals: Sequence[IntArray],
        in_flight: int | None = None,
        contention: Sequence[float] | None = None,
        *,
        until_first: bool = False,
    ) -> None:
        self._networks = networks
        self._times = [[row.tolist() for row in rows] for rows in times]
        self._arrivals = [row.tolist() for row in arrivals]
        self._in_flight = in_flight
        self._contention = contention
        self._until_first = until_first
        shape = [range(network.n_nodes) for network in networks]
        self._starts: list[list[list[float]]] = [[[] for _ in nodes] for nodes in shape]
        self._finishes: list[list[list[float]]] = [[[] for _ in nodes] for nodes in shape]
        self._released = [[0 for _ in nodes] for nodes in shape]
        self._departed = [0 for _ in networks]
        self._of_unit = [self._units(network) for network in networks]
        self._running: dict[tuple[int, int], _Job] = {}  # by (lane, unit)
        self._busy_clusters: dict[int, int] = {}
        self._events: list[tuple[float, int, int, int, bool]] = []
        self._n_events = 0
        self._dirty: dict[tuple[int, int], None] = {}  # nodes to look at, in the order of their causes

    @staticmethod
    def _units(network: Network) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for node, unit in enumerate(network.units):
            found[unit] = (*found.get(unit, ()), node)
        return found

    def run(self) -> list[Trace]:
        """Run to the end and return one trace per lane."""
        for lane, rows in enumerate(self._arrivals):
            for arrival in sorted(set(rows)):
                self._push(arrival, lane, SOURCE, None)
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, number, lane, node, is_end = heapq.heappop(self._events)
                self._dirty[lane, node] = None
                if is_end:
                    self._finish(now, lane, node, number)
            self._settle(now)
            if self._until_first and any(
                done == len(rows) for done, rows in zip(self._departed, self._arrivals)
            ):
                break
        whole = self._contention is None
        return [
            Trace(
                _arrays([row[:done] for row in starts], whole),
                _arrays([row[:done] for row in finishes], whole),
            )
            for starts, finishes, done in zip(self._starts, self._finishes, self._departed)
        ]

    def _push(self, time: float, lane: int, node: int, job: _Job | None) -> None:
        self._n_events += 1
        if job is not None:
            job.ends_with = self._n_events
        heapq.heappush(self._events, (time, self._n_events, lane, node, job is not None))

    def _finish(self, now: float, lane: int, node: int, number: int) -> None:
        """End a job, unless its end has moved since the event was made."""
        unit = lane, self._networks[lane].units[node]
        job = self._running.get(unit)
        if job is None or job.ends_with != number:
            return
        del self._running[unit]
        self._count_busy(now, lane, node, -1)
        finishes = self._finishes[lane]
        finishes[node].append(now)
        while all(len(row) > self._departed[lane] for row in finishes):
            self._departed[lane] += 1
            self._dirty[lane, SOURCE] = None
        network = self._networks[lane]
        for consumer, _ in network.rooms[node]:
            self._dirty[lane, consumer] = None
        for other in self._of_unit[lane][network.units[node]]:
            self._dirty[lane, other] = None

    def _settle(self, now: float) -> None:
        """Release and start whatever can be, until nothing changes."""
        while self._dirty:
            lane, node = next(iter(self._dirty))
            del self._dirty[lane, node]
            self._release(lane, node)
            network = self._networks[lane]
            if (lane, network.units[node]) in self._running:
                continue
            waiting = [
                (len(self._starts[lane][other]), other)
                for other in self._of_unit[lane][network.units[node]]
                if self._is_ready(now, lane, other)
            ]
            if waiting:
                self._start(now, lane, min(waiting)[1])

    def _release(self, lane: int, node: int) -> None:
        frame = self._released[lane][node]
        if frame == len(self._finishes[lane][node]):
            return
        starts = self._starts[lane]
        for consumer, room in self._networks[lane].rooms[node]:
            if room is not None and len(starts[consumer]) <= frame - room:
                return
        self._released[lane][node] += 1

    def _is_ready(self, now: float, lane: int, node: int) -> bool:
        frame = len(self._starts[lane][node])
        self._release(lane, node)
        if frame == len(self._arrivals[lane]) or self._released[lane][node] < frame:
            return False
        network, finishes = self._networks[lane], self._finishes[lane]
        if node == SOURCE:
            full = self._in_flight is not None and frame >= self._departed[lane] + self._in_flight
            return not full and bool(self._arrivals[lane][frame] <= now)
        before = network.before[node]
        if before is not None and len(finishes[before]) <= frame:
            return False
        return all(len(finishes[origin]) > frame for origin in network.producers[node])

    def _start(self, now: float, lane: int, node: int) -> None:
        network = self._networks[lane]
        work = self._times[lane][node][len(self._starts[lane][node])]
        self._starts[lane][node].append(now)
        self._count_busy(now, lane, node, 1)
        job = _Job(lane, node, work, now, self._factor(lane, node))
        self._running[lane, network.units[node]] = job
        self._push(now + (work if job.factor == 1 else work * job.factor), lane, node, job)
        for origin in network.producers[node]:
            self._dirty[lane, origin] = None

    def _factor(self, lane: int, node: int) -> float:
        slot = self._networks[lane].slots[node]
        if self._contention is None or slot is None:
            return 1
        own = self._networks[lane].clusters[node]
        busy = any(n_jobs and cluster not in own for cluster, n_jobs in self._busy_clusters.items())
        return float(self._contention[slot]) if busy else 1

    def _count_busy(self, now: float, lane: int, node: int, change: int) -> None:
        """Count the jobs of each cluster; jobs that slow down or recover get another end."""
        if self._contention is None or node == SOURCE:
            return
        turned = False
        for cluster in self._networks[lane].clusters[node]:
            count = self._busy_clusters.get(cluster, 0)
            self._busy_clusters[cluster] = count + change
            turned |= (count == 0) != (count + change == 0)
        for job in self._running.values() if turned else ():
            factor = self._factor(job.lane, job.node)
            if factor != job.factor:
                job.left = max(0.0, job.left - (now - job.since) / job.factor)
                job.since, job.factor = now, factor
                self._push(now + job.left * factor, job.lane, job.node, job)
