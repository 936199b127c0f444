"""All ideals of the graph of blocks: the sets that hold everything their members need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.errors import CapError
from solvers.problem import FloatArray, IntArray
from solvers.topology import Blocks

Bits = npt.NDArray[np.uint64]
WORD = 64


def enumerate_ideals(blocks: Blocks, most: int) -> list[int]:
    """Return every ideal as a bit mask, by size, the empty one first and the full one last.

    Parameters
    ----------
    blocks
        The graph.
    most
        Cap on the number of ideals.

    Raises
    ------
    CapError
        There are more; names the cap.
    """
    needs = [sum(1 << other for other in before) for before in blocks.predecessors]
    ready = sum(1 << block for block, mask in enumerate(needs) if not mask)
    level = {0: ready}
    found: list[int] = []
    while level:
        found.extend(level)
        if len(found) > most:
            raise CapError(
                f"ideal_dp: more than {most} ideals after sets of {found[-1].bit_count()} of "
                f"{blocks.n_blocks} blocks (cap on ideals); 'lanes' searches single orders instead"
            )
        following: dict[int, int] = {}
        for mask, candidates in level.items():
            rest = candidates
            while rest:
                bit = rest & -rest
                rest ^= bit
                larger = mask | bit
                if larger not in following:
                    fresh = candidates ^ bit
                    for other in blocks.successors[bit.bit_length() - 1]:
                        if needs[other] & ~larger == 0:
                            fresh |= 1 << other
                    following[larger] = fresh
        level = following
    return found


def as_bits(masks: list[int], n_bits: int) -> Bits:
    """Return masks as uint64 (masks, words)."""
    n_bytes = (n_bits + WORD - 1) // WORD * 8
    data = b"".join(mask.to_bytes(n_bytes, "little") for mask in masks)
    return np.frombuffer(data, dtype="<u8").reshape(len(masks), n_bytes // 8).astype(np.uint64)


def as_mask(bits: Bits) -> int:
    """Return the mask of the words of one set."""
    return int.from_bytes(bits.astype("<u8").tobytes(), "little")


def sums_over(bits: Bits, values: FloatArray | IntArray) -> FloatArray:
    """Return float64 (masks, columns): sums of the rows of ``values`` over the members of each mask."""
    found = np.zeros((len(bits), values.shape[1]))
    for first in range(0, len(bits), 4096):
        octets = bits[first : first + 4096].astype("<u8").view(np.uint8)
        members = np.unpackbits(octets, axis=1, bitorder="little")[:, : len(values)]
        found[first : first + 4096] = members.astype(np.float64) @ values.astype(np.float64)
    return found


@dataclass(frozen=True, slots=True)
class HandOver:
    """A flow between blocks that is not free.

    Parameters
    ----------
    source
        Block that makes the tensor.
    users
        Other blocks that use it, as a bit mask.
    receive_ns, send_ns
        int64 (clusters,): what a stage there pays to take it in, and to hand it out.
    """

    source: int
    users: int
    receive_ns: IntArray
    send_ns: IntArray


def hand_overs(blocks: Blocks, *, dearest: bool = False) -> list[HandOver]:
    """Return the flows between blocks that are not free.

    Parameters
    ----------
    blocks
        The graph.
    dearest
        Take times that depend on the producer's cluster as the dearest instead of the cheapest one.
    """
    problem = blocks.problem
    clusters = range(len(problem.cluster_sizes))
    cluster_of_slot = np.array([slot.cluster for slot in problem.slots])
    pick = max if dearest else min
    found = []
    for flow in problem.flows:
        if flow.producer is None:
            continue
        source = blocks.of_layer[flow.producer]
        users = sum(1 << block for block in {blocks.of_layer[user] for user in flow.consumers} - {source})
        if not users:
            continue
        possible = sorted({int(c) for c in cluster_of_slot[blocks.allowed[source]]})
        receive = [pick(problem.transfer_ns(a, b, flow.n_bytes) for a in possible) for b in clusters]
        send = [problem.send_ns(c, flow.n_bytes) for c in clusters]
        if any(receive) or any(send):
            found.append(HandOver(source, users, np.array(receive, np.int64), np.array(send, np.int64)))
    return found
