"""Frames to run a model with: inputs that move the outputs.

Noise alone can hide faults (a detector answers 0 to it), and identifiers outside a table make the
runtime fail.  So images are smooth and structured, and integers stay within the table they index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.errors import InputError
from dse.graph import LayerGraph, Tensor

_Randoms = tuple[np.random.Generator, np.random.Generator]  # for structure, and for noise
Frame = tuple[npt.NDArray[np.generic], ...]

STYLES = ("smooth", "signed", "strong", "bytes", "noise", "held")
"""Kinds of frames, to be tried in this order until the outputs move."""

# (centre, half width) of smooth values, and the share of noise
_LEVELS = {
    "smooth": (0.5, 0.5, 0.05),
    "signed": (0.0, 1.0, 0.05),
    "strong": (0.0, 4.0, 0.1),
    "bytes": (127.5, 127.5, 0.05),
    "noise": (0.0, 1.0, 1.0),
    "held": (0.0, 1.0, 0.1),
}
_DEFAULT_BOUND = 2
# Models that listen want a pattern that stays for a while.
_HELD_FRAMES = 6
# An identifier keeps its meaning through these, on its way to the table that it indexes.
_PASS_THROUGH = frozenset(
    (
        "RESHAPE",
        "CAST",
        "SQUEEZE",
        "EXPAND_DIMS",
        "TRANSPOSE",
        "SLICE",
        "STRIDED_SLICE",
        "CONCATENATION",
        "PACK",
    )
)
_LOOKUPS = frozenset(("GATHER", "EMBEDDING_LOOKUP"))
_FLOATS = frozenset(("float16", "float32", "float64"))
_RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
}
_IDENTIFIERS = frozenset(("int32", "int64", "uint32", "uint64"))


def make_frames(
    graph: LayerGraph,
    n: int,
    seed: int,
    *,
    style: str = STYLES[0],
    bounds: Mapping[int, int] | None = None,
) -> tuple[Frame, ...]:
    """Make frames for a model.

    Parameters
    ----------
    graph
        The model; its ``inputs`` say what is needed.
    n
        Number of frames, all different.
    seed
        Same seed, same frames.
    style
        One of ``STYLES``; matters for floating-point inputs and the shape of 8-bit images.
    bounds
        Tensor index of an integer input -> its values stay below this.  Default: ``id_bounds``.

    Returns
    -------
    tuple of tuple of arrays
        Per frame one array per input, in the model's order, of the input's type and shape.

    Raises
    ------
    InputError
        An input has a type that no frame can be made for (text, resource), or ``style`` is unknown.
    """
    if style not in _LEVELS:
        raise InputError(f"unknown style of frames {style!r}: expected one of {', '.join(STYLES)}")
    limits = id_bounds(graph) if bounds is None else dict(bounds)
    frames = []
    for number in range(n):
        structure = number // _HELD_FRAMES if style == "held" else number
        random = (np.random.default_rng((seed, structure)), np.random.default_rng((seed, number, 1)))
        frames.append(tuple(_values(graph.tensors[index], random, style, limits) for index in graph.inputs))
    return tuple(frames)


def id_bounds(graph: LayerGraph) -> dict[int, int]:
    """Find how large the values of integer inputs may be: the length of the table they index.

    Follows an input through operators that keep its values to a GATHER or EMBEDDING_LOOKUP with a
    constant table; several tables: the shortest.

    Returns
    -------
    dict
        Input tensor index -> exclusive upper bound; inputs that index no table are missing.
    """
    found: dict[int, int] = {}
    for start in graph.inputs:
        if graph.tensors[start].dtype not in _IDENTIFIERS:
            continue
        seen, todo = {start}, [start]
        while todo:
            for user in graph.consumers.get(todo.pop(), ()):
                layer = graph.layers[user]
                if layer.op in _LOOKUPS:
                    shapes = [graph.tensors[c].shape for c in layer.constants if graph.tensors[c].shape]
                    if shapes:
                        rows = max(shapes, key=lambda shape: int(np.prod(shape)))[0]
                        found[start] = min(rows, found.get(start, rows))
                elif layer.op in _PASS_THROUGH:
                    todo.extend(tensor for tensor in layer.outputs if tensor not in seen)
                    seen.update(layer.outputs)
    return found


def _values(
    tensor: Tensor, random: _Randoms, style: str, bounds: Mapping[int, int]
) -> npt.NDArray[np.generic]:
    shape = tensor.shape
    if tensor.dtype in _FLOATS:
        centre, width, noise = _LEVELS[style]
        values = _mixed(shape, random, noise)
        return np.asarray(centre + width * values, dtype=np.dtype(tensor.dtype))
    if tensor.dtype in _RANGES:
        low, high = _RANGES[tensor.dtype]
        unit = (_mixed(shape, random, _LEVELS[style][2]) + 1) / 2
        return np.asarray(np.rint(low + unit * (high - low)), dtype=np.dtype(tensor.dtype))
    if tensor.dtype in _IDENTIFIERS:
        bound = max(1, bounds.get(tensor.index, _DEFAULT_BOUND))
        return np.asarray(random[1].integers(0, bound, shape), dtype=np.dtype(tensor.dtype))
    if tensor.dtype == "bool":
        return np.asarray(random[1].integers(0, 2, shape), dtype=np.bool_)
    if tensor.dtype == "complex64":
        return np.asarray(_mixed(shape, random, 1.0) + 1j * _mixed(shape, random, 1.0), dtype=np.complex64)
    raise InputError(
        f"no frame can be made for input {tensor.name!r}: its type is {tensor.dtype}; "
        f"expected numbers or booleans"
    )


def _mixed(shape: tuple[int, ...], random: _Randoms, noise: float) -> npt.NDArray[np.float64]:
    """Smooth structure and noise within [-1, 1]."""
    rough = np.clip(random[1].normal(0.0, 0.5, shape), -1, 1)
    if noise >= 1 or not shape:
        return np.asarray(rough)
    return np.asarray(np.clip((1 - noise) * _smooth(shape, random[0]) + noise * rough, -1, 1))


def _smooth(shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """A few waves and a bright blob over the spatial axes; channels differ in phase."""
    # Images have channels last; a sequence of vectors is smooth along both.
    spatial = tuple(range(1, len(shape) - 1)) if len(shape) > 3 else tuple(range(len(shape)))[-2:]
    total: npt.NDArray[Any] = np.zeros(shape)
    for _ in range(4):
        phase: npt.NDArray[Any] = np.full(shape, random.uniform(0, 2 * np.pi))
        for axis, size in enumerate(shape):
            # A short axis gets a part of a wave only, so that its entries are alike.
            waves = random.uniform(0.5, 3.0) * min(1.0, size / 16)
            step = waves * 2 * np.pi / max(1, size) if axis in spatial else random.uniform(0, 1)
            phase = phase + _along(axis, len(shape), np.arange(size) * step)
        total += random.uniform(0.2, 1.0) * np.sin(phase)
    distance: npt.NDArray[Any] = np.zeros(shape)
    for axis in spatial:
        size = shape[axis]
        offset = (np.arange(size) - random.uniform(0.25, 0.75) * size) / max(1.0, 0.2 * size)
        distance = distance + _along(axis, len(shape), offset**2)
    total += 2 * np.exp(-distance)
    return np.asarray(np.tanh(total))


def _along(axis: int, rank: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.reshape([-1 if axis == other else 1 for other in range(rank)])
