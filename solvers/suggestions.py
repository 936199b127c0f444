"""The mappings of a problem as a handful of named choices, for searches that guess.

Choices (all of them always mean something):

``types``
    How many different lanes.
``laneN.order``
    Which topological order the lane is cut along.
``laneN.copies``
    How many copies of this lane.
``laneN.stages``, ``laneN.cutM``
    How many stages, and after which share of the blocks each but the last ends.
``laneN.slotM``, ``laneN.againM``
    Slot of a stage, and whether it takes turns on a unit that the lane already has.

What does not fit is repaired: stages that no slot can run are split, slots that are not allowed or
have no cores left give way to the next one, stages without cores take turns, lanes that break a
limit are left out, and what is beyond repair becomes a mapping that is known to be feasible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate, score_key
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.mix import solve_lanes
from solvers.problem import BoolArray, Problem
from solvers.topology import Blocks, contract, orders
from solvers.whole_models import whole_models

MOST_TYPES = 4
MOST_STAGES = 8
N_ORDERS = 16

Choices = dict[str, int | float]


class Chooser(Protocol):
    """Where choices come from: a sampler, or a table."""

    def integer(self, name: str, low: int, high: int) -> int:
        """Choose from ``low`` to ``high``, neighbours being alike."""

    def category(self, name: str, n: int) -> int:
        """Choose from 0 to ``n - 1``, without any order."""

    def share(self, name: str) -> float:
        """Choose from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A feasible mapping, and whether it is what was chosen or had to be repaired."""

    mapping: Mapping
    repaired: bool


@dataclass(slots=True)
class _Unit:
    number: int
    slot: int
    pin: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A lane as chosen."""

    order: tuple[int, ...]
    copies: int
    cuts: tuple[int, ...]
    slots: tuple[int, ...]
    again: tuple[bool, ...]


