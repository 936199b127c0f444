"""What is wrong with a problem, said before anybody searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from solvers.errors import ProblemError

if TYPE_CHECKING:
    from solvers.problem import Problem


def check(problem: Problem) -> None:
    """Check that the parts of a problem fit together.

    Raises
    ------
    ProblemError
        They do not: what came, and what was expected.
    """
    if problem.cost_ns.ndim != 2 or problem.cost_ns.shape[1] != len(problem.slots):
        raise ProblemError(
            f"cost_ns has shape {problem.cost_ns.shape}, expected (layers, {len(problem.slots)})"
        )
    if problem.supported.shape != problem.cost_ns.shape:
        raise ProblemError(f"supported has shape {problem.supported.shape}, cost_ns {problem.cost_ns.shape}")
    loaded = problem.loaded_cost_ns
    if loaded is not None:
        if loaded.shape != problem.cost_ns.shape:
            raise ProblemError(f"loaded_cost_ns has shape {loaded.shape}, cost_ns {problem.cost_ns.shape}")
        below = np.argwhere(problem.supported & (loaded < problem.cost_ns))
        if len(below):
            layer, place = (int(index) for index in below[0])
            raise ProblemError(
                f"loaded_cost_ns of layer {layer} on slot {place} is {loaded[layer, place]}, "
                f"expected at least cost_ns ({problem.cost_ns[layer, place]})"
            )
    n_clusters = len(problem.cluster_sizes)
    for number, slot in enumerate(problem.slots):
        if not 0 <= slot.cluster < n_clusters:
            raise ProblemError(f"slot {number} names cluster {slot.cluster} of {n_clusters}")
        if not 1 <= slot.threads <= problem.cluster_sizes[slot.cluster]:
            raise ProblemError(
                f"slot {number} wants {slot.threads} cores of cluster {slot.cluster}, "
                f"which has {problem.cluster_sizes[slot.cluster]}"
            )
        if slot.host_cluster is not None and not 0 <= slot.host_cluster < n_clusters:
            raise ProblemError(f"slot {number} names host cluster {slot.host_cluster} of {n_clusters}")
    square = (n_clusters, n_clusters)
    if problem.setup.shape != square or problem.bandwidth.shape != square:
        raise ProblemError(f"links need arrays of shape {square}")
    if problem.overhead.shape != (len(problem.slots),):
        raise ProblemError(
            f"overhead_ns has shape {problem.overhead.shape}, expected ({len(problem.slots)},)"
        )
    if problem.n_layers == 0:
        raise ProblemError("a problem needs at least one layer")
    if np.any(problem.cost_ns[problem.supported] < 0) or np.any(problem.overhead < 0):
        raise ProblemError("cost_ns or overhead_ns has a negative time")
    if np.any(problem.setup < 0) or np.any(~(problem.bandwidth > 0)):
        raise ProblemError("links need setup_ns >= 0 and bandwidth_bytes_per_s > 0")
    n_layers = problem.n_layers
    for flow in problem.flows:
        if flow.producer is not None and not 0 <= flow.producer < n_layers:
            raise ProblemError(f"a flow comes from layer {flow.producer} of {n_layers}")
        start = -1 if flow.producer is None else flow.producer
        for user in flow.consumers:
            if not start < user < n_layers:
                raise ProblemError(
                    f"a flow goes from layer {flow.producer} to layer {user}: layers must be "
                    f"numbered in topological order below {n_layers}"
                )
    for members, what in [(group, "group") for group in (*problem.groups, *problem.colocated)] + [
        (pin.layers, "pin") for pin in problem.pins
    ]:
        for layer in members:
            if not 0 <= layer < n_layers:
                raise ProblemError(f"a {what} names layer {layer} of {n_layers}")
    if problem.networks and sorted(n for layers in problem.networks for n in layers) != list(range(n_layers)):
        raise ProblemError(f"the networks must hold each of the {n_layers} layers once")
    for pin in problem.pins:
        if not pin.slots or not pin.layers:
            raise ProblemError(f"a pin has layers {pin.layers} and slots {pin.slots}: both need entries")
        if any(not 0 <= slot < len(problem.slots) for slot in pin.slots):
            raise ProblemError(f"a pin names slots {pin.slots}, there are {len(problem.slots)}")
    for time in problem.stage_times:
        if not 0 <= time.slot < len(problem.slots) or time.compute_ns < 0 or not time.layers:
            raise ProblemError(f"a stage time names slot {time.slot} and {time.compute_ns} ns")
    _check_limits(problem)


def _check_limits(problem: Problem) -> None:
    for what, names, n in (
        ("layers", problem.names.layers, problem.n_layers),
        ("slots", problem.names.slots, len(problem.slots)),
        ("clusters", problem.names.clusters, len(problem.cluster_sizes)),
    ):
        if names and len(names) != n:
            raise ProblemError(f"{len(names)} names for {n} {what}")
    for name, row in (
        ("send_setup_ns", problem.send_setup_ns),
        ("send_bandwidth_bytes_per_s", problem.send_bandwidth_bytes_per_s),
    ):
        if row is not None and (len(row) != len(problem.cluster_sizes) or min(row) < 0):
            raise ProblemError(
                f"{name} is {row}, expected {len(problem.cluster_sizes)} figures of 0 and more"
            )
    limits = problem.memory_limits_bytes
    if limits is not None and len(limits) != len(problem.cluster_sizes):
        raise ProblemError(f"{len(limits)} memory limits for {len(problem.cluster_sizes)} clusters")
    power = problem.active_power_mw
    if power is not None and len(power) != len(problem.slots):
        raise ProblemError(f"{len(power)} active powers for {len(problem.slots)} slots")
    if power is None and (problem.max_power_mw is not None or problem.objective.goal.value == "energy"):
        raise ProblemError("a power limit or the goal energy needs active_power_mw for every slot")
    check_least(
        ("n_streams", problem.n_streams, 1),
        ("max_lanes", problem.max_lanes, 1),
        ("max_stages", problem.max_stages, 1),
        ("queue_depth", problem.queue_depth, 0),
    )


def check_least(*wanted: tuple[str, int | None, int]) -> None:
    """Refuse values below the least one allowed, given as (name, value or None, least)."""
    for name, value, least in wanted:
        if value is not None and value < least:
            raise ProblemError(f"{name} is {value}, expected at least {least}")
