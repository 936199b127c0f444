"""Answers changes of a problem for ``solvers.what_if``, without a search as far as possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from solvers.changes import Change, Resource
from solvers.cheaper_layers import CheaperLayers
from solvers.errors import CapError, InfeasibleError, MappingError
from solvers.evaluate import Evaluation, KnownStages, evaluate
from solvers.gains import Known, Ratio, Step, beyond
from solvers.goal_bounds import energy_bound_nj, latency_bound_ns
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.problem import Goal, Problem
from solvers.quick_bounds import RateBounds
from solvers.rebalance import Rebalancer
from solvers.registry import solve
from solvers.topology import Blocks, contract
from solvers.under_load import one_unit_bound_hz, rate_bound_hz
from solvers.whole_models import whole_models

SAME = 1e-9
"""Relative differences below count as none."""
CLOSE = 1e-3
"""What may be left open without a search, relative to what is reached; more where ``Limits.gap`` is more."""
QUICK = {"lanes", "interval_dp"}
"""Solvers whose answers need no search."""

ALL_CONTIGUOUS = (Family.CONTIGUOUS, Family.ALL)
"""Families that hold every mapping of convex stages, one per set of cores."""


@dataclass
class Topic:
    """One layer or resource with its changes, smallest first, and the answers to them."""

    changes: tuple[Callable[[], Change], ...]
    layer: int | None = None
    slots: tuple[int, ...] = ()
    resource: Resource | None = None
    cluster: int | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to search."""
        return all(step.known is not Known.LEFT_OUT for step in self.steps)

    @property
    def promise(self) -> Ratio:
        """How much the largest change may gain."""
        last = self.steps[-1]
        bounds = [bound for bound in (last.at_most, last.contiguous_at_most) if bound is not None]
        return min(bounds, default=last.gain)


