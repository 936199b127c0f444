"""Every stage a lane may have as a step between two nodes, and its time on every slot.

A node is a set of blocks that are done (an ideal): the first so many of a topological order, or any
ideal of the graph.  A step from one node to a larger one is a stage that holds the difference, so a lane
is a path from the empty node to the full one.  All steps are kept in one array: for some hundred nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.errors import CapError
from solvers.ideals import as_bits, enumerate_ideals, hand_overs
from solvers.interval_dp import Resources, resources
from solvers.limits import Limits
from solvers.order_costs import NEVER, Links, OrderCosts
from solvers.problem import BoolArray, IntArray
from solvers.topology import Blocks


@dataclass(frozen=True)
class Steps:
    """All stages along the nodes of one order or of all ideals.

    Parameters
    ----------
    blocks
        What the nodes are sets of.
    slots
        Those that count.
    done
        bool array (nodes, blocks), the empty node first, every node after those that it holds.
    busy_ns
        int64 array (slots, sources, nodes, nodes), [from, to]; ``NEVER`` where there is no such stage.
        Sources are the clusters of the stage before, or one where that does not matter.
    moving_ns
        The part of it that is hand-over, where hand-over overlaps with computing; else None.
    measured_ns
        Compute times of whole stages that were measured: (slot of ``slots``, from, to, time).
    """

    blocks: Blocks
    slots: tuple[int, ...]
    done: BoolArray
    busy_ns: IntArray
    moving_ns: IntArray | None
    measured_ns: tuple[tuple[int, int, int, int], ...]

    @property
    def resources(self) -> Resources:
        """Cores, and stages where their number is capped."""
        return resources(self.blocks.problem, self.blocks.n_blocks)

    @property
    def source_of_slot(self) -> list[int]:
        """Index among the sources of what comes from a stage on each slot."""
        one = self.busy_ns.shape[1] == 1
        return [0 if one else self.blocks.problem.slots[slot].cluster for slot in self.slots]

    def layers(self, start: int, end: int) -> tuple[int, ...]:
        """Ascending layers of the stage between two nodes."""
        held = np.flatnonzero(self.done[end] & ~self.done[start])
        return tuple(sorted(layer for block in held for layer in self.blocks.members[block]))


def bytes_needed(n_nodes: int, n_slots: int, n_sources: int) -> int:
    """Memory of the steps while they are built."""
    return 3 * 8 * n_nodes**2 * n_slots * n_sources


def steps_of_order(
    blocks: Blocks, order: tuple[int, ...], links: Links, slots: tuple[int, ...], limits: Limits
) -> Steps:
    """Take the intervals of one topological order as stages.

    Raises
    ------
    CapError
        More than ``limits.memory_bytes`` would be needed.
    """
    problem = blocks.problem
    n = len(order)
    costs = OrderCosts(blocks, order, links)
    _refuse(n + 1, len(slots), costs.n_sources, limits)
    done = np.zeros((n + 1, n), np.bool_)
    for place, block in enumerate(order):
        done[place + 1 :, block] = True
    moving = None
    if problem.overlap:
        idle = replace(
            problem,
            cost_ns=np.zeros_like(problem.cost_ns),
            loaded_cost_ns=None,
            overhead_ns=None,
            stage_times=(),
            overlap=False,
        )
        moving = _filled(OrderCosts(replace(blocks, problem=idle), order, links), slots)
    columns = {slot: column for column, slot in enumerate(slots)}
    measured = tuple(
        (columns[slot], start, end, time)
        for end, found in enumerate(costs.measured)
        for start, slot, time in found
        if slot in columns
    )
    return Steps(blocks, slots, done, _filled(costs, slots), moving, measured)


def _filled(costs: OrderCosts, slots: tuple[int, ...]) -> IntArray:
    busy = np.full((len(slots), costs.n_sources, costs.n + 1, costs.n + 1), NEVER, np.int64)
    for end, column in costs.columns():
        busy[:, :, :end, end] = column[:, :, list(slots)].transpose(2, 1, 0)
    return busy


def steps_of_ideals(
    blocks: Blocks, slots: tuple[int, ...], limits: Limits, most_ideals: int, *, dearest: bool = False
) -> Steps:
    """Take all convex sets of blocks as stages.

    Parameters
    ----------
    dearest
        Take hand-over times that depend on the producer's cluster as the dearest instead of the
        cheapest one (a lower bound).

    Raises
    ------
    CapError
        More ideals than that, or more than ``limits.memory_bytes`` would be needed.
    """
    problem = blocks.problem
    masks = enumerate_ideals(blocks, most_ideals)
    _refuse(len(masks), len(slots), 1, limits)
    octets = as_bits(masks, blocks.n_blocks).astype("<u8").view(np.uint8)
    done = np.unpackbits(octets, axis=1, bitorder="little")[:, : blocks.n_blocks].astype(np.bool_)
    inside = done.astype(np.int64)
    missing = inside @ (1 - inside.T)  # blocks of the first that the second lacks
    step = (missing == 0) & ~np.eye(len(masks), dtype=np.bool_)
    pins = inside @ np.array([pin is not None for pin in blocks.pin], np.int64)
    step &= pins[None, :] - pins[:, None] <= 1
    cost = np.zeros((blocks.n_blocks, len(problem.slots)), np.int64)
    np.add.at(cost, np.array(blocks.of_layer), np.where(problem.supported, problem.cost_ns, 0))
    total = inside @ cost
    refused = inside @ (~blocks.allowed).astype(np.int64)
    moved = _moving(blocks, done, dearest)
    measured = _measured(blocks, masks, slots)
    busy = np.full((len(slots), 1, len(masks), len(masks)), NEVER, np.int64)
    moving = np.empty_like(busy) if problem.overlap else None
    for column, slot in enumerate(slots):
        compute = total[None, :, slot] - total[:, None, slot] + problem.overhead[slot]
        for _, start, end, time in (found for found in measured if found[0] == column):
            compute[start, end] = time
        handing = moved[problem.slots[slot].cluster]
        fits = step & (refused[None, :, slot] == refused[:, None, slot])
        here = np.maximum(compute, handing) if problem.overlap else compute + handing
        busy[column, 0][fits] = here[fits]
        if moving is not None:
            moving[column, 0] = handing
    return Steps(blocks, slots, done, busy, moving, measured)


def _moving(blocks: Blocks, done: BoolArray, dearest: bool) -> list[IntArray]:
    """Hand-over time of every step, by the cluster it runs on."""
    clusters = range(len(blocks.problem.cluster_sizes))
    found = [np.zeros((len(done), len(done)), np.int64) for _ in clusters]
    for flow in hand_overs(blocks, dearest=dearest):
        source = flow.source
        users = [block for block in range(blocks.n_blocks) if flow.users >> block & 1]
        if flow.receive_ns.any():
            entering = np.zeros(found[0].shape, np.bool_)
            for user in users:
                entering |= (done[:, source] & ~done[:, user])[:, None] & done[:, user][None, :]
            for cluster in clusters:
                found[cluster] += entering * flow.receive_ns[cluster]
        if flow.send_ns.any():
            leaving = ~done[:, source][:, None] & (done[:, source] & ~done[:, users].all(axis=1))[None, :]
            for cluster in clusters:
                found[cluster] += leaving * flow.send_ns[cluster]
    return found


def _measured(
    blocks: Blocks, masks: list[int], slots: tuple[int, ...]
) -> tuple[tuple[int, int, int, int], ...]:
    """Measured whole stages between all pairs of ideals that differ by them."""
    index = {mask: number for number, mask in enumerate(masks)}
    found = []
    for mask, slot, time in blocks.measured_sets():
        if slot not in slots:
            continue
        for start, before in enumerate(masks):
            end = index.get(before | mask)
            if end is not None and not before & mask:
                found.append((slots.index(slot), start, end, time))
    return tuple(found)


def _refuse(n_nodes: int, n_slots: int, n_sources: int, limits: Limits) -> None:
    need = bytes_needed(n_nodes, n_slots, n_sources)
    if need > limits.memory_bytes:
        raise CapError(
            f"{n_nodes} nodes on {n_slots} slots need {need} bytes, the limit is "
            f"{limits.memory_bytes} bytes (Limits.memory_bytes)"
        )
