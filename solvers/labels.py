"""Lanes and mixes of lanes under several criteria at once: memory, latency, energy, power.

Where one number per state is not enough, a state keeps every *label* (vector of criteria) that no
other label of the state dominates (Martins, "On a multicriteria shortest path problem", EJOR 16,
1984).  Exact as long as no state exceeds the cap on labels; the cap keeps the best by the first
criteria and the result says that it was hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.evaluate import stage_memory_bytes
from solvers.interval_dp import Span
from solvers.limits import Limits
from solvers.order_costs import NEVER, OrderCosts
from solvers.problem import FloatArray, Goal, IntArray, Problem

SPREAD = 8
"""Fronts are looked at up to so many times what is kept of them."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which criteria count for a problem: columns of the label vectors.

    Columns of a lane: period (largest busy) where throughput or energy counts, latency (sum of busy),
    energy (sum of busy times power, in mW ns), memory per limited cluster and in all; and minus the
    period where power is limited, because then a slower lane may be wanted.
    """

    period: bool
    latency: bool
    energy: bool
    memory_clusters: tuple[int, ...]
    total_memory: bool
    slower_may_help: bool

    @staticmethod
    def of(problem: Problem) -> Criteria:
        """Return the criteria that the goal and the limits of a problem need."""
        objective = problem.objective
        limits = problem.memory_limits_bytes or ()
        throughput = objective.goal is Goal.THROUGHPUT or objective.min_throughput_hz is not None
        energy = objective.goal is Goal.ENERGY or problem.max_power_mw is not None
        return Criteria(
            period=throughput or energy,
            latency=objective.goal is Goal.LATENCY or objective.max_latency_ns is not None,
            energy=energy,
            memory_clusters=tuple(c for c, limit in enumerate(limits) if limit is not None),
            total_memory=problem.total_memory_limit_bytes is not None,
            slower_may_help=problem.max_power_mw is not None,
        )

    @property
    def needs_memory(self) -> bool:
        """Whether any memory is limited."""
        return bool(self.memory_clusters) or self.total_memory


@dataclass(frozen=True, slots=True)
class LaneLabel:
    """A lane and its criteria."""

    use: tuple[int, ...]
    period_ns: int
    latency_ns: int
    energy_pj: int
    memory_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


class LabelSearch:
    """All undominated lanes of one order.

    Parameters
    ----------
    costs
        The order.
    most_labels
        Cap on labels per state.
    limits
        Who may stop it.

    Attributes
    ----------
    capped
        Whether the cap was hit, so that better lanes may be missing.
    """

    def __init__(self, costs: OrderCosts, most_labels: int, limits: Limits) -> None:
        self.costs = costs
        self._limits = limits
        self.problem = costs.blocks.problem
        self.criteria = Criteria.of(self.problem)
        self.most_labels = most_labels
        self.capped = False

    def lanes(self) -> list[LaneLabel]:
        """Return the undominated lanes."""
        problem = self.problem
        n_clusters = len(problem.cluster_sizes)
        # columns: period, latency, energy, memory per cluster; then the state
        vectors = [np.zeros((1, 3 + n_clusters), np.int64)]
        states = [np.zeros((1, n_clusters + 2), np.int64)]  # cores, stages, source cluster
        links = [np.full((1, 3), -1, np.int64)]  # label before, place, slot
        place_of = [np.zeros(1, np.int64)]
        for i, busy in self.costs.columns():
            self._limits.check()
            before, state = np.concatenate(vectors), np.concatenate(states)
            places = np.concatenate(place_of)
            memory = self._memory_column(i)
            found = [
                self._extend(before, state, places, busy[:, :, slot], memory, slot)
                for slot in range(len(problem.slots))
            ]
            vector, new_state, link = (np.concatenate(part) for part in zip(*found))
            keep = self._undominated(vector, new_state)
            vectors.append(vector[keep])
            states.append(new_state[keep])
            links.append(link[keep])
            place_of.append(np.full(len(keep), i, np.int64))
        return self._read(vectors, states, links, place_of)

    def _extend(
        self,
        before: IntArray,
        state: IntArray,
        places: IntArray,
        busy: IntArray,
        memory: IntArray,
        slot: int,
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Add a stage on ``slot`` that ends here to every label before."""
        problem = self.problem
        n_clusters = len(problem.cluster_sizes)
        time = busy[places, state[:, -1]]
        after = state[:, :n_clusters] + problem.cores[slot]
        possible = (time < NEVER) & (after <= np.array(problem.cluster_sizes)).all(axis=1)
        if problem.max_stages is not None:
            possible &= state[:, n_clusters] < problem.max_stages
        chosen = np.flatnonzero(possible)
        time = time[chosen]
        vector = before[chosen].copy()
        vector[:, 0] = np.maximum(vector[:, 0], time)
        vector[:, 1] += time
        if problem.active_power_mw is not None:
            vector[:, 2] += time * problem.active_power_mw[slot]
        cluster = problem.slots[slot].cluster
        vector[:, 3 + cluster] += memory[places[chosen]]
        new_state = state[chosen].copy()
        new_state[:, :n_clusters] = after[chosen]
        new_state[:, n_clusters] += 1
        new_state[:, -1] = cluster if self.costs.n_sources > 1 else 0
        link = np.stack([chosen, places[chosen], np.full(len(chosen), slot)], axis=1)
        on_a_path = self.costs.blocks.has_one_order  # else latency may be less than the sum of busy
        kept = within_limits(problem, vector[:, 1] if on_a_path else None, vector[:, 3:])
        return vector[kept], new_state[kept], link[kept]

    def _memory_column(self, i: int) -> IntArray:
        """Memory of the stage [j, i) for every j; zeros where memory does not count."""
        column = np.zeros(i, np.int64)
        if not self.criteria.needs_memory:
            return column
        layers: list[int] = []
        for j in range(i - 1, -1, -1):
            layers.extend(self.costs.blocks.members[self.costs.order[j]])
            column[j] = stage_memory_bytes(self.problem, sorted(layers))
        return column

    def _relevant(self, vector: IntArray, state: IntArray) -> IntArray:
        """Columns that decide dominance, smaller is better."""
        criteria = self.criteria
        columns = [vector[:, 0]] if criteria.period else []
        if criteria.latency:
            columns.append(vector[:, 1])
        if criteria.energy:
            columns.append(vector[:, 2])
        columns += [vector[:, 3 + cluster] for cluster in criteria.memory_clusters]
        if criteria.total_memory:
            columns.append(vector[:, 3:].sum(axis=1))
        if criteria.slower_may_help:
            columns.append(-vector[:, 0])
        if self.problem.max_stages is not None:
            columns.append(state[:, -2])
        return np.stack(columns, axis=1)

    def _undominated(self, vector: IntArray, state: IntArray) -> IntArray:
        """Indices to keep: per state of cores and source, the undominated labels."""
        n_clusters = len(self.problem.cluster_sizes)
        relevant = self._relevant(vector, state)
        ties = np.stack([vector[:, 1], state[:, n_clusters]], axis=1)
        keys = np.concatenate([state[:, :n_clusters], state[:, -1:]], axis=1)
        keep, capped = pareto_by_key(keys, relevant, ties, self.most_labels)
        self.capped |= capped
        return keep[_not_beaten_with_fewer_cores(keys[keep], relevant[keep])]

    def _read(
        self,
        vectors: Sequence[IntArray],
        states: Sequence[IntArray],
        links: Sequence[IntArray],
        place_of: Sequence[IntArray],
    ) -> list[LaneLabel]:
        n_clusters = len(self.problem.cluster_sizes)
        link, place = np.concatenate(links), np.concatenate(place_of)
        first = len(place) - len(place_of[-1])
        found = []
        for number, (vector, state) in enumerate(zip(vectors[-1].tolist(), states[-1].tolist())):
            spans: list[Span] = []
            label = first + number
            while link[label, 0] >= 0:
                before, start, slot = (int(value) for value in link[label])
                spans.append((start, int(place[label]), slot))
                label = before
            found.append(
                LaneLabel(
                    tuple(state[:n_clusters]),
                    vector[0],
                    vector[1],
                    vector[2],
                    tuple(vector[3:]),
                    tuple(reversed(spans)),
                )
            )
        return found


