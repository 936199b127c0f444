"""Two runs side by side: what a change of the model or of its mapping gained, layer by layer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dse.past_run import PastLayer, PastRun


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer of one run and its counterpart in the other; None where there is none.

    Times are of one frame where the layer runs in that run's plan, moved bytes those of weights, inputs
    and outputs; 0 where the layer is missing.
    """

    before: PastLayer | None
    after: PastLayer | None

    @property
    def name(self) -> str:
        """Of the later run's layer, where there is one."""
        layer = self.after or self.before
        return "" if layer is None else layer.name

    @property
    def kind(self) -> str:
        """``same``, ``changed`` (other shapes, types or options), ``new`` or ``removed``."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "removed"
        return "same" if self.before.key == self.after.key else "changed"

    @property
    def moved(self) -> bool:
        """Whether it runs on another slot."""
        if self.before is None or self.after is None:
            return False
        return self.before.slots != self.after.slots

    @property
    def time_ns(self) -> int:
        """Change of the time of a frame."""
        return (self.after.time_ns if self.after else 0) - (self.before.time_ns if self.before else 0)

    @property
    def moved_bytes(self) -> int:
        """Change of the bytes that are read and written for a frame."""
        return (self.after.moved_bytes if self.after else 0) - (self.before.moved_bytes if self.before else 0)


@dataclass(frozen=True, slots=True)
class Total:
    """A figure of both runs; ``more_is_better`` says which way a change is a gain."""

    name: str
    unit: str
    before: float | None
    after: float | None
    more_is_better: bool = False

    @property
    def change(self) -> float | None:
        """After / before - 1, or None."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before - 1


@dataclass(frozen=True)
class Comparison:
    """Two runs, aligned.

    Parameters
    ----------
    before, after
        The runs.
    layers
        In the order of the later run; removed ones where they were.
    totals
        Figures of the whole.
    notes
        What makes the figures hard to compare.
    """

    before: PastRun
    after: PastRun
    layers: tuple[LayerChange, ...]
    totals: tuple[Total, ...]
    notes: tuple[str, ...] = field(default=())


def compare(before: PastRun, after: PastRun) -> Comparison:
    """Align the layers of two runs and put their figures side by side; pure."""
    pairs = align(before.layers, after.layers)
    matched = {b: a for a, b in pairs}
    changes: list[LayerChange] = []
    at = 0
    gone = set(range(len(before.layers))) - {a for a, _ in pairs}
    for number, layer in enumerate(after.layers):
        partner = matched.get(number)
        if partner is not None:
            while at < partner:
                if at in gone:
                    changes.append(LayerChange(before.layers[at], None))
                    gone.discard(at)
                at += 1
        changes.append(LayerChange(None if partner is None else before.layers[partner], layer))
    changes += [LayerChange(before.layers[number], None) for number in sorted(gone)]
    return Comparison(before, after, tuple(changes), _totals(before, after), _notes(before, after))


def align(before: Sequence[PastLayer], after: Sequence[PastLayer]) -> tuple[tuple[int, int], ...]:
    """Pair the layers of two models, as (before, after), ascending in ``after``.

    First by name and kind; then by name without the network's; what is left in order, by kind, between
    the pairs that are known.
    """
    pairs: dict[int, int] = {}
    for short in (False, True):
        free = {n for n in range(len(before)) if n not in pairs.values()}
        known: dict[tuple[str, str], list[int]] = {}
        for number in sorted(free):
            known.setdefault(_key(before[number], short), []).append(number)
        for number, layer in enumerate(after):
            places = known.get(_key(layer, short), [])
            if number not in pairs and places and (not short or len(places) == 1):
                pairs[number] = places.pop(0)
    # A pair is a token of its own in both sequences; the others are told apart by their kind only.
    partner = {b: f"#{a}" for a, b in pairs.items()}
    ours = [partner.get(n, layer.op) for n, layer in enumerate(before)]
    theirs = [f"#{n}" if n in pairs else layer.op for n, layer in enumerate(after)]
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            a, b = block.a + step, block.b + step
            if a not in partner and b not in pairs:
                pairs[b] = a
    return tuple((pairs[b], b) for b in sorted(pairs))


def _key(layer: PastLayer, short: bool) -> tuple[str, str]:
    name = layer.name.removeprefix(f"{layer.network}/") if short and layer.network else layer.name
    return name, layer.op


def _totals(before: PastRun, after: PastRun) -> tuple[Total, ...]:
    def total(name: str, unit: str, key: str, *, more: bool = False) -> Total:
        return Total(name, unit, before.figures.get(key), after.figures.get(key), more)

    sums: dict[str, tuple[float | None, float | None]] = {
        "layers": (len(before.layers), len(after.layers)),
        "time": (_sum(before, "time_ns"), _sum(after, "time_ns")),
        "moved": (_sum(before, "moved_bytes"), _sum(after, "moved_bytes")),
        "weights": (_sum(before, "weight_bytes"), _sum(after, "weight_bytes")),
        "macs": (_sum(before, "macs"), _sum(after, "macs")),
    }
    return (
        total("throughput", "frames/s", "throughput_hz", more=True),
        total("latency, empty lane", "ns", "latency_ns"),
        total("latency, full pipeline", "ns", "full_latency_ns"),
        Total("layers' time, summed", "ns", *sums["time"]),
        Total("bytes moved by layers", "bytes", *sums["moved"]),
        total("bytes between stages", "bytes", "cut_bytes"),
        total("last-level misses", "bytes", "missed_bytes"),
        Total("weights", "bytes", *sums["weights"]),
        total("memory", "bytes", "memory_bytes"),
        Total("multiply-accumulates", "", *sums["macs"]),
        Total("layers", "", *sums["layers"]),
    )


def _sum(run: PastRun, field_name: str) -> float | None:
    values = [getattr(layer, field_name) for layer in run.layers]
    return None if None in values else float(sum(values))


def _notes(before: PastRun, after: PastRun) -> tuple[str, ...]:
    notes = []
    if before.platform != after.platform:
        notes.append(f"the platforms differ: {before.platform} and {after.platform}")
    if before.measured != after.measured:
        measured, other = (before, after) if before.measured else (after, before)
        notes.append(f"{measured.folder} was measured, {other.folder} only predicted")
    notes += [f"{run.folder}: {run.caution}" for run in (before, after) if run.caution]
    return tuple(notes)


def by_network(comparison: Comparison) -> Mapping[str, tuple[int, int]]:
    """Return the time of a frame by network, (before, after) in ns; empty for plain models."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate((comparison.before, comparison.after)):
        for layer in run.layers:
            if layer.network:
                found.setdefault(layer.network, [0, 0])[place] += layer.time_ns
    return {name: (times[0], times[1]) for name, times in found.items()}
