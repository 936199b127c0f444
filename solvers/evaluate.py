"""The one definition of every predicted quantity: compute, busy, period, latency, memory, energy.

Nothing else in the package re-defines these; every solver's answer is scored here again before
anyone sees it.  In one sentence each:

compute
    Sum of the layer costs plus the slot's overhead per invocation, or the measured time of that
    whole stage where the problem carries one.
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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from solvers.errors import MappingError
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Goal, Problem

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StageEvaluation:
    """Predicted quantities of one stage."""

    compute_ns: int
    receive_ns: int
    busy_ns: int
    memory_bytes: int
    send_ns: int = 0


@dataclass(frozen=True, slots=True)
class LaneEvaluation:
    """Predicted quantities of one lane; ``bottleneck`` is the index of the stage that sets the period."""

    stages: tuple[StageEvaluation, ...]
    period_ns: int
    latency_ns: int
    bottleneck: int

    @property
    def throughput_hz(self) -> float:
        """Frames per second of the lane."""
        return 1e9 / self.period_ns if self.period_ns else float("inf")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken constraint: name, what it demands, what the limit is, and the unit."""

    constraint: str
    demand: float
    limit: float
    unit: str
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predicted quantities of a mapping.

    ``memory_bytes`` and ``cores_used`` are per cluster.  ``energy_nj`` is per frame, None where
    no power is known.
    """

    lanes: tuple[LaneEvaluation, ...]
    memory_bytes: tuple[int, ...]
    cores_used: tuple[int, ...]
    energy_nj: int | None
    violations: tuple[Violation, ...]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds."""
        return not self.violations

    @property
    def throughput_hz(self) -> float:
        """Frames per second: sum over lanes."""
        return sum(lane.throughput_hz for lane in self.lanes)

    @property
    def frames_per_ns(self) -> Fraction:
        """Exact throughput over the lanes that have a period above zero."""
        return sum((Fraction(1, lane.period_ns) for lane in self.lanes if lane.period_ns), Fraction(0))

    @property
    def latency_ns(self) -> int:
        """Of the worst lane."""
        return max(lane.latency_ns for lane in self.lanes)

    @property
    def mean_latency_ns(self) -> float:
        """Weighted by the rates of the lanes."""
        return float(sum(w * lane.latency_ns for w, lane in zip(_shares(self.lanes), self.lanes)))

    @property
    def n_stages(self) -> int:
        """Stages of all lanes."""
        return sum(len(lane.stages) for lane in self.lanes)

    @property
    def n_cores(self) -> int:
        """Cores of all clusters."""
        return sum(self.cores_used)


ScoreKey = tuple[int, Fraction, Fraction, int, int, int]


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


def stage_compute_ns(problem: Problem, layers: Sequence[int], slot: int) -> int:
    """Return compute(s): the measured whole stage where there is one, else costs plus overhead."""
    measured = problem.measured_ns.get((frozenset(layers), slot))
    if measured is not None:
        return measured
    return int(sum(int(problem.cost_ns[layer, slot]) for layer in layers) + problem.overhead[slot])


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


def evaluate(problem: Problem, mapping: Mapping) -> Evaluation:
    """Score a mapping and list every constraint that it breaks.

    Parameters
    ----------
    problem, mapping
        The mapping may be infeasible; quantities are then what the formulas give.

    Returns
    -------
    Evaluation

    Raises
    ------
    MappingError
        The mapping has no lane, an empty lane or stage, or names a layer or slot that is not there.
    """
    _check_structure(problem, mapping)
    lanes = tuple(_evaluate_lane(problem, lane) for lane in mapping.lanes)
    memory = [0] * len(problem.cluster_sizes)
    for lane, scored in zip(mapping.lanes, lanes):
        for stage, numbers in zip(lane.stages, scored.stages):
            memory[problem.slots[stage.slot].cluster] += numbers.memory_bytes
    energy = _energy_pj(problem, mapping, lanes)
    rounded = None if energy is None else round(energy / 1000)
    evaluation = Evaluation(lanes, tuple(memory), _cores_used(problem, mapping), rounded, ())
    violations = tuple(_violations(problem, mapping, evaluation, energy))
    if not violations:
        return evaluation
    return Evaluation(lanes, evaluation.memory_bytes, evaluation.cores_used, evaluation.energy_nj, violations)


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


