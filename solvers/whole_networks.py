"""Workloads by hand: every network as a whole on one slot, as an app's author would place them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.evaluate import evaluate, is_better, score_key
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.problem import Goal, Problem

MOST_NODES = 60_000
"""Partial placements looked at; beyond, the best so far counts."""
N_SCORED = 48
"""Placements that the evaluator ranks."""

Placement = tuple[tuple[int, int], ...]
"""(slot, unit) of each network."""


def in_turn(problem: Problem, slot: int) -> Mapping:
    """Return the mapping that runs all networks one after another on one slot, each a stage."""
    return Mapping((Lane(tuple(Stage(layers, slot, 0) for layers in problem.networks)),))


def place_networks(problem: Problem) -> Mapping | None:
    """Return the best placement of whole networks on slots; None without networks or without any.

    Networks may share a slot, then they take turns.  Branch and bound over the placements by their
    slowest slot; the evaluator picks among the best by the problem's goal.  Exact for throughput
    without limits as long as ``MOST_NODES`` suffice, which they do for half a dozen networks.
    """
    if len(problem.networks) < 2:
        return None
    search = _Search(problem)
    search.run()
    found = [_mapping(problem, placement) for _, placement in sorted(search.kept)[:N_SCORED]]
    if not found:
        return None
    return min(found, key=lambda mapping: score_key(problem, evaluate(problem, mapping)))


def or_whole_networks(problem: Problem, solution: Solution) -> Solution:
    """Return the solution, or the best placement of whole networks where that is better.

    Searches along orders take the latency of a lane as the sum of its stages; networks that do not
    wait for each other run at the same time.
    """
    mapping = place_networks(problem) if solution.status is not Status.INFEASIBLE else None
    if mapping is None:
        return solution
    evaluation = evaluate(problem, mapping)
    if not is_better(problem, evaluation, solution.evaluation):
        return solution
    return replace(
        solution, status=Status.FEASIBLE, family=Family.ALL, mapping=mapping, evaluation=evaluation, reason=""
    )


class _Search:
    """Placements by the load of their slowest slot; networks with the most work come first."""

    def __init__(self, problem: Problem) -> None:
        self.kept: list[tuple[tuple[int, int], Placement]] = []
        self._problem = problem
        networks = [list(layers) for layers in problem.networks]
        cost = np.array([problem.cost_ns[layers].sum(axis=0) for layers in networks]) + problem.overhead
        able = np.array([problem.supported[layers].all(axis=0) for layers in networks])
        self._cost, self._able = cost.tolist(), able.tolist()
        least = np.where(able, cost, np.iinfo(np.int64).max).min(axis=1)
        self._order = [int(k) for k in np.argsort(-least, kind="stable")]
        self._nodes = 0
        # With other goals than throughput, slower placements may be wanted (fewer cores, less energy).
        self._slack = 1 if problem.objective.goal is Goal.THROUGHPUT else 4

    def run(self) -> None:
        """Fill ``kept`` with ((slowest load, cores), placement)."""
        self._extend(0, [], list(self._problem.cluster_sizes), {})

    def _extend(
        self, depth: int, units: list[tuple[int, int]], left: list[int], placed: dict[int, tuple[int, int]]
    ) -> None:
        """Place one more network: beside others on a unit, or on a slot of its own."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            return
        if depth == len(self._order):
            cores = sum(self._problem.cluster_sizes) - sum(left)
            placement = tuple(placed[number] for number in range(len(placed)))
            self.kept.append(((max(load for _, load in units), cores), placement))
            if len(self.kept) > 8 * N_SCORED:
                self.kept = sorted(self.kept)[:N_SCORED]
            return
        network = self._order[depth]
        choices: list[tuple[int, int, int]] = []  # load afterwards, unit, slot
        for unit, (slot, load) in enumerate(units):
            if self._able[network][slot]:
                choices.append((load + self._cost[network][slot], unit, slot))
        for slot in range(len(self._problem.slots)):
            fits = all(int(n) <= free for n, free in zip(self._problem.cores[slot], left))
            if fits and self._able[network][slot]:
                choices.append((self._cost[network][slot], len(units), slot))
        for load, unit, slot in sorted(choices):
            if load > self._ceiling():
                continue
            fresh = unit == len(units)
            grown = [*units, (slot, load)] if fresh else [*units[:unit], (slot, load), *units[unit + 1 :]]
            use = self._problem.cores[slot] if fresh else np.zeros(len(left), np.int64)
            rest = [free - int(n) for free, n in zip(left, use)]
            self._extend(depth + 1, grown, rest, {**placed, network: (slot, unit)})

    def _ceiling(self) -> int:
        """Load beyond which a placement is of no use."""
        if len(self.kept) < N_SCORED:
            return int(np.iinfo(np.int64).max)
        return self._slack * min(key[0] for key, _ in self.kept)


def _mapping(problem: Problem, placement: Placement) -> Mapping:
    units: dict[int, int] = {}
    stages = []
    for layers, (slot, unit) in zip(problem.networks, placement):
        stages.append(Stage(layers, slot, units.setdefault(unit, len(units))))
    return Mapping((Lane(tuple(stages)),))
