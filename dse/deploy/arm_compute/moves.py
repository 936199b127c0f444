"""Layers that move values: shapes, order, padding, joining, enlarging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dse.deploy.arm_compute.elements import fused
from dse.deploy.arm_compute.writing import Operation, Shape, Writer, number, shape

# How the library calls the dimensions of values with channels last, fastest first.
_DIMENSIONS = ("CHANNEL", "WIDTH", "HEIGHT", "BATCHES")


def reshape(w: Writer, operation: Operation) -> str:
    """Translate RESHAPE, SQUEEZE and EXPAND_DIMS."""
    return w.reshaped(w.value(operation, 0), operation.shapes[0], operation.out_shapes[0])


def transpose(w: Writer, operation: Operation) -> str:
    """Translate TRANSPOSE."""
    order = [int(axis) for axis in operation.constant(1, "order")]
    return permuted(w, w.value(operation, 0), order)


def permuted(w: Writer, source: str, order: Sequence[int]) -> str:
    """Return a value whose dimension ``n`` is dimension ``order[n]`` of another one."""
    rank = len(order)
    backwards = [rank - 1 - order[rank - 1 - place] for place in range(rank)]
    if backwards == list(range(rank)):
        return source
    numbers = ", ".join(f"{place}U" for place in backwards)
    return w.chain(source, f"PermuteLayer(PermutationVector({numbers}), DataLayout::NHWC)")


def depth_to_space(w: Writer, operation: Operation) -> str:
    """Translate DEPTH_TO_SPACE: rows of blocks and columns change places, the rest is counting otherwise."""
    (n, height, width, _), out = operation.shapes[0], operation.out_shapes[0]
    block = int(operation.options.get("block_size", 1))
    return _swapped_blocks(w, operation, (n * height, width, block, block * out[3]))


def space_to_depth(w: Writer, operation: Operation) -> str:
    """Translate SPACE_TO_DEPTH, the other way round."""
    n, height, width, channels = operation.shapes[0]
    block = int(operation.options.get("block_size", 1))
    return _swapped_blocks(w, operation, (n * height // block, block, width // block, block * channels))


def _swapped_blocks(w: Writer, operation: Operation, blocks: Shape) -> str:
    value = w.reshaped(w.value(operation, 0), operation.shapes[0], blocks)
    value = permuted(w, value, (0, 2, 1, 3))
    swapped = (blocks[0], blocks[2], blocks[1], blocks[3])
    return w.reshaped(value, swapped, operation.out_shapes[0])


def pad(w: Writer, operation: Operation) -> str:
    """Translate PAD and PADV2."""
    pads = operation.constant(1, "paddings").reshape(-1, 2).tolist()
    value = float(operation.reals(2, "padding value").reshape(-1)[0]) if operation.has(2) else 0.0
    while pads and pads[0] == [0, 0]:
        pads.pop(0)  # the slowest dimensions; the library wants no more than are padded
    if not pads:
        return w.value(operation, 0)
    listed = ", ".join(f"{{{before}U, {after}U}}" for before, after in reversed(pads))
    return w.chain(w.value(operation, 0), f"PadLayer(PaddingList{{{listed}}}, PixelValue({number(value)}))")


def concatenation(w: Writer, operation: Operation) -> str:
    """Translate CONCATENATION."""
    rank = len(operation.out_shapes[0])
    axis = int(operation.options.get("axis", 0)) % rank
    shape(operation.out_shapes[0])  # refuses what has too many dimensions
    sources = [w.value(operation, position) for position in range(len(operation.inputs))]
    if len(sources) == 1:
        return w.chain(sources[0], *fused(operation))
    dimension = f"descriptors::ConcatLayerDescriptor(DataLayoutDimension::{_DIMENSIONS[rank - 1 - axis]})"
    parts = ", ".join(f"SubStream({source})" for source in sources)
    return w.chain(sources[0], f"ConcatLayer({dimension}, {parts})", *fused(operation))


def resize_nearest(w: Writer, operation: Operation) -> str:
    """Translate RESIZE_NEAREST_NEIGHBOR."""
    dims, out = operation.shapes[0], operation.out_shapes[0]
    tables = [_nearest(operation, dims[axis], out[axis]) for axis in (1, 2)]
    centres = [
        np.minimum(((np.arange(out[axis]) + 0.5) * dims[axis] / out[axis]).astype(int), dims[axis] - 1)
        for axis in (1, 2)
    ]
    # The library's own layer knows only one rule; it needs the size as a factor that comes out whole.
    if all(np.array_equal(*pair) for pair in zip(tables, centres, strict=True)) and all(
        out[axis] % dims[axis] == 0 for axis in (1, 2)
    ):
        factors = f"{number(out[2] / dims[2])}, {number(out[1] / dims[1])}"
        return w.chain(
            w.value(operation, 0), f"ResizeLayer(InterpolationPolicy::NEAREST_NEIGHBOR, {factors})"
        )
    matrices = [
        np.eye(dims[axis], dtype=np.float32)[table] for axis, table in zip((1, 2), tables, strict=True)
    ]
    return _interpolated(w, w.value(operation, 0), matrices[0], matrices[1])


def resize_bilinear(w: Writer, operation: Operation) -> str:
    """Translate RESIZE_BILINEAR, as two matrix products.

    The library's own layer takes zeros from outside the image at its border and knows only one of
    the three rules where samples lie; products with the interpolation matrices are right for all.
    """
    dims, out = operation.shapes[0], operation.out_shapes[0]
    rows, columns = (_linear(operation, dims[axis], out[axis]) for axis in (1, 2))
    return _interpolated(w, w.value(operation, 0), rows, columns)


def _interpolated(
    w: Writer, source: str, rows: npt.NDArray[np.float32], columns: npt.NDArray[np.float32]
) -> str:
    """Multiply rows, then columns: each is made the channels of a 1x1 convolution."""
    value = permuted(w, source, (0, 1, 3, 2))  # N H W C -> N H C W
    value = _product(w, value, columns, "columns")
    value = permuted(w, value, (0, 2, 3, 1))  # N H C W -> N C W H
    value = _product(w, value, rows, "rows")
    return permuted(w, value, (0, 3, 2, 1))  # N C W H -> N H W C


def _product(w: Writer, source: str, matrix: npt.NDArray[np.float32], what: str) -> str:
    n_out, n_in = matrix.shape
    weights = w.constant(matrix.reshape(n_out, 1, 1, n_in), what)
    return w.chain(
        source, f"ConvolutionLayer(1U, 1U, {n_out}U, {weights}, nullptr, PadStrideInfo(1U, 1U, 0U, 0U))"
    )


def _positions(operation: Operation, size: int, size_out: int) -> npt.NDArray[np.float64]:
    """Return where each output sample lies in the input; TensorFlow Lite's three rules."""
    places: npt.NDArray[np.float64] = np.arange(size_out, dtype=np.float64)
    if operation.options.get("align_corners", False) and size_out > 1:
        return places * (size - 1) / (size_out - 1)
    if operation.options.get("half_pixel_centers", False):
        return (places + 0.5) * size / size_out - 0.5
    return places * size / size_out


def _linear(operation: Operation, size: int, size_out: int) -> npt.NDArray[np.float32]:
    places = np.clip(_positions(operation, size, size_out), 0, size - 1)
    low = np.floor(places).astype(int)
    share = places - low
    matrix = np.zeros((size_out, size), np.float32)
    np.add.at(matrix, (np.arange(size_out), low), 1 - share)
    np.add.at(matrix, (np.arange(size_out), np.minimum(low + 1, size - 1)), share)
    return matrix


def _nearest(operation: Operation, size: int, size_out: int) -> npt.NDArray[np.int64]:
    places = _positions(operation, size, size_out)
    if operation.options.get("half_pixel_centers", False):
        places = places + 0.5
    aligned = operation.options.get("align_corners", False)
    chosen = np.floor(places + 0.5) if aligned else np.floor(places)
    return np.clip(chosen, 0, size - 1).astype(np.int64)
