"""What the solvers ``lanes`` and ``interval_dp`` find for problems that differ from one in one layer's cost.

The stages along the orders that the search would try (or all convex stages, where a graph has few ideals)
are set up once.  A cheaper layer then needs no search: ``solvers.cheaper_lanes`` says what the best lane
on given cores becomes, and that is asked only for cores that a best mix may use, beginning with the
optimistic guess that every lane gains all that the layer saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from solvers.cheaper_lanes import CheaperLane
from solvers.coarse import N_EVEN, coarsen
from solvers.errors import CapError
from solvers.evaluate import KnownStages, evaluate
from solvers.free_layers import follow_neighbours
from solvers.interval_dp import useful_slots
from solvers.joining import work_of
from solvers.lane_tables import Cores, LaneTable, Stages
from solvers.lanes import FEW_IDEALS, LanePool
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.mix import is_coarse
from solvers.mixes import MOST_STATES, Mixes
from solvers.order_costs import NEVER, Links, exact_links
from solvers.problem import FloatArray, IntArray, Problem
from solvers.stage_steps import Steps, steps_of_ideals, steps_of_order
from solvers.topology import Blocks, contract

FREE_RATE = 1e6
"""Frames per nanosecond of a lane that takes no time, as in ``solvers.lanes``."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one change.

    Parameters
    ----------
    mapping
        The best one; None where there is none.
    rate_bound
        Frames per nanosecond that no mapping of the kind searched exceeds.
    """

    mapping: Mapping | None
    rate_bound: float


class CheaperLayers:
    """Answers for a problem with one layer cheaper.

    Parameters
    ----------
    problem
        With the goal throughput.  Limits on memory, latency and power are left out of account.
    mapping
        The answer for it: the slots that it uses are looked at, and its cuts where blocks are joined.
    max_lanes
        Most lanes, or None.
    limits
        Memory and seed.
    orders
        Those to search where neither all orders nor all ideals are few; None finds some.

    Raises
    ------
    CapError
        Too many cores, or more memory than the limit.
    InfeasibleError
        See ``topology.contract``.
    """

    def __init__(
        self,
        problem: Problem,
        mapping: Mapping,
        max_lanes: int | None,
        limits: Limits,
        orders: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        self.orders = orders
        self._problem = problem.under_load
        states = int(np.prod([size + 1 for size in problem.cluster_sizes]))
        if states > MOST_STATES:
            raise CapError(f"{states} vectors of core counts are too many, the cap is {MOST_STATES}")
        blocks = contract(self._problem)
        joined = is_coarse(blocks)
        self.every_plan = not joined
        """Whether all lanes of convex stages, one per set of cores, are looked at."""
        if joined:
            places = blocks.of_layer
            cuts = {min(places[n] for n in stage.layers) for lane in mapping.lanes for stage in lane.stages}
            blocks = coarsen(blocks, work_of(blocks), cuts, N_EVEN)
        slots = {stage.slot for lane in mapping.lanes for stage in lane.stages} | set(useful_slots(blocks))
        self.tables = [
            [LaneTable(steps, limits) for steps in alike]
            for alike in self._steps(blocks, tuple(sorted(slots)), limits, is_joined=joined)
        ]
        """By set of nodes: that of the least hand-over first, it bounds the others."""
        self.mixes = Mixes(problem.cluster_sizes, max_lanes)
        self.periods_ns = np.minimum.reduce([alike[0].periods_ns.ravel() for alike in self.tables])
        """Best period before the change, by core vector of ``mixes``."""
        self.owner = np.argmin([alike[0].periods_ns.ravel() for alike in self.tables], axis=0)
        """Set of nodes that has it."""
        vectors = np.array(self.mixes.cores)
        self._fits = (self._problem.cores[None] <= vectors[:, None]).all(axis=2)
        self.stages: KnownStages = {}

    def _steps(self, blocks: Blocks, slots: Cores, limits: Limits, *, is_joined: bool) -> list[list[Steps]]:
        """Per set of nodes: the stages with the least hand-over they may have, then other guesses at it."""
        own = tuple(range(blocks.n_blocks))
        links = exact_links(blocks, own)
        if not blocks.has_one_order and not is_joined:
            fewer = contract(self._problem, follow_neighbours(blocks))
            try:
                every = [steps_of_ideals(fewer, slots, limits, FEW_IDEALS)]
                if links is not Links.TARGET:
                    every.append(steps_of_ideals(fewer, slots, limits, FEW_IDEALS, dearest=True))
                    every.append(steps_of_order(blocks, own, Links.PREVIOUS, slots, limits))
            except CapError:
                self.every_plan = False
            else:
                return [every]
        one = blocks.has_one_order or is_joined
        if one or self.orders is None:
            self.orders = [own] if one else LanePool(blocks, limits).orders
        found = []
        for order in self.orders:
            exact = exact_links(blocks, order)
            kinds = (Links.CHEAPEST, Links.PREVIOUS, Links.DEAREST) if exact is None else (exact,)
            found.append([steps_of_order(blocks, order, kind, slots, limits) for kind in kinds])
        return found

    @cached_property
    def unchanged(self) -> Found:
        """The best mapping before any change."""
        return _Answer(self, self._problem, 0, np.zeros(len(self._problem.slots), np.int64)).find()

    def with_cheaper(self, changed: Problem, layer: int, saved_ns: IntArray) -> Found | None:
        """Return the best mapping with a layer cheaper; None where measured stages change by other amounts.

        Parameters
        ----------
        changed
            The problem with it.
        layer
            Which.
        saved_ns
            int64 (slots,): by how much, under load where the problem has such costs.
        """
        now = changed.under_load
        before, after = self._problem.measured_ns, now.measured_ns
        for (layers, slot), time in before.items():
            if layer in layers and not 0 <= time - after[layers, slot] <= saved_ns[slot]:
                return None
        return _Answer(self, now, layer, saved_ns).find()

    def most_saved(self, saved_ns: IntArray) -> IntArray:
        """Return what a lane on each core vector saves at most, where slots save so much."""
        most: IntArray = np.where(self._fits, saved_ns, 0).max(axis=1)
        return most


class _Answer:
    """One change: periods that are optimistic at first, exact or evaluated where the best mix looks."""

    def __init__(self, given: CheaperLayers, changed: Problem, layer: int, saved_ns: IntArray) -> None:
        self._given = given
        self._changed = changed
        self._layer = layer
        self._saved_ns = saved_ns
        guess = np.maximum(given.periods_ns - given.most_saved(saved_ns), 0)
        self._value_ns: IntArray = np.where(given.periods_ns >= NEVER, NEVER, guess)
        self._lanes: dict[int, Stages] = {}

    @cached_property
    def _cheaper(self) -> list[list[CheaperLane]]:
        return [
            [CheaperLane(table, self._layer, self._saved_ns, self._changed.measured_ns) for table in alike]
            for alike in self._given.tables
        ]

    def find(self) -> Found:
        """Return the best mapping, and the bound."""
        rate, lanes = self._settle(self._ask, bound=True)
        if any(len(alike) > 1 for alike in self._given.tables):  # hand-over is not known before the lane is
            settled = self._lanes
            self._lanes = {}
            _, lanes = self._settle(lambda use: self._score(use, settled), bound=False)
        return Found(Mapping.of_chains(self._lanes[use] for use in lanes) if lanes else None, rate)

    def _settle(self, ask: Callable[[int], tuple[int, Stages]], *, bound: bool) -> tuple[float, list[int]]:
        """Ask for every lane of the best mix, until it is a mix of lanes that were asked for.

        Parameters
        ----------
        bound
            Answers are the best there is: on fewer cores no lane is quicker.
        """
        while True:
            rate, lanes = self._given.mixes.best(_rates(self._value_ns))
            fresh = sorted(set(lanes) - self._lanes.keys())
            if not fresh:
                return rate, lanes
            for use in fresh:
                period, self._lanes[use] = ask(use)
                self._value_ns[use] = period
                if bound:
                    smaller = self._given.mixes.part_of(use)
                    self._value_ns[smaller] = np.maximum(self._value_ns[smaller], period)

    def _ask(self, use: int) -> tuple[int, Stages]:
        """Return the best period on some cores, with a lane."""
        given = self._given
        cores = given.mixes.cores[use]
        best = int(given.periods_ns[use])
        found: Callable[[], Stages] | None = None
        for alike, cheaper in zip(given.tables, self._cheaper):
            better = cheaper[0].period(cores, min(best, int(alike[0].periods_ns[cores])))
            if better is not None:
                best, found = better[0], partial(alike[0].lane_through, better[1])
        lane = given.tables[int(given.owner[use])][0].lane(cores) if found is None else found()
        return best, lane

    def _score(self, use: int, settled: dict[int, Stages]) -> tuple[int, Stages]:
        """Return the best lane on some cores of those that guesses at hand-over give, scored."""
        given = self._given
        cores = given.mixes.cores[use]
        lanes = [settled[use] if use in settled else self._ask(use)[1]]
        for alike, cheaper in zip(given.tables, self._cheaper):
            for table, lane in zip(alike[1:], cheaper[1:]):
                period = int(table.periods_ns[cores])
                if period < NEVER:
                    better = lane.period(cores, period)
                    lanes.append(table.lane(cores) if better is None else table.lane_through(better[1]))
        scored = [(self._period_of(lane), number) for number, lane in enumerate(lanes)]
        period, number = min(scored)
        return period, lanes[number]

    def _period_of(self, lane: Stages) -> int:
        stages = tuple(Stage(layers, slot, unit) for unit, (layers, slot) in enumerate(lane))
        mapping = Mapping((Lane(stages),))
        return evaluate(self._changed, mapping, self._given.stages).lanes[0].period_ns


def _rates(periods_ns: IntArray) -> FloatArray:
    rates: FloatArray = np.where(periods_ns > 0, 1 / np.maximum(periods_ns, 1), FREE_RATE)
    return np.where(periods_ns >= NEVER, 0, rates)
