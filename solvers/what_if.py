"""What an optimum would gain: cheaper layers, more cores, more memory, each searched again.

Shows which layer or resource holds the answer back, and what a change there is worth.  A cheaper
layer may move stages and lanes, so every question is a search of its own; most searches are spared:

- The throughput bound of the changed problem says what no mapping exceeds.  Where the mapping at
  hand reaches it (bound and mapping agree: often that nothing is gained at all), that is the answer.
- A change that gains nothing when it is largest gains nothing when it is smaller, and the mapping
  that is best for the largest change is a good one for the smaller changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from solvers.errors import CapError, InfeasibleError, ProblemError
from solvers.evaluate import Evaluation, evaluate
from solvers.limits import Limits
from solvers.mapping import Mapping, Solution
from solvers.problem import Goal, IntArray, Problem, StageTime
from solvers.registry import solve
from solvers.under_load import rate_bound_hz

SAME = 1e-9
"""Relative differences below count as none."""

Ratio = float
WhatIfProgress = Callable[[int, int], None]


class Known(Enum):
    """How a gain is known."""

    PROVED = "proved"
    """No mapping of the changed problem is better: the bound says so."""
    SEARCHED = "searched"
    """What the solver finds."""
    LEFT_OUT = "left out"
    """Time ran out: the gain is that of known mappings only."""


class Resource(Enum):
    """What there could be more of."""

    CORE = "core"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Step:
    """One change and what it is worth.

    Parameters
    ----------
    change
        Layers: share of the cost taken away.  Cores: how many more.  Memory: the limit times this;
        ``inf`` is no limit.
    gain
        Of the goal with the best mapping found: 0.1 is 10 % more frames per second (for latency and
        energy: 10 % more frames per time or energy of one).
    same_mapping
        Gain if the mapping stays as it is.
    at_most
        No mapping gains more, or None where no bound is known.
    known
        How.
    mapping
        The mapping that gains it.
    """

    change: float
    gain: Ratio
    same_mapping: Ratio
    at_most: Ratio | None
    known: Known
    mapping: Mapping


@dataclass(frozen=True, slots=True)
class LayerGain:
    """A layer, the slots that the optimum runs it on (there it gets cheaper), smallest change first."""

    layer: int
    slots: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def gain(self) -> Ratio:
        """Of the largest change."""
        return self.steps[-1].gain


@dataclass(frozen=True, slots=True)
class ResourceGain:
    """More of a resource of a cluster (None: of all clusters together), smallest change first."""

    resource: Resource
    cluster: int | None
    steps: tuple[Step, ...]

    @property
    def gain(self) -> Ratio:
        """Of the largest change."""
        return self.steps[-1].gain


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Gains over ``base``, largest first; ``complete`` says that nothing was left out.

    ``interrupted``: Ctrl-C ended the searches.
    """

    base: Solution
    layers: tuple[LayerGain, ...]
    resources: tuple[ResourceGain, ...]
    complete: bool
    n_searches: int
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked.

    Parameters
    ----------
    reductions
        Shares by which a layer gets cheaper.
    memory_factors
        By which a memory limit is multiplied.
    layers
        Which, or None for all.
    resources
        Whether to ask for cores and memory.
    """

    reductions: tuple[float, ...] = (0.1, 0.5, 1.0)
    memory_factors: tuple[float, ...] = (1.1, 1.5, float("inf"))
    layers: tuple[int, ...] | None = None
    resources: bool = True

    def __post_init__(self) -> None:
        if not self.reductions or any(not 0 < share <= 1 for share in self.reductions):
            raise ProblemError(f"reductions are {self.reductions}, expected shares above 0 and up to 1")
        if not self.memory_factors or any(not factor > 1 for factor in self.memory_factors):
            raise ProblemError(f"memory factors are {self.memory_factors}, expected factors above 1")


@dataclass(frozen=True, slots=True)
class _Change:
    size: float
    problem: Problem


@dataclass(frozen=True, slots=True)
class _Topic:
    """One layer or resource with its changes, smallest first, and what the bound allows."""

    layer: int | None
    slots: tuple[int, ...]
    resource: Resource | None
    cluster: int | None
    changes: tuple[_Change, ...]
    at_most: Ratio | None
    promise: float


def what_if(
    problem: Problem,
    solver: str = "lanes",
    limits: Limits | None = None,
    questions: Questions | None = None,
    base: Solution | None = None,
    progress: WhatIfProgress | None = None,
) -> WhatIf:
    """Ask what the optimum would gain from each change.

    Parameters
    ----------
    problem
        What is mapped.
    solver
        Name in the registry, for every search.
    limits
        ``time_s`` is for all searches together: those that promise most come first, and what is
        not reached is marked.  Without that, the same seed gives the same answer.
    questions
        Defaults to ``Questions()``.
    base
        The optimum, if it is known already.
    progress
        Called with (topics done, topics in all).

    Raises
    ------
    InfeasibleError
        The problem has no mapping to start from (proved, or none found).
    ProblemError
        A layer that is asked for does not exist.
    """
    limits, questions = limits or Limits(), questions or Questions()
    asked = tuple(range(problem.n_layers)) if questions.layers is None else questions.layers
    if any(not 0 <= layer < problem.n_layers for layer in asked):
        raise ProblemError(f"layers {asked} are asked for, there are {problem.n_layers}")
    base = base or solve(problem, solver, limits)
    if base.mapping is None or base.evaluation is None:
        raise InfeasibleError(f"no mapping to start from: {base.reason}")
    asker = _Asker(problem, solver, limits, base.mapping, base.evaluation)
    topics = [asker.layer_topic(layer, questions.reductions) for layer in sorted(set(asked))]
    if questions.resources:
        topics += [asker.topic(*found) for found in _resources(problem, questions.memory_factors)]
    topics.sort(key=lambda topic: (topic.resource is None, -topic.promise))
    layers: list[LayerGain] = []
    resources: list[ResourceGain] = []
    for number, topic in enumerate(topics, 1):
        try:
            steps = asker.steps(topic)
        except KeyboardInterrupt:
            asker.end()
            steps = asker.steps(topic)
        if topic.layer is not None:
            layers.append(LayerGain(topic.layer, topic.slots, steps))
        elif topic.resource is not None:
            resources.append(ResourceGain(topic.resource, topic.cluster, steps))
        if progress is not None:
            progress(number, len(topics))
    return WhatIf(
        base,
        tuple(
            sorted(layers, key=lambda found: (*(-step.gain for step in reversed(found.steps)), found.layer))
        ),
        tuple(sorted(resources, key=lambda found: -found.gain)),
        not asker.cut_short,
        asker.n_searches,
        asker.interrupted,
    )


class _Asker:
    """Answers one change after the other, within the time."""

    def __init__(
        self, problem: Problem, solver: str, limits: Limits, mapping: Mapping, evaluation: Evaluation
    ) -> None:
        self._problem = problem
        self._solver = solver
        self._limits = limits
        self._mapping = mapping
        self._merit = _merit(problem, evaluation)
        self._deadline = time.monotonic() + limits.time_s
        self.n_searches = 0
        self.cut_short = False
        self.interrupted = False

    def end(self) -> None:
        """Search no more: the user wants to see what there is."""
        self.interrupted = True
        self._deadline = time.monotonic()

    def layer_topic(self, layer: int, reductions: Sequence[float]) -> _Topic:
        """Make a layer cheaper where the optimum runs it."""
        stages = [stage for lane in self._mapping.lanes for stage in lane.stages]
        slots = tuple(sorted({stage.slot for stage in stages if layer in stage.layers}))
        changes = [
            _Change(share, cheaper(self._problem, layer, slots, share)) for share in sorted(set(reductions))
        ]
        return self._promising(layer, slots, None, None, changes)

    def topic(self, resource: Resource, cluster: int | None, changes: Sequence[_Change]) -> _Topic:
        """Have more of a resource."""
        return self._promising(None, (), resource, cluster, changes)

    def _promising(
        self,
        layer: int | None,
        slots: tuple[int, ...],
        resource: Resource | None,
        cluster: int | None,
        changes: Sequence[_Change],
    ) -> _Topic:
        largest = changes[-1].problem
        at_most = self._at_most(largest)
        promise = self._gain_of(largest, self._mapping) if at_most is None else at_most
        return _Topic(layer, slots, resource, cluster, tuple(changes), at_most, promise)

    def steps(self, topic: _Topic) -> tuple[Step, ...]:
        """Answer a topic, largest change first."""
        found: list[Step] = []
        known = [self._mapping]
        for change in reversed(topic.changes):
            if found and found[-1].gain <= SAME and found[-1].known is not Known.LEFT_OUT:
                # Less does not gain more.
                found.append(
                    replace(found[-1], change=change.size, gain=0.0, same_mapping=0.0, mapping=self._mapping)
                )
                continue
            at_most = topic.at_most  # holds for smaller changes too, and costs nothing when time is short
            if found and time.monotonic() < self._deadline:
                at_most = self._at_most(change.problem)
            step = self._step(change, known, at_most)
            known.append(step.mapping)
            found.append(step)
        return tuple(reversed(found))

    def _step(self, change: _Change, known: Sequence[Mapping], at_most: Ratio | None) -> Step:
        same = self._gain_of(change.problem, self._mapping)
        gain, mapping = max(
            ((self._gain_of(change.problem, mapping), mapping) for mapping in known), key=lambda pair: pair[0]
        )
        how = Known.PROVED
        if at_most is None or (1 + gain) * (1 + SAME) < 1 + at_most:
            how = Known.SEARCHED
            if time.monotonic() >= self._deadline:
                how, self.cut_short = Known.LEFT_OUT, True
            else:
                better = self._search(change.problem)
                if better is not None and self._gain_of(change.problem, better) > gain:
                    gain, mapping = self._gain_of(change.problem, better), better
        return Step(change.size, gain, same, at_most, how, mapping)

    def _search(self, problem: Problem) -> Mapping | None:
        self.n_searches += 1
        left = max(0.1, self._deadline - time.monotonic())
        try:
            found = solve(problem, self._solver, replace(self._limits, time_s=left, progress=None))
        except CapError:
            return None
        if found.interrupted:
            self.end()
        return found.mapping

    def _gain_of(self, problem: Problem, mapping: Mapping) -> Ratio:
        evaluation = evaluate(problem, mapping)
        if not evaluation.feasible:  # a faster mapping may draw more power: then it waits
            return 0.0
        merit = _merit(problem, evaluation)
        return _ratio(merit, self._merit)

    def _at_most(self, problem: Problem) -> Ratio | None:
        if problem.objective.goal is not Goal.THROUGHPUT:
            return None
        if self._merit is None:
            return 0.0
        return max(0.0, rate_bound_hz(problem) / (float(self._merit) * 1e9) - 1)


def _ratio(new: Fraction | None, old: Fraction | None) -> Ratio:
    if old is None:
        return 0.0
    return float("inf") if new is None else max(0.0, float(new / old - 1))


def _merit(problem: Problem, evaluation: Evaluation) -> Fraction | None:
    """Frames per unit of what counts, exactly; None where frames cost nothing."""
    goal = problem.objective.goal
    if goal is Goal.THROUGHPUT:
        instant = any(not lane.period_ns for lane in evaluation.lanes)
        return None if instant else evaluation.frames_per_ns
    cost = evaluation.latency_ns if goal is Goal.LATENCY else evaluation.energy_nj
    return Fraction(1, cost) if cost else None


def cheaper(problem: Problem, layer: int, slots: Sequence[int], share: float) -> Problem:
    """Take a share of a layer's cost away on some slots; measured stages that hold it get as much less.

    Parameters
    ----------
    layer, slots
        Where.
    share
        From 0 to 1.
    """
    cost = _less(problem.cost_ns, layer, slots, share)
    loaded = None if problem.loaded_cost_ns is None else _less(problem.loaded_cost_ns, layer, slots, share)
    saved = problem.cost_ns[layer] - cost[layer]
    saved_busy = saved if loaded is None else problem.under_load.cost_ns[layer] - loaded[layer]

    def less_ns(stage: StageTime) -> int:
        return int((saved if stage.loaded is False else saved_busy)[stage.slot])

    times = tuple(
        replace(stage, compute_ns=max(0, stage.compute_ns - less_ns(stage)))
        if layer in stage.layers
        else stage
        for stage in problem.stage_times
    )
    return replace(problem, cost_ns=cost, loaded_cost_ns=loaded, stage_times=times)


def _less(cost: IntArray, layer: int, slots: Sequence[int], share: float) -> IntArray:
    less = cost.copy()
    less[layer, list(slots)] -= (cost[layer, list(slots)] * share).round().astype(cost.dtype)
    return less


def _resources(
    problem: Problem, factors: Sequence[float]
) -> Iterator[tuple[Resource, int | None, list[_Change]]]:
    used = {cluster for row in problem.cores for cluster, count in enumerate(row) if count}
    for cluster in sorted(used):
        sizes = list(problem.cluster_sizes)
        sizes[cluster] += 1
        yield Resource.CORE, cluster, [_Change(1, replace(problem, cluster_sizes=tuple(sizes)))]
    ordered = sorted(set(factors))
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            changes = []
            for factor in ordered:
                limits = list(problem.memory_limits_bytes or ())
                limits[cluster] = _times(limit, factor)
                changes.append(_Change(factor, replace(problem, memory_limits_bytes=tuple(limits))))
            yield Resource.MEMORY, cluster, changes
    total = problem.total_memory_limit_bytes
    if total is not None:
        yield (
            Resource.MEMORY,
            None,
            [
                _Change(factor, replace(problem, total_memory_limit_bytes=_times(total, factor)))
                for factor in ordered
            ],
        )


def _times(limit: int, factor: float) -> int | None:
    return None if factor == float("inf") else int(limit * factor)
