"""Operators on vectors and matrices: element by element, products, and changes of shape.

Every function draws one operator (``layer_norm``: eight) and returns its output tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import enum_value
from dse.zoo import arithmetic
from dse.zoo.arithmetic import Floats, round_statistic
from dse.zoo.builder import Builder
from dse.zoo.draft import DraftTensor
from dse.zoo.scaling import BIAS_SIZE, channel_scale, fan_in_scale


def fully_connected(
    net: Builder,
    x: DraftTensor,
    units: int,
    *,
    name: str,
    activation: str = "NONE",
    gain: float = 1.0,
    centred: bool = False,
) -> DraftTensor:
    """Multiply the last dimension by a weight matrix and add a bias; leading dimensions stay.

    Parameters
    ----------
    gain
        Size of the result before activation and centring, for the sample frames.
    centred
        Whether the bias takes away what the sample frames give on average, so that the result
        tells how a frame differs from them.
    """
    features = x.shape[-1]
    weights = net.random(f"{name}/weights", (units, features))
    bias = net.random(f"{name}/bias", (units,)) * np.float32(BIAS_SIZE * gain)
    scale = fan_in_scale(features, gain)
    y: Floats | None = None
    if x.sample is not None:
        y = arithmetic.fully_connected(x.sample, weights)
        # One scale for the layer: its channels' means carry signal here, so they stay.
        scale = float(channel_scale(y.reshape(1, -1), gain)[0][0])
        y *= scale
        if centred:
            bias = (bias - round_statistic(y.reshape(-1, units).mean(axis=0))).astype(np.float32)
    weights *= np.float32(scale)
    keep = len(x.shape) > 2
    return net.emit(
        "FULLY_CONNECTED",
        [x, net.constant(weights, f"{name}/weights"), net.constant(bias, f"{name}/bias")],
        name,
        (*x.shape[:-1], units),
        options=Options(
            "FullyConnectedOptions",
            {
                "fused_activation_function": enum_value("ActivationFunctionType", activation),
                "weights_format": 0,
                "keep_num_dims": keep,
                "asymmetric_quantize_inputs": False,
            },
        ),
        version=5 if keep else 1,
        result=None if y is None else arithmetic.activate(y + bias, activation),
    )


def batch_matmul(
    net: Builder, a: DraftTensor, b: DraftTensor, *, name: str, transpose_b: bool = False
) -> DraftTensor:
    """Multiply matrices in the last two dimensions; ``transpose_b`` swaps those of ``b`` first."""
    columns = b.shape[-2] if transpose_b else b.shape[-1]
    return net.emit(
        "BATCH_MATMUL",
        [a, b],
        name,
        (*a.shape[:-1], columns),
        options=Options(
            "BatchMatMulOptions", {"adj_x": False, "adj_y": transpose_b, "asymmetric_quantize_inputs": False}
        ),
        evaluate=lambda x, y: x @ (y.swapaxes(-1, -2) if transpose_b else y),
    )


def add(net: Builder, a: DraftTensor, b: DraftTensor, *, name: str, activation: str = "NONE") -> DraftTensor:
    """Add with broadcasting."""
    return net.emit(
        "ADD",
        [a, b],
        name,
        np.broadcast_shapes(a.shape, b.shape),
        options=Options("AddOptions", _fused(activation)),
        evaluate=lambda x, y: arithmetic.activate(x + y, activation),
    )


def subtract(net: Builder, a: DraftTensor, b: DraftTensor, *, name: str) -> DraftTensor:
    """Subtract with broadcasting."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    options = Options("SubOptions", _fused("NONE"))
    return net.emit("SUB", [a, b], name, shape, options=options, evaluate=np.subtract)


