"""Profiles of TensorFlow Lite's ``benchmark_model --enable_op_profiling``: CSV and protocol buffer.

The CSV is several banner-separated tables in one file: for the initialisation and for the runs,
each in run order, by time and by type.  Only the run order of the runs is used.  Names hold commas
and are not quoted, so the last column takes the rest of the line; older builds have a ``start``
column.  Kernels inside a delegate come in a part of their own ("Delegate internal"), and are
aligned with the operators that the delegate has taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.errors import InputError
from dse.graph import LayerGraph
from dse.profiling.importers.matching import Imported, Row, add_samples, match_rows
from dse.profiling.in_situ import KERNEL, OPERATOR, resolve
from dse.profiling.kernels import Rules
from dse.profiling.slot_worker import Piece

if TYPE_CHECKING:
    from dse.flatbuffer.records import Model

TOOL = "benchmark_model"
_BANNER = re.compile(r"^=+\s*(.+?)\s*=+$")
_NUMBERED = re.compile(r"^(.*):(\d+)$", re.DOTALL)
_KERNEL = re.compile(r"^(?:Delegate/)?(.*?):(\d+)$", re.DOTALL)
_NS_PER_MS = 1_000_000


def read_benchmark_csv(path: Path, model: Model, graph: LayerGraph) -> Imported:
    """Read the CSV of ``--op_profiling_output_mode=csv``.

    Parameters
    ----------
    path
        The file (what the tool printed may be around it).
    model, graph
        The model that was profiled.

    Raises
    ------
    InputError
        The file holds no table in run order, or a line is damaged.
    """
    rows: list[Row] = []
    inside: list[Row] = []
    for internal, line, cells in _csv_rows(path):
        where = f"{path}:{line}"
        kind, name = cells["node type"], cells["name"]
        time_ns = _time(cells, where)
        (inside if internal else rows).append(Row(kind, (time_ns,), name, None, where))
    if not rows:
        raise InputError(
            f"{path}: expected a table '=== Run Order ===' with operators, found none; run benchmark_model"
            " with --enable_op_profiling=true --op_profiling_output_mode=csv"
        )
    return _imported(model, graph, rows, inside)


def read_benchmark_proto(path: Path, model: Model, graph: LayerGraph) -> Imported:
    """Read the protocol buffer of ``--op_profiling_output_mode=proto`` (``BenchmarkProfilingData``).

    Raises
    ------
    InputError
        The file is not such a message, or holds no run.
    """
    from ai_edge_litert import profiling_info_pb2
    from google.protobuf.message import DecodeError

    message = profiling_info_pb2.BenchmarkProfilingData()
    try:
        message.ParseFromString(path.read_bytes())
    except DecodeError:
        raise InputError(
            f"{path}: expected a BenchmarkProfilingData message, this is something else"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: can not be read: {error.strerror}") from None
    main = [profile for profile in message.runtime_profile.subgraph_profiles if profile.subgraph_index == 0]
    rows = [_proto_row(op, path) for profile in main for op in _in_order(profile.per_op_profiles)]
    if not rows:
        raise InputError(f"{path}: the message holds no operators of the main graph; was profiling enabled?")
    inside = [
        _proto_row(op, path)
        for profile in message.runtime_profile.delegate_profiles
        for op in _in_order(profile.per_op_profiles)
    ]
    return _imported(model, graph, rows, inside)


def _in_order(profiles: Sequence[Any]) -> list[Any]:
    return sorted(profiles, key=lambda op: op.run_order)


def _proto_row(op: Any, path: Path) -> Row:
    stat = op.inference_microseconds
    # The average is in whole microseconds; sum and count tell more.
    average_us = stat.sum / stat.count if stat.count else stat.avg
    return Row(op.node_type, (round(1000 * average_us),), op.name, None, f"{path}, {op.name!r}")


def _csv_rows(path: Path) -> Iterator[tuple[bool, int, dict[str, str]]]:
    """Yield (inside a delegate, line number, cells) of the tables in run order of the runs."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: can not be read: {error.strerror}") from None
    initialising = internal = wanted = other_graph = False
    columns: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if "Profiling Info for" in text:
            initialising = "Initialization" in text
            internal = other_graph = wanted = False
        elif text.startswith("Delegate internal"):
            internal, wanted = True, False
        elif text.startswith(("Primary graph", "Subgraph (")):
            internal, wanted, other_graph = False, False, text.startswith("Subgraph (")
        elif banner := _BANNER.match(text):
            wanted = banner[1] == "Run Order" and not initialising and not other_graph
            columns = []
        elif wanted and not columns and text.lower().startswith("node type"):
            columns = [cell.strip().lower() for cell in text.split(",")]
            _check_columns(columns, f"{path}:{number}")
        elif wanted and columns and text:
            cells = [cell.strip() for cell in text.split(",", len(columns) - 1)]
            if len(cells) != len(columns):
                raise InputError(
                    f"{path}:{number}: expected {len(columns)} columns ({', '.join(columns)}),"
                    f" got {len(cells)}"
                )
            yield internal, number, dict(zip(columns, cells, strict=True))
        elif not text:
            wanted = wanted and not columns