class MappingSpace:
    """All lanes of stages that are contiguous in one of several orders, units shared or not.

    Parameters
    ----------
    problem
        What is mapped.
    limits
        Seed of the orders, and time for a mapping to fall back to.

    Raises
    ------
    InfeasibleError
        No mapping at all, or none was found to fall back to; says which.
    """

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem = problem
        self.blocks: Blocks = contract(problem)
        # The orders belong to the space, not to one search of it: stored choices keep their meaning.
        self.orders = tuple(orders(self.blocks, N_ORDERS, 0))
        self.fallback = _known_mapping(problem, limits)
        n_cores = sum(problem.cluster_sizes)
        limit = problem.lane_limit
        self.most_lanes = n_cores if limit is None else min(n_cores, limit)
        self.most_types = min(MOST_TYPES, self.most_lanes)
        caps = [MOST_STAGES, self.blocks.n_blocks]
        if problem.max_stages is not None:
            caps.append(problem.max_stages)
        self.most_stages = min(caps)

    def suggest(self, chooser: Chooser) -> Suggestion:
        """Ask for all choices and return the mapping that they (nearly) mean."""
        n_types = chooser.integer("types", 1, self.most_types)
        return self._repaired([self._plan(chooser, f"lane{number}") for number in range(n_types)])

    def _plan(self, chooser: Chooser, name: str) -> _Plan:
        n_blocks = self.blocks.n_blocks
        order = chooser.integer(f"{name}.order", 0, len(self.orders) - 1) if len(self.orders) > 1 else 0
        copies = chooser.integer(f"{name}.copies", 1, self.most_lanes) if self.most_lanes > 1 else 1
        n_stages = chooser.integer(f"{name}.stages", 1, self.most_stages) if self.most_stages > 1 else 1
        cuts = sorted(round(chooser.share(f"{name}.cut{n}") * n_blocks) for n in range(n_stages - 1))
        slots = [chooser.category(f"{name}.slot{n}", len(self.problem.slots)) for n in range(n_stages)]
        again = [False, *(bool(chooser.category(f"{name}.again{n}", 2)) for n in range(1, n_stages))]
        return _Plan(self.orders[order], copies, tuple(cuts), tuple(slots), tuple(again))

    def choices(self, mapping: Mapping) -> Choices:
        """Return choices that mean a mapping, as nearly as the space has it."""
        found: Choices = {}
        patterns = Counter(_pattern(lane) for lane in mapping.lanes).most_common(self.most_types)
        found["types"] = len(patterns)
        n_blocks = self.blocks.n_blocks
        for number, (stages, copies) in enumerate(patterns):
            name = f"lane{number}"
            parts = [{self.blocks.of_layer[layer] for layer in stage.layers} for stage in stages]
            place, cuts = self._cuts(parts)
            shown = min(len(stages), self.most_stages)
            if len(self.orders) > 1:
                found[f"{name}.order"] = place
            if self.most_lanes > 1:
                found[f"{name}.copies"] = min(copies, self.most_lanes)
            if self.most_stages > 1:
                found[f"{name}.stages"] = shown
            seen: set[int] = set()
            for stage_number, stage in enumerate(stages[:shown]):
                if stage_number < shown - 1:
                    found[f"{name}.cut{stage_number}"] = cuts[stage_number] / n_blocks
                found[f"{name}.slot{stage_number}"] = stage.slot
                if stage_number:
                    found[f"{name}.again{stage_number}"] = int(stage.unit in seen)
                seen.add(stage.unit)
        return found

    def _cuts(self, parts: Sequence[set[int]]) -> tuple[int, tuple[int, ...]]:
        """Find the order along which the parts lie one after the other; the first one if none."""
        ends = tuple(np.cumsum([len(part) for part in parts]).tolist())
        starts = (0, *ends[:-1])
        for place, order in enumerate(self.orders):
            if all(set(order[a:b]) == part for a, b, part in zip(starts, ends, parts)):
                return place, ends
        return 0, ends

    def _repaired(self, plans: Sequence[_Plan]) -> Suggestion:
        left = np.array(self.problem.cluster_sizes)
        lanes: list[Lane] = []
        exact = True
        n_units = 0
        for plan in plans:
            for _ in range(plan.copies):
                if len(lanes) == self.most_lanes:
                    exact = False
                    break
                built = self._lane(plan, left, n_units)
                if built is None:
                    exact = False
                    break
                stages, as_chosen = built
                units = {stage.unit: stage.slot for stage in stages}
                for slot in units.values():
                    left = left - self.problem.cores[slot]
                n_units += len(units)
                lanes.append(Lane(stages))
                exact &= as_chosen
        while lanes:
            mapping = Mapping(tuple(lanes))
            if evaluate(self.problem, mapping).feasible:
                return Suggestion(mapping, not exact)
            lanes.pop()
            exact = False
        return Suggestion(self.fallback, True)

    def _lane(self, plan: _Plan, left: np.ndarray, first_unit: int) -> tuple[tuple[Stage, ...], bool] | None:
        """Build one lane on the cores that are left; with fewer cuts where forced splits make too many."""
        limit = self.problem.max_stages
        for n_cuts in range(len(plan.cuts), -1, -1):
            fewer = replace(plan, cuts=plan.cuts[:n_cuts])
            built = self._stages(fewer, left, first_unit)
            if built is not None and (limit is None or len(built[0]) <= limit):
                return built[0], built[1] and n_cuts == len(plan.cuts)
        return None

    def _stages(
        self, plan: _Plan, left: np.ndarray, first_unit: int
    ) -> tuple[tuple[Stage, ...], bool] | None:
        left = left.copy()
        units: list[_Unit] = []
        stages: list[Stage] = []
        exact = True
        edges = (0, *plan.cuts, self.blocks.n_blocks)
        for (start, end), slot, again in zip(pairwise(edges), plan.slots, plan.again):
            if start == end:  # nothing between two cuts: no stage
                exact = False
                continue
            pieces = self._pieces(plan.order[start:end])
            exact &= len(pieces) == 1
            for members, allowed, pin in pieces:
                unit = self._unit(allowed, pin, slot, again, units, left, first_unit)
                if unit is None:
                    return None
                exact &= unit.slot == slot
                unit.pin = pin if unit.pin is None else unit.pin
                layers = sorted(layer for block in members for layer in self.blocks.members[block])
                stages.append(Stage(tuple(layers), unit.slot, unit.number))
        return tuple(stages), exact

    def _pieces(self, order: Sequence[int]) -> list[tuple[list[int], BoolArray, int | None]]:
        """Split blocks where no slot can run all of them, and between pins."""
        pieces: list[tuple[list[int], BoolArray, int | None]] = []
        for block in order:
            pin = self.blocks.pin[block]
            if pieces:
                members, allowed, own = pieces[-1]
                both = allowed & self.blocks.allowed[block]
                if both.any() and (pin is None or own is None or pin == own):
                    pieces[-1] = ([*members, block], both, pin if own is None else own)
                    continue
            pieces.append(([block], self.blocks.allowed[block], pin))
        return pieces

    def _unit(
        self,
        allowed: BoolArray,
        pin: int | None,
        wanted: int,
        again: bool,
        units: list[_Unit],
        left: np.ndarray,
        first_unit: int,
    ) -> _Unit | None:
        """Find cores for a stage: the wanted slot first, then the ones after it, then a turn elsewhere."""
        n_slots = len(self.problem.slots)
        slots = [slot for slot in ((wanted + n) % n_slots for n in range(n_slots)) if allowed[slot]]
        open_units = [unit for unit in units if unit.pin is None or pin is None or unit.pin == pin]
        if again:
            for unit in open_units:
                if unit.slot == slots[0]:
                    return unit
        for slot in slots:
            if (self.problem.cores[slot] <= left).all():
                left -= self.problem.cores[slot]
                units.append(_Unit(first_unit + len(units), slot, pin))
                return units[-1]
        for slot in slots:
            for unit in open_units:
                if unit.slot == slot:
                    return unit
        return None


