"""Heuristics of published systems as baselines, each on the problem's own order of layers.

They are written from the papers' descriptions, as far as those tell, for one lane; where a system
knows only identical processors it gets one core per stage, fastest cluster first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from solvers.baselines import NamedPlan, Role
from solvers.errors import SolverError
from solvers.evaluate import evaluate, score_key
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.mix import solve_interval_dp
from solvers.order_costs import Links, OrderCosts
from solvers.problem import IntArray, Objective, Problem
from solvers.topology import Blocks, contract

Cuts = tuple[int, ...]
"""Ends of the stages: places in the order, ascending, the last is the number of blocks."""
MOST_BLOCKS = 3000


class _Chain:
    """The problem's own order with the busy time of every interval."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.blocks: Blocks = contract(problem)
        self.n = self.blocks.n_blocks
        if self.n > MOST_BLOCKS:
            raise SolverError(f"the published heuristics take at most {MOST_BLOCKS} blocks, not {self.n}")
        costs = OrderCosts(self.blocks, tuple(range(self.n)), Links.CHEAPEST)
        self._columns: list[IntArray] = [busy[:, 0, :] for _, busy in costs.columns()]

    def busy(self, start: int, end: int, slot: int) -> int:
        """Busy time of the blocks start..end-1 on a slot."""
        return 0 if start == end else int(self._columns[end - 1][start, slot])

    def mapping(self, cuts: Cuts, slots: tuple[int, ...]) -> Mapping:
        """One lane with these cuts; empty stages are left out."""
        stages: list[Stage] = []
        start = 0
        for end, slot in zip(cuts, slots):
            if end > start:
                layers = sorted(n for block in range(start, end) for n in self.blocks.members[block])
                stages.append(Stage(tuple(layers), slot, len(stages)))
            start = end
        return Mapping((Lane(tuple(stages)),))

    def worst(self, cuts: Cuts, slots: tuple[int, ...]) -> int:
        """The slowest stage."""
        starts = (0, *cuts[:-1])
        return max(self.busy(a, b, slot) for a, b, slot in zip(starts, cuts, slots))


def _one_core_slots(problem: Problem) -> tuple[int, ...]:
    """A one-core slot for every core, fastest cluster first."""
    found = []
    for slot, shape in enumerate(problem.slots):
        if shape.threads == 1 and shape.host_cluster is None and problem.supported[:, slot].all():
            total = int(problem.cost_ns[:, slot].sum())
            found.append((total, slot, problem.cluster_sizes[shape.cluster]))
    return tuple(slot for _, slot, size in sorted(found) for _ in range(size))


def _whole_cluster_slots(problem: Problem) -> tuple[int, ...]:
    """The slot with the most threads of each cluster, fastest first."""
    best: dict[int, int] = {}
    for slot, shape in enumerate(problem.slots):
        if problem.supported[:, slot].all() and shape.host_cluster is None:
            known = best.get(shape.cluster)
            if known is None or problem.slots[known].threads < shape.threads:
                best[shape.cluster] = slot
    return tuple(sorted(best.values(), key=lambda slot: int(problem.cost_ns[:, slot].sum())))


def single_device(problem: Problem) -> Mapping | None:
    """Whole model on the best slot: what every runtime does by default."""
    layers = tuple(range(problem.n_layers))
    plans = [
        Mapping((Lane((Stage(layers, slot, 0),)),))
        for slot in range(len(problem.slots))
        if problem.supported[:, slot].all()
    ]
    return min(plans, key=lambda plan: score_key(problem, evaluate(problem, plan)), default=None)


