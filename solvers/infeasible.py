"""Why no lane exists: which resource binds, with demand, limit and unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.bounds import latency_bound_ns
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate, stage_memory_bytes
from solvers.lanes import LanePool
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping
from solvers.problem import Problem
from solvers.topology import Blocks, contract


def refuse_impossible(blocks: Blocks, bound_hz: float) -> None:
    """Compare limits with what no mapping can undercut.

    Parameters
    ----------
    blocks
        The problem.
    bound_hz
        From ``bounds.throughput_bound_hz``.

    Raises
    ------
    InfeasibleError
        The longest path is longer than the ceiling on latency, the floor on throughput is above the
        bound, one busy slot draws more than the power, or the whole model exceeds the memory.
    """
    problem = blocks.problem
    objective = problem.objective
    if objective.max_latency_ns is not None:
        path = latency_bound_ns(blocks)
        if path > objective.max_latency_ns:
            raise InfeasibleError(
                f"latency: the longest path takes at least {path} ns on the best slots, "
                f"limit {objective.max_latency_ns} ns"
            )
    floor = objective.min_throughput_hz
    if floor is not None and bound_hz < floor * (1 - 1e-9):
        raise InfeasibleError(
            f"throughput floor: demand {floor:g} frames/s, limit {bound_hz:g} frames/s for any mapping"
        )
    power = problem.active_power_mw
    if problem.max_power_mw is not None and power is not None and np.isfinite(bound_hz):
        # The unit that sets the period of a lane is busy all the time.
        usable = [power[slot] for slot in np.flatnonzero(blocks.allowed.any(axis=0))]
        demand = min(usable) + (problem.idle_power_mw or 0)
        if demand > problem.max_power_mw:
            raise InfeasibleError(
                f"power: one busy slot and what idles demand at least {demand} mW, "
                f"limit {problem.max_power_mw} mW"
            )
    limits = [m for m in problem.memory_limits_bytes or () if m is not None]
    rooms = [sum(limits)] if limits and len(limits) == len(problem.cluster_sizes) else []
    if problem.total_memory_limit_bytes is not None:
        rooms.append(problem.total_memory_limit_bytes)
    # Stages hold together at least what the whole model would: each weight, and what is alive at the peak.
    whole = stage_memory_bytes(problem, range(problem.n_layers)) if rooms else 0
    if rooms and whole > min(rooms):
        raise InfeasibleError(
            f"memory: the whole model demands {whole} bytes, however it is cut; limit {min(rooms)} bytes"
        )


def why_no_lane(blocks: Blocks) -> str | None:
    """Say which resource no lane can do with, or None when that is not proved.

    Cores are added to one cluster at a time (and the cap on stages lifted) until a lane appears.
    Proved only where the graph has one order; pins are counted for any graph.
    """
    problem = blocks.problem
    pinned = sum(pin is not None for pin in blocks.pin)
    if problem.max_stages is not None and pinned > problem.max_stages:
        return f"max_stages: the pins need {pinned} stages, limit {problem.max_stages} stages"
    for cluster, size in enumerate(problem.cluster_sizes):
        demand = sum(
            int(problem.cores[blocks.allowed[block], cluster].min())
            for block, pin in enumerate(blocks.pin)
            if pin is not None
        )
        if demand > size:
            return f"cores: the pins need {demand} cores of cluster {cluster}, limit {size} cores"
    if not blocks.has_one_order or _any_lane(problem) is not None:
        return None
    return _least_addition(problem)


def _least_addition(problem: Problem) -> str:
    if problem.max_stages is not None:
        mapping = _any_lane(replace(problem, max_stages=None))
        if mapping is not None:
            demand = mapping.n_stages
            return f"max_stages: demand {demand} stages, limit {problem.max_stages} stages"
    most = problem.n_layers * max(int(n) for n in problem.cores.max(axis=0))
    for cluster, size in enumerate(problem.cluster_sizes):
        sizes = list(problem.cluster_sizes)
        sizes[cluster] = size + min(most, 64)
        larger = replace(problem, cluster_sizes=tuple(sizes))
        mapping = _any_lane(larger)
        if mapping is not None:
            demand = evaluate(larger, mapping).cores_used[cluster]
            return f"cores: a lane takes {demand} cores of cluster {cluster}, limit {size} cores"
    stages = "" if problem.max_stages is None else f" and {problem.max_stages} stages"
    return f"cores: no lane fits the limit of {problem.cluster_sizes} cores{stages} (or more of one cluster)"


def _any_lane(problem: Problem) -> Mapping | None:
    pool = LanePool(contract(problem), Limits(), 1)
    frontier = pool.frontier()
    if not frontier:
        return None

    return Mapping((Lane(pool.score(min(frontier, key=sum)).stages),))