def multiply(net: Builder, a: DraftTensor, b: DraftTensor, *, name: str) -> DraftTensor:
    """Multiply element by element with broadcasting."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    options = Options("MulOptions", _fused("NONE"))
    return net.emit("MUL", [a, b], name, shape, options=options, evaluate=np.multiply)


def _fused(activation: str) -> dict[str, int]:
    return {"fused_activation_function": enum_value("ActivationFunctionType", activation)}


def squared_difference(net: Builder, a: DraftTensor, b: DraftTensor, *, name: str) -> DraftTensor:
    """Square the difference, element by element with broadcasting."""
    return net.emit(
        "SQUARED_DIFFERENCE",
        [a, b],
        name,
        np.broadcast_shapes(a.shape, b.shape),
        options=Options("SquaredDifferenceOptions", {}),
        evaluate=lambda x, y: (x - y) ** 2,
    )


def mean_last(net: Builder, x: DraftTensor, *, name: str) -> DraftTensor:
    """Average over the last dimension, which stays with size 1."""
    return net.emit(
        "MEAN",
        [x, net.constant((len(x.shape) - 1,), f"{name}/axes", np.int32)],
        name,
        (*x.shape[:-1], 1),
        options=Options("ReducerOptions", {"keep_dims": True}),
        evaluate=lambda values, _: values.mean(axis=-1, keepdims=True),
    )


def layer_norm(net: Builder, x: DraftTensor, *, name: str, epsilon: float = 1e-12) -> DraftTensor:
    """Normalise the last dimension to mean 0 and variance 1, then scale and shift each feature.

    Drawn from primitive operators, as converters write it.

    References
    ----------
    J. L. Ba, J. R. Kiros, G. E. Hinton: Layer Normalization, 2016, arXiv:1607.06450.
    """
    features = x.shape[-1]
    with net.scope(name):
        # About 1 and about 0, as trained ones are, but no two the same.
        gamma = net.constant(1.0 + 0.1 * net.random("gamma", (features,)), "gamma")
        beta = net.constant(0.1 * net.random("beta", (features,)), "beta")
        mean = mean_last(net, x, name="mean")
        variance = mean_last(
            net, squared_difference(net, x, mean, name="squared_difference"), name="variance"
        )
        shifted = add(net, variance, net.constant(epsilon, "epsilon"), name="variance_epsilon")
        inverse = unary(net, "RSQRT", shifted, name="inverse_deviation")
        centred = subtract(net, x, mean, name="centred")
        scaled = multiply(net, multiply(net, centred, inverse, name="normalised"), gamma, name="scaled")
        return add(net, scaled, beta, name="output")


def unary(net: Builder, op: str, x: DraftTensor, *, name: str) -> DraftTensor:
    """Apply ``RSQRT``, ``TANH`` or ``LOGISTIC``, operators without options."""
    functions: dict[str, Callable[[Floats], Floats]] = {
        "RSQRT": lambda values: 1.0 / np.sqrt(values),
        "TANH": np.tanh,
        "LOGISTIC": arithmetic.logistic,
    }
    return net.emit(op, [x], name, x.shape, evaluate=functions[op])


def gelu(net: Builder, x: DraftTensor, *, name: str) -> DraftTensor:
    """Gaussian error linear unit, the exact form."""
    options = Options("GeluOptions", {"approximate": False})
    return net.emit("GELU", [x], name, x.shape, options=options, evaluate=arithmetic.gelu)


def softmax(net: Builder, x: DraftTensor, *, name: str) -> DraftTensor:
    """Normalised exponentials over the last dimension."""
    options = Options("SoftmaxOptions", {"beta": 1.0})
    return net.emit("SOFTMAX", [x], name, x.shape, options=options, evaluate=arithmetic.softmax)


def reshape(net: Builder, x: DraftTensor, shape: Sequence[int], *, name: str) -> DraftTensor:
    """Give the same values another shape; the batch stays the first dimension."""
    target = tuple(shape)
    return net.emit(
        "RESHAPE",
        [x, net.constant(target, f"{name}/shape", np.int32)],
        name,
        target,
        options=Options("ReshapeOptions", {"new_shape": target}),
        dtype=x.dtype,
        evaluate=lambda values, _: values.reshape(len(values), *target[1:]),
    )


def transpose(net: Builder, x: DraftTensor, order: Sequence[int], *, name: str) -> DraftTensor:
    """Reorder the dimensions."""
    return net.emit(
        "TRANSPOSE",
        [x, net.constant(tuple(order), f"{name}/order", np.int32)],
        name,
        tuple(x.shape[axis] for axis in order),
        options=Options("TransposeOptions", {}),
        evaluate=lambda values, _: values.transpose(order),
    )


def concatenate(net: Builder, parts: Sequence[DraftTensor], axis: int, *, name: str) -> DraftTensor:
    """Join tensors along one dimension."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return net.emit(
        "CONCATENATION",
        parts,
        name,
        shape,
        options=Options("ConcatenationOptions", {"axis": axis % len(shape), "fused_activation_function": 0}),
        evaluate=lambda *values: np.concatenate(values, axis=axis),
    )


def gather_rows(net: Builder, table: DraftTensor, indices: DraftTensor, *, name: str) -> DraftTensor:
    """Pick rows of a table: (rows, features) and integer indices (...) -> (..., features)."""
    return net.emit(
        "GATHER",
        [table, indices],
        name,
        (*indices.shape, *table.shape[1:]),
        options=Options("GatherOptions", {"axis": 0, "batch_dims": 0}),
        evaluate=lambda rows, at: rows[at],
    )
