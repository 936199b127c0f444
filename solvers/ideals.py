"""All ideals of the graph of blocks: the sets that hold everything their members need."""

from __future__ import annotations

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


def sums_over(bits: Bits, values: FloatArray | IntArray) -> FloatArray:
    """Return float64 (masks, columns): sums of the rows of ``values`` over the members of each mask."""
    found = np.zeros((len(bits), values.shape[1]))
    for first in range(0, len(bits), 4096):
        octets = bits[first : first + 4096].astype("<u8").view(np.uint8)
        members = np.unpackbits(octets, axis=1, bitorder="little")[:, : len(values)]
        found[first : first + 4096] = members.astype(np.float64) @ values.astype(np.float64)
    return found
