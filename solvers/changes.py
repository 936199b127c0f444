"""Changes that ``solvers.what_if`` asks about: cheaper layers, more cores, more memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from solvers.problem import IntArray, Problem, StageTime


class Resource(Enum):
    """What there could be more of."""

    CORE = "core"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed problem; ``size`` is how much: a share, cores, or a factor.

    ``saved_ns`` and ``alone_saved_ns``, int64 (slots,): what the layer takes less, under load (where
    the problem has such costs) and alone; None where no layer gets cheaper.
    """

    size: float
    problem: Problem
    saved_ns: IntArray | None = None
    alone_saved_ns: IntArray | None = None


def cheaper_layer(problem: Problem, layer: int, slots: Sequence[int], share: float) -> Change:
    """Take a share of a layer's cost away, as ``cheaper`` does."""
    changed = cheaper(problem, layer, slots, share)
    alone = problem.cost_ns[layer] - changed.cost_ns[layer]
    if problem.loaded_cost_ns is None or changed.loaded_cost_ns is None:
        return Change(share, changed, alone, alone)
    return Change(share, changed, problem.loaded_cost_ns[layer] - changed.loaded_cost_ns[layer], alone)


def cheaper(problem: Problem, layer: int, slots: Sequence[int], share: float) -> Problem:
    """Take a share of a layer's cost away on some slots; measured stages that hold it get as much less.

    Parameters
    ----------
    layer, slots
        Where.
    share
        From 0 to 1.
    """
    cost = _less(problem.cost_ns, layer, slots, share)
    loaded = None if problem.loaded_cost_ns is None else _less(problem.loaded_cost_ns, layer, slots, share)
    saved = problem.cost_ns[layer] - cost[layer]
    saved_busy = saved if loaded is None else problem.under_load.cost_ns[layer] - loaded[layer]

    def less_ns(stage: StageTime) -> int:
        return int((saved if stage.loaded is False else saved_busy)[stage.slot])

    times = tuple(
        replace(stage, compute_ns=max(0, stage.compute_ns - less_ns(stage)))
        if layer in stage.layers
        else stage
        for stage in problem.stage_times
    )
    return problem.with_times(cost, loaded, times)


def _less(cost: IntArray, layer: int, slots: Sequence[int], share: float) -> IntArray:
    less = cost.copy()
    less[layer, list(slots)] -= (cost[layer, list(slots)] * share).round().astype(cost.dtype)
    return less


def more_of_resources(
    problem: Problem, factors: Sequence[float]
) -> Iterator[tuple[Resource, int | None, list[Change]]]:
    """Yield every resource that more of may help, its cluster (None: of all together), and the changes."""
    used = {cluster for row in problem.cores for cluster, count in enumerate(row) if count}
    for cluster in sorted(used):
        sizes = list(problem.cluster_sizes)
        sizes[cluster] += 1
        yield Resource.CORE, cluster, [Change(1, replace(problem, cluster_sizes=tuple(sizes)))]
    ordered = sorted(set(factors))
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            changes = []
            for factor in ordered:
                limits = list(problem.memory_limits_bytes or ())
                limits[cluster] = _times(limit, factor)
                changes.append(Change(factor, replace(problem, memory_limits_bytes=tuple(limits))))
            yield Resource.MEMORY, cluster, changes
    total = problem.total_memory_limit_bytes
    if total is not None:
        yield (
            Resource.MEMORY,
            None,
            [
                Change(factor, replace(problem, total_memory_limit_bytes=_times(total, factor)))
                for factor in ordered
            ],
        )


def _times(limit: int, factor: float) -> int | None:
    return None if factor == float("inf") else int(limit * factor)
