"""How much arithmetic an operator does, from its shapes.

Multiply-accumulates (MACs) of convolutions and matrix products are counted as if no input were
padding and no weight were zero, as the papers of the well-known networks count them (MobileNetV2:
300 M).  ``element_ops`` counts everything else: one for each addition, comparison, multiplication or
function evaluation on an element.  Moving data counts nothing.  Unknown is ``None``, never 0.

Sources of the formulas: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning",
arXiv:1603.07285 (convolution, transposed convolution); Howard et al., "MobileNets",
arXiv:1704.04861, section 3.1 (depthwise); Hochreiter and Schmidhuber 1997 with the peepholes and
projection of Sak et al., arXiv:1402.1128 (LSTM); Cho et al., arXiv:1406.1078 (recurrent products);
Nakkiran et al., "Compressing deep neural networks using a rank-constrained topology", 2015 (SVDF);
Frigo and Johnson, "FFTW", 1998 (5 n log2 n for a Fourier transform).  Order and meaning of inputs:
the TensorFlow Lite operator definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dse.flatbuffer.element_ops import MOVES, NO_COUNT, PER_INPUT, PER_OUTPUT
from dse.flatbuffer.records import Options

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one invocation; None means that no formula is known."""

    macs: int | None
    element_ops: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with the shapes that it works on; a missing optional input is None."""

    name: str
    options: Options | None
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape, ...]

    def shape(self, position: int) -> Shape:
        """Return an input's shape; IndexError when it is not there."""
        found = self.inputs[position]
        if found is None:
            raise IndexError(position)
        return found

    def size(self, position: int) -> int:
        """Return an input's number of elements, 0 when it is left out."""
        found = self.inputs[position] if position < len(self.inputs) else None
        return 0 if found is None else math.prod(found)

    def option(self, name: str, default: int = 0) -> int:
        """Return a numeric option."""
        value = default if self.options is None else self.options.get(name, default)
        return int(value)


def operator_work(call: Call) -> Work:
    """Return an operator's arithmetic.

    Notes
    -----
    Shapes that do not fit the operator (a damaged but consistent file) give unknown, not an error.
    """
    formula = _MACS.get(call.name)
    try:
        if formula is not None:
            n_out = math.prod(call.outputs[0])
            return Work(formula(call), n_out * (1 + _has_activation(call)))
        if call.name in MOVES:
            return Work(0, 0)
        if call.name in NO_COUNT:
            return Work(0, None)
        per_output = PER_OUTPUT.get(call.name)
        if per_output is not None:
            n_out = sum(math.prod(shape) for shape in call.outputs)
            return Work(0, n_out * (per_output + _has_activation(call)))
        if call.name in PER_INPUT:
            return Work(0, call.size(0) * PER_INPUT[call.name])
        special = _ELEMENT_OPS.get(call.name)
        if special is not None:
            return Work(0, special(call))
    except (IndexError, ZeroDivisionError):
        return Work(None, None)
    return Work(None, None)


def _has_activation(call: Call) -> int:
    return int(call.option("fused_activation_function") != 0)


def _filter(call: Call, position: int, rank: int) -> Shape:
    shape = call.shape(position)
    if len(shape) != rank:
        raise IndexError(f"a filter of rank {rank} was expected")
    return shape


def _conv_2d(call: Call) -> int:
    # filter: out channels, height, width, in channels of one group
    return math.prod(call.outputs[0]) * math.prod(_filter(call, 1, 4)[1:])


def _depthwise(call: Call) -> int:
    # filter: 1, height, width, channels
    return math.prod(call.outputs[0]) * math.prod(_filter(call, 1, 4)[1:3])


def _transpose_conv(call: Call) -> int:
    # inputs: output shape, filter (out, height, width, in), data
    return math.prod(call.shape(2)) * math.prod(_filter(call, 1, 4)[:3])


def _transpose_conv_bias(call: Call) -> int:
    # MediaPipe's custom operator; inputs: data, filter (out, height, width, in), bias
    return math.prod(call.shape(0)) * math.prod(_filter(call, 1, 4)[:3])


def _conv_3d(call: Call) -> int:
    # filter: depth, height, width, in, out
    return math.prod(call.outputs[0]) * math.prod(_filter(call, 1, 5)[:4])


