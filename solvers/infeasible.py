"""Why no lane exists: which resource binds, with demand, limit and unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.bounds import memory_room_bytes
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate, stage_memory_bytes
from solvers.goal_bounds import latency_bound_ns
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
        A frame takes longer than the ceiling on latency, the floor on throughput is above the
        bound, one busy slot draws more than the power, or the whole model exceeds the memory.
    """
    problem = blocks.problem
    objective = problem.objective
    if objective.max_latency_ns is not None:
        least = latency_bound_ns(blocks, bound_hz)
        if least > objective.max_latency_ns:
            kept = "" if objective.min_throughput_hz is None else " that keeps the floor on throughput"
            raise InfeasibleError(
                f"latency: a frame takes at least {least} ns in any mapping{kept}, "
                f"limit {objective.max_latency_ns} ns"
            )
    floor = objective.min_throughput_hz
    if floor is not None and bound_hz < floor * (1 - 1e-9):
        raise InfeasibleError(
            f"throughput floor: demand {floor:g} frames/s, "
            f"limit {bound_hz:g} frames/s in any mapping within the other limits"
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
    room = memory_room_bytes(problem)
    whole = 0 if room is None else stage_memory_bytes(problem, range(problem.n_layers))
    if room is not None and whole > room:
        raise InfeasibleError(
            f"memory: the whole model demands {whole} bytes, however it is cut; limit {room} bytes"
        )
    _refuse_homeless_weights(blocks)


def _refuse_homeless_weights(blocks: Blocks) -> None:
    """Compare the memory of each cluster with the weights of the layers that run nowhere else."""
    problem = blocks.problem
    of_slot = np.array([slot.cluster for slot in problem.slots])
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is None:
            continue
        elsewhere = blocks.allowed[:, of_slot != cluster].any(axis=1)
        bound = {layer for block in np.flatnonzero(~elsewhere) for layer in blocks.members[block]}
        demand = sum(one.n_bytes for one in problem.constants if not bound.isdisjoint(one.users))
        if demand > limit:
            raise InfeasibleError(
                f"memory of {problem.names.cluster(cluster)}: the weights of layers that run nowhere else "
                f"demand {demand} bytes, limit {limit} bytes"
            )


def why_no_lane(blocks: Blocks, *, proved: bool = False) -> str | None:
    """Say which resource no lane of stages with a unit each can do with, or None when that is not proved.

    Cores are added to one cluster at a time (and the cap on stages lifted) until a lane appears.
    Pins are counted for any graph; without them there is a proof only where the graph has one order.

    Parameters
    ----------
    proved
        That there is no lane is known already.
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
            where = problem.names.cluster(cluster)
            return f"cores: the pins need {demand} cores of {where}, limit {size} cores"
    if not proved and (not blocks.has_one_order or _any_lane(problem) is not None):
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
            where = problem.names.cluster(cluster)
            return f"cores: a lane takes {demand} cores of {where}, limit {size} cores"
    stages = "" if problem.max_stages is None else f" and {problem.max_stages} stages"
    return f"cores: no lane fits the limit of {problem.cluster_sizes} cores{stages} (or more of one cluster)"


def _any_lane(problem: Problem) -> Mapping | None:
    pool = LanePool(contract(problem), Limits(), 1)
    frontier = pool.frontier()
    if not frontier:
        return None

    return Mapping((Lane(pool.score(min(frontier, key=sum)).stages),))
