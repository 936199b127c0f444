"""Any table with one row per layer: the user says which column is what.

For Streamline exports, spreadsheets, and tools without an importer of their own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dse.errors import InputError
from dse.graph import LayerGraph
from dse.profiling.importers.matching import Imported, Row, match_rows
from dse.profiling.kernels import Rules

TOOL = "CSV"
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Which column of a table is what.

    Parameters
    ----------
    time
        Header of the column with the time.
    unit
        ``ns``, ``us``, ``ms`` or ``s``.
    name
        Column with the name of the layer or of its output tensor, or empty.
    operator
        Column with the number of the operator in the file, or empty.
    kind
        Column with the kind of operator as TensorFlow Lite calls it, or empty.
    delimiter
        Between cells.

    Raises
    ------
    InputError
        The unit is unknown, or no column says which layer a row is about.
    """

    time: str
    unit: str = "ms"
    name: str = ""
    operator: str = ""
    kind: str = ""
    delimiter: str = ","

    def __post_init__(self) -> None:
        if self.unit not in UNITS_NS:
            raise InputError(f"column map: expected the unit {', '.join(UNITS_NS)}, got {self.unit!r}")
        if not (self.name or self.operator or self.kind):
            raise InputError("column map: expected a column for name, operator or kind, got none of them")


def read_csv(path: Path, graph: LayerGraph, columns: ColumnMap) -> Imported:
    """Read a table; several rows of one layer add up.

    Parameters
    ----------
    path
        A CSV file with a header line.
    graph
        The model that was profiled.
    columns
        Which column is what.

    Raises
    ------
    InputError
        A column is not there, or a cell is not a number; the message has file and line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter=columns.delimiter)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            wanted = [name for name in (columns.time, columns.name, columns.operator, columns.kind) if name]
            missing = [name for name in wanted if name not in header]
            if missing:
                raise InputError(
                    f"{path}: there is no column {', '.join(map(repr, missing))};"
                    f" the header has {', '.join(map(repr, header)) or 'nothing'}"
                )
            rows = [_row(cells, columns, f"{path}:{reader.line_num}") for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: can not be read: {error}") from None
    if not rows:
        raise InputError(f"{path}: the table has no rows")
    return match_rows(graph, rows, _rules(graph), TOOL)


def _rules(graph: LayerGraph) -> Rules:
    return Rules({layer.op: (layer.op,) for layer in graph.layers})


def _row(cells: Mapping[str, str | None], columns: ColumnMap, where: str) -> Row:
    time = _number(cells, columns.time, where)
    if time < 0:
        raise InputError(f"{where}: column {columns.time!r}: expected a time >= 0, got {time:g}")
    operator = _number(cells, columns.operator, where) if columns.operator else None
    return Row(
        _text(cells, columns.kind).upper(),
        (round(time * UNITS_NS[columns.unit]),),
        _text(cells, columns.name),
        None if operator is None else int(operator),
        where,
    )


def _text(cells: Mapping[str, str | None], column: str) -> str:
    return (cells.get(column) or "").strip() if column else ""


def _number(cells: Mapping[str, str | None], column: str, where: str) -> float:
    text = _text(cells, column).removesuffix("%").strip()
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: column {column!r}: expected a number, got {text!r}") from None
    if not math.isfinite(value):
        raise InputError(f"{where}: column {column!r}: expected a finite number, got {text!r}")
    return value


def columns_from_text(pairs: Sequence[str]) -> ColumnMap:
    """Read ``time=Avg, unit=ms, name=Layer`` as given on a command line, one ``key=value`` each.

    Raises
    ------
    InputError
        A pair is not of that form, or a key is unknown.
    """
    known = ("time", "unit", "name", "operator", "kind", "delimiter")
    values: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or key.strip() not in known:
            raise InputError(
                f"column map: expected KEY=COLUMN with KEY one of {', '.join(known)}, got {pair!r}"
            )
        values[key.strip()] = value
    if "time" not in values:
        raise InputError("column map: expected time=COLUMN")
    return ColumnMap(**values)
