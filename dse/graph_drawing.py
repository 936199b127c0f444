"""Drawings of a layer graph: DOT for Graphviz, and an SVG that needs no other program.

The SVG has one row per layer, in execution order.  A tensor for the next row is a short line; others run
down beside the rows, like branches in a log of commits, so that skip connections and what crosses a
cut can be followed by eye.  Both are linear in the size of the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dse.errors import InputError
from dse.graph import Layer, LayerGraph, Tensor
from dse.units import format_bytes, format_count

# Sizes in pixels.
_ROW = 26
_BOX_HEIGHT = 20
_BOX_X = 54
_BOX_WIDTH = 330
_LANE = 9
_FIRST_LANE_X = _BOX_X + _BOX_WIDTH + 14
_MARGIN = 12
# Characters that fit into a box beside the size at its right end.
_BOX_TEXT = 40

_MATRIX = ("CONV", "FULLY_CONNECTED", "MATMUL", "LSTM", "RNN", "SVDF", "DOT_GENERAL", "Conv")
_STAGE_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#6c6c6c")
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#1a1a1a}
.size,.number{fill:#666;text-anchor:end}
rect{stroke:#8a8a8a;fill:#f4f4f4}
.matrix{fill:#dbe9f6} .move{fill:#fafafa;stroke-dasharray:3 2} .port{fill:#e6f4e6}
.group{stroke:#b03060;stroke-width:2}
path{fill:none;stroke:#5a5a5a}
@media(prefers-color-scheme:dark){
svg{background:#16181c} text{fill:#e8e8e8} .size,.number{fill:#a8a8a8} path{stroke:#a0a0a0}
rect{fill:#2a2d33;stroke:#777} .matrix{fill:#20405e} .move{fill:#1e2025} .port{fill:#20402a}
}
"""


def graph_dot(graph: LayerGraph, stages: Sequence[Sequence[int]] = ()) -> str:
    """Write a graph in the DOT language.

    Parameters
    ----------
    graph
        The model.
    stages
        Layers of each stage: drawn as boxes around them.

    Raises
    ------
    InputError
        A stage has a layer that is not there.
    """
    _check_stages(graph, stages)
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=TB;",
        '  node [shape=box, fontname="sans-serif"];',
    ]
    for index in graph.inputs:
        tensor = graph.tensors[index]
        lines.append(f"  i{index} [shape=ellipse, label={_quoted(tensor.name)}];")
    staged = {layer for layers in stages for layer in layers}
    for number, layers in enumerate(stages):
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(f'stage {number}')};")
        lines += [f"  {_dot_node(graph, graph.layers[layer])}" for layer in layers]
        lines.append("  }")
    lines += [_dot_node(graph, layer) for layer in graph.layers if layer.index not in staged]
    for tensor_index, users in sorted(graph.consumers.items()):
        maker = graph.producer.get(tensor_index)
        start = f"i{tensor_index}" if maker is None else f"l{maker}"
        size = _quoted(format_bytes(graph.tensors[tensor_index].n_bytes))
        lines += [f"  {start} -> l{user} [label={size}];" for user in users]
    for index in graph.outputs:
        lines.append(f"  o{index} [shape=ellipse, label={_quoted(graph.tensors[index].name)}];")
        maker = graph.producer.get(index)
        if maker is not None:
            lines.append(f"  l{maker} -> o{index};")
        elif index in graph.inputs:
            lines.append(f"  i{index} -> o{index};")
    return "\n".join([*lines, "}"]) + "\n"


def graph_svg(graph: LayerGraph, stages: Sequence[Sequence[int]] = ()) -> str:
    """Draw a graph as a self-contained SVG, light and dark.

    Parameters
    ----------
    graph
        The model.
    stages
        Layers of each stage: a coloured bar beside the rows.

    Raises
    ------
    InputError
        A stage has a layer that is not there.
    """
    _check_stages(graph, stages)
    first_layer_row = len(graph.inputs)
    row_of_layer = {layer.index: first_layer_row + layer.index for layer in graph.layers}
    first_output_row = first_layer_row + len(graph.layers)
    wires, n_lanes = _wires(graph, row_of_layer, first_output_row)
    height = 2 * _MARGIN + _ROW * (first_output_row + len(graph.outputs))
    width = _FIRST_LANE_X + _LANE * n_lanes + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(graph.name)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        'orient="auto"><path d="M0 0 6 3 0 6z" style="fill:#777;stroke:none"/></marker></defs>',
    ]
    parts += [_wire_svg(graph, wire) for wire in wires]
    for row, index in enumerate(graph.inputs):
        parts.append(_port_svg(graph, row, index, "input"))
    stage_of = {layer: number for number, layers in enumerate(stages) for layer in layers}
    for layer in graph.layers:
        parts.append(_layer_svg(graph, layer, row_of_layer[layer.index], stage_of.get(layer.index)))
    for number, index in enumerate(graph.outputs):
        parts.append(_port_svg(graph, first_output_row + number, index, "output"))
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class _Wire:
    """A tensor from its maker's row to its users' rows; ``lane`` is None for the row right below."""

    tensor: int
    start: int
    ends: tuple[int, ...]
    lane: int | None


