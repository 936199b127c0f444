"""The rows of a sweep as a table: filtered, with the Pareto front marked, pivoted, exported."""

from __future__ import annotations

import csv
import io
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse.config.sweep import FIGURES
from dse.errors import InputError, MissingExtraError
from dse.files import write_bytes, write_text
from solvers.pareto import pareto_front

Row = dict[str, Any]

MORE_IS_BETTER = frozenset(
    ("throughput_hz", "predicted_hz", "measured_hz", "bound_hz", "baseline_hz", "gain")
)
TEXTS = (
    "key",
    "label",
    "status",
    "model",
    "platform",
    "winner",
    "mapping",
    "solver",
    "proof",
    "host",
    "worker",
    "run_dir",
    "error",
    "code",
)
TIMES = ("started_s", "finished_s")
FRONT = "front"

_CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Table:
    """Rows with the names of the fields that vary among them."""

    fields: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of an export."""
        front = (FRONT,) if any(FRONT in row for row in self.rows) else ()
        return ("key", "label", *self.fields, *front, *(n for n in (*TEXTS[2:], *FIGURES, *TIMES)))


def value(row: Row, name: str, fields: Sequence[str] = ()) -> Any:
    """Return a value of a row: of a field that varies, or of a column."""
    if name in row["settings"]:
        return row["settings"][name]
    return None if name in fields else row.get(name)


def known(name: str, fields: Sequence[str]) -> None:
    """Raise ``InputError`` when there is no such column."""
    columns = (*fields, *TEXTS, *FIGURES, *TIMES)
    if name not in columns:
        import difflib

        close = [column for column in columns if column.endswith(f".{name}")]
        close += difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(columns)}"
        raise InputError(f"there is no column {name!r}{hint}")


def condition(text: str, fields: Sequence[str]) -> Callable[[Row], bool]:
    """Parse ``field=value`` (also ``!= < <= > >=``).

    Raises
    ------
    InputError
        Another form, or an unknown field.
    """
    found = _CONDITION.fullmatch(text)
    if not found:
        raise InputError(f"--where {text!r}: expected FIELD=VALUE, or != < <= > >=")
    name, compare, wanted = found[1], _COMPARE[found[2]], found[3]
    known(name, fields)

    def holds(row: Row) -> bool:
        there = value(row, name, fields)
        number = _number(wanted)
        if number is not None and isinstance(there, int | float) and not isinstance(there, bool):
            return compare(there, number)
        if found[2] not in ("=", "!="):
            return False  # no order between texts, or nothing known yet
        return compare(_short(row, name, fields), wanted)

    return holds


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(there: Any) -> str:
    if there is None:
        return ""
    if isinstance(there, str):
        return there
    return json.dumps(there, ensure_ascii=False)


def mark_front(rows: Sequence[Row], axes: Sequence[str]) -> None:
    """Set ``front`` of every row: whether no other job beats it in all of the axes.

    Throughputs and gains are better when larger, all else when smaller.  Jobs without one of the
    figures are not on the front.

    Raises
    ------
    InputError
        An axis is no figure.
    """
    for axis in axes:
        if axis not in FIGURES:
            raise InputError(f"--pareto: expected figures out of {', '.join(FIGURES)}, got {axis!r}")
    complete = [
        number
        for number, row in enumerate(rows)
        if row["status"] == "done" and all(row[axis] is not None for axis in axes)
    ]
    points = [
        tuple(-rows[n][axis] if axis in MORE_IS_BETTER else rows[n][axis] for axis in axes) for n in complete
    ]
    on_front = {points[place] for place in pareto_front(points)}
    best = {number for number, point in zip(complete, points, strict=True) if point in on_front}
    for number, row in enumerate(rows):
        row[FRONT] = number in best


def flat(row: Row, columns: Iterable[str], fields: Sequence[str]) -> Row:
    """Return a row as plain columns; lists and mappings become JSON text."""
    found = {name: value(row, name, fields) for name in columns}
    return {
        name: json.dumps(there, ensure_ascii=False) if isinstance(there, list | dict) else there
        for name, there in found.items()
    }


def to_csv(table: Table) -> str:
    """Write a table as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, table.columns)
    writer.writeheader()
    for row in table.rows:
        writer.writerow(flat(row, table.columns, table.fields))
    return stream.getvalue()


def to_json(table: Table) -> list[Row]:
    """Return a table as plain data; settings stay what they are."""
    return [{name: value(row, name, table.fields) for name in table.columns} for row in table.rows]


def write_csv(path: Path, table: Table) -> None:
    """Write a CSV file."""
    write_text(path, to_csv(table))


