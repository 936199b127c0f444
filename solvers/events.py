"""Discrete events for lanes whose stages share cores, or slow down while others work.

The rules are those of ``solvers.queueing``; a heap of events tells when something may change.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.problem import IntArray
from solvers.queueing import SOURCE, Network, Trace, as_arrays


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
                as_arrays([row[:done] for row in starts], whole),
                as_arrays([row[:done] for row in finishes], whole),
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
