"""What each layer costs on each slot: the cost table and its file form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dse.corrections import Corrections
from dse.errors import InputError
from dse.platforms import KERNELS, Link, Slot

FORMAT = "tflite-dse cost table"
VERSION = 1

Source = Literal["extracted", "in_situ", "analytic", "imported", "learned"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one layer on one slot.

    Parameters
    ----------
    median_ns
        None when the slot does not support the layer.  Without what an invocation costs by itself
        (``CostTable.overhead_ns``).
    samples_ns
        Raw samples, in the order taken; empty for predictions.  Samples of an extracted layer
        contain the invocation.
    source
        Where the number comes from.
    reason
        Why the slot does not support the layer, or what else is to be said about the number; else
        empty.
    interval_ns
        Confidence interval (95 %) of the median, when there were enough samples.
    fallback
        What ran the layer instead of what the slot stands for, and why; else empty.
    """

    median_ns: int | None
    samples_ns: tuple[int, ...] = ()
    source: Source = "extracted"
    reason: str = ""
    interval_ns: tuple[int, int] | None = None
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class WholeCost:
    """The whole model measured on one slot: calibrates the sum of layers."""

    median_ns: int
    samples_ns: tuple[int, ...]
    peak_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StageCost:
    """A set of layers measured as one stage on one slot, the invocation included.

    Parameters
    ----------
    layers
        Indices, ascending.
    slot
        On what.
    median_ns
        None when the slot can not run it.
    samples_ns
        Raw samples.
    interval_ns
        Confidence interval (95 %) of the median, when there were enough visits.
    reason
        Why it can not be run, else empty.
    weight_bytes, arena_bytes
        Constants, and the most bytes of tensors that are alive at a time.
    peak_rss_bytes
        By how much loading and running it made the process grow at its peak, when measured.
    under_load
        Whether it was measured while other cores worked; else alone.
    """

    layers: tuple[int, ...]
    slot: Slot
    median_ns: int | None
    samples_ns: tuple[int, ...] = ()
    interval_ns: tuple[int, int] | None = None
    reason: str = ""
    weight_bytes: int = 0
    arena_bytes: int = 0
    peak_rss_bytes: int | None = None
    under_load: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the file form."""
        return {
            "layers": list(self.layers),
            "slot": slot_json(self.slot),
            "median_ns": self.median_ns,
            "samples_ns": list(self.samples_ns),
            "interval_ns": None if self.interval_ns is None else list(self.interval_ns),
            "reason": self.reason,
            "weight_bytes": self.weight_bytes,
            "arena_bytes": self.arena_bytes,
            "peak_rss_bytes": self.peak_rss_bytes,
            "under_load": self.under_load,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StageCost:
        """Read the file form; faults raise ``KeyError``, ``TypeError`` or ``ValueError``."""
        interval, peak = data["interval_ns"], data["peak_rss_bytes"]
        return cls(
            layers=tuple(int(layer) for layer in data["layers"]),
            slot=_slot(data["slot"]),
            median_ns=None if data["median_ns"] is None else int(data["median_ns"]),
            samples_ns=tuple(int(value) for value in data["samples_ns"]),
            interval_ns=None if interval is None else (int(interval[0]), int(interval[1])),
            reason=str(data["reason"]),
            weight_bytes=int(data["weight_bytes"]),
            arena_bytes=int(data["arena_bytes"]),
            peak_rss_bytes=None if peak is None else int(peak),
            under_load=bool(data.get("under_load", False)),
        )


@dataclass(frozen=True)
class CostTable:
    """Costs of a model on a platform.

    Parameters
    ----------
    model_hash, model_name
        Which model.
    platform_name
        Which platform.
    slots
        Columns.
    costs
        ``costs[layer][slot]``.
    overhead_ns
        Per slot, paid once per invocation.
    whole
        Per slot, or None where it was not measured.
    links
        Measured or described hand-over costs.
    conditions
        Provenance: runtime version, kernel, governor, steal time, method, precision reached.
    stages
        Sets of layers that were measured as one stage: there they replace the sum of layers.
    loaded
        The same costs while all other cores work; this table then is of each slot working alone.
    corrections
        What whole stages in running pipelines said of all costs; not applied to ``costs``.
    """

    model_hash: str
    model_name: str
    platform_name: str
    slots: tuple[Slot, ...]
    costs: tuple[tuple[Cost, ...], ...]
    overhead_ns: tuple[int, ...]
    whole: tuple[WholeCost | None, ...]
    links: tuple[Link, ...] = ()
    conditions: dict[str, Any] = field(default_factory=dict)
    stages: tuple[StageCost, ...] = ()
    loaded: CostTable | None = None
    corrections: Corrections | None = None

    @property
    def measured(self) -> bool:
        """Whether every supported cost was measured (not predicted)."""
        return all(
            cost.source in ("extracted", "in_situ", "imported")
            for row in self.costs
            for cost in row
            if cost.median_ns is not None
        )

    def slowdown_by_waiting(self, slot: int, utilisation: float) -> float:
        """Return how many times longer a run takes where the core only works a share of the time.

        Measured at about half duty and taken as linear in the time spent waiting; 1.0 where it was not
        measured, and never less.
        """
        told = self.conditions.get("idle", {}).get(str(self.slots[slot]))
        if not told or not told["utilisation"] < 1:
            return 1.0
        waiting = min(1.0, max(0.0, 1 - utilisation) / (1 - float(told["utilisation"])))
        return 1.0 + max(0.0, float(told["factor"]) - 1) * waiting

    @property
    def yardstick_ns(self) -> dict[str, int]:
        """By slot: how long a fixed piece of arithmetic took while layers were measured; empty if unknown."""
        told = self.conditions.get("yardstick_ns")
        if not isinstance(told, dict):
            return {}
        return {str(slot): value for slot, value in told.items() if isinstance(value, int) and value > 0}

    @property
    def calibration(self) -> tuple[float, ...]:
        """Per slot: factor that makes the sum of layers plus overhead equal the measured whole model.

        1.0 where the whole model was not measured or a layer is unsupported.  Layers measured one
        at a time are hotter or colder in the caches than inside the whole model; the factor takes
        out what is common to all layers of a slot.
        """
        factors = []
        for slot, whole in enumerate(self.whole):
            medians = [row[slot].median_ns for row in self.costs]
            total = sum(value for value in medians if value is not None)
            if whole is None or None in medians or total == 0:
                factors.append(1.0)
            else:
                factors.append(max(0.0, (whole.median_ns - self.overhead_ns[slot]) / total))
        return tuple(factors)

    @property
    def calibrated_ns(self) -> tuple[tuple[int | None, ...], ...]:
        """``[layer][slot]`` costs with the slot's calibration applied, None where unsupported."""
        factors = self.calibration
        return tuple(
            tuple(
                None if cost.median_ns is None else round(cost.median_ns * factors[slot])
                for slot, cost in enumerate(row)
            )
            for row in self.costs
        )

    @property
    def loaded_ns(self) -> tuple[tuple[int | None, ...], ...] | None:
        """``calibrated_ns`` under load, never below the isolated cost; None when that was not measured."""
        if self.loaded is None:
            return None
        pairs = zip(self.calibrated_ns, self.loaded.calibrated_ns, strict=True)
        return tuple(
            tuple(
                None if alone is None else max(alone, alone if busy is None else busy)
                for alone, busy in zip(row, busy_row, strict=True)
            )
            for row, busy_row in pairs
        )

    def with_stages(self, stages: Collection[StageCost]) -> CostTable:
        """Return the table with measured stages.

        They replace what was known of the same layers and slot in the same condition.
        """
        known = {(stage.layers, stage.slot, stage.under_load): stage for stage in (*self.stages, *stages)}
        return replace(self, stages=tuple(known.values()))

    def corrected_by(self, corrections: Corrections | None) -> CostTable:
        """Return the table with further corrections, which were found with the present ones applied."""
        return self if corrections is None else replace(self, corrections=corrections.after(self.corrections))

    def only(self, slots: Collection[Slot]) -> CostTable:
        """Return the table with the columns of some slots."""
        keep = [place for place, slot in enumerate(self.slots) if slot in slots]
        return replace(
            self,
            slots=tuple(self.slots[place] for place in keep),
            costs=tuple(tuple(row[place] for place in keep) for row in self.costs),
            overhead_ns=tuple(self.overhead_ns[place] for place in keep),
            whole=tuple(self.whole[place] for place in keep),
            loaded=None if self.loaded is None else self.loaded.only(slots),
        )

    def without(self, reasons: Mapping[Slot, str]) -> CostTable:
        """Return the table with some slots masked: they support no layer, for the given reason."""
        if not reasons:
            return self
        masked = [Cost(None, reason=reasons[s]) if s in reasons else None for s in self.slots]
        return replace(
            self,
            costs=tuple(
                tuple(hidden or cost for hidden, cost in zip(masked, row, strict=True)) for row in self.costs
            ),
            whole=tuple(None if s in reasons else w for s, w in zip(self.slots, self.whole, strict=True)),
            stages=tuple(stage for stage in self.stages if stage.slot not in reasons),
            loaded=None if self.loaded is None else self.loaded.without(reasons),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the file form (documented in README, "Cost table")."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": {"name": self.model_name, "sha256": self.model_hash},
            "platform": self.platform_name,
            "slots": [slot_json(s) for s in self.slots],
            "overhead_ns": list(self.overhead_ns),
            "layers": [
                [
                    {
                        "median_ns": c.median_ns,
                        "source": c.source,
                        "samples_ns": list(c.samples_ns),
                        **({"reason": c.reason} if c.reason else {}),
                        **({"interval_ns": list(c.interval_ns)} if c.interval_ns else {}),
                        **({"fallback": c.fallback} if c.fallback else {}),
                    }
                    for c in row
                ]
                for row in self.costs
            ],
            "whole": [
                None
                if w is None
                else {
                    "median_ns": w.median_ns,
                    "samples_ns": list(w.samples_ns),
                    "peak_rss_bytes": w.peak_rss_bytes,
                }
                for w in self.whole
            ],
            "links": [link_json(link) for link in self.links],
            **({"stages": [stage.to_json() for stage in self.stages]} if self.stages else {}),
            "conditions": self.conditions,
            **({"loaded": self.loaded.to_json()} if self.loaded else {}),
            **({"corrections": self.corrections.to_json()} if self.corrections else {}),
        }

    @classmethod
    def from_json(cls, data: Any, where: str) -> CostTable:
        """Read the file form.

        Raises
        ------
        InputError
            Not a cost table, another version, or a field is missing or of the wrong type; the
            message starts with ``where``.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{where}: expected a {FORMAT!r} file (field 'format')")
        if data.get("version") != VERSION:
            raise InputError(f"{where}: cost table version {data.get('version')!r}, expected {VERSION}")
        try:
            table = cls(
                model_hash=str(data["model"]["sha256"]),
                model_name=str(data["model"]["name"]),
                platform_name=str(data["platform"]),
                slots=tuple(_slot(s) for s in data["slots"]),
                costs=tuple(tuple(_cost(c) for c in row) for row in data["layers"]),
                overhead_ns=tuple(int(v) for v in data["overhead_ns"]),
                whole=tuple(
                    None
                    if w is None
                    else WholeCost(
                        int(w["median_ns"]), tuple(int(v) for v in w["samples_ns"]), w.get("peak_rss_bytes")
                    )
                    for w in data["whole"]
                ),
                links=tuple(link_from_json(link) for link in data["links"]),
                conditions=dict(data.get("conditions", {})),
                stages=tuple(StageCost.from_json(stage) for stage in data.get("stages", ())),
                loaded=cls.from_json(data["loaded"], f"{where}: loaded") if "loaded" in data else None,
                corrections=Corrections.from_json(data["corrections"]) if "corrections" in data else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{where}: damaged cost table ({type(error).__name__}: {error})") from None
        n_slots = len(table.slots)
        if any(len(row) != n_slots for row in table.costs) or len(table.overhead_ns) != n_slots:
            raise InputError(f"{where}: damaged cost table (rows do not have one entry per slot)")
        if len(table.whole) != n_slots:
            raise InputError(f"{where}: damaged cost table ('whole' does not have one entry per slot)")
        if any(not 0 <= layer < len(table.costs) for stage in table.stages for layer in stage.layers):
            raise InputError(f"{where}: damaged cost table (a stage has layers that are not there)")
        loaded = table.loaded
        if loaded is not None and (len(loaded.costs), loaded.slots) != (len(table.costs), table.slots):
            raise InputError(f"{where}: damaged cost table (under load there are other layers or slots)")
        return table


def read_cost_table(path: Path) -> CostTable:
    """Read a cost table.

    Raises
    ------
    InputError
        The file can not be read, or is no cost table.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cost table {path}: can not be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"cost table {path}: expected a cost table (JSON): {error}") from None
    return CostTable.from_json(data, f"cost table {path}")


