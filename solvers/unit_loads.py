"""What single units can hold: elements, the tensors between them, and the time both cost per slot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from solvers.bounds import bound_costs, least_overhead_ns
from solvers.frontier import Frontier, Table, Tensor, good_order
from solvers.interval_dp import useful_slots
from solvers.knapsack import Knapsack, LaneType
from solvers.loads import elements
from solvers.problem import BoolArray, FloatArray, IntArray, Problem
from solvers.topology import contract

MOST_STATES = 50_000
"""States of a frontier programme in all; tensors are left out, cheapest first, until it has fewer."""
TOLERANCE = 1e-9
"""Relative amount by which what is held may miss the whole: sums of prices are rounded."""


@dataclass(frozen=True, slots=True)
class PricedTensor:
    """A tensor between elements; what the units that send and receive it pay at least (ns per slot)."""

    source: int
    users: tuple[int, ...]
    send_ns: FloatArray
    receive_ns: FloatArray


@dataclass(frozen=True)
class Units:
    """Elements that any unit of a lane may hold, for lanes with a period of at most ``known_ns``.

    Parameters
    ----------
    problem
        Its cores and slots.
    known_ns
        Elements are joined where handing over between them would alone exceed it.
    slots
        Indices of the slots that count.
    cost_ns
        float64 (elements, slots), at least, as part of any stage; ``inf`` where not allowed.
    overhead_ns
        float64 (slots,).
    tensors
        Between elements; left out where they would make the states too many.
    order
        Elements in an order with few open tensors.
    """

    problem: Problem
    known_ns: float
    slots: tuple[int, ...]
    cost_ns: FloatArray
    overhead_ns: FloatArray
    tensors: tuple[PricedTensor, ...]
    order: tuple[int, ...]

    @property
    def clusters(self) -> list[int]:
        """Cluster of each slot."""
        return [self.problem.slots[slot].cluster for slot in self.slots]


def build_units(problem: Problem, known_ns: float) -> Units | None:
    """Build the elements and tensors of a problem; None when no lane is within ``known_ns``."""
    blocks = contract(replace(problem, colocated=()))
    slots = useful_slots(blocks)
    overhead = least_overhead_ns(problem)[list(slots)]
    parts = elements(problem)
    home = np.empty(blocks.n_blocks, np.int64)
    for number, layers in enumerate(parts.members):
        home[[blocks.of_layer[layer] for layer in layers]] = number
    cost = np.zeros((len(parts.members), len(slots)))
    np.add.at(cost, home, bound_costs(blocks)[:, list(slots)])
    clusters = [problem.slots[slot].cluster for slot in slots]
    sources = sorted({slot.cluster for slot in problem.slots})
    tensors = []
    for source, users, index in parts.flows:
        size = problem.flows[index].n_bytes
        send = [problem.send_ns(c, size) for c in clusters]
        receive = [min(problem.transfer_ns(a, c, size) for a in sources) for c in clusters]
        if any(send) or any(receive):
            tensors.append(PricedTensor(source, users, np.array(send, float), np.array(receive, float)))
    while True:
        cost[cost + overhead > known_ns] = np.inf
        if np.isinf(cost).all(axis=1).any():
            return None
        joined = _join(cost, overhead, tensors, known_ns)
        if len(joined[0]) == len(cost):
            break
        cost, tensors = joined
    order, tensors = _few_states(len(cost), tensors)
    return Units(problem, known_ns, slots, cost, overhead, tuple(tensors), order)


def _join(
    cost: FloatArray, overhead: FloatArray, tensors: list[PricedTensor], known_ns: float
) -> tuple[FloatArray, list[PricedTensor]]:
    """Join the elements of tensors that no unit can hand over, or take over, within the known period."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(cost)))
    for tensor in tensors:
        sending = (cost[tensor.source] + overhead + tensor.send_ns).min()
        for user in tensor.users:
            receiving = (cost[user] + overhead + tensor.receive_ns).min()
            if max(sending, receiving) > known_ns:
                graph.add_edge(tensor.source, user)
    parts = sorted(sorted(part) for part in nx.connected_components(graph))
    home = np.empty(len(cost), np.int64)
    for number, part in enumerate(parts):
        home[part] = number
    joint = np.zeros((len(parts), cost.shape[1]))
    np.add.at(joint, home, cost)
    left = []
    for tensor in tensors:
        source = int(home[tensor.source])
        users = tuple(sorted({int(home[user]) for user in tensor.users} - {source}))
        if users:
            left.append(replace(tensor, source=source, users=users))
    return joint, left