def _pattern(lane: Lane) -> tuple[Stage, ...]:
    """Return the stages with units numbered from 0, so that copies are equal."""
    units: dict[int, int] = {}
    return tuple(
        Stage(stage.layers, stage.slot, units.setdefault(stage.unit, len(units))) for stage in lane.stages
    )


def canonical(mapping: Mapping) -> Mapping:
    """Return a mapping with its lanes sorted and its units numbered in order: equal for equal plans."""
    patterns = sorted(
        (_pattern(lane) for lane in mapping.lanes),
        key=lambda stages: [(stage.layers, stage.slot, stage.unit) for stage in stages],
    )
    lanes = []
    offset = 0
    for stages in patterns:
        lanes.append(Lane(tuple(Stage(s.layers, s.slot, s.unit + offset) for s in stages)))
        offset += 1 + max(stage.unit for stage in stages)
    return Mapping(tuple(lanes))


def _known_mapping(problem: Problem, limits: Limits) -> Mapping:
    """Return the best feasible whole model on one slot, or else what the exact search finds."""
    whole = [mapping for _, mapping in whole_models(problem)]
    scored = [(evaluate(problem, mapping), mapping) for mapping in whole]
    feasible = [(score_key(problem, found), n) for n, (found, _) in enumerate(scored) if found.feasible]
    if feasible:
        return scored[min(feasible)[1]][1]
    solution = solve_lanes(problem, limits)
    if solution.mapping is None:
        raise InfeasibleError(f"no mapping to start from was found: {solution.reason}")
    return solution.mapping


class Table:
    """A chooser that reads choices; what is not there is the lowest, values are kept within bounds."""

    def __init__(self, choices: MappingOf[str, int | float]) -> None:
        self._choices = choices

    def integer(self, name: str, low: int, high: int) -> int:
        """Read a whole number."""
        return min(high, max(low, int(self._choices.get(name, low))))

    def category(self, name: str, n: int) -> int:
        """Read a number below ``n``."""
        return self.integer(name, 0, n - 1)

    def share(self, name: str) -> float:
        """Read a share."""
        return min(1.0, max(0.0, float(self._choices.get(name, 0.0))))
