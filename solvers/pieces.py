"""Non-contiguous plans under every goal and limit: ``solvers.lane_model`` along a few orders.

Starts from the best plan known, so that the answer is never worse.  First one lane on all cores is looked
for, then each lane of a mix is improved on what the other ones leave.  The evaluator decides what is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from solvers.bounds import SAFETY, throughput_bound_hz
from solvers.coarse import coarsen
from solvers.evaluate import Evaluation, evaluate, is_better
from solvers.joining import work_of
from solvers.lane_model import LaneModel, Room
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.problem import Goal, Problem
from solvers.topology import Blocks, contract, orders
from solvers.violations import NS_PER_S

N_ORDERS = 4
JOINED = (12, 32)
"""Where there are many more blocks, about so many are made of them first, besides the cuts that are known."""
COARSE_SHARE = 0.4
"""Share of the time that is left, for each of these."""
MOST_BLOCKS = 400
"""Blocks up to which they are tried as they are."""
MOST_CHOICES = 6_000
"""Pairs of block and unit in one model; with more, fewer units are offered."""
N_TIGHTENED = 3
"""How often memory is limited further where the model took a stage's need for less than it is."""


def improve_pieces(problem: Problem, first: Solution, limits: Limits) -> Solution:
    """Improve a solution by stages that take turns on units, for every goal and under every limit.

    Family ALL; a bound where the graph has one order and one lane is what the bound is about.  Without a
    mapping to start from, one lane is looked for all the same.

    Raises
    ------
    InfeasibleError
        See ``topology.contract``.
    """
    blocks = replace(contract(replace(problem, colocated=())), problem=problem)
    search = _Search(blocks, limits)
    if first.mapping is not None and first.evaluation is not None:
        search.best = (first.mapping, first.evaluation)
    search.run()
    return search.solution(first)


