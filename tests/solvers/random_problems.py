"""Small random problems with every feature, for the property tests."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from solvers.problem import Constant, Flow, Goal, Objective, Pin, Problem, Slot, StageTime

FACTOR = float(os.environ.get("SOLVERS_EXAMPLES_FACTOR", "0.35"))


def examples(n):
    """Number of examples of a property test: set SOLVERS_EXAMPLES_FACTOR=10 for thousands."""
    return max(10, round(n * FACTOR))


@st.composite
def problems(draw, max_layers=5, *, chain=None, features=True, links="any", memory=False, free=False):
    n = draw(st.integers(1, max_layers))
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (1, 1), (2, 1), (2, 2), (1, 1, 1)]))
    slots = []
    for cluster, size in enumerate(sizes):
        counts = sorted(draw(st.sets(st.integers(1, size), min_size=1)))
        slots += [Slot(cluster, threads) for threads in counts]
    if features and len(sizes) > 1 and draw(st.integers(0, 5)) == 0:
        busy = draw(st.integers(1, 2))
        slots[-1] = Slot(slots[-1].cluster, slots[-1].threads, host_cluster=0, host_threads=busy)
    if features and draw(st.integers(0, 5)) == 0:
        slots.append(slots[0])  # another kernel library on the same cores
    small = st.integers(1, 20)
    cost = [[draw(small) for _ in slots] for _ in range(n)]
    if free:  # some layers and tensors that cost nothing
        cost = [row if draw(st.booleans()) else [0] * len(slots) for row in cost]
        cost[draw(st.integers(0, n - 1))] = [draw(small) for _ in slots]
    supported = [[not features or draw(st.integers(0, 9)) > 0 for _ in slots] for _ in range(n)]
    flows = _flows(draw, n, draw(st.booleans()) if chain is None else chain, free)
    extra = {}
    if features:
        extra |= _features(draw, n, len(slots))
    n_clusters = len(sizes)
    kind = draw(st.sampled_from(["none", "target", "pairs"])) if links == "any" else links
    if kind != "none":
        row = [draw(st.integers(0, 6)) for _ in sizes]
        rate = [draw(st.sampled_from([np.inf, 1e9, 2e9])) for _ in sizes]
        setup = np.array([row] * n_clusters)
        bandwidth = np.array([rate] * n_clusters)
        if kind == "pairs":
            setup = np.array([[draw(st.integers(0, 6)) for _ in sizes] for _ in sizes])
        extra |= {"setup_ns": setup, "bandwidth_bytes_per_s": bandwidth, "overlap": draw(st.booleans())}
        if draw(st.integers(0, 2)) == 0:
            extra["send_setup_ns"] = tuple(draw(st.integers(0, 5)) for _ in sizes)
            extra["send_bandwidth_bytes_per_s"] = tuple(draw(st.sampled_from([np.inf, 2e9])) for _ in sizes)
    if memory:
        extra["constants"] = tuple(
            Constant(
                draw(st.integers(1, 50)), tuple(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))))
            )
            for _ in range(draw(st.integers(0, 3)))
        )
        extra["memory_limits_bytes"] = tuple(draw(st.sampled_from([None, 20, 60, 120])) for _ in sizes)
        extra["total_memory_limit_bytes"] = draw(st.sampled_from([None, 60, 120]))
    return Problem(np.array(cost), np.array(supported), tuple(slots), sizes, flows, **extra)


@st.composite
def all_features(draw, max_layers=4, *, chain=None):
    """Problems with every feature there is, each now and then; every goal."""
    rare = lambda odds=3: draw(st.integers(0, odds)) == 0  # noqa: E731
    problem = draw(problems(max_layers, chain=chain, memory=rare(), free=rare()))
    n, slots = problem.n_layers, problem.slots
    extra = {"queue_depth": draw(st.sampled_from([2, 2, 0, 1]))}
    if rare() and n > 1 and not chain:
        extra |= _workload(draw, problem)
    if rare():
        more = [[draw(st.sampled_from([0, 0, 1, 5, 20])) for _ in slots] for _ in range(n)]
        extra["loaded_cost_ns"] = problem.cost_ns + np.array(more)
    if rare():
        layers = st.sets(st.integers(0, n - 1), min_size=1, max_size=2)
        extra["colocated"] = (tuple(sorted(draw(layers))),)
    if rare():
        extra["free_within_unit"] = True
    goals = [Goal.THROUGHPUT, Goal.THROUGHPUT, Goal.LATENCY]
    if rare(2):
        extra["active_power_mw"] = tuple(draw(st.integers(1, 30)) * 10_000 for _ in slots)
        extra["idle_power_mw"] = draw(st.sampled_from([0, 50_000]))
        extra["max_power_mw"] = draw(st.sampled_from([None, None, 120_000, 400_000]))
        goals.append(Goal.ENERGY)
    extra["objective"] = Objective(
        draw(st.sampled_from(goals)),
        draw(st.sampled_from([None, None, 2e7, 1e8, 3e8])),
        draw(st.sampled_from([None, None, 20, 60])),
    )
    return replace(problem, **extra)


def _workload(draw, problem):
    """The layers dealt out to two networks; the first may feed the second, the second never the first."""
    network = [draw(st.integers(0, 1)) for _ in range(problem.n_layers)]
    networks = [tuple(layer for layer, own in enumerate(network) if own == k) for k in (0, 1)]
    if not all(networks):
        return {}
    linked = draw(st.booleans())
    flows = []
    for flow in problem.flows:
        source = flow.producer
        users = flow.consumers
        if source is not None:
            users = tuple(
                n for n in users if network[n] == network[source] or (linked and network[n] > network[source])
            )
        flows.append(replace(flow, consumers=users, is_output=flow.is_output or not users))
    return {"networks": tuple(networks), "flows": (*flows, Flow(None, (networks[1][0],), 3))}


def _flows(draw, n, chain, free):
    size = st.sampled_from([0, 0, 5]) if free else st.integers(0, 8)
    flows = [Flow(None, (0,), draw(size))]
    if draw(st.integers(0, 5)) == 0:
        flows = [Flow(None, tuple(range(n)), draw(size))]
    for producer in range(n):
        later = list(range(producer + 1, n))
        if chain:
            users = later[:1]
        else:
            users = sorted(draw(st.sets(st.sampled_from(later), max_size=2))) if later else []
        also_output = draw(st.integers(0, 7)) == 0
        flows.append(Flow(producer, tuple(users), draw(size), is_output=not users or also_output))
        if users and draw(st.integers(0, 7)) == 0:
            flows.append(Flow(producer, tuple(users[:1]), draw(size)))
    return tuple(flows)


def _features(draw, n, n_slots):
    layers = st.sets(st.integers(0, n - 1), min_size=1, max_size=2).map(lambda s: tuple(sorted(s)))
    some_slots = st.sets(st.integers(0, n_slots - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    rare = lambda: draw(st.integers(0, 3)) == 0  # noqa: E731
    extra = {"overhead_ns": np.array([draw(st.integers(0, 3)) for _ in range(n_slots)])}
    if rare():
        extra["groups"] = (draw(layers),)
    if rare():
        extra["pins"] = tuple(Pin(draw(layers), draw(some_slots)) for _ in range(draw(st.integers(1, 2))))
    if rare():
        first = draw(st.integers(0, n - 1))
        last = draw(st.integers(first, n - 1))
        span, slot = frozenset(range(first, last + 1)), draw(st.integers(0, n_slots - 1))
        conditions = draw(st.sampled_from([(None,), (True,), (False,), (True, False)]))
        extra["stage_times"] = tuple(
            StageTime(span, slot, draw(st.integers(1, 40)), loaded) for loaded in conditions
        )
    if rare():
        extra["stateful"] = True
        extra["n_streams"] = draw(st.integers(1, 2))
    if rare():
        extra["max_lanes"] = draw(st.integers(1, 2))
    if rare():
        extra["max_stages"] = draw(st.integers(1, 3))
    return extra
