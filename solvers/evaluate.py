"""The one definition of every predicted quantity: compute, busy, period, latency, memory, energy.

Constraints are in ``solvers.violations``.  Nothing else in the package re-defines these; every
solver's answer is scored here again before anyone sees it.  In one sentence each:

compute
    Sum of the layer costs plus the slot's overhead per invocation, or the measured time of that
    whole stage where the problem carries one.  Both are those under load (where the problem has
    them) as soon as the mapping has more than one unit, in whatever lane and cluster: then other
    cores work while a stage does.
receive
    For every tensor that enters the stage from another stage: set-up plus bytes over bandwidth
    of (cluster of the producer, cluster of the stage).  Once per receiving stage.  Inputs of the
    model cost nothing.
send
    Where the problem has such costs: once for every tensor of the stage that another stage uses.
busy
    Sum of the three, or the larger of compute and hand-over where the platform overlaps them.
period
    Largest sum of busy times over the units of a lane (stages with one unit take turns).
latency
    One frame in an empty lane: a stage starts when all its producers have finished *and* the
    stages of its unit that come earlier in the lane have; the last finish is the latency.
memory
    Per stage: every constant with a user in it, once; the peak of its live activations, layers in
    ascending order; and ``queue_depth`` times the bytes that enter it.  It is resident on the
    cluster of the stage's slot.
energy
    Per frame: busy time times active power of the slots, averaged over the lanes by rate, plus
    idle power times the mean time between frames of the whole mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from solvers.errors import MappingError
from solvers.evaluation import Evaluation, LaneEvaluation, StageEvaluation, Violation, rate_shares
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Goal, Problem
from solvers.violations import home_of, violations

__all__ = [
    "Evaluation",
    "KnownStages",
    "LaneEvaluation",
    "ScoreKey",
    "StageEvaluation",
    "Violation",
    "evaluate",
    "is_better",
    "keep_better",
    "live_in",
    "live_out",
    "score_key",
    "stage_compute_ns",
    "stage_memory_bytes",
]


ScoreKey = tuple[int, Fraction, Fraction, int, int, int]


def is_better(problem: Problem, evaluation: Evaluation, incumbent: Evaluation | None) -> bool:
    """Return whether an evaluation is feasible and sorts before the best so far, if there is one."""
    if not evaluation.feasible:
        return False
    return incumbent is None or score_key(problem, evaluation) < score_key(problem, incumbent)


def keep_better(
    problem: Problem, best: tuple[Mapping, Evaluation] | None, mapping: Mapping
) -> tuple[Mapping, Evaluation] | None:
    """Evaluate a mapping; return it with its evaluation where it is better, else the best so far."""
    evaluation = evaluate(problem, mapping)
    if is_better(problem, evaluation, None if best is None else best[1]):
        return mapping, evaluation
    return best


def score_key(problem: Problem, evaluation: Evaluation) -> ScoreKey:
    """Return a key by which evaluations of one problem sort, best first.

    Feasible before infeasible, then the goal, then fewer cores, lower latency, fewer stages.  All
    parts are exact, so equal keys are real ties.

    Parameters
    ----------
    problem
        Its objective decides.
    evaluation
        From ``evaluate``.

    Returns
    -------
    tuple
        Smaller is better.
    """
    instant = Fraction(0)
    goal = problem.objective.goal
    if goal is Goal.THROUGHPUT:
        instant = Fraction(-sum(1 for lane in evaluation.lanes if not lane.period_ns))
        value = -evaluation.frames_per_ns
    elif goal is Goal.LATENCY:
        value = Fraction(evaluation.latency_ns)
    else:
        value = Fraction(evaluation.energy_nj or 0)
    return (
        0 if evaluation.feasible else 1,
        instant,
        value,
        evaluation.n_cores,
        evaluation.latency_ns,
        evaluation.n_stages,
    )


def live_in(problem: Problem, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the flows that enter a set of layers from outside, inputs of the model too."""
    inside = frozenset(layers)
    used = {number for layer in layers for number in problem.flows_into[layer]}
    return tuple(sorted(number for number in used if problem.flows[number].producer not in inside))