def _few_states(n: int, tensors: list[PricedTensor]) -> tuple[tuple[int, ...], list[PricedTensor]]:
    """Return a good order, and the tensors without the cheapest ones where there are too many states."""
    left = sorted(tensors, key=lambda t: -float((t.send_ns + t.receive_ns).max()))
    while True:
        order, states = good_order(n, [(t.source, *t.users) for t in left])
        if states <= MOST_STATES or not left:
            return order, left
        left = left[: len(left) * 7 // 8]


class Steps:
    """Units on a grid of load: what they can hold at given prices, for every period on the grid.

    Parameters
    ----------
    units
        From ``build_units``.
    n_steps
        The known period is so many steps; tensors and overheads are rounded down to steps.
    nearest
        Round costs of elements to the nearest step instead of down: less biased, but no bound.
    """

    def __init__(self, units: Units, n_steps: int, nearest: bool = False) -> None:
        self.units = units
        self.n_steps = n_steps
        self._step_ns = units.known_ns / n_steps
        finite = np.where(np.isinf(units.cost_ns), 0.0, units.cost_ns) / self._step_ns
        self._load: IntArray = (np.rint(finite) if nearest else np.floor(finite)).astype(np.int64)
        self._allowed: BoolArray = ~np.isinf(units.cost_ns)
        self._overhead = (units.overhead_ns / self._step_ns).astype(np.int64)
        by_cluster: dict[int, Frontier] = {}
        for column, cluster in enumerate(units.clusters):
            if cluster not in by_cluster:
                by_cluster[cluster] = Frontier(units.order, self._tensors(column))
        self._frontiers = [by_cluster[cluster] for cluster in units.clusters]

    def _tensors(self, column: int) -> list[Tensor]:
        return [
            Tensor(
                t.source,
                t.users,
                int(t.send_ns[column] / self._step_ns),
                int(t.receive_ns[column] / self._step_ns),
            )
            for t in self.units.tensors
        ]

    @property
    def n_states(self) -> int:
        """States of all slots together."""
        return sum(frontier.n_states for frontier in self._frontiers)

    def tables(self, prices: FloatArray, trace: bool = False) -> list[Table]:
        """``table`` for every slot."""
        return [self.table(column, prices, trace) for column in range(len(self._frontiers))]

    def table(self, column: int, prices: FloatArray, trace: bool) -> Table:
        """What a unit on one slot can hold at most, by load besides the overhead."""
        most = max(self.n_steps - int(self._overhead[column]), 0)
        load, allowed = self._load[:, column], self._allowed[:, column]
        return self._frontiers[column].table(load, allowed, prices, most, trace)

    def values(self, tables: list[Table]) -> FloatArray:
        """float64 (slots, steps + 1): the worth of what a unit can hold within each period."""
        found = np.zeros((len(tables), self.n_steps + 1))
        for row, table, overhead in zip(found, tables, self._overhead):
            if overhead <= self.n_steps:
                row[overhead:] = table.best
        return found

    def members(self, column: int, table: Table, period: int) -> tuple[BoolArray, int] | None:
        """A set of the best worth within the period, and the first period within which it is worth that.

        None where the overhead alone is longer.
        """
        overhead = int(self._overhead[column])
        if period < overhead:
            return None
        least = int(np.searchsorted(table.best, table.best[period - overhead]))
        return table.members(least), least + overhead

    def held(self, values: FloatArray, period: int) -> float:
        """The most that the units of a lane can hold together within a period."""
        problem = self.units.problem
        types = [
            LaneType(tuple(int(n) for n in problem.cores[slot]), float(value), 0)
            for slot, value in zip(self.units.slots, values[:, period])
            if value > 0
        ]
        return Knapsack(problem.cluster_sizes, types, problem.max_stages).best_rate

    def least_period(self, values: FloatArray) -> int:
        """The first period within which units can hold everything (prices of sum 1), n_steps + 1 if none."""
        low, high = 0, self.n_steps + 1
        while low < high:
            middle = (low + high) // 2
            if self.held(values, middle) >= 1 - TOLERANCE:
                high = middle
            else:
                low = middle + 1
        return low
