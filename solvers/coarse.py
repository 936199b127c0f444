"""Very long models: join neighbours in the order to some hundred blocks, then refine near the cuts.

An interval of a topological order is convex, so coarse blocks are blocks.  A first search finds about
where the cuts are, a second one keeps fine blocks there; what is lost is bounded by the size of a block
next to a cut, and the bound of ``solvers.bounds`` says how much that can be.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from solvers.evaluate import evaluate, score_key
from solvers.joining import join_at, work_of
from solvers.lanes import LanePool, best_mix
from solvers.limits import Limits
from solvers.mapping import Mapping
from solvers.problem import FloatArray, Problem
from solvers.topology import Blocks

N_EVEN = 200
"""Coarse blocks of about equal work."""
N_PER_CUT = 24
"""Fine blocks on either side of a known cut."""
MOST_WORK = 3_000_000_000
"""Element operations of one pass; fewer blocks where many cores would make it more."""


def work_of_pass(problem: Problem, n_blocks: int) -> int:
    """Element operations of one pass of the interval programme over so many blocks."""
    return n_blocks**2 // 2 * len(problem.slots) * math.prod(size + 1 for size in problem.cluster_sizes)


def most_blocks(problem: Problem) -> int:
    """How many blocks make ``MOST_WORK``, at least 2."""
    return max(2, math.isqrt(4 * MOST_WORK // work_of_pass(problem, 2)))


def search_coarsely(blocks: Blocks, limits: Limits, max_lanes: int | None) -> Mapping | None:
    """Return a good mix of lanes along the problem's own order, or None when none was found."""
    problem = blocks.problem
    weight = work_of(blocks)
    best: Mapping | None = None
    cuts: set[int] = set()
    most = most_blocks(problem)
    for n_even in (min(N_EVEN, most), min(N_EVEN, most // 2)):
        per_cut = min(N_PER_CUT, (most - n_even) // (2 * len(cuts))) if cuts else N_PER_CUT
        if per_cut < 2:
            break
        coarse = coarsen(blocks, weight, cuts, n_even, per_cut)
        mapping = best_mix(LanePool(coarse, replace(limits), n_orders=1), max_lanes)
        if mapping is None:
            return best
        if best is None or score_key(problem, evaluate(problem, mapping)) < score_key(
            problem, evaluate(problem, best)
        ):
            best = mapping
        place = blocks.of_layer
        cuts |= {min(place[n] for n in stage.layers) for lane in mapping.lanes for stage in lane.stages}
    return best


def join_evenly(blocks: Blocks, n_even: int) -> Blocks:
    """Join neighbouring blocks to about ``n_even`` blocks of equal work."""
    return coarsen(blocks, work_of(blocks), set(), n_even)


def coarsen(
    blocks: Blocks, weight: FloatArray, cuts: set[int], n_even: int = N_EVEN, per_cut: int = N_PER_CUT
) -> Blocks:
    """Join neighbouring blocks of the problem's own order.

    Parameters
    ----------
    blocks
        Numbered in a topological order.
    weight
        float64 (blocks,): work of each.
    cuts
        Places near which blocks stay fine.
    n_even
        Coarse blocks elsewhere.
    per_cut
        Fine blocks on either side of a cut.
    """
    n = blocks.n_blocks
    running = np.concatenate([[0.0], np.cumsum(weight)])
    total = running[-1] or 1.0
    bounds = set(np.searchsorted(running, total * np.arange(n_even + 1) / n_even).tolist()) | {0, n}
    reach = total / n_even
    for cut in cuts:
        here = running[cut]
        fine = here + reach * np.arange(-per_cut, per_cut + 1) / per_cut
        bounds |= {cut, *np.searchsorted(running, fine).tolist()}
    return join_at(blocks, bounds)
