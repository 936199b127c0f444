"""Very long models: join neighbours in the order to some hundred blocks, then refine near the cuts.

An interval of a topological order is convex, so coarse blocks are blocks.  A first search finds about
where the cuts are, a second one keeps fine blocks there; what is lost is bounded by the size of a block
next to a cut, and the bound of ``solvers.bounds`` says how much that can be.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.evaluate import evaluate, score_key
from solvers.joining import join_at, work_of
from solvers.lanes import LanePool, best_mix
from solvers.limits import Limits
from solvers.mapping import Mapping
from solvers.problem import FloatArray
from solvers.topology import Blocks

N_EVEN = 200
"""Coarse blocks of about equal work."""
N_PER_CUT = 24
"""Fine blocks on either side of a known cut."""


def search_coarsely(blocks: Blocks, limits: Limits, max_lanes: int | None) -> Mapping | None:
    """Return a good mix of lanes along the problem's own order, or None when none was found."""
    problem = blocks.problem
    weight = work_of(blocks)
    best: Mapping | None = None
    cuts: set[int] = set()
    for _ in range(2):
        coarse = coarsen(blocks, weight, cuts)
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


def coarsen(blocks: Blocks, weight: FloatArray, cuts: set[int], n_even: int = N_EVEN) -> Blocks:
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
    """
    n = blocks.n_blocks
    running = np.concatenate([[0.0], np.cumsum(weight)])
    total = running[-1] or 1.0
    bounds = set(np.searchsorted(running, total * np.arange(n_even + 1) / n_even).tolist()) | {0, n}
    reach = total / n_even
    for cut in cuts:
        here = running[cut]
        fine = here + reach * np.arange(-N_PER_CUT, N_PER_CUT + 1) / N_PER_CUT
        bounds |= {cut, *np.searchsorted(running, fine).tolist()}
    return join_at(blocks, bounds)
