"""Mixes of lanes when several criteria count: the knapsack over cores with labels.

Every vector of used cores keeps all undominated totals of (rate, worst latency, power, memory).  Energy per
frame is (power of the lanes + idle power) / rate, so it falls with either and these labels suffice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from solvers.evaluate import Evaluation, keep_better
from solvers.labels import Criteria, pareto_by_key
from solvers.limits import Limits
from solvers.mapping import Mapping
from solvers.offers import Offer
from solvers.problem import BoolArray, FloatArray, Goal, IntArray, Problem

RATE_STEPS = 10**12
"""The fastest lane's rate in integer steps: exact sums, and differences below count as ties."""
POWER_STEPS_PER_MW = 10**6
MOST_OFFERS = 300
"""Lanes that are combined; of more, some on each vector of cores are left out, without proof."""
SAME = 1e-6
"""Values that differ by less are all scored, because sums are rounded here."""
SHARE = 0.3
"""Of the time of a search."""
MOST_SCORED = 300
"""Final labels that the evaluator ranks."""


Values = Callable[[IntArray], FloatArray]
"""What mixes are ranked by, smaller is better, from the rows of their totals."""


def best_mix(
    problem: Problem,
    offers: list[Offer],
    max_lanes: int | None,
    limits: Limits,
    values: Values | None = None,
) -> tuple[tuple[Mapping, Evaluation] | None, bool]:
    """Return the best mapping with its evaluation, and whether nothing was cut off.

    Parameters
    ----------
    limits
        Mixes of still more lanes are not tried after a share of the time.
    values
        By which mixes are ranked: ``memory_column`` or ``power_column``; None for the problem's goal.
    """
    if not offers:
        return None, True
    table = _table(problem, offers)
    finished = _Finished(problem, offers, values)
    finished.add(table, [(number,) for number in range(len(offers))])
    n_clusters = len(problem.cluster_sizes)
    chosen, _ = pareto_by_key(
        table[:, :n_clusters], _relevant(problem, table), table[:, n_clusters + 3, None], len(offers)
    )
    exact = len(chosen) <= MOST_OFFERS
    if not exact:
        chosen = _thinned(offers, chosen)
    table = table[chosen]
    cap = 64 if len(chosen) < 100 else 16
    most = sum(problem.cluster_sizes) if max_lanes is None else max_lanes
    rows = np.zeros((1, table.shape[1]), np.int64)
    mixes: list[tuple[int, ...]] = [()]
    fresh = [0]
    start = time.monotonic()
    for _ in range(most):
        if time.monotonic() - start > limits.time_s * SHARE:
            exact = False
            break
        grown, longer = [], []
        for number in fresh:
            total = rows[number] + table
            total[:, n_clusters + 1] = np.maximum(rows[number, n_clusters + 1], table[:, n_clusters + 1])
            possible = np.flatnonzero(_possible(problem, total))
            grown.append(total[possible])
            longer += [(*mixes[number], int(chosen[place])) for place in possible]
        if not longer:
            break
        finished.add(np.concatenate(grown), longer)
        n_before = len(rows)
        rows, mixes = np.concatenate([rows, *grown]), mixes + longer
        n_lanes = np.array([len(mix) for mix in mixes])
        keep, capped = pareto_by_key(
            rows[:, :n_clusters], _relevant(problem, rows), n_lanes[:, None], cap, spread=True
        )
        exact &= not capped
        rows, mixes = rows[keep], [mixes[number] for number in keep]
        fresh = [place for place, number in enumerate(keep) if number >= n_before]
        if not fresh:
            break
    return finished.best(), exact


