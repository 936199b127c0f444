"""A known mapping made even again after one layer got cheaper: single layers move between its units.

For mappings whose units hold several pieces, and for workloads, no table says what the best ones become.
Moves out of the fullest unit (``solvers.rounding``) show how much of what is saved there others can use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.limits import Limits
from solvers.loads import Elements, Loads, elements, pieces
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import IntArray, Problem
from solvers.rounding import MOST_EVENED, even_out
from solvers.topology import contract


@dataclass(frozen=True)
class _Even:
    """A lane with the loads of its units; ``units`` are their names in the mapping."""

    lane: Lane
    units: tuple[int, ...]
    loads: Loads


class Rebalancer:
    """Lanes of a mapping, ready to be made even again.

    Parameters
    ----------
    problem, mapping
        Before the change.
    limits
        Whether to stop.
    """

    def __init__(self, problem: Problem, mapping: Mapping, limits: Limits) -> None:
        self._problem = problem.under_load
        self._limits = limits
        self._blocks = contract(replace(self._problem, colocated=()))
        parts = elements(self._problem)
        self._element = {layer: number for number, layers in enumerate(parts.members) for layer in layers}
        many = len(parts.members) > MOST_EVENED
        self._lanes = [] if many else [_even(parts, lane) for lane in mapping.lanes]

    def with_cheaper(self, layer: int, saved_ns: IntArray) -> Mapping | None:
        """Return the mapping after some moves; None when there are none that help.

        Parameters
        ----------
        saved_ns
            int64 (slots,): what the layer takes less.
        """
        element = self._element[layer]
        lanes = []
        moved = 0
        for even in self._lanes:
            saved = [int(saved_ns[slot]) for slot in even.loads.slots]
            loads = even.loads.with_cheaper(element, saved)
            n_moved = even_out(loads, self._limits)
            moved += n_moved
            lanes.append(self._lane(even, loads) if n_moved else even.lane)
        return Mapping(tuple(lanes)) if moved else None

    def _lane(self, even: _Even, loads: Loads) -> Lane:
        unit_of_layer = {layer: loads.unit_of[element] for layer, element in self._element.items()}
        lane = pieces(self._problem, unit_of_layer, loads.slots, self._blocks)
        return Lane(tuple(Stage(s.layers, s.slot, even.units[s.unit]) for s in lane.stages))


def _even(parts: Elements, lane: Lane) -> _Even:
    units = tuple(sorted({stage.unit for stage in lane.stages}))
    slot_of = {stage.unit: stage.slot for stage in lane.stages}
    unit_of_layer = {layer: units.index(s.unit) for s in lane.stages for layer in s.layers}
    assignment = [unit_of_layer[layers[0]] for layers in parts.members]
    return _Even(lane, units, Loads(parts, tuple(slot_of[unit] for unit in units), assignment))