def within_limits(problem: Problem, latency_ns: IntArray | None, memory_bytes: IntArray) -> IntArray:
    """Return the indices of the labels that keep the ceilings on latency (if given) and memory."""
    kept = np.ones(len(memory_bytes), np.bool_)
    ceiling = problem.objective.max_latency_ns
    if ceiling is not None and latency_ns is not None:
        kept &= latency_ns <= ceiling
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            kept &= memory_bytes[:, cluster] <= limit
    if problem.total_memory_limit_bytes is not None:
        kept &= memory_bytes.sum(axis=1) <= problem.total_memory_limit_bytes
    return np.flatnonzero(kept)


def pareto_by_key(
    keys: IntArray, vectors: IntArray | FloatArray, ties: IntArray, most: int, *, spread: bool = False
) -> tuple[IntArray, bool]:
    """Return the undominated rows of each group of equal keys, and whether a group hit the cap.

    Parameters
    ----------
    keys
        int64 (rows, key columns).
    vectors
        (rows, criteria), smaller is better.
    ties
        int64 (rows, columns): decides which of equal vectors stays.
    most
        Most rows kept per group, the smallest in lexicographic order of ``vectors``.
    spread
        Of more rows keep some from all over the group instead.
    """
    if not len(keys):
        return np.zeros(0, np.int64), False
    columns = [*ties.T[::-1], *vectors.T[::-1], *keys.T[::-1]]
    order = np.lexsort(columns)
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.r_[True, (sorted_keys[1:] != sorted_keys[:-1]).any(axis=1)])
    kept: list[IntArray] = []
    capped = False
    for start, end in zip(starts, np.r_[starts[1:], len(order)]):
        group = order[start:end]
        front = _front(vectors[group], SPREAD * most if spread else most + 1)
        if len(front) > most:
            capped = True
            places = np.linspace(0, len(front) - 1, most).round().astype(np.int64)
            front = front[places] if spread else front[:most]
        kept.append(group[front])
    return np.concatenate(kept), capped