def write_parquet(path: Path, table: Table) -> None:
    """Write a Parquet file.

    Raises
    ------
    MissingExtraError
        pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(
            "--parquet needs the package pyarrow: pip install 'tflite-dse[parquet]'"
        ) from None
    rows = [flat(row, table.columns, table.fields) for row in table.rows]
    columns = {name: _column(name, [row[name] for row in rows], pyarrow) for name in table.columns}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def _column(name: str, values: list[Any], pyarrow: Any) -> Any:
    """Return a column of one type; a field with values of several types becomes text."""
    if name in FIGURES or name in TIMES:
        whole = name.endswith(("_ns", "_bytes", "_nj")) or name.startswith("n_")
        return pyarrow.array(values, pyarrow.int64() if whole else pyarrow.float64())
    kinds = {type(there) for there in values if there is not None}
    if len(kinds) > 1:
        values = [None if there is None else _text(there) for there in values]
    elif not kinds:
        return pyarrow.array(values, pyarrow.string())
    return pyarrow.array(values)


def pivot(table: Table, across: str, figure: str) -> tuple[list[str], list[list[str]]]:
    """Return a table with one column per value of a field, and one row per combination of the others.

    Parameters
    ----------
    across
        The field (or ``label``) whose values become columns.
    figure
        What stands in the cells.

    Returns
    -------
    list of str, list of list of str
        The header and the rows.
    """
    known(across, table.fields)
    known(figure, table.fields)
    others = [name for name in ("label", *table.fields) if name != across and _varies(table.rows, name)]
    if across == "label":
        # A field that only the labelled cases set says the same as the label.
        others = [name for name in others if not _follows(table.rows, name)]
    if not others:
        others = ["model"]
    columns = list(dict.fromkeys(_text(value(row, across, table.fields)) for row in table.rows))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in table.rows:
        place = tuple(_short(row, name, table.fields) for name in others)
        cells.setdefault(place, {})[_text(value(row, across, table.fields))] = cell(row.get(figure))
    return [*others, *columns], [
        [*place, *(found.get(column, "") for column in columns)] for place, found in cells.items()
    ]


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({_text(value(row, name)) for row in rows}) > 1


def _follows(rows: Sequence[Row], name: str) -> bool:
    by_label: dict[str, set[str]] = {}
    for row in rows:
        by_label.setdefault(row["label"], set()).add(_text(value(row, name)))
    return all(len(values) == 1 for values in by_label.values())


def _short(row: Row, name: str, fields: Sequence[str]) -> str:
    if name == "model":
        return str(row["model"])
    if name == "platform" and isinstance(value(row, name, fields), Mapping):
        return str(row["platform"])
    return _text(value(row, name, fields))


def cell(there: Any) -> str:
    """Write a value for a table."""
    if isinstance(there, float):
        return f"{there:.4g}"
    return "" if there is None else _text(there)


def results_text(table: Table, style: Callable[[str], str] = str) -> str:
    """Write a table for a person: what varies, how it ended, the figures that matter."""
    shown = [name for name in ("label", *table.fields) if _varies(table.rows, name)]
    if _varies(table.rows, "model") and "model" not in shown:
        shown.append("model")
    header = [*shown, "status", "frames/s", "bound", "latency ms", "MiB", "gain", "proof", "mapping"]
    lines = []
    for row in table.rows:
        mark = "* " if row.get(FRONT) else ""
        done = row["status"] == "done"
        figures = [
            cell(row["throughput_hz"]),
            cell(row["bound_hz"]),
            cell(None if row["latency_ns"] is None else row["latency_ns"] / 1e6),
            cell(None if row["memory_bytes"] is None else row["memory_bytes"] / 2**20),
            "" if row["gain"] is None else f"{row['gain']:+.1%}",
            row["proof"] or "",
        ]
        last = row["mapping"] if done else (row["error"] or "").partition("\n")[0]
        lines.append(
            [*(_short(row, name, table.fields) for name in shown), mark + row["status"], *figures, last or ""]
        )
    return columns_text(header, lines, style)


def columns_text(
    header: Sequence[str], rows: Sequence[Sequence[str]], style: Callable[[str], str] = str
) -> str:
    """Write rows under a header, columns aligned; long cells are cut."""
    limit = 60
    cut = [[text if len(text) <= limit else text[: limit - 3] + "..." for text in row] for row in rows]
    widths = [max(len(row[place]) for row in [list(header), *cut]) for place in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()

    return os.linesep.join([style(line(header)), *(line(row) for row in cut)])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)
