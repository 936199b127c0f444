"""What the zoo knows about an architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dse.zoo.draft import Draft


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number that shapes an architecture.

    Parameters
    ----------
    default
        Value when the user gives none: the published one.
    low, high
        Smallest and largest value accepted.
    meaning
        One line for people.
    """

    default: int
    low: int
    high: int
    meaning: str


class Draw(Protocol):
    """Draws an architecture; all parameters are given and in range."""

    def __call__(self, parameters: Mapping[str, int], seed: int, *, sampled: bool = ...) -> Draft:
        """Draw; ``sampled`` works out sample frames, see ``draft``."""
        ...


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """An architecture.

    Parameters
    ----------
    name
        As on the command line.
    description
        One line for people.
    settings
        Its parameters.
    source
        The publication that defines it.
    draw
        Draws it.
    published_macs
        Multiply-accumulates that ``macs_source`` states for the default parameters, often rounded;
        None where the formula ``macs`` is the reference.
    published_parameters
        Trained values, stated likewise.
    macs_source
        Where these figures stand.
    macs
        Exact multiply-accumulates by a closed formula, where there is one.
    """

    name: str
    description: str
    settings: Mapping[str, Parameter]
    source: str
    draw: Draw
    published_macs: int | None = None
    published_parameters: int | None = None
    macs_source: str = ""
    macs: Callable[[Mapping[str, int]], int] | None = None

    @property
    def parameters(self) -> dict[str, int]:
        """The defaults."""
        return {key: setting.default for key, setting in self.settings.items()}