def _check_columns(columns: Sequence[str], where: str) -> None:
    missing = [name for name in ("node type", "name") if name not in columns]
    if not any(name in columns for name in ("avg_ms", "avg ms", "[avg ms]")):
        missing.append("avg_ms")
    if missing or columns[-1] != "name":
        raise InputError(
            f"{where}: expected the columns 'node type', 'avg_ms' and at the end 'name',"
            f" got {', '.join(columns)}"
        )


def _time(cells: Mapping[str, str], where: str) -> int:
    text = next(cells[name] for name in ("avg_ms", "avg ms", "[avg ms]") if name in cells)
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: expected milliseconds in column avg_ms, got {text!r}") from None
    if not 0 <= value < math.inf:
        raise InputError(f"{where}: expected milliseconds >= 0 in column avg_ms, got {text!r}")
    return round(value * _NS_PER_MS)


def _imported(model: Model, graph: LayerGraph, rows: Sequence[Row], inside: Sequence[Row]) -> Imported:
    """Make pieces of the rows where the profile allows that, else match by name and order."""
    n_operators = len(model.subgraphs[0].operators)
    numbered = [_NUMBERED.match(row.name) for row in rows]
    if not all(numbered):
        kinds = {layer.op: (layer.op,) for layer in graph.layers}
        named = [Row(row.kind.split("/")[0], row.samples_ns, row.name, None, row.where) for row in rows]
        return match_rows(graph, named, Rules(kinds), TOOL)
    groups = _kernel_groups(inside)
    pieces: list[Piece] = []
    samples: list[tuple[int, ...]] = []
    opaque: list[str] = []
    delegates = [
        row for row, found in zip(rows, numbered, strict=True) if found and int(found[2]) >= n_operators
    ]
    resolvable = len(groups) == len(delegates)
    for row, found in zip(rows, numbered, strict=True):
        number = int(found[2]) if found else 0
        if number < n_operators:
            pieces.append(Piece(OPERATOR, row.kind, number))
            samples.append(row.samples_ns)
        elif resolvable:
            for kernel in groups.pop(0):
                pieces.append(Piece(KERNEL, kernel.kind, kernel.operator or 0))
                samples.append(kernel.samples_ns)
        else:
            opaque.append(
                f"{row.where}: {row.kind} took {row.samples_ns[0] / 1e6:.3f} ms for the layers inside it"
            )
    if opaque:
        return _plain_operators(graph, pieces, samples, opaque)
    found_layers = resolve(model, graph, pieces)
    if not found_layers.layers and delegates:
        opaque = [f"{row.where}: {row.kind}: {found_layers.reason}" for row in delegates]
        return _plain_operators(graph, pieces, samples, opaque)
    return Imported(
        {i: add_samples([samples[p] for p in r.pieces]) for i, r in found_layers.layers.items()},
        {i: "runs inside the kernel of a neighbour" for i, r in found_layers.layers.items() if not r.pieces},
        (found_layers.reason,) if found_layers.reason else (),
        TOOL,
    )


def _plain_operators(
    graph: LayerGraph, pieces: Sequence[Piece], samples: Sequence[tuple[int, ...]], opaque: Sequence[str]
) -> Imported:
    """Keep what ran outside of delegates, and say what is inside of them."""
    main = {layer.operators[-1]: layer for layer in graph.layers}
    known = {
        main[piece.index].index: time
        for piece, time in zip(pieces, samples, strict=True)
        if piece.kind == OPERATOR and piece.index in main
    }
    return Imported(known, {}, tuple(opaque), TOOL)


def _kernel_groups(inside: Sequence[Row]) -> list[list[Row]]:
    """Part the kernels by delegate: each counts its own from 0."""
    groups: list[list[Row]] = []
    for row in inside:
        found = _KERNEL.match(row.name)
        if found is None:
            continue
        number = int(found[2])
        if number == 0 or not groups:
            groups.append([])
        groups[-1].append(Row(found[1], row.samples_ns, row.name, number, row.where))
    return groups