def _home(lane: Lane) -> dict[int, int]:
    """Stage number by layer (the last one for a layer that is in several)."""
    return {layer: number for number, stage in enumerate(lane.stages) for layer in stage.layers}


def _evaluate_lane(problem: Problem, lane: Lane) -> LaneEvaluation:
    home = _home(lane)
    stages = []
    by_unit: dict[int, int] = {}
    unit_done: dict[int, int] = {}
    finish: list[int] = []
    received: set[tuple[int, int]] = set()
    for stage in lane.stages:
        target = problem.slots[stage.slot].cluster
        receive = 0
        ready = unit_done.get(stage.unit, 0)
        for number in live_in(problem, stage.layers):
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
        compute = stage_compute_ns(problem, stage.layers, stage.slot)
        send = sum(
            problem.send_ns(target, problem.flows[n].n_bytes) for n in _sent(problem, lane, home, stage)
        )
        moving = receive + send
        busy = max(compute, moving) if problem.overlap else compute + moving
        by_unit[stage.unit] = by_unit.get(stage.unit, 0) + busy
        finish.append(ready + busy)
        unit_done[stage.unit] = ready + busy
        memory = stage_memory_bytes(problem, stage.layers)
        stages.append(StageEvaluation(compute, receive, busy, memory, send))
    period = max(by_unit.values())
    bottleneck = max(
        (n for n, s in enumerate(lane.stages) if by_unit[s.unit] == period),
        key=lambda n: (stages[n].busy_ns, -n),
    )
    return LaneEvaluation(tuple(stages), period, max(finish), bottleneck)


def _sent(problem: Problem, lane: Lane, home: dict[int, int], stage: Stage) -> tuple[int, ...]:
    """Flows that the stage pays to send."""
    leaving = live_out(problem, stage.layers)
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


def _shares(lanes: Sequence[LaneEvaluation]) -> list[Fraction]:
    """Share of the frames that each lane gets: in proportion to the rates."""
    instant = sum(1 for lane in lanes if not lane.period_ns)
    if instant:
        return [Fraction(0 if lane.period_ns else 1, instant) for lane in lanes]
    rates = [Fraction(1, lane.period_ns) for lane in lanes]
    total = sum(rates, Fraction(0))
    return [rate / total for rate in rates]


def _energy_pj(problem: Problem, mapping: Mapping, lanes: Sequence[LaneEvaluation]) -> Fraction | None:
    """Energy per frame in picojoules (mW times ns), exactly."""
    if problem.active_power_mw is None:
        return None
    energy = Fraction(0)
    for share, lane, scored in zip(_shares(lanes), mapping.lanes, lanes):
        for stage, numbers in zip(lane.stages, scored.stages):
            energy += share * numbers.busy_ns * problem.active_power_mw[stage.slot]
    if all(lane.period_ns for lane in lanes):
        energy += (problem.idle_power_mw or 0) / sum(
            (Fraction(1, lane.period_ns) for lane in lanes), Fraction(0)
        )
    return energy


def _violations(
    problem: Problem, mapping: Mapping, evaluation: Evaluation, energy_pj: Fraction | None
) -> Iterator[Violation]:
    for number, lane in enumerate(mapping.lanes):
        yield from _lane_violations(problem, lane, f"lane {number}")
    yield from _unit_violations(problem, mapping)
    yield from _limit_violations(problem, evaluation)
    yield from _power_violations(problem, evaluation, energy_pj)


def _lane_violations(problem: Problem, lane: Lane, where: str) -> Iterator[Violation]:
    times_placed = [0] * problem.n_layers
    for stage in lane.stages:
        for layer in stage.layers:
            times_placed[layer] += 1
            if not problem.supported[layer, stage.slot]:
                yield Violation(
                    "unsupported", 1, 0, "layers", f"{where}: slot {stage.slot} can not run layer {layer}"
                )
    for layer, times in enumerate(times_placed):
        if times != 1:
            yield Violation("coverage", times, 1, "stages", f"{where}: layer {layer} is in {times} stages")
    home = _home(lane)
    backward = [(a, b) for a, b in problem.edges if a in home and b in home and home[a] > home[b] and a != b]
    if backward:
        a, b = backward[0]
        yield Violation(
            "stage order",
            len(backward),
            0,
            "edges",
            f"{where}: layer {b} needs layer {a}, which sits in a later stage (stages must be convex "
            "and listed in topological order)",
        )
    for group in problem.groups:
        n_homes = len({home.get(layer) for layer in group})
        if n_homes > 1:
            yield Violation("group", n_homes, 1, "stages", f"{where}: layers {group} share state")
    for together in problem.colocated:
        units = {lane.stages[home[layer]].unit for layer in together if layer in home}
        if len(units) > 1:
            yield Violation("colocated", len(units), 1, "units", f"{where}: layers {together}")
    yield from _pin_violations(problem, lane, home, where)
    if problem.max_stages is not None and len(lane.stages) > problem.max_stages:
        yield Violation("max_stages", len(lane.stages), problem.max_stages, "stages", where)