class _Search:
    """The best mapping so far, and what is proved about all of them."""

    def __init__(self, blocks: Blocks, limits: Limits) -> None:
        self.blocks = blocks
        self.problem = blocks.problem
        self.limits = limits
        self.best: tuple[Mapping, Evaluation] | None = None
        self.bound: float | None = None
        most_hz = throughput_bound_hz(replace(self.problem, max_lanes=1), blocks)
        self._least_period_ns = math.floor(1e9 / most_hz * (1 - SAFETY)) if math.isfinite(most_hz) else 0
        self._end = time.monotonic() + 0.95 * limits.time_s

    def run(self) -> None:
        """Look for one lane on all cores, then improve a mix lane by lane, the slowest for a frame first."""
        start, n_lanes = None, 1
        if self.best is not None:
            mapping, evaluation = self.best
            n_lanes = len(mapping.lanes)
            fastest = min(range(n_lanes), key=lambda n: evaluation.lanes[n].period_ns)
            start = mapping.lanes[fastest]
        self._improve(Mapping(()), 0, start, self._left / n_lanes)
        if self.best is None or len(self.best[0].lanes) < 2:
            return
        scored = self.best[1].lanes
        for done, number in enumerate(sorted(range(len(scored)), key=lambda n: -scored[n].latency_ns)):
            lanes = self.best[0].lanes
            others = Mapping((*lanes[:number], *lanes[number + 1 :]))
            self._improve(others, number, lanes[number], self._left / (len(lanes) - done))

    def solution(self, first: Solution) -> Solution:
        """Return the best mapping with the bounds that hold for all."""
        goal, bounds = self.problem.objective.goal, first
        if self.bound is not None and goal is Goal.THROUGHPUT:
            known_hz = first.bound_hz or math.inf
            bounds = replace(first, bound_hz=min(known_hz, 1e9 / self.bound))
        elif self.bound is not None and goal is Goal.LATENCY:
            bounds = replace(first, bound_latency_ns=round(self.bound))
        elif self.bound is not None:
            bounds = replace(first, bound_energy_nj=round(self.bound / 1000))
        if self.best is None or self.best[0] == first.mapping:
            return bounds
        mapping, evaluation = self.best
        return replace(
            bounds,
            status=Status.FEASIBLE,
            family=Family.ALL,
            mapping=mapping,
            evaluation=evaluation,
            reason="",
        )

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()

    def _improve(self, others: Mapping, number: int, start: Lane | None, time_s: float) -> None:
        """Look for a better lane beside others: joined blocks first where there are many, then orders."""
        task = _Task(_Beside(others, number), self._room(others), time.monotonic() + time_s)
        for n_even in JOINED:
            if self.blocks.n_blocks < 2 * n_even:
                break
            joined = coarsen(self.blocks, work_of(self.blocks), self._cuts(start), n_even, 1)
            own = tuple(range(joined.n_blocks))
            start = self._along(joined, own, task, start, COARSE_SHARE * task.left)
        if self.blocks.n_blocks > MOST_BLOCKS:
            return
        tried = list(self._orders(start))
        for place, order in enumerate(tried):
            start = self._along(self.blocks, order, task, start, task.left / (len(tried) - place))

    def _along(
        self, blocks: Blocks, order: tuple[int, ...], task: _Task, start: Lane | None, time_s: float
    ) -> Lane | None:
        """Solve the model of one order; return the best lane to go on from."""
        units, complete = self._units(blocks, task.room, start)
        end, room = time.monotonic() + time_s, task.room
        for attempt in range(1 + N_TIGHTENED):
            self.limits.check()
            if time.monotonic() >= end or not units:
                break
            model = LaneModel(blocks, order, units, room)
            if start is not None:
                model.hint(start, _unit_of(start, units))
            found = model.solve(
                end - time.monotonic(), self.limits, lambda lane: self._tell(task.beside, lane)
            )
            if attempt == 0 and complete and not task.beside.others.lanes and (found.bound or 0) > 0:
                self.bound = found.bound
            if found.best is None:
                break
            mapping = task.beside.mapping(found.best)
            evaluation = evaluate(self.problem, mapping)
            if is_better(self.problem, evaluation, None if self.best is None else self.best[1]):
                self.best = (mapping, evaluation)
                self.limits.found(mapping, evaluation)
            if evaluation.feasible:
                before = None if start is None else evaluate(self.problem, task.beside.mapping(start))
                return found.best if is_better(self.problem, evaluation, before) else start
            tighter = _tightened(room, evaluation)
            if tighter is None:
                break
            room = tighter
        return start

    def _tell(self, beside: _Beside, lane: Lane) -> None:
        self.limits.found(beside.mapping(lane))

    def _cuts(self, start: Lane | None) -> set[int]:
        """Return the places in the problem's own order between which a lane changes stages."""
        if start is None:
            return set()
        home = {layer: number for number, stage in enumerate(start.stages) for layer in stage.layers}
        homes = [home[members[0]] for members in self.blocks.members]
        return {place for place in range(1, len(homes)) if homes[place] != homes[place - 1]}

    def _orders(self, start: Lane | None) -> Iterator[tuple[int, ...]]:
        """Yield the order of the lane to start from, then some others."""
        seen = set()
        if start is not None:
            home = {layer: number for number, stage in enumerate(start.stages) for layer in stage.layers}
            by_stage = [(home[members[0]], block) for block, members in enumerate(self.blocks.members)]
            seen.add(tuple(block for _, block in sorted(by_stage)))
            yield from seen
        for order in orders(self.blocks, N_ORDERS, self.limits.seed):
            if order not in seen:
                yield order

    def _room(self, others: Mapping) -> Room:
        problem, objective = self.problem, self.problem.objective
        beside = evaluate(problem, others) if others.lanes else None
        taken = [0] * len(problem.cluster_sizes)
        used, held = (taken, taken) if beside is None else (beside.cores_used, beside.memory_bytes)
        limits = problem.memory_limits_bytes or (None,) * len(taken)
        total = problem.total_memory_limit_bytes
        rate = Fraction(0) if beside is None else beside.frames_per_ns
        floor = objective.min_throughput_hz
        missing = Fraction(0) if floor is None else Fraction(floor) / NS_PER_S - rate
        power = Fraction(problem.idle_power_mw or 0) + self._power_mw(others, beside)
        price = power
        if others.lanes and self.best is not None:
            # Energy per frame (E + a T) / (1 + b T) falls below e where E + (a - e b) T does.
            price -= (self.best[1].energy_nj or 0) * 1000 * rate
        most = problem.max_power_mw
        return Room(
            objective.goal,
            tuple(size - n for size, n in zip(problem.cluster_sizes, used)),
            tuple(None if limit is None else limit - n for limit, n in zip(limits, held)),
            None if total is None else total - sum(held),
            math.floor(1 / missing) if missing > 0 else None,
            objective.max_latency_ns,
            None if most is None else Fraction(math.floor((most - power) * 1000), 1000),
            max(0, math.floor(price)) if objective.goal is Goal.ENERGY else 0,
            self._least_period_ns,
        )

    def _power_mw(self, others: Mapping, beside: Evaluation | None) -> Fraction:
        """Active power of other lanes."""
        power = self.problem.active_power_mw
        if beside is None or power is None:
            return Fraction(0)
        return sum(
            (
                Fraction(stage_ns.busy_ns * power[stage.slot], scored.period_ns)
                for lane, scored in zip(others.lanes, beside.lanes)
                for stage, stage_ns in zip(lane.stages, scored.stages)
                if scored.period_ns
            ),
            Fraction(0),
        )

    def _units(self, blocks: Blocks, room: Room, start: Lane | None) -> tuple[tuple[int, ...], bool]:
        """Return slots of units to offer, and whether a bound found with them is one for all mappings."""
        problem = self.problem
        n_pinned = sum(pin is not None for pin in blocks.pin)
        # Units of one slot are as good as one where stages wait for each other and the period is free.
        period_counts = room.goal is Goal.THROUGHPUT or room.max_period_ns is not None or room.period_price_mw
        alike = blocks.has_one_order and not period_counts
        most, held = [], [0] * len(problem.slots)
        for _, slot in {(s.unit, s.slot) for s in start.stages} if start else ():
            held[slot] += 1
        for slot in range(len(problem.slots)):
            needs = [(size, int(n)) for size, n in zip(room.cores, problem.cores[slot]) if n]
            fitting = min(size // n for size, n in needs) if blocks.allowed[:, slot].any() else 0
            most.append(min(fitting, max(1, n_pinned)) if alike else fitting)
        offers = [most, *([max(h, min(n, few)) for n, h in zip(most, held)] for few in (2, 1, 0))]
        fitting_offer = next(
            (offer for offer in offers if sum(offer) * blocks.n_blocks <= MOST_CHOICES), offers[-1]
        )
        units = tuple(slot for slot, n in enumerate(fitting_offer) for _ in range(n))
        return units, fitting_offer is most and blocks is self.blocks and self._bounds_all(
            bool(period_counts)
        )

    def _bounds_all(self, period_counts: bool) -> bool:
        """Whether the best lane on all cores, were it proved, would be the best mapping."""
        problem = self.problem
        exact = self.blocks.has_one_order and not problem.stage_times and not problem.overlap
        single = problem.lane_limit == 1 or not period_counts
        return exact and single and problem.max_power_mw is None


@dataclass(frozen=True, slots=True)
class _Task:
    """A lane to be found: where, in which room, until when."""

    beside: _Beside
    room: Room
    end: float

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()


@dataclass(frozen=True, slots=True)
class _Beside:
    """Where a lane stands among others."""

    others: Mapping
    number: int

    def mapping(self, lane: Lane) -> Mapping:
        """Return the mapping with a lane there, on units of its own."""
        lanes = self.others.lanes
        free = 1 + max((stage.unit for other in lanes for stage in other.stages), default=-1)
        moved = Lane(tuple(Stage(s.layers, s.slot, s.unit + free) for s in lane.stages))
        return Mapping((*lanes[: self.number], moved, *lanes[self.number :]))


def _unit_of(start: Lane, units: tuple[int, ...]) -> dict[int, int]:
    """Return which of the offered units stands for each unit of a lane."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for stage in start.stages:
        if stage.unit not in found:
            same = [u for u, slot in enumerate(units) if slot == stage.slot]
            found[stage.unit] = next((u for u in same if u not in taken), same[-1])
            taken.add(found[stage.unit])
    return found


def _tightened(room: Room, evaluation: Evaluation) -> Room | None:
    """Return a room with less memory where a mapping takes more than the model thought, else None."""
    over = {
        v.detail: math.ceil(v.demand - v.limit) for v in evaluation.violations if v.constraint == "memory"
    }
    total = sum(v.demand - v.limit for v in evaluation.violations if v.constraint == "total memory")
    if not over and not total:
        return None
    memory = tuple(
        None if limit is None else limit - over.get(f"cluster {cluster}", 0)
        for cluster, limit in enumerate(room.memory_bytes)
    )
    in_all = room.total_memory_bytes
    return replace(
        room, memory_bytes=memory, total_memory_bytes=None if in_all is None else in_all - math.ceil(total)
    )
