"""What is in a model, on one screen and as data."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dse.flatbuffer.cut_costs import cheap_cuts, cut_costs
from dse.flatbuffer.networks import has_note
from dse.flatbuffer.operators import operator_name
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.records import Model, SignatureDef
from dse.graph import Layer, LayerGraph, Tensor
from dse.reports.console import WIDTH, printable, shorten
from dse.units import format_bytes, format_count

MAX_LINES = 6
MAX_OPERATORS = 12


@dataclass(frozen=True)
class Summary:
    """Facts of a model.

    Parameters
    ----------
    file, graph
        The model.
    operators
        Operators of the main subgraph by type, most frequent first, ties by name.
    n_operators
        Of the main subgraph.
    n_constant_operators
        Operators that only prepare constants.
    n_subgraphs
        The main one included.
    known_macs
        Sum over the layers whose formula is known.
    unknown_macs
        Operator types without a formula.
    peak_activation_bytes
        Largest sum of activations that are alive at once when layers run in order: no arena is smaller.
    weight_types
        Bytes of constants by element type.
    unusual
        What a person should know, one line each.
    """

    file: ModelFile
    graph: LayerGraph
    operators: Mapping[str, int]
    n_operators: int
    n_constant_operators: int
    n_subgraphs: int
    known_macs: int
    unknown_macs: tuple[str, ...]
    peak_activation_bytes: int
    weight_types: Mapping[str, int]
    unusual: tuple[str, ...]


def summarise(file: ModelFile, graph: LayerGraph) -> Summary:
    """Gather the facts in one pass over layers and tensors."""
    model = file.model
    main = model.subgraphs[0]
    operators = Counter(operator_name(model, operator) for operator in main.operators)
    constant_operators = {index for layer in graph.layers for index in layer.operators[:-1]}
    weights: Counter[str] = Counter()
    for tensor in {tensor for layer in graph.layers for tensor in layer.constants}:
        weights[graph.tensors[tensor].dtype] += graph.tensors[tensor].n_bytes
    return Summary(
        file=file,
        graph=graph,
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        n_operators=len(main.operators),
        n_constant_operators=len(constant_operators),
        n_subgraphs=len(model.subgraphs),
        known_macs=sum(layer.macs or 0 for layer in graph.layers),
        unknown_macs=tuple(sorted({layer.op for layer in graph.layers if layer.macs is None})),
        peak_activation_bytes=peak_activation_bytes(graph),
        weight_types=dict(weights.most_common()),
        unusual=tuple(_unusual(file, graph, model)),
    )


def peak_activation_bytes(graph: LayerGraph) -> int:
    """Return the largest sum of activations alive at once, layers in their order."""
    last = {tensor: users[-1] for tensor, users in graph.consumers.items()}
    keep = set(graph.outputs)
    alive = {tensor for tensor in graph.inputs if tensor in last or tensor in keep}
    now = peak = sum(graph.tensors[tensor].n_bytes for tensor in alive)
    for layer in graph.layers:
        new = set(layer.outputs) - alive
        now += sum(graph.tensors[tensor].n_bytes for tensor in new)
        alive |= new
        peak = max(peak, now)
        used = {*layer.inputs, *layer.outputs}
        done = {t for t in used & alive if t not in keep and last.get(t, layer.index) <= layer.index}
        now -= sum(graph.tensors[tensor].n_bytes for tensor in done)
        alive -= done
    return peak


def _unusual(file: ModelFile, graph: LayerGraph, model: Model) -> list[str]:
    found = list(file.warnings)
    if graph.stateful:
        found.append("keeps state between frames: one copy per input stream, frames in order")
    for group, what in enumerate(graph.shared):
        members = [layer.index for layer in graph.layers if layer.group == group]
        if len(members) > 1:
            found.append(f"layers {_numbers(members)} share {what}: they stay in one stage")
    custom = sorted({layer.op for layer in graph.layers if layer.op.startswith("CUSTOM:")})
    if custom:
        found.append(f"custom operators: {', '.join(custom)}")
    dynamic = [tensor.name for tensor in graph.tensors if tensor.dynamic and tensor.kind != "constant"]
    if dynamic:
        found.append(f"{len(dynamic)} tensors have sizes known only at run time, first {dynamic[0]!r}")
    external = sum(buffer.external for buffer in model.buffers)
    if external:
        found.append(f"{external} buffers are stored behind the flatbuffer")
    sparse = sum(tensor.sparsity is not None for tensor in model.subgraphs[0].tensors)
    if sparse:
        found.append(f"{sparse} sparse weights")
    if has_note(model) and not graph.networks:
        found.append("a workload whose operators were changed since it was merged: shown as one network")
    if len(model.subgraphs) > 1:
        found.append(f"{len(model.subgraphs)} subgraphs (control flow, initialisers or further signatures)")
    if len(model.signature_defs) > 1:
        found.append(f"{len(model.signature_defs)} signatures; everything here is about the main subgraph")
    unused = [
        graph.tensors[t].name for t in graph.inputs if t not in graph.consumers and t not in graph.outputs
    ]
    if unused:
        found.append(f"inputs that nothing uses: {', '.join(unused)}")
    return found


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ... ({len(numbers)})"


def tensor_text(tensor: Tensor) -> str:
    """Write type, shape and size of a tensor."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    known = "" if not tensor.dynamic else ", size known at run time"
    return f"{tensor.dtype} {shape} ({format_bytes(tensor.n_bytes)}{known})"