def _wires(graph: LayerGraph, row_of_layer: dict[int, int], first_output_row: int) -> tuple[list[_Wire], int]:
    """Give each tensor that passes by a row a lane of its own beside the rows."""
    rows: dict[int, list[int]] = {}
    for tensor, users in graph.consumers.items():
        rows[tensor] = [row_of_layer[user] for user in users]
    for number, tensor in enumerate(graph.outputs):
        rows.setdefault(tensor, []).append(first_output_row + number)
    starts = {tensor: row for row, tensor in enumerate(graph.inputs)}
    starts |= {tensor: row_of_layer[layer] for tensor, layer in graph.producer.items()}
    wires: list[_Wire] = []
    long: list[tuple[int, int, int, tuple[int, ...]]] = []
    for tensor, ends in rows.items():
        if tensor not in starts:  # a constant that leaves the model
            continue
        start = starts[tensor]
        if start + 1 in ends:
            wires.append(_Wire(tensor, start, (start + 1,), None))
        far = tuple(sorted(end for end in set(ends) if end != start + 1))
        if far:
            long.append((start, far[-1], tensor, far))
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    n_lanes = 0
    for start, last, tensor, far in sorted(long):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, n_lanes = n_lanes, n_lanes + 1
        heapq.heappush(busy, (last, lane))
        wires.append(_Wire(tensor, start, far, lane))
    return wires, n_lanes


def _y(row: int) -> int:
    return _MARGIN + _ROW * row + _BOX_HEIGHT // 2


def _wire_svg(graph: LayerGraph, wire: _Wire) -> str:
    tensor = graph.tensors[wire.tensor]
    title = f"<title>{escape(tensor.name)}: {format_bytes(tensor.n_bytes)}</title>"
    half = _BOX_HEIGHT // 2
    if wire.lane is None:
        x = _BOX_X + 20
        path = f"M{x} {_y(wire.start) + half}V{_y(wire.ends[0]) - half}"
        return f'<path d="{path}" marker-end="url(#end)">{title}</path>'
    right, x = _BOX_X + _BOX_WIDTH, _FIRST_LANE_X + _LANE * wire.lane
    paths = [f"M{right} {_y(wire.start) + 3}H{x}V{_y(wire.ends[-1]) - 3}"]
    paths += [f"M{x} {_y(end) - 3}H{right}" for end in wire.ends]
    arrows = "".join(f'<path d="{path}" marker-end="url(#end)"/>' for path in paths[1:])
    return f'<g>{title}<path d="{paths[0]}"/>{arrows}</g>'


def _layer_svg(graph: LayerGraph, layer: Layer, row: int, stage: int | None) -> str:
    outputs = [graph.tensors[index] for index in layer.outputs]
    shape = _shape(outputs[0]) if outputs else ""
    kind = "move" if (layer.macs, layer.element_ops) == (0, 0) else ""
    if any(word in layer.op for word in _MATRIX):
        kind = "matrix"
    size = format_bytes(sum(tensor.n_bytes for tensor in outputs))
    macs = "unknown" if layer.macs is None else format_count(layer.macs)
    title = (
        f"layer {layer.index}: {layer.op} {layer.name}\n{macs} multiply-accumulates, "
        f"{format_bytes(layer.weight_bytes)} weights"
    )
    if layer.group is not None and layer.group < len(graph.shared):
        title += f"\nshares {graph.shared[layer.group]}"
        kind += " group"
    parts = [_row_svg(row, str(layer.index), f"{layer.op}  {shape}", size, kind.strip(), title)]
    if stage is not None:
        colour = _STAGE_COLOURS[stage % len(_STAGE_COLOURS)]
        y = _y(row) - _ROW // 2
        parts.append(
            f'<path d="M4 {y}v{_ROW}" style="stroke:{colour};stroke-width:6">'
            f"<title>stage {stage}</title></path>"
        )
    return "".join(parts)


def _port_svg(graph: LayerGraph, row: int, index: int, what: str) -> str:
    tensor = graph.tensors[index]
    shape = _shape(tensor)
    title = f"{what} {tensor.name}\n{tensor.dtype} {shape}"
    return _row_svg(row, "", f"{what} {tensor.name}  {shape}", format_bytes(tensor.n_bytes), "port", title)


def _row_svg(row: int, number: str, text: str, size: str, kind: str, title: str) -> str:
    middle = _y(row)
    baseline = middle + 4
    shown = text if len(text) <= _BOX_TEXT else text[: _BOX_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return (
        f"<g><title>{escape(title)}</title>"
        f'<text class="number" x="{_BOX_X - 8}" y="{baseline}">{number}</text>'
        f'<rect class="{kind}" x="{_BOX_X}" y="{middle - _BOX_HEIGHT // 2}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="3"/>'
        f'<text x="{_BOX_X + 8}" y="{baseline}">{escape(shown)}</text>'
        f'<text class="size" x="{_BOX_X + _BOX_WIDTH - 8}" y="{baseline}">{escape(size)}</text></g>'
    )


def _check_stages(graph: LayerGraph, stages: Sequence[Sequence[int]]) -> None:
    for number, layers in enumerate(stages):
        for layer in layers:
            if not 0 <= layer < len(graph.layers):
                raise InputError(
                    f"stage {number}: there is no layer {layer}, {graph.name} has {len(graph.layers)}"
                )


def _dot_node(graph: LayerGraph, layer: Layer) -> str:
    shape = _shape(graph.tensors[layer.outputs[0]]) if layer.outputs else ""
    label = f"{layer.index} {layer.op}\n{shape}".rstrip()
    return f"  l{layer.index} [label={_quoted(label)}, tooltip={_quoted(layer.name)}];"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
