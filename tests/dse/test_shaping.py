"""Models with open dimensions, made fixed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dse.errors import InputError, RuntimeRefusedError
from dse.flatbuffer.cut import split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.shaping import fix_shapes, parse_shapes

sys.path.insert(0, str(Path(__file__).resolve().parent / "flatbuffer"))

from running import ModelRunner, difference
from small_models import Draft


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    pytest.importorskip("ai_edge_litert")
    running = ModelRunner(tmp_path_factory.mktemp("shaping"))
    yield running
    running.close()


@pytest.fixture
def open_model(tmp_path):
    """Takes ?x?x2 images: a convolution, its shape, a reshape by a computed shape, a dense layer."""
    draft = Draft()
    main = draft.main
    x = main.tensor("image", (1, 1, 1, 2), shape_signature=(-1, -1, -1, 2))
    weights = main.constant("w", np.random.default_rng(0).normal(0, 1, (3, 3, 3, 2)))
    bias = main.constant("b", [0.5, 0.25, 0.125])
    features = main.tensor("features", (1, 1, 1, 3), shape_signature=(-1, -1, -1, 3))
    main.op(
        "CONV_2D",
        (x, weights, bias),
        (features,),
        "Conv2DOptions",
        {"padding": 0, "stride_w": 1, "stride_h": 1},
    )
    mean = main.tensor("mean", (1, 3), shape_signature=(-1, 3))
    axes = main.constant("axes", [1, 2], "INT32")
    main.op("MEAN", (features, axes), (mean,), "ReducerOptions")
    flat = main.tensor("flat", (1, 1), shape_signature=(-1, -1))
    rows = main.tensor("rows", (4,), "INT32")
    main.op("SHAPE", (features,), (rows,), "ShapeOptions", {"out_type": 2})
    start, one = main.constant("start", [0], "INT32"), main.constant("one", [1], "INT32")
    batch = main.tensor("batch", (1,), "INT32")
    main.op("SLICE", (rows, start, one), (batch,), "SliceOptions")
    rest = main.constant("rest", [-1], "INT32")
    shape = main.tensor("shape", (2,), "INT32")
    main.op("CONCATENATION", (batch, rest), (shape,), "ConcatenationOptions")
    main.op("RESHAPE", (features, shape), (flat,), "ReshapeOptions")
    main.inputs, main.outputs = (x,), (mean, flat)
    path = tmp_path / "open.tflite"
    path.write_bytes(draft.data())
    return path


def test_shapes_come_from_the_runtime(open_model, tmp_path, runner):
    file = read_model(open_model)
    graph = build_graph(file)
    assert graph.tensors[graph.inputs[0]].dynamic
    fixed = fix_shapes(file, parse_shapes(["image=2x5x7x2"]), tmp_path)
    assert fixed.path == tmp_path / "open_2x5x7x2.tflite"
    graph = build_graph(fixed)
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    assert shapes["image"] == (2, 5, 7, 2)
    assert shapes["features"] == (2, 5, 7, 3)
    assert shapes["flat"] == (2, 105)
    assert not any(tensor.dynamic for tensor in graph.tensors)
    assert graph.layers[0].macs == 2 * 5 * 7 * 3 * 9 * 2
    frame = (np.random.default_rng(1).normal(0, 1, (2, 5, 7, 2)).astype(np.float32),)
    resized = runner.run(open_model, [frame], shapes={"0": [2, 5, 7, 2]})
    assert difference(resized, runner.run(fixed.path, [frame])) == 0
    for position in range(1, len(graph.layers)):
        pieces = split(fixed, graph, [range(position), range(position, len(graph.layers))])
        assert difference(resized, runner.run_split(pieces, [frame])) == 0


def test_nothing_wanted_changes_nothing(open_model, tmp_path):
    file = read_model(open_model)
    assert fix_shapes(file, {}, tmp_path) is file


def test_wrong_wishes_are_refused(open_model, tmp_path):
    file = read_model(open_model)
    with pytest.raises(InputError, match=r"input 'image' takes \?x\?x\?x2 \(\? is open\), got 1x5x5x3"):
        fix_shapes(file, {"image": (1, 5, 5, 3)}, tmp_path)
    with pytest.raises(InputError, match=r"takes \?x\?x\?x2 .*, got a scalar"):
        fix_shapes(file, {"0": ()}, tmp_path)
    with pytest.raises(InputError, match="there is no input 'img'; the model has 'image'"):
        fix_shapes(file, {"img": (1,)}, tmp_path)
    with pytest.raises(RuntimeRefusedError):
        fix_shapes(file, {"image": (1, 0, 5, 2)}, tmp_path)


def test_texts():
    assert parse_shapes(["a=1x2", "b:0=", "c=d=3"]) == {"a": (1, 2), "b:0": (), "c=d": (3,)}
    for text in ("a", "=1x2", "a=1x", "a=-1x2", "a=1,2", "a=99999999999"):
        with pytest.raises(InputError, match="--shape"):
            parse_shapes([text])
    with pytest.raises(InputError, match="given before"):
        parse_shapes(["a=1", "a=2"])
