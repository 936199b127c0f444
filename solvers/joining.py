"""Joining neighbouring blocks of the problem's own order: an interval of a topological order is convex."""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise

import numpy as np

from solvers.problem import FloatArray
from solvers.topology import Blocks


def work_of(blocks: Blocks) -> FloatArray:
    """Return float64 (blocks,): the least core time of each on any slot that it may use."""
    problem = blocks.problem
    cost = np.zeros((blocks.n_blocks, len(problem.slots)))
    np.add.at(cost, np.array(blocks.of_layer), np.where(problem.supported, problem.cost_ns, 0))
    core_time = np.where(blocks.allowed, cost * problem.cores.sum(axis=1), np.inf)
    least: FloatArray = core_time.min(axis=1)
    return least


def join_at(blocks: Blocks, bounds: Set[int]) -> Blocks:
    """Join all blocks between neighbouring places of the problem's own order.

    Parameters
    ----------
    blocks
        Numbered in a topological order.
    bounds
        Places where blocks end; those of pins and of changes in the allowed slots are added.
    """
    n = blocks.n_blocks
    bounds = {0, n, *bounds}
    changes = np.flatnonzero((blocks.allowed[1:] != blocks.allowed[:-1]).any(axis=1)) + 1
    bounds |= set(changes.tolist())
    bounds |= {edge for block, pin in enumerate(blocks.pin) if pin is not None for edge in (block, block + 1)}
    edges = sorted(bound for bound in bounds if 0 <= bound <= n)
    spans = list(pairwise(edges))
    home = np.empty(n, np.int64)
    for number, (start, end) in enumerate(spans):
        home[start:end] = number
    following: list[set[int]] = [set() for _ in spans]
    for block, others in enumerate(blocks.successors):
        following[home[block]].update(home[list(others)].tolist() if others else ())
    return Blocks(
        blocks.problem,
        tuple(tuple(sorted(m for b in range(start, end) for m in blocks.members[b])) for start, end in spans),
        tuple(blocks.pin[start] for start, _ in spans),
        np.array([blocks.allowed[start:end].all(axis=0) for start, end in spans]),
        tuple(tuple(sorted(others - {number})) for number, others in enumerate(following)),
    )