def summary_text(summary: Summary) -> str:
    """Write the summary: lines of at most 80 columns."""
    graph, file = summary.graph, summary.file
    constant = (
        f" ({summary.n_operators} operators, {summary.n_constant_operators} only prepare constants)"
        if summary.n_constant_operators
        else ""
    )
    macs = f"{format_count(summary.known_macs)} multiply-accumulates"
    if summary.unknown_macs:
        macs = f"at least {macs}; unknown for {', '.join(summary.unknown_macs)}"
    types = ", ".join(f"{dtype} {format_bytes(n)}" for dtype, n in summary.weight_types.items())
    lines = [shorten(f"{file.path.name}  {format_bytes(file.n_bytes)}", WIDTH)]
    lines += _entry("layers", f"{len(graph.layers)}{constant}")
    networks = [f"{network.name} {len(network.layers)}" for network in graph.networks]
    if networks:
        lines += _entry("networks", f"layers: {', '.join(networks)}")
    lines += _entry("arithmetic", macs)
    lines += _entry("weights", f"{format_bytes(graph.weight_bytes)}" + (f" ({types})" if types else ""))
    lines += _entry("activations", f"{format_bytes(summary.peak_activation_bytes)} alive at once")
    for title, indices in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        texts = [f"{graph.tensors[i].name}  {tensor_text(graph.tensors[i])}" for i in indices]
        lines += _entries(title, texts)
    lines += _entries("signatures", [_signature_text(s) for s in file.model.signature_defs])
    counts = [f"{name}\u00a0{count}" for name, count in summary.operators.items()]
    more = len(counts) - MAX_OPERATORS
    lines += _entry("operators", ", ".join(counts[:MAX_OPERATORS]) + (f", {more} more" if more > 0 else ""))
    lines += _entries("unusual", summary.unusual or ["nothing"])
    return "\n".join(lines)


def _signature_text(signature: SignatureDef) -> str:
    inputs, outputs = (
        ", ".join(entry.name for entry in side) for side in (signature.inputs, signature.outputs)
    )
    return f"{signature.signature_key}({inputs}) -> {outputs}"


def _entry(title: str, text: str) -> list[str]:
    clean = " ".join(text.split(" "))
    lines = textwrap.wrap(clean, WIDTH, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14)
    return [printable(line.replace("\u00a0", " ")) for line in lines]


