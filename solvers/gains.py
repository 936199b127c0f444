"""What ``solvers.what_if`` asks and answers: gains of an optimum over changes of its problem."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from solvers.changes import Resource
from solvers.errors import ProblemError
from solvers.mapping import Mapping, Solution

Ratio = float


def beyond(new: Ratio, old: Ratio) -> Ratio:
    """Return how much more one gain is than another, relative to what the other one reaches."""
    return 0.0 if new <= old else (1 + new) / (1 + old) - 1


class Known(Enum):
    """How a gain is known."""

    PROVED = "proved"
    """No mapping of the changed problem is better: the bound says so."""
    EXACT = "exact"
    """No mapping of convex stages, one per set of cores, is better."""
    SEARCHED = "searched"
    """The best that is found where the solver looks."""
    LEFT_OUT = "left out"
    """Time ran out: the gain is that of known mappings only."""


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
    contiguous_at_most
        No mapping of convex stages, one per set of cores, gains more; None where no bound is known, or
        where other mappings gain more.
    """

    change: float
    gain: Ratio
    same_mapping: Ratio
    at_most: Ratio | None
    known: Known
    mapping: Mapping
    contiguous_at_most: Ratio | None = None

    @property
    def gap(self) -> Ratio | None:
        """How much more than the mapping found one may reach at most, of the kind that a bound is known for.

        0 where the gain is proved or exact; None where there is no bound.
        """
        if self.known in (Known.PROVED, Known.EXACT):
            return 0.0
        bounds = [bound for bound in (self.at_most, self.contiguous_at_most) if bound is not None]
        return beyond(min(bounds), self.gain) if bounds else None


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
    """Gains, largest first.

    Parameters
    ----------
    base
        What they are over, or the best mapping found for the unchanged problem where that is better.
    complete
        Nothing was left out.
    n_searches
        Changes that took a search of their own.
    interrupted
        Ctrl-C ended the searches.
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
