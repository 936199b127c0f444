"""What a run's measurements say of the costs of all layers: factors by slot and by receiving cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from dse.platforms import Slot, parse_slot
from solvers.problem import FloatArray, Problem

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Corrections:
    """Factors on costs; 1 for what is not named.

    Parameters
    ----------
    alone, under_load
        On the costs of all layers on a slot, while no other cores work and while they do.
    receiving
        On what it costs to receive on a cluster, by its name.
    """

    alone: Mapping[Slot, float] = field(default_factory=dict)
    under_load: Mapping[Slot, float] = field(default_factory=dict)
    receiving: Mapping[str, float] = field(default_factory=dict)

    def apply(self, problem: Problem, slots: Sequence[Slot], clusters: Sequence[str]) -> Problem:
        """Return a problem with these costs.

        Parameters
        ----------
        slots, clusters
            Of the problem, in its order.
        """
        into = np.array([self.receiving.get(name, 1.0) for name in clusters])
        loaded_ns = np.rint(problem.under_load.cost_ns * _row(self.under_load, slots)).astype(np.int64)
        alone_ns = np.rint(problem.cost_ns * _row(self.alone, slots)).astype(np.int64)
        return replace(
            problem,
            # Load makes nothing faster: where it seems so, the cost under load holds for both.
            cost_ns=np.minimum(alone_ns, loaded_ns),
            loaded_cost_ns=loaded_ns,
            setup_ns=np.rint(problem.setup * into).astype(np.int64),
            bandwidth_bytes_per_s=problem.bandwidth / into,
        )

    def after(self, earlier: Corrections | None) -> Corrections:
        """Return what both do together, the earlier ones first."""
        if earlier is None:
            return self
        return Corrections(
            _product(earlier.alone, self.alone),
            _product(earlier.under_load, self.under_load),
            _product(earlier.receiving, self.receiving),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form in a cost table."""
        slots = dict.fromkeys((*self.alone, *self.under_load))
        return {
            "slots": {
                str(slot): {"alone": self.alone.get(slot, 1.0), "under_load": self.under_load.get(slot, 1.0)}
                for slot in slots
            },
            "receiving": dict(self.receiving),
        }

    @classmethod
    def from_json(cls, data: Any) -> Corrections:
        """Read the form in a cost table; faults raise ``KeyError``, ``TypeError`` or ``ValueError``."""
        slots = {_slot(text): entry for text, entry in data["slots"].items()}
        return cls(
            {slot: _factor(entry["alone"]) for slot, entry in slots.items()},
            {slot: _factor(entry["under_load"]) for slot, entry in slots.items()},
            {str(name): _factor(value) for name, value in data["receiving"].items()},
        )


def _slot(text: str) -> Slot:
    slot = parse_slot(text)
    if slot is None:
        raise ValueError(f"expected a slot, got {text!r}")
    return slot


def _row(factors: Mapping[Slot, float], slots: Sequence[Slot]) -> FloatArray:
    return np.array([factors.get(slot, 1.0) for slot in slots])


def _product(first: Mapping[_Key, float], second: Mapping[_Key, float]) -> dict[_Key, float]:
    return {key: first.get(key, 1.0) * second.get(key, 1.0) for key in dict.fromkeys((*first, *second))}


def _factor(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"a factor must be above 0 and finite, got {value!r}")
    return float(value)
