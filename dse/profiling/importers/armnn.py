"""Profiles of Arm NN: the JSON of its network profiler (``ExecuteNetwork -e``, or pyarmnn).

Events nest: an inference holds an execution, which holds one event per workload, each with a list
of wall clock times.  The number behind ``#`` counts events, not layers.  Newer versions add types,
GUIDs and layer details, and ``ExecuteNetwork`` mixes lines of its log into the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dse.errors import InputError
from dse.graph import LayerGraph
from dse.profiling.importers.matching import Imported, Row, match_rows
from dse.profiling.kernels import Rules

TOOL = "Arm NN"
_COUNTER = re.compile(r"(_#\d+)$")
_WORKLOAD = re.compile(
    r"^(?:Ref|Neon|Cl|GpuFsa|EthosN|Tosa\w*?)?(\w+?)(?:Float32|Float16|Uint8|Float|Int32)?Workload$"
)
_LOG_LINE = re.compile(r"^(Info|Warning|Error|Debug|Trace|Fatal): ")
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "ns": 1, "s": 1_000_000_000}
# Copies between memories and allocations are no layers.
_IGNORED = ("CopyMem", "ImportMem", "SyncMem", "MemCopy", "MemImport", "MemSync", "Constant")
_ACTIVATION = ("Activation",)
_BINARY = ("ElementwiseBinary",)
_UNARY = ("ElementwiseUnary", "Activation")
RULES = Rules(
    main={
        "ABS": ("Abs", *_UNARY),
        "ADD": ("Addition", *_BINARY),
        "ARG_MAX": ("ArgMinMax",),
        "AVERAGE_POOL_2D": ("Pooling2d",),
        "BATCH_MATMUL": ("BatchMatMul",),
        "CAST": ("Cast",),
        "CONCATENATION": ("Concat", "Merger"),
        "CONV_2D": ("Convolution2d",),
        "DEPTHWISE_CONV_2D": ("DepthwiseConvolution2d", "DepthwiseConvolution"),
        "DEPTH_TO_SPACE": ("DepthToSpace",),
        "DEQUANTIZE": ("Dequantize",),
        "DIV": ("Division", *_BINARY),
        "ELU": _ACTIVATION,
        "EXP": ("Exp", *_UNARY),
        "EXPAND_DIMS": ("Reshape",),
        "FULLY_CONNECTED": ("FullyConnected",),
        "GATHER": ("Gather",),
        "HARD_SWISH": _ACTIVATION,
        "L2_NORMALIZATION": ("L2Normalization",),
        "LEAKY_RELU": _ACTIVATION,
        "LOGISTIC": _ACTIVATION,
        "LOG_SOFTMAX": ("LogSoftmax",),
        "MAXIMUM": ("Maximum", *_BINARY),
        "MAX_POOL_2D": ("Pooling2d",),
        "MEAN": ("Mean", "Pooling2d"),
        "MINIMUM": ("Minimum", *_BINARY),
        "MIRROR_PAD": ("Pad",),
        "MUL": ("Multiplication", *_BINARY),
        "NEG": ("Neg", *_UNARY),
        "PACK": ("Stack",),
        "PAD": ("Pad",),
        "PADV2": ("Pad",),
        "PRELU": ("Prelu",),
        "QUANTIZE": ("Quantize",),
        "RELU": _ACTIVATION,
        "RELU6": _ACTIVATION,
        "RELU_N1_TO_1": _ACTIVATION,
        "RESHAPE": ("Reshape",),
        "RESIZE_BILINEAR": ("Resize", "ResizeBilinear"),
        "RESIZE_NEAREST_NEIGHBOR": ("Resize",),
        "RSQRT": ("Rsqrt", *_UNARY),
        "SLICE": ("Slice",),
        "SOFTMAX": ("Softmax",),
        "SPACE_TO_BATCH_ND": ("SpaceToBatchNd",),
        "BATCH_TO_SPACE_ND": ("BatchToSpaceNd",),
        "SPACE_TO_DEPTH": ("SpaceToDepth",),
        "SPLIT": ("Splitter",),
        "SPLIT_V": ("Splitter",),
        "SQRT": ("Sqrt", *_UNARY),
        "SQUEEZE": ("Reshape",),
        "STRIDED_SLICE": ("StridedSlice",),
        "SUB": ("Subtraction", *_BINARY),
        "SUM": ("Reduce",),
        "TANH": _ACTIVATION,
        "TRANSPOSE": ("Transpose", "Permute"),
        "TRANSPOSE_CONV": ("TransposeConvolution2d",),
    },
    # A fused activation is a workload of its own on some backends; shapes are brought in line.
    before=("Reshape", "Pad", "Dequantize"),
    after=("Activation", "Reshape"),
    # Activations and shapes vanish into neighbours; 20.08 has no event for a quantisation.
    vanishing=frozenset(
        {"RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "PAD", "QUANTIZE"}
    ),
    rows=frozenset({"CONCATENATION"}),
)


def read_armnn(path: Path, graph: LayerGraph) -> Imported:
    """Read a profile of Arm NN and align it with the layers by order and kind.

    Parameters
    ----------
    path
        The JSON, or what ``ExecuteNetwork`` printed, which has it inside.
    graph
        The model that was profiled.

    Raises
    ------
    InputError
        There is no such JSON in the file, it holds no inference, or a time is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: can not be read: {error.strerror}") from None
    data = _find_json(text, path)
    rows = [row for name, event in _events(data) if (row := _row(name, event, str(path))) is not None]
    if not rows:
        raise InputError(
            f"{path}: the profile holds no executed workloads; enable profiling before the network runs"
            " (ExecuteNetwork --event-based-profiling, or IProfiler.EnableProfiling)"
        )
    return match_rows(graph, rows, RULES, TOOL)