def _entries(title: str, texts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for number, text in enumerate(texts[:MAX_LINES]):
        lines += _entry(title if number == 0 else "", text)
    if len(texts) > MAX_LINES:
        lines += _entry("", f"... and {len(texts) - MAX_LINES} more")
    return lines


def layers_text(graph: LayerGraph) -> str:
    """Write one line per layer: number, operator, arithmetic, weights, output, and the whole name.

    ``tensor`` is the number of the first output, for commands that take tensors.
    """
    lines = [f"{'layer':>5} {'operator':<22} {'MACs':>7} {'weights':>8} {'output':<18} {'tensor':>6} name"]
    for layer in graph.layers:
        macs = "?" if layer.macs is None else format_count(layer.macs).replace(" ", "")
        output = "x".join(map(str, graph.tensors[layer.outputs[0]].shape)) if layer.outputs else "-"
        line = (
            f"{layer.index:>5} {shorten(layer.op, 22):<22} {macs:>7} "
            f"{format_bytes(layer.weight_bytes):>8} {shorten(output or 'scalar', 18):<18} "
        )
        tensor = layer.outputs[0] if layer.outputs else "-"
        lines.append(f"{line}{tensor:>6} {printable(layer.name)}")
    return "\n".join(lines)


def cuts_text(graph: LayerGraph) -> str:
    """Write one line per position between layers: what a cut there would send over; ``*`` is cheap."""
    costs = cut_costs(graph)
    cheap = {cost.position for cost in cheap_cuts(costs)}
    most = max((cost.n_bytes for cost in costs), default=1) or 1
    lines = [f"{'after':>5} {'bytes':>9} {'tensors':>7} {'weights before':>14} {'MACs before':>11}"]
    for cost in costs:
        bar = "#" * round(20 * cost.n_bytes / most) if cost.possible else "not possible: shared state"
        mark = "*" if cost.position in cheap else " "
        lines.append(
            f"{cost.position - 1:>5} {format_bytes(cost.n_bytes):>9} {len(cost.tensors):>7} "
            f"{format_bytes(cost.weight_bytes):>14} {format_count(cost.macs):>11} {mark} {bar}".rstrip()
        )
    lines.append("after: cut with 'dse split --at'   *: cheaper than its neighbours")
    return "\n".join(lines)


def cuts_json(graph: LayerGraph) -> list[dict[str, Any]]:
    """Return what every cut between layers would send over, as plain data."""
    return [
        {
            "after_layer": cost.position - 1,
            "n_bytes": cost.n_bytes,
            "tensors": [graph.tensors[tensor].name for tensor in cost.tensors],
            "weight_bytes_before": cost.weight_bytes,
            "macs_before": cost.macs,
            "possible": cost.possible,
        }
        for cost in cut_costs(graph)
    ]


def summary_json(summary: Summary, *, layers: bool = False) -> dict[str, Any]:
    """Return the summary as plain data, with every layer when asked."""
    graph, model = summary.graph, summary.file.model
    return {
        "path": str(summary.file.path),
        "n_bytes": summary.file.n_bytes,
        "n_layers": len(graph.layers),
        "networks": [{"name": network.name, "n_layers": len(network.layers)} for network in graph.networks],
        "n_operators": summary.n_operators,
        "n_constant_operators": summary.n_constant_operators,
        "n_subgraphs": summary.n_subgraphs,
        "operators": dict(summary.operators),
        "macs": graph.macs,
        "known_macs": summary.known_macs,
        "unknown_macs": list(summary.unknown_macs),
        "weight_bytes": graph.weight_bytes,
        "weight_bytes_by_type": dict(summary.weight_types),
        "peak_activation_bytes": summary.peak_activation_bytes,
        "stateful": graph.stateful,
        "inputs": [_tensor_json(graph.tensors[i]) for i in graph.inputs],
        "outputs": [_tensor_json(graph.tensors[i]) for i in graph.outputs],
        "signatures": [
            {
                "key": s.signature_key,
                "subgraph": s.subgraph_index,
                "inputs": [m.name for m in s.inputs],
                "outputs": [m.name for m in s.outputs],
            }
            for s in model.signature_defs
        ],
        "unusual": list(summary.unusual),
        **({"layers": [_layer_json(layer, graph) for layer in graph.layers]} if layers else {}),
    }


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    return {
        "index": tensor.index,
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "dynamic": tensor.dynamic,
        "n_bytes": tensor.n_bytes,
    }


def _layer_json(layer: Layer, graph: LayerGraph) -> dict[str, Any]:
    return {
        "index": layer.index,
        "name": layer.name,
        "op": layer.op,
        "operators": list(layer.operators),
        "inputs": [_tensor_json(graph.tensors[i]) for i in layer.inputs],
        "outputs": [_tensor_json(graph.tensors[i]) for i in layer.outputs],
        "constants": [_tensor_json(graph.tensors[i]) for i in layer.constants],
        "macs": layer.macs,
        "element_ops": layer.element_ops,
        "weight_bytes": layer.weight_bytes,
        "activation_bytes": sum(
            graph.tensors[i].n_bytes for i in dict.fromkeys((*layer.inputs, *layer.outputs))
        ),
        "group": layer.group,
        "shares": None if layer.group is None else graph.shared[layer.group],
    }