def live_out(problem: Problem, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the flows of a set of layers that layers outside use."""
    inside = frozenset(layers)
    made = [number for layer in layers for number in problem.flows_from[layer]]
    return tuple(sorted(n for n in made if not inside.issuperset(problem.flows[n].consumers)))


def stage_compute_ns(problem: Problem, layers: Sequence[int], slot: int, *, loaded: bool = False) -> int:
    """Return compute(s): the measured whole stage where there is one, else costs plus overhead.

    Parameters
    ----------
    loaded
        Take what holds under load where the problem knows it.
    """
    known = problem.loaded_measured_ns if loaded else problem.measured_ns
    measured = known.get((frozenset(layers), slot))
    if measured is not None:
        return measured
    cost = problem.cost_ns
    if loaded and problem.loaded_cost_ns is not None:
        cost = problem.loaded_cost_ns
    return int(cost[list(layers), slot].sum() + problem.overhead[slot])


def stage_memory_bytes(problem: Problem, layers: Sequence[int]) -> int:
    """Return the memory of a stage with these (ascending) layers; see the head of this module."""
    inside = frozenset(layers)
    constants = {number for layer in layers for number in problem.constants_of[layer]}
    weights = sum(problem.constants[number].n_bytes for number in constants)
    step = {layer: number for number, layer in enumerate(layers)}
    change = [0] * (len(layers) + 1)
    entering = 0
    touching = {
        number for layer in layers for number in problem.flows_into[layer] + problem.flows_from[layer]
    }
    for flow in (problem.flows[number] for number in touching):
        uses = [step[user] for user in flow.consumers if user in inside]
        produced_here = flow.producer is not None and flow.producer in inside
        if not produced_here and not uses:
            continue
        first = step[flow.producer] if produced_here and flow.producer is not None else 0
        leaves = produced_here and (flow.is_output or len(uses) < len(flow.consumers))
        last = len(layers) - 1 if leaves else max(uses, default=first)
        change[first] += flow.n_bytes
        change[last + 1] -= flow.n_bytes
        entering += 0 if produced_here else flow.n_bytes
    peak = live = 0
    for delta in change:
        live += delta
        peak = max(peak, live)
    return weights + peak + problem.queue_depth * entering


@dataclass(frozen=True, slots=True)
class StageParts:
    """What of a stage does not depend on times: its memory, and the flows that enter and leave it."""

    memory_bytes: int
    live_in: tuple[int, ...]
    live_out: tuple[int, ...]


KnownStages = dict[tuple[int, ...], StageParts]
"""Parts of stages by their layers."""


def evaluate(problem: Problem, mapping: Mapping, known: KnownStages | None = None) -> Evaluation:
    """Score a mapping and list every constraint that it breaks.

    Parameters
    ----------
    problem, mapping
        The mapping may be infeasible; quantities are then what the formulas give.
    known
        Stages that were met before, filled in here: for many problems that differ in times and limits only.

    Returns
    -------
    Evaluation

    Raises
    ------
    MappingError
        The mapping has no lane, an empty lane or stage, or names a layer or slot that is not there.
    """
    _check_structure(problem, mapping)
    known = {} if known is None else known
    loaded = mapping.n_units > 1
    lanes = tuple(_evaluate_lane(problem, lane, loaded, known) for lane in mapping.lanes)
    memory = [0] * len(problem.cluster_sizes)
    for lane, scored in zip(mapping.lanes, lanes):
        for stage, numbers in zip(lane.stages, scored.stages):
            memory[problem.slots[stage.slot].cluster] += numbers.memory_bytes
    energy = _energy_pj(problem, mapping, lanes)
    rounded = None if energy is None else round(energy / 1000)
    evaluation = Evaluation(lanes, tuple(memory), _cores_used(problem, mapping), rounded, ())
    broken = tuple(violations(problem, mapping, evaluation, energy))
    return replace(evaluation, violations=broken) if broken else evaluation


def _check_structure(problem: Problem, mapping: Mapping) -> None:
    if not mapping.lanes:
        raise MappingError("a mapping needs at least one lane, this one has none")
    for lane_number, lane in enumerate(mapping.lanes):
        if not lane.stages:
            raise MappingError(f"lane {lane_number} has no stage")
        for number, stage in enumerate(lane.stages):
            where = f"stage {number} of lane {lane_number}"
            if not stage.layers:
                raise MappingError(f"{where} has no layer")
            if list(stage.layers) != sorted(set(stage.layers)):
                raise MappingError(f"the layers of {where} are not ascending: {stage.layers}")
            if stage.layers[0] < 0 or stage.layers[-1] >= problem.n_layers:
                raise MappingError(f"{where} names layer {stage.layers[-1]} of {problem.n_layers}")
            if not 0 <= stage.slot < len(problem.slots):
                raise MappingError(f"{where} names slot {stage.slot} of {len(problem.slots)}")


def _evaluate_lane(problem: Problem, lane: Lane, loaded: bool, known: KnownStages) -> LaneEvaluation:
    home = home_of(lane)
    stages = []
    by_unit: dict[int, int] = {}
    unit_done: dict[int, int] = {}
    finish: list[int] = []
    received: set[tuple[int, int]] = set()
    for stage in lane.stages:
        target = problem.slots[stage.slot].cluster
        receive = 0
        ready = unit_done.get(stage.unit, 0)
        parts = known.get(stage.layers)
        if parts is None:
            parts = known[stage.layers] = _parts(problem, stage.layers)
        for number in parts.live_in:
            flow = problem.flows[number]
            source = None if flow.producer is None else home.get(flow.producer)
            if source is None:
                continue
            if source < len(finish):
                ready = max(ready, finish[source])
            if problem.free_within_unit:
                if lane.stages[source].unit == stage.unit or (number, stage.unit) in received:
                    continue
                received.add((number, stage.unit))
            cluster = problem.slots[lane.stages[source].slot].cluster
            receive += problem.transfer_ns(cluster, target, flow.n_bytes)
        compute = stage_compute_ns(problem, stage.layers, stage.slot, loaded=loaded)
        send = sum(
            problem.send_ns(target, problem.flows[n].n_bytes)
            for n in _sent(problem, lane, home, stage, parts.live_out)
        )
        moving = receive + send
        busy = max(compute, moving) if problem.overlap else compute + moving
        by_unit[stage.unit] = by_unit.get(stage.unit, 0) + busy
        finish.append(ready + busy)
        unit_done[stage.unit] = ready + busy
        stages.append(StageEvaluation(compute, receive, busy, parts.memory_bytes, send))
    period = max(by_unit.values())
    bottleneck = max(
        (n for n, s in enumerate(lane.stages) if by_unit[s.unit] == period),
        key=lambda n: (stages[n].busy_ns, -n),
    )
    return LaneEvaluation(tuple(stages), period, max(finish), bottleneck)


def _parts(problem: Problem, layers: tuple[int, ...]) -> StageParts:
    return StageParts(
        stage_memory_bytes(problem, layers), live_in(problem, layers), live_out(problem, layers)
    )


def _sent(
    problem: Problem, lane: Lane, home: dict[int, int], stage: Stage, leaving: tuple[int, ...]
) -> tuple[int, ...]:
    """Flows that the stage pays to send, of those that leave it."""
    if not problem.free_within_unit:
        return leaving
    units = {layer: lane.stages[number].unit for layer, number in home.items()}
    return tuple(
        number
        for number in leaving
        if any(units.get(user, stage.unit) != stage.unit for user in problem.flows[number].consumers)
    )


def _cores_used(problem: Problem, mapping: Mapping) -> tuple[int, ...]:
    used = [0] * len(problem.cluster_sizes)
    units = {(stage.unit, stage.slot) for lane in mapping.lanes for stage in lane.stages}
    for _, slot in units:
        for cluster, n_cores in enumerate(problem.cores[slot]):
            used[cluster] += int(n_cores)
    return tuple(used)


def _energy_pj(problem: Problem, mapping: Mapping, lanes: Sequence[LaneEvaluation]) -> Fraction | None:
    """Energy per frame in picojoules (mW times ns), exactly."""
    if problem.active_power_mw is None:
        return None
    energy = Fraction(0)
    for share, lane, scored in zip(rate_shares(lanes), mapping.lanes, lanes):
        for stage, numbers in zip(lane.stages, scored.stages):
            energy += share * numbers.busy_ns * problem.active_power_mw[stage.slot]
    if all(lane.period_ns for lane in lanes):
        energy += (problem.idle_power_mw or 0) / sum(
            (Fraction(1, lane.period_ns) for lane in lanes), Fraction(0)
        )
    return energy
