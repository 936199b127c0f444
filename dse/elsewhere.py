"""What a slot does not run, and what ran elsewhere than the slot stands for: with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dse.costs import CostTable

MAX_NAMED = 6
What = Literal["unsupported", "fallback"]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Layers with one reason on some slots.

    Parameters
    ----------
    slots
        As people write them.
    what
        ``unsupported``: the slots do not run them; ``fallback``: something else of the machine ran
        them when the slots were asked to.
    layers
        Their indices; empty for a remark of the runtime about the whole model.
    reason
        Why, or what the runtime said.
    """

    slots: tuple[str, ...]
    what: What
    layers: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        named = ", ".join(map(str, self.layers[:MAX_NAMED]))
        more = f" and {len(self.layers) - MAX_NAMED} more" if len(self.layers) > MAX_NAMED else ""
        s = "" if len(self.layers) == 1 else "s"
        who = f"layer{s} {named}{more}" if self.layers else "of the whole model"
        return f"{self.what} on {', '.join(self.slots)}, {who}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "slots": list(self.slots),
            "what": self.what,
            "layers": list(self.layers),
            "reason": self.reason,
        }


def elsewhere(costs: CostTable) -> tuple[Elsewhere, ...]:
    """List what a cost table says about it: each set of layers and reason once, with all its slots."""
    found: dict[tuple[What, tuple[int, ...], str], list[str]] = {}
    told = costs.conditions.get("fallbacks") or {}
    for column, slot in enumerate(costs.slots):
        unsupported: dict[str, list[int]] = {}
        fallback: dict[str, list[int]] = {}
        for layer, row in enumerate(costs.costs):
            cost = row[column]
            if cost.median_ns is None:
                unsupported.setdefault(cost.reason, []).append(layer)
            elif cost.fallback:
                fallback.setdefault(cost.fallback, []).append(layer)
        name = str(slot)
        for why, layers in unsupported.items():
            found.setdefault(("unsupported", tuple(layers), why), []).append(name)
        for why, layers in fallback.items():
            found.setdefault(("fallback", tuple(layers), why), []).append(name)
        for remark in told.get(name, ()):
            found.setdefault(("fallback", (), str(remark)), []).append(name)
    return tuple(Elsewhere(tuple(slots), *key) for key, slots in found.items())