class Asker:
    """Answers one change after the other, within the time."""

    def __init__(
        self, problem: Problem, solver: str, limits: Limits, mapping: Mapping, base: Solution
    ) -> None:
        self._problem = problem
        self._solver = solver
        self._limits = limits
        self._mapping = mapping
        self._stages: KnownStages = {}
        self._merit = _merit(problem, evaluate(problem, mapping, self._stages))
        self._deadline = time.monotonic() + limits.time_s
        self._known = [mapping]
        if problem.load_matters:  # one unit pays less than several
            self._known += [whole for _, whole in whole_models(problem)]
        self._is_optimal = base.status is Status.OPTIMAL and base.family in ALL_CONTIGUOUS
        self._base_bound_hz = base.bound_hz
        # Where units of the base hold several pieces, bounds on contiguous mappings say little.
        self._is_contiguous = mapping.n_units == mapping.n_stages
        self._close = max(CLOSE, limits.gap)
        self.n_searches = 0
        self.cut_short = False
        self.interrupted = False
        """Set it to search no more."""

    @property
    def _out_of_time(self) -> bool:
        if self._limits.stopped:
            self.interrupted = True
        return self.interrupted or time.monotonic() >= self._deadline

    def prepare(self) -> None:
        """Set up what answers many questions, if there is time."""
        try:
            if self._problem.objective.goal is Goal.THROUGHPUT and not self._out_of_time:
                _ = self._quick
        except KeyboardInterrupt:
            self.interrupted = True

    def look(self, topic: Topic) -> None:
        """Answer a topic as far as no search is needed."""
        try:
            topic.steps = self._steps(topic, self._looked_at)
        except KeyboardInterrupt:  # the user wants to see what there is
            self.interrupted = True
            topic.steps = self._steps(topic, self._looked_at)

    def search(self, topic: Topic) -> None:
        """Search what is left of a topic."""
        before = {step.change: step for step in topic.steps}

        def searched(topic: Topic, change: Change, known: list[Mapping]) -> Step:
            step = before[change.size]
            if step.known is not Known.LEFT_OUT:
                return step
            return self._searched(change, self._with_known(change, step, known))

        try:
            topic.steps = self._steps(topic, searched)
        except KeyboardInterrupt:
            self.interrupted = True
        self.cut_short |= not topic.settled

    def _steps(self, topic: Topic, answer: Callable[[Topic, Change, list[Mapping]], Step]) -> list[Step]:
        """Answer a topic, largest change first."""
        found: list[Step] = []
        known = list(self._known)
        for make in reversed(topic.changes):
            change = make()
            last = found[-1] if found else None
            if last is not None and last.gain <= SAME and last.known is not Known.LEFT_OUT:
                # Less does not gain more.
                step = replace(last, change=change.size, gain=0.0, same_mapping=0.0, mapping=self._mapping)
            else:
                step = answer(topic, change, known)
            known.append(step.mapping)
            found.append(step)
        return found[::-1]

    def _with_known(self, change: Change, step: Step, known: list[Mapping]) -> Step:
        """Return a step with the best of its own and some known mappings.

        A mapping that would have been better without the change is credited with the rest only: that a
        search comes upon it is not the worth of a layer.
        """
        for mapping in known:
            gain = self._gain_of(change.problem, mapping) if mapping != step.mapping else 0.0
            if gain > step.gain and mapping not in self._known:
                before = self._gain_of(self._problem, mapping)
                gain = (1 + gain) / (1 + before) - 1 if before > 0 and gain < float("inf") else gain
            if gain > step.gain:
                step = replace(step, gain=gain, mapping=mapping)
        return step

    def _looked_at(self, topic: Topic, change: Change, known: list[Mapping]) -> Step:
        """Answer a change without a search, or leave it out for now."""
        same = self._gain_of(change.problem, self._mapping)
        step = self._with_known(
            change, Step(change.size, same, same, None, Known.LEFT_OUT, self._mapping), known
        )
        if self._out_of_time:
            return step
        step = replace(step, at_most=self._at_most(topic, change, step.gain))
        if _reaches(step.gain, step.at_most):
            return replace(step, known=Known.PROVED)
        bound, all_contiguous, mapping = self._without_search(topic, change)
        step = self._with_known(change, step, [] if mapping is None else [mapping])
        all_contiguous &= self._is_contiguous and (bound is None or beyond(step.gain, bound) <= SAME)
        if not all_contiguous:
            step = self._evened(topic, change, step)
        if all_contiguous:
            step = replace(step, contiguous_at_most=bound)
        if _reaches(step.gain, step.at_most):
            return replace(step, known=Known.PROVED)
        if _reaches(step.gain, step.contiguous_at_most):
            return replace(step, known=Known.EXACT)
        close = [
            gap for gap in (step.gap, bound if bound is None else beyond(bound, step.gain)) if gap is not None
        ]
        return replace(step, known=Known.SEARCHED) if min(close, default=1.0) <= self._close else step

    def _without_search(self, topic: Topic, change: Change) -> tuple[Ratio | None, bool, Mapping | None]:
        """Return what the solver may find at most, whether all contiguous mappings count, and the best.

        What it may find may be worse than the base (below 0).
        """
        goal = self._problem.objective.goal
        if goal is Goal.LATENCY:
            return self._least_latency(topic, change), True, None
        quick = self._quick if goal is Goal.THROUGHPUT else None
        if quick is not None and topic.resource is Resource.CORE:
            quick = self._lanes_of(change.problem, quick.orders)
        if quick is None:
            return None, False, None
        found = (
            quick.unchanged
            if topic.layer is None or change.saved_ns is None
            else quick.with_cheaper(change.problem, topic.layer, change.saved_ns)
        )
        if found is None:
            return None, False, None
        blocks = self._blocks
        if topic.resource is Resource.CORE:  # may allow further slots
            blocks = contract(replace(change.problem, colocated=()))
        rate = max(found.rate_bound, one_unit_bound_hz(change.problem, blocks) / 1e9)
        if self._merit is None:
            return None, False, None
        return rate / float(self._merit) - 1, quick.every_plan, found.mapping

    def _evened(self, topic: Topic, change: Change, step: Step) -> Step:
        """Return a step with the best of its mapping and the base made even again."""
        if self._rebalancer is None or topic.layer is None or change.saved_ns is None:
            return step
        mapping = self._rebalancer.with_cheaper(topic.layer, change.saved_ns)
        return step if mapping is None else self._with_known(change, step, [mapping])

    def _least_latency(self, topic: Topic, change: Change) -> Ratio | None:
        """Return what the optimum gains at most if a lane saves all that the layer does."""
        objective, problem = self._problem.objective, self._problem
        limited = objective.min_throughput_hz is not None or problem.max_power_mw is not None
        saved = self._most_saved(topic, change)
        if not self._is_optimal or limited or saved is None or self._merit is None:
            return None
        return self._gain_of_cost(int(1 / self._merit) - saved)

    def _searched(self, change: Change, step: Step) -> Step:
        """Search a change, if there is time."""
        if self._out_of_time:
            return step
        self.n_searches += 1
        left = max(0.1, self._deadline - time.monotonic())
        try:
            found = solve(
                change.problem, self._solver, replace(self._limits, time_s=left, gap=0.0, progress=None)
            )
        except CapError:
            return replace(step, known=Known.SEARCHED)
        known = Known.SEARCHED
        if found.mapping is not None:
            step = self._with_known(change, step, [found.mapping])
            # The base may be better than all that is searched.
            worth = _merit(change.problem, evaluate(change.problem, found.mapping, self._stages))
            at_least = self._merit is None or worth is None or worth * (1 + Fraction(SAME)) >= self._merit
            reached = at_least and step.gain <= self._gain_of(change.problem, found.mapping)
            best = found.status is Status.OPTIMAL and reached
            if best and found.family in ALL_CONTIGUOUS and self._is_contiguous:
                known, step = Known.EXACT, replace(step, contiguous_at_most=step.gain)
            if best and found.family is Family.ALL:
                known = Known.PROVED
                step = replace(
                    step, at_most=step.gain if step.at_most is None else min(step.at_most, step.gain)
                )
        if _reaches(step.gain, step.at_most):
            known = Known.PROVED
        self.interrupted |= found.interrupted
        if known is Known.SEARCHED and self._out_of_time:
            known = Known.LEFT_OUT
        return replace(step, known=known)

    @cached_property
    def _blocks(self) -> Blocks:
        return contract(replace(self._problem, colocated=()))

    @cached_property
    def _bounds(self) -> RateBounds:
        return RateBounds(self._problem, self._blocks)

    @cached_property
    def _quick(self) -> CheaperLayers | None:
        quick = self._lanes_of(self._problem, None)
        if quick is None:
            return None
        best = quick.unchanged.mapping
        if best is not None and self._gain_of(self._problem, best) > 0:  # the base is not the optimum
            self._known.append(best)
            self._merit = _merit(self._problem, evaluate(self._problem, best, self._stages))
        return quick

    def _lanes_of(self, problem: Problem, orders: Sequence[tuple[int, ...]] | None) -> CheaperLayers | None:
        """Set up the tables of a problem; None with other solvers, or where they would be too large."""
        if self._solver not in QUICK:
            return None
        max_lanes = 1 if self._solver == "interval_dp" else problem.lane_limit
        try:
            return CheaperLayers(problem, self._mapping, max_lanes, self._limits, orders)
        except (CapError, InfeasibleError):
            return None

    @cached_property
    def _rebalancer(self) -> Rebalancer | None:
        if self._problem.objective.goal is not Goal.THROUGHPUT or self._solver not in QUICK:
            return None
        try:
            return Rebalancer(self._problem, self._mapping, self._limits)
        except MappingError:
            return None

    def _gain_of(self, problem: Problem, mapping: Mapping) -> Ratio:
        evaluation = evaluate(problem, mapping, self._stages)
        if not evaluation.feasible:  # a faster mapping may draw more power: then it waits
            return 0.0
        return _ratio(_merit(problem, evaluation), self._merit)

    def _at_most(self, topic: Topic, change: Change, gain: Ratio) -> Ratio | None:
        """Return what no mapping gains more than; as good as it takes to show that a gain is best."""
        if self._merit is None:
            return 0.0
        goal = self._problem.objective.goal
        if goal is Goal.THROUGHPUT:
            return self._gain_of_rate(self._rate_bound(topic, change))
        if topic.resource is Resource.CORE:  # may allow further slots
            return None
        blocks = replace(self._blocks, problem=change.problem)
        if goal is Goal.ENERGY:
            return self._gain_of_cost(energy_bound_nj(blocks, self._rate_bound(topic, change) * 1e9))
        saved = self._most_saved(topic, change)
        at_most = None if saved is None else self._gain_of_cost(self._least_latency_ns - saved)
        if _reaches(gain, at_most):
            return at_most
        fresh = self._gain_of_cost(latency_bound_ns(_without_floor(blocks), float("inf")))
        return fresh if at_most is None else min(at_most, fresh)

    @cached_property
    def _least_latency_ns(self) -> int:
        """Nanoseconds that a frame takes at least before the change, whether a floor is kept or not."""
        return latency_bound_ns(_without_floor(self._blocks), float("inf"))

    def _rate_bound(self, topic: Topic, change: Change) -> float:
        """Return frames per nanosecond that no mapping exceeds."""
        bound: float | None = None
        if topic.layer is not None and change.saved_ns is not None and change.alone_saved_ns is not None:
            bound = self._bounds.with_less(topic.layer, change.saved_ns, change.alone_saved_ns)
        rate = (rate_bound_hz(change.problem) if bound is None else bound) / 1e9
        saved = self._most_saved(topic, change)
        if self._problem.lane_limit == 1 and self._base_bound_hz and saved is not None:
            least = 1e9 / self._base_bound_hz - saved  # no unit saves more than the layer
            rate = min(rate, 1 / least) if least > 0 else rate
        return rate

    def _most_saved(self, topic: Topic, change: Change) -> int | None:
        """Nanoseconds that a lane saves at most; None where that is not known."""
        if topic.layer is None or change.saved_ns is None or change.alone_saved_ns is None:
            return None
        if self._problem.load_matters and any(
            topic.layer in stage.layers for stage in self._problem.stage_times
        ):
            return None  # what such a stage takes under load is told by a ratio of sums
        return max(int(change.saved_ns.max()), int(change.alone_saved_ns.max()))

    def _gain_of_cost(self, cost: int) -> Ratio:
        """Return the gain of a latency (ns), or an energy (nJ), of a frame."""
        return float("inf") if cost <= 0 else _ratio(Fraction(1, cost), self._merit)

    def _gain_of_rate(self, rate: float) -> Ratio:
        """Return the gain of some frames per nanosecond."""
        return 0.0 if self._merit is None else max(0.0, rate / float(self._merit) - 1)


def _without_floor(blocks: Blocks) -> Blocks:
    """Return the blocks without a floor on throughput: cheaper layers make it easier to keep."""
    problem = blocks.problem
    objective = replace(problem.objective, min_throughput_hz=None)
    return replace(blocks, problem=replace(problem, objective=objective))


def _reaches(gain: Ratio, bound: Ratio | None) -> bool:
    return bound is not None and not (1 + gain) * (1 + SAME) < 1 + bound


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
