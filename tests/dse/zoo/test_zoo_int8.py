"""The int8 forms: they run, they compute what the float form computes, and they move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.inputs import make_frames
from dse.zoo import ZOO
from dse.zoo.assemble import assemble
from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d, depthwise_conv2d, transpose_conv2d
from dse.zoo.images import average_pool, global_mean, max_pool, pad, resize_bilinear, resize_nearest
from dse.zoo.quantize import quantize
from dse.zoo.registry import draw
from dse.zoo.vectors import (
    add,
    batch_matmul,
    concatenate,
    fully_connected,
    gelu,
    layer_norm,
    multiply,
    reshape,
    softmax,
    squared_difference,
    subtract,
    transpose,
    unary,
)

SMALL_BERT = {"hidden": 48, "sequence": 12, "layers": 2, "heads": 4, "intermediate": 96, "vocab": 50}


def integers(tensor, values):
    """What the tensor holds for float values, in its own type."""
    if tensor.quantization is None:
        return values.astype(tensor.dtype)
    levels = np.rint(values / tensor.quantization.scale[0]) + tensor.quantization.zero_point[0]
    return np.clip(levels, -128, 127).astype(np.int8)


def floats(tensor, levels):
    return (levels.astype(np.float64) - tensor.quantization.zero_point[0]) * tensor.quantization.scale[0]


def run_samples(draft, run_draft):
    """Per output (found, expected by the float form), both as floats over all sample frames."""
    inputs = [draft.tensors[index] for index in draft.inputs]
    frames = [[integers(x, x.sample[k : k + 1]) for x in inputs] for k in range(len(inputs[0].sample))]
    answers = run_draft(draft, frames)
    pairs = []
    for number, index in enumerate(draft.outputs):
        tensor = draft.tensors[index]
        found = np.concatenate([answer[number] for answer in answers])
        assert found.dtype == np.int8
        pairs.append((tensor, floats(tensor, found), tensor.sample))
    return pairs


def image(net, channels=4):
    sample = 2 * np.random.default_rng(0).random((2, 6, 6, channels)) - 1
    return net.add_input("image", (1, 6, 6, channels), sample=sample)


def sequence(net, name="x"):
    return net.add_input(name, (1, 5, 8), sample=np.random.default_rng(len(name)).normal(size=(2, 5, 8)))


def _joined(net):
    x = image(net)
    return concatenate(net, [x, max_pool(net, x, 3, 1, name="p")], 3, name="y")


OPERATORS = {
    "conv2d": lambda n: conv2d(n, image(n), 5, 3, stride=2, activation="RELU6", name="y"),
    "conv2d_row": lambda n: conv2d(n, image(n), 5, (1, 3), padding="VALID", name="y"),
    "depthwise": lambda n: depthwise_conv2d(n, image(n), 3, activation="RELU", name="y"),
    "transpose_conv": lambda n: transpose_conv2d(n, image(n), 3, 2, name="y"),
    "max_pool": lambda n: max_pool(n, image(n), 3, 2, name="y"),
    "average_pool": lambda n: average_pool(n, image(n), 3, 1, name="y"),
    "pad": lambda n: pad(n, image(n), 1, 2, name="y"),
    "resize_nearest": lambda n: resize_nearest(n, image(n), 2, name="y"),
    "resize_bilinear": lambda n: resize_bilinear(n, image(n), 2, name="y"),
    "global_mean": lambda n: global_mean(n, image(n), name="y"),
    "concatenate": _joined,
    "fully_connected": lambda n: fully_connected(n, reshape(n, image(n), (1, 144), name="r"), 7, name="y"),
    "fully_connected_3d": lambda n: fully_connected(n, sequence(n), 7, name="y"),
    "transpose": lambda n: transpose(n, sequence(n), (0, 2, 1), name="y"),
    "add": lambda n: add(n, sequence(n), sequence(n, "xx"), name="y"),
    "subtract": lambda n: subtract(n, sequence(n), sequence(n, "xx"), name="y"),
    "multiply": lambda n: multiply(n, sequence(n), sequence(n, "xx"), name="y"),
    "multiply_scalar": lambda n: multiply(n, sequence(n), n.constant(0.3, "c"), name="y"),
    "squared_difference": lambda n: squared_difference(n, sequence(n), sequence(n, "xx"), name="y"),
    "batch_matmul": lambda n: batch_matmul(n, sequence(n), sequence(n, "xx"), transpose_b=True, name="y"),
    "gelu": lambda n: gelu(n, sequence(n), name="y"),
    "softmax": lambda n: softmax(n, sequence(n), name="y"),
    "tanh": lambda n: unary(n, "TANH", sequence(n), name="y"),
    "logistic": lambda n: unary(n, "LOGISTIC", sequence(n), name="y"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_is_within_a_few_steps_of_float(name, run_draft):
    net = Builder("one", "one operator", seed=1, sampled=True)
    draft = quantize(net.finish([OPERATORS[name](net)]))
    ((tensor, found, expected),) = run_samples(draft, run_draft)
    step = tensor.quantization.scale[0]
    assert expected.std() > 3 * step
    assert np.abs(found - expected).max() <= 4 * step
    assert np.sqrt(np.mean((found - expected) ** 2)) <= 1.2 * step


def test_layer_norm_follows_float(run_draft):
    net = Builder("norm", "layer norm", seed=1, sampled=True)
    draft = quantize(net.finish([layer_norm(net, sequence(net), name="norm")]))
    ((_, found, expected),) = run_samples(draft, run_draft)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("mask", [0, 1])
def test_bert_follows_float(mask, run_draft):
    draft = draw("bert_encoder_int8", {**SMALL_BERT, "mask": mask})
    ((_, found, expected),) = run_samples(draft, run_draft)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.98


def test_mobilenet_v1_logits_follow_float(run_draft):
    whole = draw("mobilenet_v1_int8")
    (probabilities,) = (whole.tensors[index] for index in whole.outputs)
    logits = next(tensor for tensor in whole.tensors if tensor.name == "head/logits")
    draft = replace(whole, operators=whole.operators[:-1], outputs=(logits.index,))
    inputs = whole.tensors[whole.inputs[0]]
    answers = run_draft(draft, [[integers(inputs, frame[None])] for frame in inputs.sample])
    found = np.concatenate([floats(logits, answer[0]) for answer in answers])
    # Softmax forgets what all classes have in common.
    expected = np.log(probabilities.sample)
    found, expected = (values - values.mean(axis=1, keepdims=True) for values in (found, expected))
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mobilenet_v1_int8", {}),
        ("mobilenet_v1_int8", {"size": 96, "width": 50, "classes": 20}),
        ("mobilenet_v2_int8", {"size": 96, "width": 50, "classes": 20}),
        ("bert_encoder_int8", SMALL_BERT),
    ],
)
def test_outputs_move(name, parameters, run_draft):
    draft = draw(name, parameters, seed=1)
    graph = build_graph(model_from_bytes(encode(assemble(draft))))
    frames = make_frames(graph, 3, 0)
    (first,), (second,), (third,) = run_draft(draft, frames)
    assert first.dtype == np.int8
    for other in (second, third):
        changed = first != other
        assert changed.mean() > 0.02
        assert np.abs(first.astype(int) - other).max() >= 10


def test_weights_have_a_scale_per_channel_on_the_right_axis():
    draft = draw("mobilenet_v1_int8", {"size": 32, "width": 25})
    seen = set()
    for operator in draft.operators:
        if operator.op not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        given, weights, bias = (draft.tensors[index] for index in operator.inputs)
        axis = 3 if operator.op == "DEPTHWISE_CONV_2D" else 0
        assert weights.quantization.quantized_dimension == axis
        assert len(weights.quantization.scale) == weights.shape[axis]
        assert set(weights.quantization.zero_point) == {0}
        others = tuple(other for other in range(len(weights.shape)) if other != axis)
        assert set(np.abs(weights.constant).max(axis=others).tolist()) == {127}
        assert bias.dtype == np.int32
        np.testing.assert_allclose(
            bias.quantization.scale,
            np.multiply(weights.quantization.scale, given.quantization.scale[0]),
            rtol=1e-6,
        )
        seen.add(operator.op)
    assert len(seen) == 3


def test_fixed_and_shared_scales():
    draft = draw("bert_encoder_int8", SMALL_BERT)
    tensors = draft.tensors
    for operator in draft.operators:
        output = tensors[operator.outputs[0]].quantization
        if operator.op == "SOFTMAX":
            assert output.scale == (1 / 256,)
            assert output.zero_point == (-128,)
        if operator.op in ("RESHAPE", "TRANSPOSE", "GATHER"):
            assert tensors[operator.inputs[0]].quantization == output


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "bert_encoder"])
def test_work_is_that_of_the_float_form(name):
    small = SMALL_BERT if name == "bert_encoder" else {"size": 64, "width": 50}

    def macs(entry):
        return build_graph(model_from_bytes(encode(assemble(draw(entry, small))))).macs

    assert macs(f"{name}_int8") == macs(name)
    assert ZOO[f"{name}_int8"].published_macs == ZOO[name].published_macs


def test_same_seed_same_bytes():
    first, again = (encode(assemble(draw("bert_encoder_int8", SMALL_BERT, seed=4))) for _ in range(2))
    assert first == again


def test_a_draft_without_samples_is_refused():
    with pytest.raises(ValueError, match="without sample frames"):
        quantize(ZOO["mobilenet_v1"].draw({**ZOO["mobilenet_v1"].parameters, "size": 32}, 0, sampled=False))


def test_an_operator_without_an_int8_form_is_refused():
    with pytest.raises(ValueError, match="LOCAL_RESPONSE_NORMALIZATION has no int8 form"):
        quantize(draw("googlenet", {"size": 32, "classes": 3}))
