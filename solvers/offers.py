"""Lanes worth combining when memory, latency, power or energy count: undominated ones of several orders."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from solvers.coarse import join_evenly
from solvers.errors import StoppedError
from solvers.evaluate import evaluate
from solvers.labels import Criteria, LabelSearch, LaneLabel
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.order_costs import Links, OrderCosts, exact_links
from solvers.problem import Problem
from solvers.quick_lanes import quick_lanes
from solvers.topology import Blocks, orders
from solvers.violations import OF_THE_MIX
from solvers.whole_models import whole_models

FEW_BLOCKS, N_QUICK = 40, 240
"""With more than a few blocks, and only latency and period to count, ``solvers.quick_lanes`` searches."""
N_COARSE, MANY_BLOCKS = 60, 120
"""With more blocks, neighbours are joined to about so many, without proof: for some orders, and for two."""
LEAST_COARSE, MANY_CHOICES = 12, 2000
"""With more slots times vectors of cores than that, they are joined further."""
COARSE_SHARE = 0.2
"""Share of the time after which the coarse lanes have to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A lane label with the layers of its stages."""

    label: LaneLabel
    stages: tuple[Stage, ...]


@dataclass
class Offers:
    """Lanes of several orders, and whether no better one may be missing."""

    offers: list[Offer]
    exact: bool


def find_offers(blocks: Blocks, limits: Limits) -> Offers:
    """Return the lanes of a problem that are worth combining; whole models where the time is up before."""
    try:
        return _found_offers(blocks, limits)
    except StoppedError:
        if limits.stopped:
            raise
        return Offers(_whole_models(blocks.problem), exact=False)


def _whole_models(problem: Problem) -> list[Offer]:
    found = []
    for slot, mapping in whole_models(problem):
        evaluation = evaluate(problem, mapping)
        if OF_THE_MIX.issuperset(violation.constraint for violation in evaluation.violations):
            use, memory = tuple(int(n) for n in problem.cores[slot]), evaluation.memory_bytes
            stages = mapping.lanes[0].stages
            found.append(Offer(_rescored(problem, LaneLabel(use, 0, 0, 0, memory, ()), stages), stages))
    return found


def _found_offers(blocks: Blocks, limits: Limits) -> Offers:
    criteria = Criteria.of(blocks.problem)
    if blocks.n_blocks > FEW_BLOCKS and not criteria.energy and not criteria.needs_memory:
        if blocks.n_blocks <= N_QUICK:
            return _quick_lanes(blocks, limits)
        return replace(_quick_lanes(join_evenly(blocks, N_QUICK), limits), exact=False)
    n_coarse = _coarse_blocks(blocks.problem)
    if blocks.n_blocks <= n_coarse:
        return _labelled_lanes(blocks, limits)
    start = time.monotonic()
    coarse = _labelled_lanes(join_evenly(blocks, n_coarse), limits)
    if n_coarse < N_COARSE or time.monotonic() - start > limits.time_s * COARSE_SHARE:
        return replace(coarse, exact=False)
    finer = blocks if blocks.n_blocks <= MANY_BLOCKS else join_evenly(blocks, MANY_BLOCKS)
    search = _labelled_lanes(finer, limits)
    return Offers([*search.offers, *coarse.offers], search.exact and finer is blocks)


def _coarse_blocks(problem: Problem) -> int:
    """Return how many blocks are few enough: fewer than usual where there are very many cores."""
    choices = len(problem.slots) * math.prod(size + 1 for size in problem.cluster_sizes)
    return max(LEAST_COARSE, min(N_COARSE, round(N_COARSE * math.sqrt(MANY_CHOICES / choices))))


def _labelled_lanes(blocks: Blocks, limits: Limits) -> Offers:
    """All undominated lanes of several orders, as far as the cap on labels and the time go."""
    n = blocks.n_blocks
    most_labels = 256 if n <= 12 else 64 if n <= 30 else 12
    n_orders = 40 if n <= 10 else 8 if n <= N_COARSE else 2
    search = Offers([], blocks.has_one_order)
    for order in orders(blocks, n_orders, limits.seed):
        exact = exact_links(blocks, order)
        labels = LabelSearch(OrderCosts(blocks, order, exact or Links.PREVIOUS), most_labels, limits)
        try:
            search.offers += [_offer(blocks, order, label) for label in labels.lanes()]
        except StoppedError:
            if limits.stopped or not search.offers:
                raise
            return replace(search, exact=False)
        search.exact &= exact is not None and not labels.capped
    return search


def _quick_lanes(blocks: Blocks, limits: Limits) -> Offers:
    """Lanes where only latency and period count, found without labels."""
    nothing = (0,) * len(blocks.problem.cluster_sizes)
    lanes, proved = quick_lanes(blocks, limits)
    offers = [_offer(blocks, lane.order, LaneLabel(lane.use, 0, 0, 0, nothing, lane.spans)) for lane in lanes]
    return Offers(offers, proved)


def _offer(blocks: Blocks, order: tuple[int, ...], label: LaneLabel) -> Offer:
    stages = tuple(
        Stage(_layers(blocks, order[start:end]), slot, unit)
        for unit, (start, end, slot) in enumerate(label.spans)
    )
    return Offer(_rescored(blocks.problem, label, stages), stages)


def _layers(blocks: Blocks, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(layer for block in members for layer in blocks.members[block]))


def _rescored(problem: Problem, label: LaneLabel, stages: tuple[Stage, ...]) -> LaneLabel:
    """Return the label with the evaluator's period and latency (guesses about links may be wrong)."""
    lane = evaluate(problem, Mapping((Lane(stages),))).lanes[0]
    power = problem.active_power_mw
    energy = 0 if power is None else sum(n.busy_ns * power[s.slot] for s, n in zip(stages, lane.stages))
    return replace(label, period_ns=lane.period_ns, latency_ns=lane.latency_ns, energy_pj=energy)