def _pin_violations(problem: Problem, lane: Lane, home: dict[int, int], where: str) -> Iterator[Violation]:
    owner: dict[int, int] = {}  # unit -> pin
    for number, pin in enumerate(problem.pins):
        homes = {home[layer] for layer in pin.layers if layer in home}
        if len(homes) > 1:
            yield Violation(
                "pin",
                len(homes),
                1,
                "stages",
                f"{where}: pin {number} splits over {len(homes)} stages",
            )
        for stage in (lane.stages[n] for n in sorted(homes)):
            if stage.slot not in pin.slots:
                yield Violation(
                    "pin", 1, 0, "stages", f"{where}: pin {number} does not allow slot {stage.slot}"
                )
            if owner.setdefault(stage.unit, number) != number:
                yield Violation(
                    "pin",
                    2,
                    1,
                    "pins",
                    f"{where}: pins {owner[stage.unit]} and {number} share the cores of unit {stage.unit}",
                )


def _unit_violations(problem: Problem, mapping: Mapping) -> Iterator[Violation]:
    seen: dict[int, tuple[int, Stage]] = {}
    for number, lane in enumerate(mapping.lanes):
        for stage in lane.stages:
            first_lane, first = seen.setdefault(stage.unit, (number, stage))
            if first.slot != stage.slot:
                yield Violation(
                    "unit", 2, 1, "slots", f"unit {stage.unit} is used as slot {first.slot} and {stage.slot}"
                )
            if first_lane != number:
                yield Violation(
                    "unit", 2, 1, "lanes", f"lanes {first_lane} and {number} share unit {stage.unit}"
                )


def _limit_violations(problem: Problem, evaluation: Evaluation) -> Iterator[Violation]:
    for cluster, (used, size) in enumerate(zip(evaluation.cores_used, problem.cluster_sizes)):
        if used > size:
            yield Violation("cores", used, size, "cores", f"cluster {cluster}")
    n_lanes = len(evaluation.lanes)
    if problem.stateful and n_lanes > problem.n_streams:
        yield Violation("streams", n_lanes, problem.n_streams, "lanes", "state between frames")
    if problem.max_lanes is not None and n_lanes > problem.max_lanes:
        yield Violation("max_lanes", n_lanes, problem.max_lanes, "lanes", "")
    if problem.memory_limits_bytes is not None:
        for cluster, (used, limit) in enumerate(zip(evaluation.memory_bytes, problem.memory_limits_bytes)):
            if limit is not None and used > limit:
                yield Violation("memory", used, limit, "bytes", f"cluster {cluster}")
    total = sum(evaluation.memory_bytes)
    if problem.total_memory_limit_bytes is not None and total > problem.total_memory_limit_bytes:
        yield Violation("total memory", total, problem.total_memory_limit_bytes, "bytes", "all clusters")
    latency = problem.objective.max_latency_ns
    if latency is not None and evaluation.latency_ns > latency:
        yield Violation("latency", evaluation.latency_ns, latency, "ns", "worst lane")
    floor = problem.objective.min_throughput_hz
    instant = any(not lane.period_ns for lane in evaluation.lanes)
    if floor is not None and not instant and evaluation.frames_per_ns * NS_PER_S < Fraction(floor):
        yield Violation("throughput", evaluation.throughput_hz, floor, "frames/s", "floor not reached")


def _power_violations(
    problem: Problem, evaluation: Evaluation, energy_pj: Fraction | None
) -> Iterator[Violation]:
    """Mean power is energy per frame times frames per time."""
    if problem.max_power_mw is None or energy_pj is None:
        return
    if all(lane.period_ns for lane in evaluation.lanes):
        power = energy_pj * evaluation.frames_per_ns
        if power > problem.max_power_mw:
            yield Violation("power", float(power), problem.max_power_mw, "mW", "mean over all clusters")
