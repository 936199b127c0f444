"""What a slot does not run, and what ran elsewhere than the slot stands for: with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dse.costs import CostTable

MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Layers with one reason on one slot.

    Parameters
    ----------
    slot
        As people write it.
    what
        ``unsupported``: the slot does not run them; ``fallback``: something else of the machine ran
        them when the slot was asked to.
    layers
        Their indices; empty for a remark of the runtime about the whole model.
    reason
        Why, or what the runtime said.
    """

    slot: str
    what: Literal["unsupported", "fallback"]
    layers: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        named = ", ".join(map(str, self.layers[:MAX_NAMED]))
        more = f" and {len(self.layers) - MAX_NAMED} more" if len(self.layers) > MAX_NAMED else ""
        s = "" if len(self.layers) == 1 else "s"
        who = f"layer{s} {named}{more}" if self.layers else "of the whole model"
        return f"{self.what} on {self.slot}, {who}: {self.reason}"


def elsewhere(costs: CostTable) -> tuple[Elsewhere, ...]:
    """List what a cost table says about it, slot by slot."""
    found: list[Elsewhere] = []
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
        found += [Elsewhere(name, "unsupported", tuple(n), why) for why, n in unsupported.items()]
        found += [Elsewhere(name, "fallback", tuple(n), why) for why, n in fallback.items()]
        found += [Elsewhere(name, "fallback", (), str(why)) for why in told.get(name, ())]
    return tuple(found)
