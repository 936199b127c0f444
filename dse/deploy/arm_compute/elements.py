"""Layers that work element by element: activations, arithmetic, softmax, normalisation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dse.deploy.arm_compute.writing import Operation, UnsupportedError, Writer, number

_ACTIVATIONS = {
    "RELU": "RELU",
    "RELU6": "BOUNDED_RELU, 6.0f",
    "RELU_N1_TO_1": "LU_BOUNDED_RELU, 1.0f, -1.0f",
    "RELU_0_TO_1": "BOUNDED_RELU, 1.0f",
    "LOGISTIC": "LOGISTIC",
    "TANH": "TANH, 1.0f, 1.0f",
    "HARD_SWISH": "HARD_SWISH",
    "ELU": "ELU, 1.0f",
    "ABS": "ABS",
    "SQUARE": "SQUARE",
    "SQRT": "SQRT",
}
_ARITHMETIC = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul"}


def activation_layer(name: str) -> str:
    """Return the layer of an activation without parameters.

    Raises
    ------
    UnsupportedError
        The library has none.
    """
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"its activation {name} is not in the library")
    return f"ActivationLayer(ActivationLayerInfo(Activation::{_ACTIVATIONS[name]}))"


def fused(operation: Operation) -> tuple[str, ...]:
    """Return the layer of an operation's fused activation, or nothing."""
    return () if operation.activation == "NONE" else (activation_layer(operation.activation),)


def activation(w: Writer, operation: Operation) -> str:
    """Translate an activation."""
    return w.chain(w.value(operation, 0), activation_layer(operation.layer.op))


def leaky_relu(w: Writer, operation: Operation) -> str:
    """Translate LEAKY_RELU."""
    slope = number(operation.options.get("alpha", 0.0))
    return w.chain(
        w.value(operation, 0), f"ActivationLayer(ActivationLayerInfo(Activation::LEAKY_RELU, {slope}))"
    )


def prelu(w: Writer, operation: Operation) -> str:
    """Translate PRELU; its slopes may be per channel or per element."""
    operation.reals(1, "slopes")
    source, slopes = w.value(operation, 0), w.value(operation, 1)
    return w.chain(source, f"PReluLayer(SubStream({source}), SubStream({slopes}))")


def arithmetic(w: Writer, operation: Operation) -> str:
    """Translate ADD, SUB and MUL; one of the values may be repeated along dimensions."""
    kind = _ARITHMETIC[operation.layer.op]
    first, second = w.value(operation, 0), w.value(operation, 1)
    if operation.shapes[0] != operation.out_shapes[0]:
        # The library takes the shape of the first value for that of the result.
        if operation.shapes[1] != operation.out_shapes[0]:
            raise UnsupportedError("both of its values would have to be repeated")
        if kind == "Sub":
            second = w.chain(second, "ActivationLayer(ActivationLayerInfo(Activation::LINEAR, -1.0f, 0.0f))")
            kind = "Add"
        first, second = second, first
    layer = f"EltwiseLayer(SubStream({first}), SubStream({second}), EltwiseOperation::{kind})"
    return w.chain(first, layer, *fused(operation))


def scale_and_offset(w: Writer, scale: Operation, offset: Operation) -> str:
    """Translate a MUL and the ADD behind it, both by constants per channel: a folded batch normalisation.

    The library merges this layer into a convolution in front of it.
    """
    channels = scale.out_shapes[0][-1]
    side = 1 if scale.constants[1] is not None else 0
    gamma = per_channel(scale, channels)
    beta = per_channel(offset, channels)
    if gamma is None or beta is None:
        raise UnsupportedError("its constants are not per channel")
    zeros = np.zeros(channels, np.float32)
    arguments = ", ".join(
        w.constant(values, what)
        for values, what in ((zeros, "mean"), (zeros + 1, "variance"), (gamma, "scale"), (beta, "offset"))
    )
    source = w.value(scale, 1 - side)
    return w.chain(source, f"BatchNormalizationLayer({arguments}, 0.0f)", *fused(offset))


def per_channel(operation: Operation, channels: int) -> npt.NDArray[np.float32] | None:
    """Return the constant input of an operation, one value per channel; None when there is none such."""
    found = [value for value in operation.constants if value is not None]
    if len(found) != 1 or found[0].dtype != np.float32:
        return None
    value = found[0]
    if value.size == 1:
        return np.full(channels, value.reshape(-1)[0], np.float32)
    if value.size == channels and value.shape[-1] == channels:
        return np.asarray(value.reshape(channels), np.float32)
    return None


def softmax(w: Writer, operation: Operation) -> str:
    """Translate SOFTMAX over the last dimension."""
    dims = operation.shapes[0]
    rows = (math.prod(dims[:-1]), dims[-1]) if dims else (1, 1)
    beta = number(operation.options.get("beta", 0.0))
    source = w.reshaped(w.value(operation, 0), dims, rows)
    return w.reshaped(w.chain(source, f"SoftmaxLayer({beta})"), rows, operation.out_shapes[0])


def local_response(w: Writer, operation: Operation) -> str:
    """Translate LOCAL_RESPONSE_NORMALIZATION: across channels, alpha not divided by their number."""
    options = operation.options
    size = 2 * int(options.get("radius", 0)) + 1
    alpha, beta, bias = (number(options.get(name, 0.0)) for name in ("alpha", "beta", "bias"))
    info = f"NormalizationLayerInfo(NormType::CROSS_MAP, {size}U, {alpha}, {beta}, {bias}, false)"
    return w.chain(w.value(operation, 0), f"NormalizationLayer({info})")
