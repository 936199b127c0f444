"""What layers, slots and clusters are called in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_CHARACTERS = 48


@dataclass(frozen=True, slots=True)
class Names:
    """Names by number; where there are none, numbers are told.

    Parameters
    ----------
    layers, slots, clusters
        One name for each, or none at all.
    """

    layers: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def layer(self, number: int) -> str:
        """Return ``layer 3 (conv_7)``."""
        return f"layer {number} ({_short(self.layers[number])})" if self.layers else f"layer {number}"

    def some_layers(self, numbers: tuple[int, ...]) -> str:
        """Return ``layers (1, 2)``, shortened, with the names of the first and last."""
        few = len(numbers) <= 8
        text = str(numbers) if few else f"({numbers[0]}, ..., {numbers[-1]}; {len(numbers)} of them)"
        if not self.layers:
            return f"layers {text}"
        ends = dict.fromkeys(_short(self.layers[number]) for number in (numbers[0], numbers[-1]))
        return f"layers {text} ({' to '.join(ends)})"

    def some_slots(self, numbers: Iterable[int]) -> str:
        """Return ``slots 3 big, 4 big``, or their numbers."""
        return "slots " + ", ".join(self.slots[n] if self.slots else str(n) for n in numbers)

    def cluster(self, number: int) -> str:
        """Return ``cluster big``."""
        return f"cluster {self.clusters[number] if self.clusters else number}"


def _short(name: str) -> str:
    """Cut a name: converters join those of all operators that they fused."""
    return name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 3]}..."
