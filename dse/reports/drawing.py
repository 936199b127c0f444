"""What several drawings of the report share: axes, and the names and colours of stages.

Positions are percentages of the width of a drawing.  All texts are raw: the template escapes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dse.placement import PlacedMapping
from dse.results import StageNumbers

N_COLOURS = 8


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


def nice_ticks(largest: float, wanted: int = 5) -> list[float]:
    """Return round values from 0 to at least ``largest``."""
    if largest <= 0:
        return [0.0]
    raw = largest / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999)
    return [number * step for number in range(math.ceil(largest / step - 1e-9) + 1)]


def stage_numbers(mapping: PlacedMapping) -> dict[str, int]:
    """Number the different stages: copies of a stage have one number, and one colour."""
    numbers: dict[tuple[tuple[int, ...], str], int] = {}
    return {
        stage.name: numbers.setdefault((stage.layers, stage.slot), len(numbers)) for stage in mapping.stages
    }


def stage_letter(number: int) -> str:
    """Name a stage: A to Z, then A1, B1, ..."""
    round_, letter = divmod(number, 26)
    return chr(ord("A") + letter) + (str(round_) if round_ else "")


def busy_ns(numbers: StageNumbers, measured: bool) -> int:
    """Return the time of a stage per frame, measured or predicted."""
    if measured and numbers.measured_busy_ns is not None:
        return numbers.measured_busy_ns
    return numbers.predicted_busy_ns