def _find_json(text: str, path: Path) -> dict[str, Any]:
    kept = "\n".join(line for line in text.splitlines() if not _LOG_LINE.match(line))
    decoder = json.JSONDecoder()
    start = kept.find('"ArmNN"')
    start = kept.rfind("{", 0, start) if start >= 0 else -1
    if start < 0:
        raise InputError(f"{path}: expected the JSON of Arm NN's profiler, with an object 'ArmNN'")
    try:
        data, _ = decoder.raw_decode(kept[start:])
    except ValueError as error:
        raise InputError(f"{path}: the JSON of Arm NN's profiler is damaged: {error}") from None
    root = data["ArmNN"]
    if not isinstance(root, dict):
        raise InputError(f"{path}: expected an object in 'ArmNN', got {type(root).__name__}")
    return root


def _events(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the workload events of the first inference, in the order of the file."""
    for name, event in root.items():
        if isinstance(event, dict) and name.startswith("inference_measurements"):
            yield from _workloads(event)
            return


def _workloads(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in event.items():
        if not isinstance(inner, dict) or name.startswith("Wall clock time"):
            continue
        plain = _COUNTER.sub("", name)
        if plain.endswith("_Execute") and plain != "Execute":
            yield plain.removesuffix("_Execute"), inner
        else:
            yield from _workloads(inner)


def _row(name: str, event: dict[str, Any], where: str) -> Row | None:
    if any(word in name for word in _IGNORED):
        return None
    found = _WORKLOAD.match(name)
    kind = found[1] if found else name
    for key, measured in event.items():
        if key.startswith("Wall clock time") and "(" not in key:
            return Row(kind, _times(measured, f"{where}, {name}"), "", None, f"{where}, {name}")
    raise InputError(f"{where}: event {name!r} has no 'Wall clock time'")


def _times(measured: Any, where: str) -> tuple[int, ...]:
    try:
        factor = _UNITS_NS[measured["unit"]]
        times = tuple(round(float(value) * factor) for value in measured["raw"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where}: expected {{'raw': [numbers], 'unit': 'us'}}, got {measured!r}") from None
    if not times or min(times) < 0:
        raise InputError(f"{where}: expected times >= 0, got {measured['raw']!r}")
    return times
