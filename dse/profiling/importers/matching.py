"""Aligning the rows of a profile with the layers of a model: by number, by name, then by order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dse.graph import Layer, LayerGraph
from dse.profiling.kernels import Rules, align


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a profile.

    Parameters
    ----------
    kind
        What ran, as the tool calls it.
    samples_ns
        Its times; one for an average.
    name
        Name of a layer or of its output tensors, or empty.
    operator
        Number of the operator in the file, when the tool tells it.
    where
        File and line, for messages.
    """

    kind: str
    samples_ns: tuple[int, ...]
    name: str = ""
    operator: int | None = None
    where: str = ""


@dataclass(frozen=True)
class Imported:
    """What a profile says about the layers of a model.

    Parameters
    ----------
    samples_ns
        By layer index; a layer that runs inside another's kernel has no samples.
    notes
        By layer index, what is to be said about it.
    unresolved
        What could not be assigned to single layers, one line each.
    tool
        Where the profile comes from.
    """

    samples_ns: dict[int, tuple[int, ...]]
    notes: dict[int, str] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()
    tool: str = ""


def match_rows(graph: LayerGraph, rows: Sequence[Row], rules: Rules, tool: str) -> Imported:
    """Assign rows to layers.

    Rows that tell the number of an operator come first, then rows whose name is that of exactly one
    layer or of its output tensors.  What is left, in order, must fit the layers that are left, in
    order, by the kind of operator; else it stays unresolved.

    Parameters
    ----------
    graph
        The layers.
    rows
        In execution order.
    rules
        Which kinds of rows an operator may have.
    tool
        For messages.
    """
    of_layer: dict[int, list[Row]] = {}
    by_operator = {operator: layer for layer in graph.layers for operator in layer.operators}
    by_name = _names(graph)
    left: list[Row] = []
    for row in rows:
        layer = by_operator.get(row.operator) if row.operator is not None else by_name.get(_plain(row.name))
        if layer is None:
            left.append(row)
        else:
            of_layer.setdefault(layer.index, []).append(row)
    missing = [layer for layer in graph.layers if layer.index not in of_layer]
    notes: dict[int, str] = {}
    unresolved: list[str] = []
    if left or missing:
        shares = align([layer.op for layer in missing], [row.kind for row in left], rules)
        if shares is None:
            unresolved.append(_misfit(missing, left))
        else:
            for layer, share in zip(missing, shares, strict=True):
                of_layer[layer.index] = left[share.start : share.stop]
                if share.vanished:
                    notes[layer.index] = (
                        f"{tool} has no row for it: it runs inside a neighbour, or is not timed"
                    )
    samples = {index: add_samples([row.samples_ns for row in found]) for index, found in of_layer.items()}
    return Imported(samples, notes, tuple(unresolved), tool)


def add_samples(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Add the times of a layer's parts run by run, as far as all parts have runs."""
    return tuple(map(sum, zip(*parts, strict=False))) if parts else ()


def _names(graph: LayerGraph) -> dict[str, Layer]:
    found: dict[str, Layer | None] = {}
    for layer in graph.layers:
        outputs = ", ".join(graph.tensors[tensor].name for tensor in layer.outputs)
        for name in {_plain(layer.name), _plain(outputs)}:
            found[name] = None if name in found else layer  # a name of two layers names none
    return {name: layer for name, layer in found.items() if layer is not None and name}


def _plain(name: str) -> str:
    """Undo what tools do to names: brackets around lists, tabs for commas, spaces."""
    return " ".join(name.replace("\t", ",").strip().strip("[]").replace(",", " ").split())


def _misfit(layers: Sequence[Layer], rows: Sequence[Row]) -> str:
    where = f" (from {rows[0].where})" if rows and rows[0].where else ""
    return (
        f"{len(rows)} rows{where} and {len(layers)} layers do not fit together by order and kind:"
        f" rows {_some([row.kind for row in rows])}; layers {_some([layer.op for layer in layers])}"
    )


def _some(words: Sequence[str]) -> str:
    shown = ", ".join(words[:6]) or "none"
    return shown + (f", ... ({len(words)})" if len(words) > 6 else "")
