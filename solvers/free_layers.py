"""Layers that cost nothing can follow a neighbour: fewer blocks, far fewer ideals, same optimum.

A block that takes no time on any slot may be moved

- into its only successor, when the tensors it receives are free: its stage then no longer sends, the
  successor's no longer receives;
- into its only predecessor, when the tensors it produces are free (or it produces none), likewise.

Both keep stages convex.  A successor counts only if no other successor leads to it, where the tensors
to it are free.
"""

from __future__ import annotations

import numpy as np

from solvers.problem import Problem
from solvers.topology import Blocks


def follow_neighbours(blocks: Blocks) -> tuple[tuple[int, ...], ...]:
    """Return sets of layers that some throughput-optimal mapping keeps together.

    Empty where memory is limited, power or energy counts, or whole stages were measured: then moving
    a layer may matter.
    """
    problem = blocks.problem
    if problem.stage_times or problem.memory_limits_bytes is not None or problem.active_power_mw is not None:
        return ()
    if problem.total_memory_limit_bytes is not None:
        return ()
    merge = _Merge(blocks)
    while merge.one_pass():
        pass
    sets: dict[int, list[int]] = {}
    for block in range(blocks.n_blocks):
        sets.setdefault(merge.find(block), []).extend(blocks.members[block])
    return tuple(tuple(sorted(layers)) for layers in sets.values() if len(layers) > 1)


class _Merge:
    """Union-find over blocks with the edges between the sets."""

    def __init__(self, blocks: Blocks) -> None:
        problem = blocks.problem
        self.blocks = blocks
        self._parent = list(range(blocks.n_blocks))
        self._members = {block: {block} for block in range(blocks.n_blocks)}
        reach = [0] * blocks.n_blocks
        for block in range(blocks.n_blocks - 1, -1, -1):
            for other in blocks.successors[block]:
                reach[block] |= reach[other] | 1 << other
        self._reach = reach
        cost = np.where(problem.supported, problem.cost_ns, 0)
        time = np.zeros((blocks.n_blocks, len(problem.slots)), np.int64)
        np.add.at(time, np.array(blocks.of_layer), cost)
        self._light = ((time == 0) | ~blocks.allowed).all(axis=1) & np.array([p is None for p in blocks.pin])
        self._costly_edges = self._find_costly(problem)

    def find(self, block: int) -> int:
        """Return the representative of a block's set."""
        while self._parent[block] != block:
            block = self._parent[block]
        return block

    def _find_costly(self, problem: Problem) -> set[tuple[int, int]]:
        clusters = range(len(problem.cluster_sizes))
        costly = set()
        for flow in problem.flows:
            if flow.producer is None:
                continue
            send = any(problem.send_ns(c, flow.n_bytes) for c in clusters)
            if send or any(problem.transfer_ns(a, b, flow.n_bytes) for a in clusters for b in clusters):
                source = self.blocks.of_layer[flow.producer]
                costly |= {(source, self.blocks.of_layer[user]) for user in flow.consumers}
        return costly

    def one_pass(self) -> bool:
        """Merge what can be merged; return whether anything was."""
        merged = False
        for block in range(self.blocks.n_blocks):
            if self.find(block) != block or not self._light[block] or len(self._members[block]) > 1:
                continue
            target = self._target(block)
            if target is not None:
                self._parent[block] = target
                self._members[target] |= self._members.pop(block)
                merged = True
        return merged

    def _target(self, block: int) -> int | None:
        before = {self.find(other) for other in self.blocks.predecessors[block]} - {block}
        after = {self.find(other) for other in self.blocks.successors[block]} - {block}
        free_in = not any((other, block) in self._costly_edges for other in self.blocks.predecessors[block])
        free_out = not any((block, other) in self._costly_edges for other in self.blocks.successors[block])
        candidates = []
        if free_in and after:
            candidates += self._first_of(after) if free_out else (sorted(after) if len(after) == 1 else [])
        if free_out and len(before) == 1:
            candidates += sorted(before)
        for target in candidates:
            allowed = self.blocks.allowed
            if (allowed[block] | ~allowed[target]).all():
                return target
        return None

    def _first_of(self, after: set[int]) -> list[int]:
        """Return the successor from which all others can be reached, if there is one."""
        for first in sorted(after):
            if all(other == first or self._reach[first] >> other & 1 for other in after):
                return [first]
        return []
