"""Orders for workloads of several networks: how their layers are best laid side by side.

Independent networks have far more orders than a single one, and random ones seldom bring together
the layers that belong on the same cores.  So neighbours within each network are joined until all
ideals can be searched (``solvers.ideal_dp``); the best chains of ideals there tell in which order the
networks' layers should come, and the exact programme over that order cuts them finely.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np

from solvers.errors import CapError
from solvers.ideal_dp import IdealTable
from solvers.interval_dp import IntervalTable, useful_slots
from solvers.joining import join_at, work_of
from solvers.limits import Limits
from solvers.mapping import Stage
from solvers.order_costs import Links, OrderCosts, exact_links
from solvers.problem import IntArray
from solvers.topology import Blocks

MOST_IDEALS = 2500
"""Of the joined networks, roughly: the product of their numbers of blocks plus one."""
MOST_BLOCKS = 40
"""Of one network."""
MOST_ORDERS = 6

Order = tuple[int, ...]


def networks_of_blocks(blocks: Blocks) -> tuple[int, ...]:
    """Return the network of each block (of its first layer), by number."""
    network = np.zeros(blocks.problem.n_layers, np.int64)
    for number, layers in enumerate(blocks.problem.networks):
        network[list(layers)] = number
    return tuple(int(network[members[0]]) for members in blocks.members)


def network_orders(blocks: Blocks, limits: Limits) -> tuple[Order, ...]:
    """Return promising orders of the blocks of a workload; none for a single network.

    Parameters
    ----------
    blocks
        From ``contract``.
    limits
        Memory for the search over the joined networks.
    """
    if len(blocks.problem.networks) < 2:
        return ()
    return _search(_Question(_digest(blocks), limits.memory_bytes, blocks))


@dataclass(frozen=True, slots=True)
class _Question:
    """A key for the cache: one search is asked for by every solver that a run tries."""

    digest: str
    memory_bytes: int
    blocks: Blocks = field(compare=False)


def _digest(blocks: Blocks) -> str:
    problem = blocks.problem
    digest = hashlib.sha256()
    for part in fields(problem):
        value = getattr(problem, part.name)
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    digest.update(repr(blocks.members).encode())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def _search(question: _Question) -> tuple[Order, ...]:
    blocks, limits = question.blocks, Limits(memory_bytes=question.memory_bytes)
    joined = _join(blocks)
    own = tuple(range(joined.n_blocks))
    links = exact_links(joined, own) or Links.DEAREST
    try:
        known = IntervalTable(OrderCosts(joined, own, links), useful_slots(joined), limits).periods()
        table = IdealTable(joined, known, limits, 4 * MOST_IDEALS, dearest=True)
    except CapError:
        return ()
    uses = _most_improved(known, table.periods())
    found = [ordered(blocks, [layers for layers, _ in table.lane(use)]) for use in uses]
    return tuple(dict.fromkeys(order for order in found if order is not None))


def _join(blocks: Blocks) -> Blocks:
    """Join neighbours within each network so far that all ideals can be searched."""
    network = np.array(networks_of_blocks(blocks))
    n_networks = len(set(network.tolist()))
    share = max(2, min(MOST_BLOCKS, int(MOST_IDEALS ** (1 / n_networks)) - 1))
    work = work_of(blocks)
    edges = {int(edge) for edge in np.flatnonzero(network[1:] != network[:-1]) + 1}
    for number in set(network.tolist()):
        mine = np.flatnonzero(network == number)
        running = np.cumsum(work[mine])
        if len(mine) <= share:
            edges |= {int(block) for block in mine}
        elif running[-1] > 0:
            places = np.searchsorted(running, running[-1] * np.arange(1, share) / share)
            edges |= {int(mine[place]) for place in places if place < len(mine)}
    return join_at(blocks, edges)


def _most_improved(known: IntArray, better: IntArray) -> list[tuple[int, ...]]:
    """Return the core counts that gained most over the plain order; that of all cores comes first."""
    full = tuple(size - 1 for size in known.shape)
    uses = [tuple(int(n) for n in use) for use in np.argwhere(better < known)]
    share = {use: float(better[use]) / float(known[use]) for use in uses}
    uses.sort(key=lambda use: (use != full, share[use], use))
    return uses[:MOST_ORDERS]


def ordered(
    blocks: Blocks, stages: Sequence[Sequence[int]], rng: random.Random | None = None
) -> Order | None:
    """Return an order of the blocks in which every stage is an interval; None where a stage parts a block.

    Parameters
    ----------
    blocks
        What is ordered.
    stages
        Layers of each stage, in a topological order of the stages.
    rng
        Shuffles which network comes first within a stage, so that the cuts between stages can move
        through another one; None keeps the blocks' own order.
    """
    network = networks_of_blocks(blocks)
    order: list[int] = []
    for layers in stages:
        inside = sorted({blocks.of_layer[layer] for layer in layers})
        if sum(len(blocks.members[block]) for block in inside) != len(layers):
            return None
        order += inside if rng is None else _shuffled(blocks, inside, network, rng)
    return tuple(order)


def _shuffled(
    blocks: Blocks, inside: Sequence[int], network: Sequence[int], rng: random.Random
) -> Iterator[int]:
    """Yield blocks network by network in random order, each when what it needs is there."""
    turn = list({network[block] for block in inside})
    rng.shuffle(turn)
    rank = {number: place for place, number in enumerate(turn)}
    left = sorted(inside, key=lambda block: (rank[network[block]], block))
    missing = set(inside)
    while left:
        block = next(b for b in left if missing.isdisjoint(blocks.predecessors[b]))
        left.remove(block)
        missing.discard(block)
        yield block


def reordered(blocks: Blocks, lane: Sequence[Stage], n: int, seed: int) -> Iterator[Order]:
    """Yield orders in which a known lane is still a lane: searching them finds it again, or a better one.

    Parameters
    ----------
    lane
        Stages with a unit each, in a topological order.
    n
        How many.
    seed
        Of the shuffles.
    """
    rng = random.Random(seed)  # noqa: S311 - reproducible search, not cryptography
    for _ in range(n):
        order = ordered(blocks, [stage.layers for stage in lane], rng)
        if order is not None:
            yield order