def _thinned(offers: list[Offer], chosen: IntArray) -> IntArray:
    """Keep about ``MOST_OFFERS``: of the lanes on the same cores those spread over their front."""
    by_use: dict[tuple[int, ...], list[int]] = {}
    for number in chosen:
        by_use.setdefault(offers[number].label.use, []).append(int(number))
    share = max(2, MOST_OFFERS // len(by_use))
    kept: list[int] = []
    for use in sorted(by_use):
        front = sorted(by_use[use], key=lambda n: (offers[n].label.period_ns, offers[n].label.latency_ns))
        places = {round(place) for place in np.linspace(0, len(front) - 1, min(share, len(front)))}
        kept += [front[place] for place in sorted(places)]
    return np.array(kept, np.int64)


def _table(problem: Problem, offers: list[Offer]) -> IntArray:
    """Rows of offers: cores, minus rate, latency, power, stages, memory per cluster (all add up but one)."""
    fastest = min(max(offer.label.period_ns, 1) for offer in offers)
    rows = []
    for offer in offers:
        label = offer.label
        period = max(label.period_ns, 1)
        rows.append(
            [
                *label.use,
                -(RATE_STEPS * fastest // period),
                label.latency_ns,
                label.energy_pj * POWER_STEPS_PER_MW // period,
                len(offer.stages),
                *label.memory_bytes,
            ]
        )
    return np.array(rows, np.int64)


def _possible(problem: Problem, total: IntArray) -> BoolArray:
    n_clusters = len(problem.cluster_sizes)
    kept = np.asarray((total[:, :n_clusters] <= np.array(problem.cluster_sizes)).all(axis=1))
    ceiling = problem.objective.max_latency_ns
    if ceiling is not None:
        kept &= total[:, n_clusters + 1] <= ceiling
    if problem.max_power_mw is not None:
        room = problem.max_power_mw - (problem.idle_power_mw or 0)
        kept &= total[:, n_clusters + 2] <= room * POWER_STEPS_PER_MW
    memory = total[:, n_clusters + 4 :]
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            kept &= memory[:, cluster] <= limit
    if problem.total_memory_limit_bytes is not None:
        kept &= memory.sum(axis=1) <= problem.total_memory_limit_bytes
    return kept


def _relevant(problem: Problem, rows: IntArray) -> IntArray:
    criteria = Criteria.of(problem)
    n = len(problem.cluster_sizes)
    columns = [rows[:, n], rows[:, n + 1]]
    if criteria.energy:
        columns.append(rows[:, n + 2])
    columns += [rows[:, n + 4 + cluster] for cluster in criteria.memory_clusters]
    if criteria.total_memory:
        columns.append(rows[:, n + 4 :].sum(axis=1))
    return np.stack(columns, axis=1)


class _Finished:
    """The mixes that may be the answer: those ranked best, whatever else was cut off."""

    def __init__(self, problem: Problem, offers: list[Offer], values: Values | None) -> None:
        self._problem = problem
        self._offers = offers
        self._values = values or (lambda rows: _goal_values(problem, rows))
        fastest = min(max(offer.label.period_ns, 1) for offer in offers)
        floor = problem.objective.min_throughput_hz or 0.0
        self._least_rate = floor * 1e-9 * fastest * RATE_STEPS * (1 - SAME)
        self._found: list[tuple[float, int, int, tuple[int, ...]]] = []

    def add(self, rows: IntArray, mixes: list[tuple[int, ...]]) -> None:
        """Take the best of some mixes, given the rows of their totals."""
        n = len(self._problem.cluster_sizes)
        reach = -rows[:, n] >= self._least_rate
        kept = np.flatnonzero(reach & _possible(self._problem, rows))
        value, cores, latency = self._values(rows), rows[:, :n].sum(axis=1), rows[:, n + 1]
        best = kept[np.lexsort((latency[kept], cores[kept], value[kept]))][:MOST_SCORED]
        self._found += [(float(value[k]), int(cores[k]), int(latency[k]), mixes[k]) for k in best]
        self._found = sorted(self._found)[:MOST_SCORED]

    def best(self) -> tuple[Mapping, Evaluation] | None:
        """Let the evaluator pick the best feasible one."""
        best: tuple[Mapping, Evaluation] | None = None
        reached = float("inf")
        for value, _, _, mix in self._found:
            if value > reached:  # what follows is worse: values are as the evaluator has them
                break
            found = keep_better(self._problem, best, _mapping([self._offers[number] for number in mix]))
            if found is not best and found is not None:
                best, reached = found, value + abs(value) * SAME
        return best


def _goal_values(problem: Problem, rows: IntArray) -> FloatArray:
    """Return float64 (rows,): what the goal makes small."""
    n = len(problem.cluster_sizes)
    goal = problem.objective.goal
    rate = -rows[:, n].astype(np.float64)
    if goal is Goal.THROUGHPUT:
        return -rate
    if goal is Goal.LATENCY:
        return rows[:, n + 1].astype(np.float64)
    values: FloatArray = power_column(problem, rows) / np.maximum(rate, 1)
    return values


def power_column(problem: Problem, rows: IntArray) -> FloatArray:
    """Return the mean power of each mix (mW)."""
    n = len(problem.cluster_sizes)
    power: FloatArray = rows[:, n + 2] / POWER_STEPS_PER_MW + (problem.idle_power_mw or 0)
    return power


def memory_column(problem: Problem, rows: IntArray, cluster: int | None = None) -> FloatArray:
    """Return the memory of each mix in bytes, of one cluster or in all."""
    memory = rows[:, len(problem.cluster_sizes) + 4 :].astype(np.float64)
    found: FloatArray = memory.sum(axis=1) if cluster is None else memory[:, cluster]
    return found


def _mapping(offers: list[Offer]) -> Mapping:
    return Mapping.of_chains([(stage.layers, stage.slot) for stage in offer.stages] for offer in offers)
