"""The exact mix of pipelines and copies: interval dynamic programmes, then a knapsack over cores.

``interval_dp`` gives the best period P(u) of one lane for every vector u of core counts;
the knapsack picks lanes that maximise the sum of 1 / P(u) within the cores.  Whole-model runs,
copies, single pipelines and every mix of them are points of this space.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.errors import CapError
from solvers.evaluate import evaluate, score_key
from solvers.free_layers import follow_neighbours
from solvers.growth import Growth
from solvers.ideal_dp import IdealTable
from solvers.interval_dp import IntervalTable, Span, useful_slots
from solvers.knapsack import Knapsack, LaneType
from solvers.lane_proof import LaneProof
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.network_orders import network_orders, reordered
from solvers.order_costs import NEVER, Links, OrderCosts, exact_links
from solvers.problem import IntArray, Problem
from solvers.reach import Stages as LaneStages
from solvers.topology import Blocks, contract, orders

WORK_PER_SEARCH = 100_000_000
"""Element operations after which no further order is tried (a count, so that runs repeat)."""
WORK_PER_UPDATE = 10_000
"""What starting one vectorised update costs, in element operations."""
MOST_ORDERS = 64
FEW_ORDERS = 2
"""With so few orders wanted, no better ones are looked for."""
FEW_IDEALS = 1000
"""Up to so many ideals the best lanes on all core counts are found by pairs of ideals."""
N_REFINED = 6
"""Orders around the best lane of a workload."""


@dataclass(frozen=True, slots=True)
class ScoredLane:
    """A lane on a vector of cores, scored by the evaluator."""

    use: tuple[int, ...]
    stages: tuple[Stage, ...]
    period_ns: int
    latency_ns: int


class LanePool:
    """The best known lane for every vector of core counts, over several topological orders.

    Parameters
    ----------
    blocks
        What is to be mapped.
    limits
        Memory, time and seed.
    n_orders
        Most orders to try; None leaves it to the size of the problem.
    """

    def __init__(self, blocks: Blocks, limits: Limits, n_orders: int | None = None) -> None:
        self.blocks = blocks
        self.problem = blocks.problem
        self._slots = useful_slots(blocks)
        shape = tuple(size + 1 for size in self.problem.cluster_sizes)
        self.lower_ns: IntArray = np.full(shape, NEVER, np.int64)
        self._guess_ns: IntArray = np.full(shape, NEVER, np.int64)
        self._owner: IntArray = np.full(shape, -1, np.int64)
        self._tables: list[tuple[OrderCosts, IntervalTable]] = []
        self._scored: dict[tuple[int, ...], ScoredLane] = {}
        self.is_exact = True
        """Whether no lane or mix of what was searched is better, as far as hand-over is exact."""
        self.orders: list[tuple[int, ...]] = []
        """Those that were tried."""
        self._try_orders(limits, n_orders)

    def _try_orders(self, limits: Limits, n_orders: int | None) -> None:
        deadline = time.monotonic() + limits.time_s / 2
        if n_orders is None:
            states = int(np.prod(self._guess_ns.shape))
            n = self.blocks.n_blocks
            work = n * len(self._slots) * (n * states // 2 + WORK_PER_UPDATE)
            n_orders = max(1, min(MOST_ORDERS, WORK_PER_SEARCH // work))
        for order in self._orders(n_orders, limits):
            if self.orders and time.monotonic() > deadline:
                break
            self._try_order(order, limits)
            self.orders.append(order)

    def _orders(self, n_orders: int, limits: Limits) -> Iterator[tuple[int, ...]]:
        """Yield the orders to try; for workloads those of ``solvers.network_orders`` besides."""
        plain = orders(self.blocks, n_orders, limits.seed)
        yield next(plain)
        if len(self.problem.networks) > 1 and n_orders > FEW_ORDERS:
            yield from network_orders(self.blocks, limits)
            for attempt in range(N_REFINED):
                # The best single lane, as far as it is known by now.
                values = [(int(self._guess_ns[use]), use) for use in frontier_of(self._guess_ns)]
                if not values:
                    break
                best = min(values)[1]
                costs, table = self._tables[int(self._owner[best])]
                lane = self._build(costs, table.lane(best, int(self._guess_ns[best])), best)
                yield from reordered(self.blocks, lane.stages, 1, limits.seed + attempt)
        yield from plain

    def _try_order(self, order: tuple[int, ...], limits: Limits) -> None:
        exact = exact_links(self.blocks, order)
        first = Links.CHEAPEST if exact is None else exact
        periods, better = self._add_table(order, first, limits)
        self.lower_ns = np.minimum(self.lower_ns, periods)
        if exact is None and better:
            for links in (Links.PREVIOUS, Links.DEAREST):
                self._add_table(order, links, limits)
        owning = {self._tables[number][0].order for number in set(self._owner[self._owner >= 0].tolist())}
        keep = [number for number, (costs, _) in enumerate(self._tables) if costs.order in owning]
        renumber = np.full(len(self._tables) + 1, -1)
        renumber[keep] = np.arange(len(keep))
        self._tables = [self._tables[number] for number in keep]
        self._owner = renumber[self._owner]

    def _add_table(self, order: tuple[int, ...], links: Links, limits: Limits) -> tuple[IntArray, bool]:
        costs = OrderCosts(self.blocks, order, links)
        table = IntervalTable(costs, self._slots, limits)
        periods = table.periods()
        better = periods < self._guess_ns
        self._owner[better] = len(self._tables)
        self._guess_ns = np.minimum(self._guess_ns, periods)
        self._tables.append((costs, table))
        return periods, bool(better.any())

    def search_ideals(self, limits: Limits, most_ideals: int, max_lanes: int | None) -> int:
        """Look for better lanes among *all* chains of ideals, and prove the rest.

        Afterwards ``lower_ns`` bounds every contiguous plan, not just the orders tried.  Where ideals are
        many, only as far as the mix needs it (``solvers.lane_proof``).

        Returns
        -------
        int
            Number of ideals.

        Raises
        ------
        CapError
            More than ``most_ideals`` ideals, or more memory than the limit.
        """
        fewer = contract(self.problem, follow_neighbours(self.blocks))
        try:
            return self._search_pairs(fewer, limits, min(most_ideals, FEW_IDEALS), max_lanes)
        except CapError:
            if most_ideals <= FEW_IDEALS:
                raise
        try:
            n_ideals, is_decided = self._prove(fewer, limits, max_lanes)
        except CapError:  # pairs take less memory with many cores
            n_ideals, is_decided = 0, False
        if is_decided or n_ideals > most_ideals:
            return n_ideals
        return self._search_pairs(fewer, limits, most_ideals, max_lanes)

    def _search_pairs(self, fewer: Blocks, limits: Limits, most_ideals: int, max_lanes: int | None) -> int:
        own_order = tuple(range(self.blocks.n_blocks))
        if max_lanes == 1:
            known = self._single_lane_thresholds()
        elif exact_links(self.blocks, own_order) is Links.TARGET:
            known = np.minimum(self._guess_ns, self._scored_ns())
        else:
            for use in self.frontier():
                self.score(use)
            known = self._scored_ns()
        table = IdealTable(fewer, known, limits, most_ideals)
        better = table.periods()
        self.lower_ns, self.is_exact = np.minimum(known, better), True
        for use in frontier_of(self.lower_ns):
            if better[use] < known[use]:
                stages = tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(table.lane(use)))
                self._offer(use, stages)
        return table.n_ideals

    def _prove(self, fewer: Blocks, limits: Limits, max_lanes: int | None) -> tuple[int, bool]:
        """Prove the best mix by sweeps over ideals; return how many there are, and whether that told all."""
        growth = Growth(fewer, limits)
        for use in self.frontier():
            self.score(use)
        proof = LaneProof(growth, _running_minimum(self._scored_ns()), max_lanes, limits)

        def offer(use: tuple[int, ...], lane: LaneStages) -> int:
            self._offer(use, tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(lane)))
            found = best_mix(self, max_lanes)
            if found is not None:
                limits.found(found)
            return self.value_ns(use)

        proof.run(offer)
        self.lower_ns = proof.lower_ns
        self.is_exact = proof.is_complete and not limits.gap
        return growth.n_ideals, proof.is_decided

    def _scored_ns(self) -> IntArray:
        found = np.full(self._guess_ns.shape, NEVER, np.int64)
        for use, lane in self._scored.items():
            found[use] = lane.period_ns
        return found

    def _single_lane_thresholds(self) -> IntArray:
        """Per core counts, what a single lane must beat: the best period, or equal it with fewer cores."""
        lanes = [self.score(use) for use in self.frontier()]
        known = np.full(self._guess_ns.shape, NEVER, np.int64)
        if lanes:
            best = min(lanes, key=lambda lane: (lane.period_ns, sum(lane.use)))
            cores = np.indices(known.shape).sum(axis=0)
            known = np.where(cores < sum(best.use), best.period_ns + 1, best.period_ns)
        return known

    def _offer(self, use: tuple[int, ...], stages: tuple[Stage, ...]) -> None:
        lane = evaluate(self.problem, Mapping((Lane(stages),))).lanes[0]
        if lane.period_ns < self.value_ns(use):
            self._scored[use] = ScoredLane(use, stages, lane.period_ns, lane.latency_ns)

    def value_ns(self, use: tuple[int, ...]) -> int:
        """Return the period of the lane on these cores: scored where it is known, else the guess."""
        scored = self._scored.get(use)
        return int(self._guess_ns[use]) if scored is None else scored.period_ns

    def is_scored(self, use: tuple[int, ...]) -> bool:
        """Whether ``score`` was called for these cores."""
        return use in self._scored

    def score(self, use: tuple[int, ...]) -> ScoredLane:
        """Build the best lane on exactly these cores and let the evaluator score it."""
        if use not in self._scored:
            costs, table = self._tables[int(self._owner[use])]
            lanes = [self._build(costs, table.lane(use, int(self._guess_ns[use])), use)]
            if costs.links in (Links.CHEAPEST, Links.PREVIOUS, Links.DEAREST):
                lanes += self._same_order(costs, use)
            self._scored[use] = min(lanes, key=lambda lane: (lane.period_ns, lane.latency_ns))
        return self._scored[use]

    def _same_order(self, costs: OrderCosts, use: tuple[int, ...]) -> list[ScoredLane]:
        """Lanes that the other guesses about links give for the same order."""
        lanes = []
        for other, table in self._tables:
            if other.order == costs.order and other is not costs:
                period = int(table.periods()[use])
                if period < NEVER:
                    lanes.append(self._build(other, table.lane(use, period), use))
        return lanes

    def _build(self, costs: OrderCosts, spans: Sequence[Span], use: tuple[int, ...]) -> ScoredLane:
        stages = tuple(
            Stage(self._layers(costs.order[start:end]), slot, unit)
            for unit, (start, end, slot) in enumerate(spans)
        )
        scored = evaluate(self.problem, Mapping((Lane(stages),))).lanes[0]
        return ScoredLane(use, stages, scored.period_ns, scored.latency_ns)

    def _layers(self, members: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(layer for block in members for layer in self.blocks.members[block]))

    def frontier(self) -> list[tuple[int, ...]]:
        """Return the core vectors whose period beats that of every smaller vector."""
        values = self._guess_ns.copy()
        for use, lane in self._scored.items():
            values[use] = lane.period_ns
        return frontier_of(values)


def frontier_of(values: IntArray) -> list[tuple[int, ...]]:
    """Return the core vectors whose value is below that of every smaller vector, and not ``NEVER``."""
    smaller = np.full(values.shape, NEVER, np.int64)
    running = _running_minimum(values)
    for axis in range(values.ndim):
        after, before = (_part(values.ndim, axis, part) for part in (slice(1, None), slice(None, -1)))
        smaller[after] = np.minimum(smaller[after], running[before])
    return [tuple(map(int, use)) for use in np.argwhere((values < smaller) & (values < NEVER))]


def _running_minimum(values: IntArray) -> IntArray:
    for axis in range(values.ndim):
        values = np.minimum.accumulate(values, axis=axis)
    return values


def _part(n_axes: int, axis: int, what: slice) -> tuple[slice, ...]:
    return tuple(what if number == axis else slice(None) for number in range(n_axes))


_CORE = 1_000_000
"""Weight of one core against one stage in the secondary cost of the knapsack."""


def best_mix(pool: LanePool, max_lanes: int | None) -> Mapping | None:
    """Return the mix of the pool's lanes with the highest throughput, ties as formulation says.

    Parameters
    ----------
    pool
        Lanes by core counts.
    max_lanes
        Most lanes, or None.

    Returns
    -------
    Mapping or None
        None when the pool has no lane.
    """
    problem = pool.problem
    while True:
        types = [_lane_type(pool, use) for use in pool.frontier()]
        knapsack = Knapsack(problem.cluster_sizes, types, max_lanes)
        chosen = [types[number].use for number in knapsack.lanes()]
        if not chosen:
            return None
        fresh = {use for use in chosen if not pool.is_scored(use)}
        fresh |= {types[n].use for n in knapsack.in_some_best()[:64] if not pool.is_scored(types[n].use)}
        if not fresh:
            break
        for use in sorted(fresh):
            pool.score(use)
    tied = [pool.score(types[n].use) for n in knapsack.in_some_best()[:64]]
    quickest = _lowest_latency(problem, tied, knapsack, max_lanes)
    candidates = [_mapping(pool, chosen)]
    if quickest is not None:
        candidates.append(_mapping(pool, quickest))
    return min(candidates, key=lambda mapping: score_key(problem, evaluate(problem, mapping)))


def _lane_type(pool: LanePool, use: tuple[int, ...]) -> LaneType:
    period = pool.value_ns(use)
    n_stages = len(pool.score(use).stages) if pool.is_scored(use) else 0
    return LaneType(use, 1 / period if period else 1e6, sum(use) * _CORE + n_stages)


def _lowest_latency(
    problem: Problem, tied: list[ScoredLane], best: Knapsack, max_lanes: int | None
) -> list[tuple[int, ...]] | None:
    """Return a mix as good in rate and cores, with the lowest worst latency."""
    for ceiling in sorted({lane.latency_ns for lane in tied}):
        lanes = [lane for lane in tied if lane.latency_ns <= ceiling]
        types = [
            LaneType(
                lane.use,
                1 / lane.period_ns if lane.period_ns else 1e6,
                sum(lane.use) * _CORE + len(lane.stages),
            )
            for lane in lanes
        ]
        knapsack = Knapsack(problem.cluster_sizes, types, max_lanes)
        same_rate = knapsack.best_rate >= best.best_rate * (1 - 1e-12)
        if same_rate and knapsack.best_secondary // _CORE <= best.best_secondary // _CORE:
            return [types[number].use for number in knapsack.lanes()]
    return None


def _mapping(pool: LanePool, uses: Sequence[tuple[int, ...]]) -> Mapping:
    chosen = (pool.score(use).stages for use in sorted(uses, reverse=True))
    return Mapping.of_chains([(stage.layers, stage.slot) for stage in stages] for stages in chosen)


def optimistic_rate(pool: LanePool, max_lanes: int | None) -> float:
    """Return frames per ns that no mix of lanes cut along the pool's orders exceeds."""
    types = [LaneType(use, 1 / max(int(pool.lower_ns[use]), 1e-6), 0) for use in frontier_of(pool.lower_ns)]
    return Knapsack(pool.problem.cluster_sizes, types, max_lanes).best_rate
