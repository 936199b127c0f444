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
from dse.shaping import fix_shapes, has_open_sizes, open_model, parse_shapes

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
def images(tmp_path):
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


def test_shapes_come_from_the_runtime(images, tmp_path, runner):
    file = read_model(images)
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
    resized = runner.run(images, [frame], shapes={"0": [2, 5, 7, 2]})
    assert difference(resized, runner.run(fixed.path, [frame])) == 0
    for position in range(1, len(graph.layers)):
        pieces = split(fixed, graph, [range(position), range(position, len(graph.layers))])
        assert difference(resized, runner.run_split(pieces, [frame])) == 0


def test_open_sizes_inside_are_resolved_without_wishes(tmp_path, runner):
    """The input is fixed; a reshape by computed numbers is not, and its placeholder is wrong."""
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 6))
    doubled = main.elementwise("ADD", (x, x), "doubled", "AddOptions")
    size = main.tensor("size", (2,), "INT32")
    main.op("SHAPE", (doubled,), (size,), "ShapeOptions", {"out_type": 2})
    turned_size = main.tensor("turned_size", (2,), "INT32")
    axes = main.constant("axes", [0], "INT32")
    main.op("REVERSE_V2", (size, axes), (turned_size,), "ReverseV2Options")
    turned = main.tensor("turned", (1, 1), shape_signature=(-1, -1))
    main.op("RESHAPE", (doubled, turned_size), (turned,), "ReshapeOptions")
    y = main.tensor("y", (1, 1), shape_signature=(-1, -1))
    main.op("NEG", (turned,), (y,), "NegOptions")
    main.inputs, main.outputs = (x,), (y,)
    path = tmp_path / "inside.tflite"
    path.write_bytes(draft.data())
    assert has_open_sizes(read_model(path))
    assert open_model(path, tmp_path).path == path
    fixed = open_model(path, tmp_path, resolve=True)
    assert fixed.path == tmp_path / "inside_fixed.tflite"
    assert not has_open_sizes(fixed)
    graph = build_graph(fixed)
    assert {t.name: t.shape for t in graph.tensors}["turned"] == (6, 1)
    frames = [(np.arange(6, dtype=np.float32)[None],)]
    expected = runner.run(path, frames)
    for position in range(1, len(graph.layers)):
        pieces = split(fixed, graph, [range(position), range(position, len(graph.layers))])
        assert difference(expected, runner.run_split(pieces, frames)) == 0
    assert open_model(fixed.path, tmp_path, resolve=True).path == fixed.path


def test_sizes_that_depend_on_values_stay_open(tmp_path):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (4,))
    zero = main.constant("zero", 0.0)
    mask = main.tensor("mask", (4,), "BOOL")
    main.op("GREATER", (x, zero), (mask,), "GreaterOptions")
    places = main.tensor("places", (1, 1), "INT64", shape_signature=(-1, 1))
    main.op("WHERE", (mask,), (places,), "WhereOptions")
    main.inputs, main.outputs = (x,), (places,)
    path = tmp_path / "where.tflite"
    path.write_bytes(draft.data())
    graph = build_graph(open_model(path, tmp_path, resolve=True))
    assert {t.name: t.dynamic for t in graph.tensors} == {
        "x": False,
        "zero": False,
        "mask": False,
        "places": True,
    }


def test_wrong_wishes_are_refused(images, tmp_path):
    file = read_model(images)
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
