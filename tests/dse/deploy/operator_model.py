"""One model with many operators side by side, each with an input and an output of its own."""

from __future__ import annotations

import numpy as np
from small_models import Draft

SAME, VALID = 0, 1
ACTIVATIONS = {"NONE": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}


class OperatorModel:
    """Collects operators; an output is named after what it shows."""

    def __init__(self):
        self.draft = Draft()
        self.main = self.draft.main
        self._random = np.random.default_rng(7)
        self._n = 0

    def file(self):
        return self.draft.file()

    def random(self, *shape):
        return self._random.normal(0, 0.5, shape).astype(np.float32)

    def raw_input(self, *shape):
        """Add an input of the model."""
        self._n += 1
        index = self.main.tensor(f"x{self._n}", shape)
        self.main.inputs = (*self.main.inputs, index)
        return index

    def input(self, *shape):
        """Add an input of the model; return its values stretched from [0, 1] to [-8, 8].

        Frames of models are often positive only, which would show little of a rectifier or of padding.
        """
        index = self.raw_input(*shape)
        wide = self.inner("MUL", (index, self.constant(np.float32(16))), shape, "MulOptions")
        return self.inner("SUB", (wide, self.constant(np.float32(8))), shape, "SubOptions")

    def constant(self, values, dtype="FLOAT32"):
        self._n += 1
        return self.main.constant(f"c{self._n}", values, dtype)

    def half(self, values):
        """Add a constant in half precision behind DEQUANTIZE."""
        self._n += 1
        stored = self.main.constant(f"h{self._n}", values, "FLOAT16")
        out = self.main.tensor(f"f{self._n}", np.shape(values))
        self.main.op("DEQUANTIZE", (stored,), (out,), "DequantizeOptions")
        return out

    def inner(self, op, sources, shape, table=None, version=1, **options):
        """Add an operator whose output is no output of the model; return its output."""
        self._n += 1
        out = self.main.tensor(f"t{self._n}", shape)
        self.main.op(op, sources, (out,), table, options, version)
        return out

    def show(self, name, op, sources, shape, table=None, version=1, **options):
        """Add an operator whose output is an output of the model."""
        out = self.main.tensor(name, shape)
        self.main.op(op, sources, (out,), table, options, version)
        self.main.outputs = (*self.main.outputs, out)
        return out

    def convolution(
        self,
        name,
        dims,
        filters,
        kernel,
        *,
        stride=(1, 1),
        dilation=(1, 1),
        padding=SAME,
        activation="NONE",
        groups=1,
        half=False,
    ):
        constant = self.half if half else self.constant
        weights = constant(self.random(filters, *kernel, dims[3] // groups))
        out = (dims[0], *self._sizes(dims, kernel, stride, dilation, padding), filters)
        sources = (self.input(*dims), weights, constant(self.random(filters)))
        options = self._window(padding, stride, dilation, activation)
        self.show(name, "CONV_2D", sources, out, "Conv2DOptions", 6 if groups > 1 else 1, **options)

    def depthwise(
        self,
        name,
        dims,
        kernel,
        *,
        multiplier=1,
        stride=(1, 1),
        dilation=(1, 1),
        padding=SAME,
        activation="NONE",
    ):
        channels = dims[3] * multiplier
        weights = self.constant(self.random(1, *kernel, channels))
        out = (dims[0], *self._sizes(dims, kernel, stride, dilation, padding), channels)
        options = self._window(padding, stride, dilation, activation)
        self.show(
            name,
            "DEPTHWISE_CONV_2D",
            (self.input(*dims), weights, self.constant(self.random(channels))),
            out,
            "DepthwiseConv2DOptions",
            1,
            depth_multiplier=multiplier,
            **options,
        )

    def pool(self, name, op, dims, kernel, *, stride=(1, 1), padding=SAME, activation="NONE"):
        out = (dims[0], *self._sizes(dims, kernel, stride, (1, 1), padding), dims[3])
        options = self._window(padding, stride, None, activation)
        self.show(
            name,
            op,
            (self.input(*dims),),
            out,
            "Pool2DOptions",
            1,
            filter_height=kernel[0],
            filter_width=kernel[1],
            **options,
        )

    def dense(self, name, dims, units, *, activation="NONE", bias=True, keep=False):
        weights = self.constant(self.random(units, dims[-1]))
        out = (*dims[:-1], units) if keep else (int(np.prod(dims[:-1])), units)
        self.show(
            name,
            "FULLY_CONNECTED",
            (self.input(*dims), weights, self.constant(self.random(units)) if bias else -1),
            out,
            "FullyConnectedOptions",
            1,
            keep_num_dims=keep,
            fused_activation_function=ACTIVATIONS[activation],
        )

    def mean(self, name, dims, axes, *, keep=False):
        gone = {axis % len(dims) for axis in axes}
        out = [1 if axis in gone else size for axis, size in enumerate(dims) if keep or axis not in gone]
        self.show(
            name,
            "MEAN",
            (self.input(*dims), self.constant(axes, "INT32")),
            out,
            "ReducerOptions",
            1,
            keep_dims=keep,
        )

    def resize(self, name, op, dims, size, **options):
        table = "ResizeBilinearOptions" if op == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
        self.show(
            name,
            op,
            (self.input(*dims), self.constant(size, "INT32")),
            (dims[0], *size, dims[3]),
            table,
            3,
            align_corners=options.get("align_corners", False),
            half_pixel_centers=options.get("half_pixel_centers", False),
        )

    @staticmethod
    def _sizes(dims, kernel, stride, dilation, padding):
        reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
        return [
            -(-size // step) if padding == SAME else (size - far) // step + 1
            for size, far, step in zip(dims[1:3], reach, stride, strict=True)
        ]

    @staticmethod
    def _window(padding, stride, dilation, activation):
        options = {
            "padding": padding,
            "stride_h": stride[0],
            "stride_w": stride[1],
            "fused_activation_function": ACTIVATIONS[activation],
        }
        if dilation is not None:
            options |= {"dilation_h_factor": dilation[0], "dilation_w_factor": dilation[1]}
        return options


def supported_everywhere() -> OperatorModel:
    """Draw what both deployment targets of Arm's libraries take."""
    m = OperatorModel()
    m.convolution("conv_same_stride_2_odd", (1, 7, 9, 3), 5, (3, 3), stride=(2, 2))
    m.convolution("conv_same_stride_2_even", (1, 8, 6, 3), 5, (3, 3), stride=(2, 2), activation="RELU6")
    m.convolution("conv_valid", (1, 7, 8, 3), 4, (3, 2), padding=VALID, activation="RELU")
    m.convolution("conv_1x1", (1, 5, 5, 7), 9, (1, 1), half=True)
    m.convolution("conv_5x5_stride_2", (1, 11, 12, 2), 4, (5, 5), stride=(2, 2))
    m.convolution("conv_1x7", (1, 9, 9, 2), 3, (1, 7))
    m.convolution("conv_dilated", (1, 9, 11, 3), 4, (3, 3), dilation=(2, 3))
    m.depthwise("depthwise_same_stride_2", (1, 8, 9, 6), (3, 3), stride=(2, 2), activation="RELU6")
    m.depthwise("depthwise_5x5", (1, 8, 9, 5), (5, 5))
    m.depthwise("depthwise_valid", (1, 8, 9, 4), (3, 3), padding=VALID)
    m.depthwise("depthwise_multiplier", (1, 6, 6, 3), (3, 3), multiplier=2)
    m.depthwise("depthwise_dilated", (1, 10, 10, 4), (3, 3), dilation=(2, 2))
    m.dense("dense", (1, 12), 5, activation="RELU")
    m.dense("dense_batch_no_bias", (3, 8), 4, bias=False)
    m.pool("max_pool_same", "MAX_POOL_2D", (1, 7, 8, 3), (3, 3), stride=(2, 2))
    m.pool("max_pool_2x2", "MAX_POOL_2D", (1, 8, 8, 5), (2, 2), stride=(2, 2), padding=VALID)
    m.pool("average_pool_same", "AVERAGE_POOL_2D", (1, 7, 8, 3), (3, 3), stride=(2, 2))
    m.pool("average_pool_valid", "AVERAGE_POOL_2D", (1, 8, 6, 4), (4, 3), padding=VALID, activation="RELU6")
    m.mean("mean_image", (1, 5, 6, 7), (1, 2))
    m.mean("mean_image_keep", (1, 5, 6, 7), (1, 2), keep=True)
    m.show("relu", "RELU", (m.input(1, 4, 5, 3),), (1, 4, 5, 3))
    m.show("relu6", "RELU6", (m.input(1, 4, 5, 3),), (1, 4, 5, 3))
    m.show("logistic", "LOGISTIC", (m.input(1, 4, 5, 3),), (1, 4, 5, 3))
    m.show("tanh", "TANH", (m.input(2, 5),), (2, 5))
    m.show("hard_swish", "HARD_SWISH", (m.input(1, 4, 5, 3),), (1, 4, 5, 3), "HardSwishOptions")
    m.show("leaky_relu", "LEAKY_RELU", (m.input(1, 4, 5, 3),), (1, 4, 5, 3), "LeakyReluOptions", alpha=0.25)
    m.show("add", "ADD", (m.input(1, 4, 5, 3), m.input(1, 4, 5, 3)), (1, 4, 5, 3), "AddOptions")
    m.show(
        "add_relu",
        "ADD",
        (m.input(1, 4, 5, 3), m.input(1, 4, 5, 3)),
        (1, 4, 5, 3),
        "AddOptions",
        fused_activation_function=1,
    )
    m.show("sub", "SUB", (m.input(1, 4, 5, 3), m.input(1, 4, 5, 3)), (1, 4, 5, 3), "SubOptions")
    m.show("mul", "MUL", (m.input(1, 4, 5, 3), m.input(1, 4, 5, 3)), (1, 4, 5, 3), "MulOptions")
    m.show("mul_per_channel", "MUL", (m.input(1, 4, 5, 3), m.input(1, 1, 1, 3)), (1, 4, 5, 3), "MulOptions")
    for axis in (1, 2, 3):
        dims = [[1, 4, 5, 3], [1, 4, 5, 3]]
        dims[1][axis] += 2
        out = [1, 4, 5, 3]
        out[axis] = 2 * out[axis] + 2
        sources = [m.input(*sizes) for sizes in dims]
        m.show(f"concat_{axis}", "CONCATENATION", sources, out, "ConcatenationOptions", axis=axis)
    m.show("reshape", "RESHAPE", (m.input(1, 4, 3, 2), m.constant((1, 24), "INT32")), (1, 24))
    m.show("reshape_up", "RESHAPE", (m.input(1, 24), m.constant((1, 2, 3, 4), "INT32")), (1, 2, 3, 4))
    m.show("softmax", "SOFTMAX", (m.input(1, 9),), (1, 9), "SoftmaxOptions", beta=1.5)
    m.show(
        "pad",
        "PAD",
        (m.input(1, 4, 5, 3), m.constant(((0, 0), (1, 2), (0, 3), (0, 0)), "INT32")),
        (1, 7, 8, 3),
        "PadOptions",
    )
    m.show(
        "transpose",
        "TRANSPOSE",
        (m.input(1, 4, 5, 3), m.constant((0, 3, 1, 2), "INT32")),
        (1, 3, 4, 5),
        "TransposeOptions",
    )
    m.resize("bilinear", "RESIZE_BILINEAR", (1, 4, 5, 3), (8, 15))
    m.resize("nearest", "RESIZE_NEAREST_NEIGHBOR", (1, 4, 5, 3), (8, 15))
    return m


def more_of_arm_compute() -> OperatorModel:
    """Draw what only the generated C++ takes, or what Arm NN is not asked for."""
    m = OperatorModel()
    m.convolution("conv_grouped", (1, 6, 7, 8), 4, (3, 3), groups=2)
    m.convolution("conv_clipped", (1, 6, 6, 3), 4, (3, 3), activation="RELU_N1_TO_1")
    m.convolution("conv_batch", (2, 6, 6, 3), 4, (3, 3), padding=VALID)
    m.convolution("conv_winograd", (1, 16, 16, 8), 8, (3, 3))
    m.dense("dense_3d", (1, 5, 8), 4, keep=True, activation="RELU6")
    m.pool("max_pool_3x2", "MAX_POOL_2D", (1, 9, 8, 3), (3, 2), stride=(1, 2))
    m.mean("mean_rows", (2, 5, 6, 3), (1,))
    m.mean("mean_sequence", (1, 6, 5), (1,), keep=True)
    m.mean("mean_last", (2, 6, 5), (-1,), keep=True)
    for op in ("RELU_N1_TO_1", "ABS", "SQUARE", "ELU"):
        m.show(op.lower(), op, (m.input(1, 4, 5, 3),), (1, 4, 5, 3))
    x = m.input(1, 4, 5, 3)
    m.show("sqrt", "SQRT", (m.inner("ABS", (x,), (1, 4, 5, 3)),), (1, 4, 5, 3))
    m.show("prelu", "PRELU", (m.input(1, 4, 5, 3), m.half(m.random(1, 1, 3))), (1, 4, 5, 3))
    m.show("prelu_full", "PRELU", (m.input(1, 4, 5, 3), m.constant(m.random(4, 5, 3))), (1, 4, 5, 3))
    m.show("sub_from", "SUB", (m.constant(m.random(3)), m.input(1, 4, 5, 3)), (1, 4, 5, 3), "SubOptions")
    m.show("sub_column", "SUB", (m.input(1, 4, 1, 1), m.input(1, 4, 5, 3)), (1, 4, 5, 3), "SubOptions")
    m.show("mul_scalar", "MUL", (m.input(1, 4, 5, 3), m.constant(np.float32(3))), (1, 4, 5, 3), "MulOptions")
    m.show("mul_column", "MUL", (m.input(1, 4, 5, 3), m.input(1, 4, 1, 1)), (1, 4, 5, 3), "MulOptions")
    m.show(
        "add_constant",
        "ADD",
        (m.input(1, 4, 5, 3), m.constant(m.random(1, 4, 5, 3))),
        (1, 4, 5, 3),
        "AddOptions",
    )
    y = m.inner("MUL", (m.input(1, 4, 5, 3), m.constant(m.random(1, 1, 1, 3))), (1, 4, 5, 3), "MulOptions")
    m.show(
        "batch_norm",
        "ADD",
        (m.constant(m.random(3)), y),
        (1, 4, 5, 3),
        "AddOptions",
        fused_activation_function=1,
    )
    z = m.inner(
        "CONV_2D",
        (m.input(1, 6, 6, 4), m.constant(m.random(5, 3, 3, 4)), m.constant(m.random(5))),
        (1, 6, 6, 5),
        "Conv2DOptions",
        padding=SAME,
        stride_h=1,
        stride_w=1,
        dilation_h_factor=1,
        dilation_w_factor=1,
    )
    z = m.inner("MUL", (z, m.constant(m.random(5))), (1, 6, 6, 5), "MulOptions")
    m.show("conv_batch_norm", "ADD", (z, m.constant(m.random(5))), (1, 6, 6, 5), "AddOptions")
    m.show("softmax_3d", "SOFTMAX", (m.input(2, 3, 7),), (2, 3, 7), "SoftmaxOptions", beta=1.0)
    m.show(
        "concat_three",
        "CONCATENATION",
        (m.input(2, 3), m.constant(m.random(2, 1)), m.input(2, 5)),
        (2, 9),
        "ConcatenationOptions",
        axis=-1,
    )
    m.show(
        "concat_batch",
        "CONCATENATION",
        (m.input(1, 4, 5, 3), m.input(2, 4, 5, 3)),
        (3, 4, 5, 3),
        "ConcatenationOptions",
        axis=0,
    )
    pads = m.constant(((0, 0), (2, 1), (1, 0), (0, 5)), "INT32")
    m.show(
        "pad_value",
        "PADV2",
        (m.input(1, 4, 5, 3), pads, m.constant(np.float32(-2))),
        (1, 7, 6, 8),
        "PadV2Options",
    )
    m.show("same_shape", "RESHAPE", (m.input(2, 5), m.constant((2, 5), "INT32")), (2, 5), "ReshapeOptions")
    m.show("squeeze", "SQUEEZE", (m.input(1, 1, 6, 3),), (6, 3), "SqueezeOptions")
    m.show("expand", "EXPAND_DIMS", (m.input(4, 3), m.constant(1, "INT32")), (4, 1, 3), "ExpandDimsOptions")
    for order in ((0, 2, 1, 3), (0, 3, 2, 1), (3, 2, 1, 0), (0, 2, 3, 1)):
        dims = (2, 4, 5, 3)
        name = f"transpose_{''.join(map(str, order))}"
        sources = (m.input(*dims), m.constant(order, "INT32"))
        m.show(name, "TRANSPOSE", sources, [dims[axis] for axis in order], "TransposeOptions")
    m.show(
        "transpose_2d", "TRANSPOSE", (m.input(4, 7), m.constant((1, 0), "INT32")), (7, 4), "TransposeOptions"
    )
    for rule in ("align_corners", "half_pixel_centers"):
        m.resize(f"bilinear_{rule}", "RESIZE_BILINEAR", (1, 4, 5, 3), (9, 7), **{rule: True})
        m.resize(f"nearest_{rule}", "RESIZE_NEAREST_NEIGHBOR", (1, 4, 5, 3), (8, 10), **{rule: True})
    m.resize("nearest_odd", "RESIZE_NEAREST_NEIGHBOR", (1, 6, 5, 3), (8, 13))
    m.resize("bilinear_down", "RESIZE_BILINEAR", (1, 9, 8, 3), (4, 4), half_pixel_centers=True)
    m.show(
        "depth_to_space",
        "DEPTH_TO_SPACE",
        (m.input(2, 3, 4, 12),),
        (2, 6, 8, 3),
        "DepthToSpaceOptions",
        block_size=2,
    )
    m.show(
        "space_to_depth",
        "SPACE_TO_DEPTH",
        (m.input(2, 6, 4, 3),),
        (2, 3, 2, 12),
        "SpaceToDepthOptions",
        block_size=2,
    )
    m.show(
        "normalised",
        "LOCAL_RESPONSE_NORMALIZATION",
        (m.input(1, 4, 5, 8),),
        (1, 4, 5, 8),
        "LocalResponseNormalizationOptions",
        radius=2,
        bias=2.0,
        alpha=0.5,
        beta=0.75,
    )
    for name, padding, kernel, out in (("same", SAME, 3, 8), ("whole", SAME, 2, 8), ("valid", VALID, 3, 9)):
        sources = (
            m.constant((1, out, out, 5), "INT32"),
            m.constant(m.random(5, kernel, kernel, 3)),
            m.input(1, 4, 4, 3),
        )
        m.show(
            f"transpose_conv_{name}",
            "TRANSPOSE_CONV",
            sources,
            (1, out, out, 5),
            "TransposeConvOptions",
            padding=padding,
            stride_h=2,
            stride_w=2,
        )
    return m


def more_of_arm_nn() -> OperatorModel:
    """Draw what only Arm NN takes."""
    m = OperatorModel()
    dims = (1, 4, 5, 3)
    for op, table in (
        ("DIV", "DivOptions"),
        ("MAXIMUM", "MaximumMinimumOptions"),
        ("MINIMUM", "MaximumMinimumOptions"),
    ):
        m.show(op.lower(), op, (m.input(*dims), m.constant(np.abs(m.random(*dims)) + 1)), dims, table)
    for op, table in (("EXP", "ExpOptions"), ("NEG", "NegOptions"), ("L2_NORMALIZATION", "L2NormOptions")):
        m.show(op.lower(), op, (m.input(*dims),), dims, table)
    m.show(
        "slice",
        "SLICE",
        (m.input(1, 6, 5, 4), m.constant((0, 1, 2, 0), "INT32"), m.constant((1, 3, 3, 2), "INT32")),
        (1, 3, 3, 2),
        "SliceOptions",
    )
    m.show(
        "strided_slice",
        "STRIDED_SLICE",
        (
            m.input(1, 6, 5, 4),
            m.constant((0, 1, 0, 0), "INT32"),
            m.constant((1, 6, 5, 4), "INT32"),
            m.constant((1, 2, 1, 1), "INT32"),
        ),
        (1, 3, 5, 4),
        "StridedSliceOptions",
    )
    halves = [m.main.tensor(f"split_{n}", (1, 4, 5, 3)) for n in range(2)]
    m.main.op(
        "SPLIT", (m.constant(3, "INT32"), m.input(1, 4, 5, 6)), halves, "SplitOptions", {"num_splits": 2}
    )
    parts = [m.main.tensor(f"split_v_{size}", (1, 4, 5, size)) for size in (2, 4)]
    sources = (m.input(1, 4, 5, 6), m.constant((2, 4), "INT32"), m.constant(3, "INT32"))
    m.main.op("SPLIT_V", sources, parts, "SplitVOptions", {"num_splits": 2})
    rows = [m.main.tensor(f"unpack_{n}", (4, 5)) for n in range(2)]
    m.main.op("UNPACK", (m.input(2, 4, 5),), rows, "UnpackOptions", {"num": 2, "axis": 0})
    m.main.outputs = (*m.main.outputs, *halves, *parts, *rows)
    m.show("pack", "PACK", (m.input(4, 5), m.input(4, 5)), (2, 4, 5), "PackOptions", values_count=2, axis=0)
    zeros = m.constant(((0, 0), (0, 0)), "INT32")
    two = m.constant((2, 2), "INT32")
    m.show(
        "space_to_batch",
        "SPACE_TO_BATCH_ND",
        (m.input(1, 4, 6, 3), two, zeros),
        (4, 2, 3, 3),
        "SpaceToBatchNDOptions",
    )
    m.show(
        "batch_to_space",
        "BATCH_TO_SPACE_ND",
        (m.input(4, 2, 3, 3), two, zeros),
        (1, 4, 6, 3),
        "BatchToSpaceNDOptions",
    )
    return m