def equal_weights(problem: Problem) -> Mapping | None:
    """Segments of about equal parameter bytes, the default of the Edge TPU compiler.

    Coral documentation, "Pipeline a model with multiple Edge TPUs": num_segments segments of similar
    amounts of parameter data.
    """
    chain, slots = _Chain(problem), _one_core_slots(problem)
    slots = slots[: chain.n]
    if not slots:
        return None
    weight = np.zeros(chain.n)
    for constant in problem.constants:
        weight[chain.blocks.of_layer[constant.users[0]]] += constant.n_bytes if constant.users else 0
    running = np.cumsum(weight if weight.any() else np.ones(chain.n))
    targets = running[-1] * np.arange(1, len(slots)) / len(slots)
    cuts = [min(int(bisect_left(running.tolist(), target)) + 1, chain.n) for target in targets]
    return chain.mapping((*cuts, chain.n), slots)


def latency_bisection(problem: Problem) -> Mapping | None:
    """Bisection on a target latency with greedy filling, as libcoral's profiling partitioner.

    Coral, libcoral ``profiling_based_partitioner``: find the smallest target for which segments
    filled one after another stay below it.
    """
    chain, slots = _Chain(problem), _one_core_slots(problem)
    if not slots:
        return None
    low, high = 0, chain.busy(0, chain.n, slots[0])
    best = (chain.n,) * len(slots)
    while low < high:
        target = (low + high) // 2
        cuts = _fill(chain, slots, target)
        if cuts is None:
            low = target + 1
        else:
            best, high = cuts, target
    return chain.mapping(best, slots)


def _fill(chain: _Chain, slots: tuple[int, ...], target: int) -> Cuts | None:
    cuts = []
    start = 0
    for slot in slots:
        fitting = [end for end in range(start + 1, chain.n + 1) if chain.busy(start, end, slot) <= target]
        start = max(fitting, default=start)
        cuts.append(start)
    return tuple(cuts) if start == chain.n else None


def pipe_bert(problem: Problem) -> Mapping | None:
    """Two stages on whole clusters, split point by binary search.

    PipeBERT (J. Signal Processing Systems, 2022, 10.1007/s11265-022-01814-y): the model is cut once
    between the big and the LITTLE cluster; both orders of the clusters are tried.
    """
    chain, slots = _Chain(problem), _whole_cluster_slots(problem)[:2]
    if len(slots) < 2:
        return None
    plans = []
    for first, second in (slots, slots[::-1]):
        low, high = 0, chain.n
        while low < high:  # the first stage grows, the second one shrinks
            middle = (low + high) // 2
            if chain.busy(0, middle, first) < chain.busy(middle, chain.n, second):
                low = middle + 1
            else:
                high = middle
        for cut in {max(low - 1, 0), low}:
            plans.append(chain.mapping((cut, chain.n), (first, second)))
    return min(plans, key=lambda plan: score_key(problem, evaluate(problem, plan)))


def pipe_it(problem: Problem) -> Mapping | None:
    """Merge stages of cores while the pipeline gets faster, moving layers between neighbours.

    Pipe-it (Wang et al., IEEE TCAD 2019, arXiv 1903.05898): start from one core per stage, big cores
    first; balance by moving layers to the next stage; merge the two neighbouring stages of one
    cluster that help most; stop when none does.
    """
    chain, slots = _Chain(problem), _one_core_slots(problem)
    if not slots:
        return None
    cuts = _flow(chain, slots)
    best = chain.worst(cuts, slots)
    improved = True
    while improved:
        improved = False
        for merged in _merged(problem, slots):
            candidate = _flow(chain, merged)
            if chain.worst(candidate, merged) < best:
                best, cuts, slots, improved = chain.worst(candidate, merged), candidate, merged, True
                break
    return chain.mapping(cuts, slots)


def _merged(problem: Problem, slots: tuple[int, ...]) -> list[tuple[int, ...]]:
    by_shape = {(s.cluster, s.threads): n for n, s in enumerate(problem.slots) if s.host_cluster is None}
    found = []
    for place in range(len(slots) - 1):
        a, b = problem.slots[slots[place]], problem.slots[slots[place + 1]]
        both = by_shape.get((a.cluster, a.threads + b.threads))
        if a.cluster == b.cluster and both is not None and problem.supported[:, both].all():
            found.append((*slots[:place], both, *slots[place + 2 :]))
    return found


