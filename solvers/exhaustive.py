"""Brute force over every mapping of a small problem: the oracle of the tests.

Enumerates, for one lane, every way to put the layers into convex stages, every slot for each stage
and (optionally) every way to let stages share units; then every multiset of lanes that fits.  Every
complete mapping is scored by the evaluator, so constraints need no code here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from solvers.errors import CapError
from solvers.evaluate import Evaluation, ScoreKey, evaluate, score_key
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.problem import Problem
from solvers.violations import OF_THE_MIX

MOST_LAYERS = 9
MOST_LANES_KEPT = 200_000

Partition = tuple[tuple[int, ...], ...]


def partitions(n: int) -> Iterator[Partition]:
    """Yield every partition of 0..n-1 into sets (restricted growth strings)."""

    def grow(layer: int, parts: list[list[int]]) -> Iterator[Partition]:
        if layer == n:
            yield tuple(map(tuple, parts))
            return
        for part in parts:
            part.append(layer)
            yield from grow(layer + 1, parts)
            part.pop()
        parts.append([layer])
        yield from grow(layer + 1, parts)
        parts.pop()

    yield from grow(0, [])


def topological_orders(problem: Problem, parts: Partition) -> list[tuple[int, ...]]:
    """Return every order of the parts in which each comes after those that feed it; none for a cycle."""
    home = {layer: number for number, part in enumerate(parts) for layer in part}
    needs: list[set[int]] = [set() for _ in parts]
    for a, b in problem.edges:
        if home[a] != home[b]:
            needs[home[b]].add(home[a])
    found: list[tuple[int, ...]] = []

    def grow(done: tuple[int, ...]) -> None:
        if len(done) == len(parts):
            found.append(done)
        for number in range(len(parts)):
            if number not in done and needs[number] <= set(done):
                grow((*done, number))

    grow(())
    return found


def every_lane(problem: Problem, shared_units: bool) -> Iterator[Lane]:
    """Yield every lane on its own: units are numbered from 0.

    Stages that share a unit take turns in their order, so every such order is a lane of its own.
    """
    for parts in partitions(problem.n_layers):
        if problem.max_stages is not None and len(parts) > problem.max_stages:
            continue
        orders = topological_orders(problem, parts)
        if not orders:
            continue
        choices = [
            [slot for slot in range(len(problem.slots)) if problem.supported[list(part), slot].all()]
            for part in parts
        ]
        alone: Partition = tuple((n,) for n in range(len(parts)))
        for units in partitions(len(parts)) if shared_units else [alone]:
            unit_of = {stage: unit for unit, members in enumerate(units) for stage in members}
            turns = _different_turns(orders, units)
            for slots in product(*choices):
                if any(len({slots[stage] for stage in members}) > 1 for members in units):
                    continue
                for order in turns:
                    yield Lane(tuple(Stage(parts[n], slots[n], unit_of[n]) for n in order))


def _different_turns(orders: list[tuple[int, ...]], units: Partition) -> list[tuple[int, ...]]:
    """Of the orders in which every unit takes its stages alike, return the first."""
    found: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    for order in orders:
        place = {number: at for at, number in enumerate(order)}
        found.setdefault(tuple(tuple(sorted(members, key=place.__getitem__)) for members in units), order)
    return list(found.values())


def solve_exhaustive(problem: Problem, limits: Limits) -> Solution:
    """Try every mapping (family ALL); exact for every goal and constraint.

    Cost grows faster than exponentially; at most 9 layers.

    Raises
    ------
    CapError
        The problem is too large.
    """
    return search_exhaustively(problem, shared_units=True, limits=limits)


def search_exhaustively(
    problem: Problem, shared_units: bool, max_lanes: int | None = None, limits: Limits | None = None
) -> Solution:
    """Try every mapping, with or without stages that share units.

    Parameters
    ----------
    problem
        At most 9 layers.
    shared_units
        Whether stages of a lane may share cores; without it the family is CONTIGUOUS.
    max_lanes
        A further cap on the number of lanes.
    limits
        Who may stop it.

    Raises
    ------
    CapError
        Too many layers or lanes.
    """
    limits = limits or Limits()
    if problem.n_layers > MOST_LAYERS:
        raise CapError(f"exhaustive takes at most {MOST_LAYERS} layers, this problem has {problem.n_layers}")
    lanes = _lanes_that_matter(problem, shared_units, limits)
    best: tuple[ScoreKey, Mapping, Evaluation] | None = None
    closest: tuple[int, Evaluation] | None = None
    for mapping in _mixes(problem, lanes, max_lanes):
        limits.check()
        evaluation = evaluate(problem, mapping)
        key = score_key(problem, evaluation)
        if not evaluation.feasible:
            if closest is None or len(evaluation.violations) < closest[0]:
                closest = (len(evaluation.violations), evaluation)
        elif best is None or key < best[0]:
            best = (key, mapping, evaluation)
            limits.found(mapping, evaluation)
    family = Family.ALL if shared_units else Family.CONTIGUOUS
    if best is None:
        reason = "no mapping fits the limits on cores, lanes and stages, the pins and the state"
        if closest is not None:
            reason = str(closest[1].violations[0])
        return Solution("exhaustive", Status.INFEASIBLE, family, None, None, None, reason)
    return Solution("exhaustive", Status.OPTIMAL, family, best[1], best[2], None)


def _lanes_that_matter(
    problem: Problem, shared_units: bool, limits: Limits
) -> list[tuple[Lane, tuple[int, ...]]]:
    """Lanes that are feasible but for limits on the whole mapping, without those that never help.

    A lane never helps when another one is at least as good in period, latency, stages, cores and
    memory (alone and under load, where that differs).  Where power counts, a slower lane may still
    help, so only equal ones are dropped.
    """
    kept: dict[tuple[int, ...], tuple[Lane, tuple[int, ...]]] = {}
    loaded = problem.under_load
    for lane in every_lane(problem, shared_units):
        limits.check()
        evaluation = evaluate(problem, Mapping((lane,)))
        if any(violation.constraint not in OF_THE_MIX for violation in evaluation.violations):
            continue
        scored = evaluation.lanes[0]
        under_load = evaluation if loaded is problem else evaluate(loaded, Mapping((lane,)))
        busy = under_load.lanes[0]
        key = (
            scored.period_ns,
            scored.latency_ns,
            busy.period_ns,
            busy.latency_ns,
            len(lane.stages),
            *evaluation.cores_used,
            *evaluation.memory_bytes,
            _active_energy(problem, lane, evaluation),
            _active_energy(problem, lane, under_load),
        )
        kept.setdefault(key, (lane, evaluation.cores_used))
        if len(kept) > MOST_LANES_KEPT:
            raise CapError(f"exhaustive keeps at most {MOST_LANES_KEPT} different lanes")
    if problem.active_power_mw is not None:
        return list(kept.values())
    front: list[tuple[int, ...]] = []
    for key in sorted(kept):
        if not any(all(a <= b for a, b in zip(other, key)) for other in front):
            front.append(key)
    return [kept[key] for key in front]


def _active_energy(problem: Problem, lane: Lane, evaluation: Evaluation) -> int:
    if problem.active_power_mw is None:
        return 0
    stages = evaluation.lanes[0].stages
    return sum(
        numbers.busy_ns * problem.active_power_mw[stage.slot] for stage, numbers in zip(lane.stages, stages)
    )


def _mixes(
    problem: Problem, lanes: list[tuple[Lane, tuple[int, ...]]], max_lanes: int | None
) -> Iterator[Mapping]:
    caps = [cap for cap in (problem.lane_limit, max_lanes) if cap is not None]
    most = min(caps) if caps else sum(problem.cluster_sizes)

    def extend(first: int, chosen: list[Lane], left: tuple[int, ...]) -> Iterator[Mapping]:
        if chosen:
            yield Mapping(tuple(chosen))
        if len(chosen) == most:
            return
        for number in range(first, len(lanes)):
            lane, use = lanes[number]
            rest = tuple(a - b for a, b in zip(left, use))
            if min(rest) < 0:
                continue
            offset = sum(len(other.stages) for other in chosen)
            moved = Lane(tuple(Stage(s.layers, s.slot, s.unit + offset) for s in lane.stages))
            yield from extend(number, [*chosen, moved], rest)

    yield from extend(0, [], problem.cluster_sizes)
