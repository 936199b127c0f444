"""The K best *different* mappings, for measuring more than the plan that is predicted best.

Two mappings differ in structure when their lanes use different slots or numbers of stages; moving a
cut by a layer is the same structure.  Lanes come from the exact tables for every core count and for
small caps on the number of stages; mixes of them from a knapsack that keeps the K best per state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from solvers.coarse import join_evenly
from solvers.errors import InfeasibleError
from solvers.evaluate import ScoreKey, evaluate, score_key
from solvers.lanes import LanePool
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping
from solvers.order_costs import NEVER
from solvers.problem import Problem
from solvers.registry import solve
from solvers.topology import contract

MOST_BLOCKS = 120
"""With more blocks, neighbours are joined: other structures are wanted, not other cuts."""

Signature = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    """A lane that may be built: cores, guessed period, and the pool that can build it."""

    use: tuple[int, ...]
    period_ns: int
    pool: LanePool


def signature(mapping: Mapping) -> Signature:
    """Return the structure of a mapping: the slots of each lane's stages, lanes sorted."""
    return tuple(sorted(tuple(stage.slot for stage in lane.stages) for lane in mapping.lanes))


def alternatives(
    problem: Problem, k: int, limits: Limits | None = None, best: Mapping | None = None
) -> tuple[Mapping, ...]:
    """Return up to ``k`` feasible mappings, structurally different ones first, each part best first.

    Parameters
    ----------
    problem
        What is mapped.
    k
        How many to return at most.
    limits
        For the searches.
    best
        The answer of ``solve``, if it is known already.

    Returns
    -------
    tuple of Mapping
        The first is the answer of ``solve``; all others have one stage per set of cores.  When
        there are fewer than ``k`` structures, mappings of the best structure with a cut moved by one
        or two blocks follow.

    Raises
    ------
    InfeasibleError
        See ``topology.contract``.
    KeyboardInterrupt
        The search was interrupted.
    """
    limits = limits or Limits()
    found: dict[Signature, tuple[ScoreKey, Mapping]] = {}
    if best is None:
        solution = solve(problem, limits=limits)
        if solution.interrupted:
            raise KeyboardInterrupt
        best = solution.mapping
    if best is None:
        return ()
    for mapping in (best, *_mixes(problem.under_load, k, limits)):
        evaluation = evaluate(problem, mapping)
        if evaluation.feasible:
            key = score_key(problem, evaluation)
            mark = signature(mapping)
            if mark not in found or key < found[mark][0]:
                found[mark] = (key, mapping)
    ranked = [mapping for _, mapping in sorted(found.values(), key=lambda pair: pair[0])]
    ranked = [best, *(mapping for mapping in ranked if signature(mapping) != signature(best))][:k]
    if len(ranked) < k:
        near = sorted(
            (score_key(problem, evaluate(problem, m)), n, m) for n, m in enumerate(_moved_cuts(problem, best))
        )
        ranked += [mapping for key, _, mapping in near if key[0] == 0][: k - len(ranked)]
    return tuple(ranked)


def _mixes(problem: Problem, k: int, limits: Limits) -> Iterator[Mapping]:
    offers = _offers(problem, limits)
    keep = 4 * k
    lists = _k_best(problem, offers, keep)
    for _, chosen in lists:
        lanes = [offers[number].pool.score(offers[number].use).stages for number in chosen]
        if lanes:
            yield Mapping.of_chains([(stage.layers, stage.slot) for stage in stages] for stages in lanes)


def _offers(problem: Problem, limits: Limits) -> list[_Offer]:
    """Lanes for every core count, for few stages and for few threads a stage; equal ones once.

    Where a whole model on several threads is predicted best for its cores, only a cap on threads
    brings the pipelines to light that use the same cores.
    """
    seen: dict[tuple[tuple[int, ...], int], _Offer] = {}
    cap = problem.max_stages
    caps = [(n, None) for n in (1, 2, 3) if cap is None or n < cap] + [(cap, None), (cap, 1), (cap, 2)]
    for stages, threads in caps:
        capped = replace(problem, max_stages=stages)
        if threads is not None:
            few = np.array([slot.threads <= threads for slot in problem.slots])
            if few.all() or not (problem.supported & few).any(axis=1).all():
                continue
            capped = replace(capped, supported=problem.supported & few)
        try:
            blocks = contract(capped)
            if blocks.n_blocks > MOST_BLOCKS:
                blocks = join_evenly(blocks, MOST_BLOCKS)
            pool = LanePool(blocks, limits, n_orders=2)
        except InfeasibleError:  # a pin wants more threads than this cap allows
            continue
        for use in product(*(range(size + 1) for size in problem.cluster_sizes)):
            period = pool.value_ns(use)
            if period < NEVER:
                seen.setdefault((use, period), _Offer(use, period, pool))
    offers = sorted(seen.values(), key=lambda offer: (offer.period_ns * sum(offer.use), offer.use))
    n_states = 1
    for size in problem.cluster_sizes:
        n_states *= size + 1
    return offers[: max(20, 4000 // n_states)]


def _k_best(problem: Problem, offers: list[_Offer], keep: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return the mixes of offers with the highest total rates, best first.

    A knapsack whose states keep their ``keep`` best multisets; offers are added one after another,
    so each multiset is met once.
    """
    sizes = problem.cluster_sizes
    states = list(product(*(range(size + 1) for size in sizes)))
    if len(states) > 400:
        keep = min(keep, 8)
    most = problem.lane_limit or sum(sizes)
    lists: dict[tuple[int, ...], list[tuple[float, tuple[int, ...]]]] = {x: [(0.0, ())] for x in states}
    for number, offer in enumerate(offers):
        rate = 1 / offer.period_ns if offer.period_ns else 1e6
        for x in states:
            before = tuple(a - b for a, b in zip(x, offer.use))
            if min(before) < 0:
                continue
            longer = [(total + rate, (*mix, number)) for total, mix in lists[before] if len(mix) < most]
            if longer:
                merged = sorted(lists[x] + longer, key=lambda pair: (-pair[0], len(pair[1]), pair[1]))
                lists[x] = merged[:keep]
    return lists[sizes]


def _moved_cuts(problem: Problem, mapping: Mapping) -> Iterator[Mapping]:
    """Yield mappings in which one boundary between neighbouring stages moved by one or two blocks."""
    blocks = contract(problem)
    for lane_number, lane in enumerate(mapping.lanes):
        for number in range(len(lane.stages) - 1):
            left, right = lane.stages[number], lane.stages[number + 1]
            for giver, taker, end in ((left, right, -1), (right, left, 0)):
                moved: tuple[int, ...] = ()
                rest = giver.layers
                for _ in range(2):
                    block = blocks.members[blocks.of_layer[rest[end]]]
                    rest = tuple(layer for layer in rest if layer not in block)
                    moved += block
                    if not rest:
                        break
                    new_giver = replace(giver, layers=rest)
                    new_taker = replace(taker, layers=tuple(sorted(taker.layers + moved)))
                    pair = (new_giver, new_taker) if giver is left else (new_taker, new_giver)
                    stages = (*lane.stages[:number], *pair, *lane.stages[number + 2 :])
                    lanes = (*mapping.lanes[:lane_number], Lane(stages), *mapping.lanes[lane_number + 1 :])
                    yield Mapping(lanes)