def _conv_3d_transpose(call: Call) -> int:
    # inputs: output shape, filter (depth, height, width, out, in), data
    return math.prod(call.shape(2)) * math.prod(_filter(call, 1, 5)[:4])


def _fully_connected(call: Call) -> int:
    return math.prod(call.outputs[0]) * call.shape(1)[-1]


def _batch_matmul(call: Call) -> int:
    left = call.shape(0)
    return math.prod(call.outputs[0]) * (left[-2] if call.option("adj_x") else left[-1])


def _dot_general(call: Call) -> int:
    left = call.shape(0)
    axes: Sequence[int] = () if call.options is None else call.options.get("lhs_contracting_dimensions", ())
    return math.prod(call.outputs[0]) * math.prod(left[axis] for axis in axes)


def _stablehlo_convolution(call: Call) -> int:
    kernel = call.shape(1)
    return (
        math.prod(call.outputs[0])
        * math.prod(kernel)
        // kernel[call.option("kernel_output_feature_dimension")]
    )


def _steps(call: Call) -> int:
    """Vectors that a sequence operator takes in: batch x time."""
    return math.prod(call.shape(0)[:-1])


def _lstm_weights(call: Call, *ranges: range) -> int:
    return sum(call.size(position) for places in ranges for position in places)


def _lstm(call: Call) -> int:
    # inputs: data, 4 input weights, 4 recurrent weights, 3 peepholes, 4 biases, projection
    if len(call.inputs) < 20:  # the basic kernel: data, activation, weights, bias, state
        return _steps(call) * math.prod(call.shape(2))
    return _steps(call) * _lstm_weights(call, range(1, 12), range(16, 17))


def _bidirectional_lstm(call: Call) -> int:
    # forward as above from 1, backward from 18, weights of the auxiliary input from 40
    places = (range(1, 12), range(16, 17), range(18, 29), range(33, 34), range(40, 48))
    return _steps(call) * _lstm_weights(call, *places)


def _rnn(call: Call) -> int:
    # inputs: data, weights, recurrent weights, bias, state
    return _steps(call) * (math.prod(call.shape(1)) + math.prod(call.shape(2)))


def _bidirectional_rnn(call: Call) -> int:
    # data, forward weights, recurrent, bias, state, the same backward, auxiliary data and weights
    return _steps(call) * sum(call.size(position) for position in (1, 2, 5, 6, 10, 11))


def _svdf(call: Call) -> int:
    # inputs: data, feature weights, time weights, bias, state
    return _steps(call) * (math.prod(call.shape(1)) + math.prod(call.shape(2)))


def _pool(call: Call) -> int:
    window = call.option("filter_width") * call.option("filter_height")
    return math.prod(call.outputs[0]) * (window + _has_activation(call))


def _add_n(call: Call) -> int:
    return math.prod(call.outputs[0]) * (len(call.inputs) - 1)


def _rfft(call: Call) -> int:
    height, width = call.shape(0)[-2:]
    images = math.prod(call.shape(0)[:-2])
    n = height * width
    return int(images * 5 * n * math.log2(max(n, 2)) / 2)


def _local_response(call: Call) -> int:
    # squares of the window, their sum, scale, power, product
    return math.prod(call.outputs[0]) * (2 * (2 * call.option("radius") + 1) + 3)


_MACS: dict[str, Callable[[Call], int]] = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose_conv,
    "CUSTOM:Convolution2DTransposeBias": _transpose_conv_bias,
    "CONV_3D": _conv_3d,
    "CONV_3D_TRANSPOSE": _conv_3d_transpose,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "STABLEHLO_DOT_GENERAL": _dot_general,
    "STABLEHLO_CONVOLUTION": _stablehlo_convolution,
    "LSTM": _lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _bidirectional_lstm,
    "RNN": _rnn,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _rnn,
    "BIDIRECTIONAL_SEQUENCE_RNN": _bidirectional_rnn,
    "SVDF": _svdf,
}
_ELEMENT_OPS: dict[str, Callable[[Call], int]] = {
    "AVERAGE_POOL_2D": _pool,
    "MAX_POOL_2D": _pool,
    "L2_POOL_2D": lambda call: 2 * _pool(call),
    "ADD_N": _add_n,
    "RFFT2D": _rfft,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
}