def link_json(link: Link) -> dict[str, Any]:
    """Return a link as plain data."""
    return {
        "source": link.source,
        "target": link.target,
        "setup_ns": link.setup_ns,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        **({"sender_pays": True} if link.sender_pays else {}),
        **({"assumed": True} if link.assumed else {}),
    }


def link_from_json(data: dict[str, Any]) -> Link:
    """Read what ``link_json`` wrote; faults raise ``KeyError``, ``TypeError`` or ``ValueError``."""
    ends = str(data["source"]), str(data["target"])
    sender_pays = bool(data.get("sender_pays", False))
    assumed = bool(data.get("assumed", False))
    return Link(*ends, int(data["setup_ns"]), data["bandwidth_bytes_per_s"], sender_pays, assumed)


def slot_json(slot: Slot) -> dict[str, Any]:
    """Return a slot as plain data; kernels are named where they are not the usual ones."""
    usual = slot.kernels == "default"
    return {
        "cluster": slot.cluster,
        "threads": slot.threads,
        **({} if usual else {"kernels": slot.kernels}),
    }


def _slot(data: dict[str, Any]) -> Slot:
    kernels = data.get("kernels", "default")
    if kernels not in KERNELS:
        raise ValueError(f"unknown kernels {kernels!r}")
    return Slot(str(data["cluster"]), int(data["threads"]), kernels)


def _cost(data: dict[str, Any]) -> Cost:
    median = data["median_ns"]
    if median is not None and int(median) < 0:
        raise ValueError(f"negative cost {median}")
    interval = data.get("interval_ns")
    if data["source"] not in get_args(Source):
        raise ValueError(f"unknown source {data['source']!r}")
    return Cost(
        None if median is None else int(median),
        tuple(int(v) for v in data["samples_ns"]),
        data["source"],
        str(data.get("reason", "")),
        None if interval is None else (int(interval[0]), int(interval[1])),
        str(data.get("fallback", "")),
    )
