"""Two runs compared: for a terminal, for programs, and as one small HTML page."""

from __future__ import annotations

from typing import Any

from dse.comparing import Comparison, LayerChange, Total, by_network
from dse.past_run import PastRun, layer_json
from dse.reports.console import WIDTH, printable, shorten
from dse.reports.html import render
from dse.reports.wording import format_share
from dse.units import format_bytes, format_count, format_hz, format_ns

FORMAT = "tflite-dse comparison"
VERSION = 1
MAX_LAYERS = 15
HEADS = ("layer", "operator", "before", "after", "change", "moved", "on")


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data (schema in README, "Comparing runs")."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "before": _run_json(comparison.before),
        "after": _run_json(comparison.after),
        "notes": list(comparison.notes),
        "totals": [
            {
                "name": total.name,
                "unit": total.unit,
                "before": total.before,
                "after": total.after,
                "change": total.change,
                "more_is_better": total.more_is_better,
            }
            for total in comparison.totals
        ],
        "networks": {name: list(times) for name, times in by_network(comparison).items()},
        "layers": [
            {
                "kind": change.kind,
                "other_slot": change.moved,
                "time_ns": change.time_ns,
                "moved_bytes": change.moved_bytes,
                "before": layer_json(change.before),
                "after": layer_json(change.after),
            }
            for change in comparison.layers
        ],
    }


def comparison_text(comparison: Comparison, *, every: bool = False) -> str:
    """Write the comparison for a terminal: totals, and the layers that changed most (or every layer)."""
    before, after = comparison.before, comparison.after
    lines = [shorten(f"before  {_title(before)}", WIDTH), shorten(f"after   {_title(after)}", WIDTH), ""]
    rows = [("", "before", "after", "change"), *(_total_row(total) for total in _known(comparison))]
    rows += [
        (f"network {name}", format_ns(a), format_ns(b), format_share(b / a - 1) if a else "-")
        for name, (a, b) in by_network(comparison).items()
    ]
    lines += _columns(rows)
    lines += ["", _counts(comparison), ""]
    shown = list(comparison.layers) if every else most_changed(comparison)
    lines += _columns([HEADS, *(_layer_row(change, 30) for change in shown)])
    hidden = len(comparison.layers) - len(shown)
    if hidden > 0:
        lines.append(f"... and {hidden} layers that changed less (--layers shows all)")
    lines += [f"Mind: {note}." for note in comparison.notes]
    return "\n".join(lines)


def comparison_html(comparison: Comparison) -> str:
    """Write the comparison as one HTML page without scripts."""
    return render(
        "comparison.html.j2",
        before=comparison.before,
        after=comparison.after,
        titles=(_title(comparison.before), _title(comparison.after)),
        gain=_gain(comparison),
        counts=_counts(comparison),
        totals=[_total_row(total) for total in _known(comparison)],
        networks=by_network(comparison),
        heads=HEADS,
        layers=[(change.kind, _layer_row(change, 80)) for change in comparison.layers],
        notes=comparison.notes,
    )


def most_changed(comparison: Comparison) -> list[LayerChange]:
    """Return the layers whose time changed most, in their order; new and removed ones count whole."""
    ranked = sorted(comparison.layers, key=lambda change: -abs(change.time_ns))[:MAX_LAYERS]
    chosen = {id(change) for change in ranked}
    return [change for change in comparison.layers if id(change) in chosen]


def _gain(comparison: Comparison) -> str:
    (throughput,) = (total for total in comparison.totals if total.name == "throughput")
    (time,) = (total for total in comparison.totals if total.name.startswith("layers' time"))
    return (
        f"{format_share(throughput.change)} throughput, {format_share(time.change)} time of the layers, from "
        f"{comparison.before.model} to {comparison.after.model}"
    )


def _run_json(run: PastRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "model": {"name": run.model, "sha256": run.model_hash},
        "platform": run.platform,
        "plan": run.plan,
        "mapping": run.mapping,
        "measured": run.measured,
    }


def _title(run: PastRun) -> str:
    kind = "measured" if run.measured else "predicted"
    return printable(f"{run.folder}: {run.model}, {run.plan} ({run.mapping}), {kind}")


def _known(comparison: Comparison) -> list[Total]:
    return [total for total in comparison.totals if total.before is not None or total.after is not None]


def _total_row(total: Total) -> tuple[str, ...]:
    change = format_share(total.change)
    if total.change is not None and abs(total.change) >= 0.0005:
        better = (total.change > 0) == total.more_is_better
        change += " better" if better else " worse"
    return (total.name, _value(total, total.before), _value(total, total.after), change)


def _value(total: Total, value: float | None) -> str:
    if value is None:
        return "?"
    if total.unit == "ns":
        return format_ns(round(value))
    if total.unit == "bytes":
        return format_bytes(round(value))
    if total.unit:
        return f"{format_hz(value)} {total.unit}"
    return format_count(round(value))


def _counts(comparison: Comparison) -> str:
    kinds = [change.kind for change in comparison.layers]
    moved = sum(change.moved for change in comparison.layers)
    parts = [f"{kinds.count(kind)} {kind}" for kind in ("same", "changed", "new", "removed") if kind in kinds]
    return f"layers: {', '.join(parts)}" + (f"; {moved} on another slot" if moved else "")


def _layer_row(change: LayerChange, width: int) -> tuple[str, ...]:
    before, after = change.before, change.after
    layer = after or before
    op = "" if layer is None else layer.op
    mark = {"same": "", "changed": "~ ", "new": "+ ", "removed": "- "}[change.kind]
    where = [", ".join(one.slots) for one in (before, after) if one is not None]
    return (
        shorten(f"{mark}{change.name}", width),
        shorten(op, 20),
        "-" if before is None else format_ns(before.time_ns),
        "-" if after is None else format_ns(after.time_ns),
        _signed(change.time_ns, format_ns),
        _signed(change.moved_bytes, format_bytes),
        " > ".join(dict.fromkeys(where)),
    )


def _signed(value: int, write: Any) -> str:
    return "0" if value == 0 else ("+" if value > 0 else "-") + str(write(abs(value)))


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width)
            if place == 0 or place > 5 or (place == 1 and len(row) > 4)
            else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
