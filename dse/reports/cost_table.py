"""The cost table of the report: every layer on every slot, as shades."""

from __future__ import annotations

from dataclasses import dataclass

from dse.reports.drawing import N_COLOURS, stage_letter, stage_numbers
from dse.results import RunResult
from dse.units import format_bytes, format_count, format_ns


@dataclass(frozen=True, slots=True)
class Cell:
    """Cost of a layer on a slot; ``heat`` from 0 to 1 within the column."""

    text: str
    heat: float
    used: bool
    title: str


@dataclass(frozen=True, slots=True)
class CostRow:
    """A layer: what it is, the stages that hold it (letter, colour), its cost on each slot."""

    index: int
    op: str
    name: str
    macs: str
    weights: str
    stages: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class SlotTotal:
    """Below a column: sum of layers, the whole model where measured, the factor between them."""

    layers: str
    whole: str
    factor: str


@dataclass(frozen=True, slots=True)
class CostView:
    """The whole table; all times in ``unit``."""

    unit: str
    slots: tuple[str, ...]
    rows: tuple[CostRow, ...]
    totals: tuple[SlotTotal, ...]


def cost_view(result: RunResult) -> CostView:
    """Prepare the table of costs as the search saw them (calibrated)."""
    costs = result.costs
    table = costs.calibrated_ns
    known = [value for row in table for value in row if value is not None]
    unit, divisor = ("ms", 1e6) if max(known, default=0) >= 10_000_000 else ("µs", 1e3)
    largest = [max((row[n] or 0 for row in table), default=0) for n in range(len(costs.slots))]
    letters = stage_numbers(result.best.mapping)
    holders: dict[int, dict[str, int]] = {}
    used: set[tuple[int, str]] = set()
    for stage in result.best.mapping.stages:
        number = letters[stage.name]
        for index in stage.layers:
            holders.setdefault(index, {})[stage_letter(number)] = number % N_COLOURS
            used.add((index, stage.slot))
    rows = []
    for layer in result.graph.layers:
        cells = []
        for column, slot in enumerate(costs.slots):
            cost, value = costs.costs[layer.index][column], table[layer.index][column]
            samples = cost.samples_ns
            title = f"{layer.op} on {slot}: {cost.source}"
            if samples:
                title += f", {len(samples)} samples {format_ns(min(samples))} to {format_ns(max(samples))}"
            cells.append(
                Cell(
                    text="–" if value is None else _number(value / divisor),
                    heat=round(value / largest[column], 3) if value and largest[column] else 0.0,
                    used=(layer.index, str(slot)) in used,
                    title=f"not supported: {cost.reason}" if value is None else title,
                )
            )
        rows.append(
            CostRow(
                layer.index,
                layer.op,
                layer.name,
                "?" if layer.macs is None else format_count(layer.macs),
                format_bytes(layer.weight_bytes) if layer.weight_bytes else "",
                tuple(holders.get(layer.index, {}).items()),
                tuple(cells),
            )
        )
    totals = tuple(
        SlotTotal(
            _number(sum(row[n] or 0 for row in table) / divisor),
            _number(whole.median_ns / divisor) if whole is not None else "–",
            f"{costs.calibration[n]:.2f}",
        )
        for n, whole in enumerate(costs.whole)
    )
    return CostView(unit, tuple(map(str, costs.slots)), tuple(rows), totals)


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