def _not_beaten_with_fewer_cores(keys: IntArray, relevant: IntArray) -> IntArray:
    """Indices of labels for which no other one uses no more of anything, cores included.

    The last column of ``keys`` is the cluster of the last stage: only equal ones are compared.
    """
    columns = np.concatenate([keys[:, :-1], relevant], axis=1)
    alive = np.ones(len(keys), np.bool_)
    for place in np.lexsort(columns.T[::-1]):
        if alive[place]:
            beaten = (columns >= columns[place]).all(axis=1) & (keys[:, -1] == keys[place, -1])
            beaten[place] = False
            alive &= ~beaten
    return np.flatnonzero(alive)


def _front(vectors: IntArray | FloatArray, most: int) -> IntArray:
    """Indices of the undominated rows of lexicographically sorted vectors, at most ``most``."""
    if vectors.shape[1] == 1:
        return np.zeros(1, np.int64)
    if vectors.shape[1] == 2:  # the second column must fall
        least = np.minimum.accumulate(vectors[:, 1])
        return np.flatnonzero(np.r_[True, vectors[1:, 1] < least[:-1]])[:most]
    alive = np.ones(len(vectors), np.bool_)
    found: list[int] = []
    position = 0
    while len(found) < most:
        rest = np.flatnonzero(alive[position:])
        if not len(rest):
            break
        position += int(rest[0])
        found.append(position)
        alive[position:] &= ~(vectors[position:] >= vectors[position]).all(axis=1)
        position += 1
    return np.array(found, np.int64)