def _flow(chain: _Chain, slots: tuple[int, ...]) -> Cuts:
    """All blocks begin in the first stage and flow on to where each pair of neighbours is fastest."""
    cuts = [chain.n] * len(slots)
    for place in range(len(slots) - 1):
        start = cuts[place - 1] if place else 0
        here, following = slots[place], slots[place + 1]
        cuts[place] = min(
            range(chain.n, start - 1, -1),
            key=lambda cut: max(chain.busy(start, cut, here), chain.busy(cut, chain.n, following)),
        )
    return tuple(cuts)


def block_partition(problem: Problem) -> Mapping | None:
    """Blocks of nearly equal cost by moving single borders, as torchgpipe balances.

    torchgpipe (Kim et al., arXiv 2004.09910), after Barany & Grinberg, "Block partitions of
    sequences" (Israel J. Math. 206, 2015): shift the border next to the largest block outwards as long
    as the largest block shrinks.  Knows one cost per layer: that of the fastest core.
    """
    chain, slots = _Chain(problem), _one_core_slots(problem)
    slots = slots[: chain.n]
    if not slots:
        return None
    cuts = [chain.n * (place + 1) // len(slots) for place in range(len(slots))]
    same = (slots[0],) * len(slots)
    while True:
        worst = chain.worst(tuple(cuts), same)
        starts = [0, *cuts[:-1]]
        place = next(p for p in range(len(cuts)) if chain.busy(starts[p], cuts[p], same[0]) == worst)
        options = []
        if place > 0:
            options.append((place - 1, 1))
        if place < len(cuts) - 1:
            options.append((place, -1))
        for border, step in options:
            moved = list(cuts)
            moved[border] += step
            if sorted(moved) == moved and chain.worst(tuple(moved), same) < worst:
                cuts = moved
                break
        else:
            return chain.mapping(tuple(cuts), slots)


def pipe_edge(problem: Problem) -> Mapping | None:
    """Exact chain programme over single-core devices, each used once.

    PipeEdge (Hu et al., DSD 2022, arXiv 2110.14895), with device indices used correctly; for throughput,
    whatever the goal is.  Of a branching graph several orders are tried, which the paper does not do.
    """
    one_core = [slot for slot, shape in enumerate(problem.slots) if shape.threads == 1]
    if not one_core:
        return None
    supported = np.zeros_like(problem.supported)
    supported[:, one_core] = problem.supported[:, one_core]
    alone = replace(problem, supported=supported, max_lanes=1, objective=Objective())
    return solve_interval_dp(alone, Limits(time_s=10)).mapping


Heuristic = Callable[[Problem], Mapping | None]

PUBLISHED: MappingOf[str, Heuristic] = MappingProxyType(
    {
        "single device": single_device,
        "equal weights (Edge TPU compiler)": equal_weights,
        "latency bisection (libcoral)": latency_bisection,
        "Pipe-it": pipe_it,
        "PipeBERT": pipe_bert,
        "block partition (torchgpipe)": block_partition,
        "chain DP (PipeEdge)": pipe_edge,
    }
)


def published_plan(problem: Problem, name: str) -> NamedPlan | None:
    """Return the plan of one heuristic of ``PUBLISHED``, which may break constraints.

    None where the heuristic does not apply.
    """
    try:
        mapping = PUBLISHED[name](problem)
    except SolverError:
        return None
    return None if mapping is None else NamedPlan(name, Role.PUBLISHED, mapping, evaluate(problem, mapping))


def published_plans(problem: Problem) -> tuple[NamedPlan, ...]:
    """Return the plans of all published heuristics that apply."""
    found = (published_plan(problem, name) for name in PUBLISHED)
    return tuple(plan for plan in found if plan is not None)
