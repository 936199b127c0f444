"""Which limit on memory, latency, power or throughput can not be kept: what it is, and would have to be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.evaluation import Evaluation, amount
from solvers.limits import Limits
from solvers.offer_mix import Values, best_mix, memory_column, power_column
from solvers.offers import find_offers
from solvers.problem import Goal, Problem
from solvers.topology import contract

NO_LIMIT_MW = 10**9
NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit, and how to need as little as can be of what it limits.

    Parameters
    ----------
    what, value, unit
        For people.
    without
        The problem without it.
    needed
        What a mapping needs, or reaches.
    values
        By which mixes are ranked; None where the goal of ``without`` does that.
    floor
        Whether it is the least that must be reached.
    """

    what: str
    value: float
    unit: str
    without: Problem
    needed: Callable[[Evaluation], float]
    values: Values | None = None
    floor: bool = False

    def text(self, amount_needed: float, *, exact: bool) -> str:
        """Say what it is, and what it would have to be."""
        needed, limit = amount(amount_needed, self.unit), amount(self.value, self.unit)
        if self.floor:
            reached = "limit" if exact else "best found"
            return f"{self.what}: demand {limit}, {reached} {needed} within the other limits"
        demand = "demand at least" if exact else "least found"
        return f"{self.what}: {demand} {needed} within the other limits, limit {limit}"


def what_binds(problem: Problem, limits: Limits, max_lanes: int | None, time_s: float | None) -> str:
    """Name a limit without which the others can be kept, with demand, limit and unit.

    Parameters
    ----------
    problem
        No mapping of it is known.
    limits
        For the searches.
    max_lanes
        Most lanes, or None.
    time_s
        When to look no further, or None for never.
    """
    every = list(_limits(problem))
    start = time.monotonic()
    for one in every:
        if time_s is not None and time.monotonic() - start >= time_s:
            break
        search = find_offers(contract(one.without), limits)
        found, exact = best_mix(one.without, search.offers, max_lanes, limits, one.values)
        if found is not None:
            return one.text(one.needed(found[1]), exact=search.exact and exact)
    else:
        together = ", ".join(f"{one.what} limit {amount(one.value, one.unit)}" for one in every)
        return f"no mapping keeps these limits together, and lifting one of them does not help: {together}"
    return f"the limits are {', '.join(f'{one.what} {amount(one.value, one.unit)}' for one in every)}"


def _limits(problem: Problem) -> Iterator[_Limit]:
    objective = problem.objective
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            others = list(problem.memory_limits_bytes or ())
            others[cluster] = NO_LIMIT_BYTES
            yield _Limit(
                f"memory of {problem.names.cluster(cluster)}",
                limit,
                "bytes",
                replace(problem, memory_limits_bytes=tuple(others)),
                lambda evaluation, cluster=cluster: evaluation.memory_bytes[cluster],  # type: ignore[misc]
                lambda rows, cluster=cluster: memory_column(problem, rows, cluster),  # type: ignore[misc]
            )
    if problem.total_memory_limit_bytes is not None:
        yield _Limit(
            "total memory",
            problem.total_memory_limit_bytes,
            "bytes",
            replace(problem, total_memory_limit_bytes=NO_LIMIT_BYTES),
            lambda evaluation: sum(evaluation.memory_bytes),
            lambda rows: memory_column(problem, rows),
        )
    if objective.max_latency_ns is not None:
        wanted = replace(objective, goal=Goal.LATENCY, max_latency_ns=None)
        yield _Limit(
            "latency",
            objective.max_latency_ns,
            "ns",
            replace(problem, objective=wanted),
            lambda evaluation: evaluation.latency_ns,
        )
    if objective.min_throughput_hz is not None:
        wanted = replace(objective, goal=Goal.THROUGHPUT, min_throughput_hz=None)
        yield _Limit(
            "throughput floor",
            objective.min_throughput_hz,
            "frames/s",
            replace(problem, objective=wanted),
            lambda evaluation: evaluation.throughput_hz,
            floor=True,
        )
    if problem.max_power_mw is not None:
        yield _Limit(
            "power",
            problem.max_power_mw,
            "mW",
            replace(problem, max_power_mw=NO_LIMIT_MW),
            lambda evaluation: float(np.ceil((evaluation.energy_nj or 0) * evaluation.throughput_hz / 1e6)),
            lambda rows: power_column(problem, rows),
        )
