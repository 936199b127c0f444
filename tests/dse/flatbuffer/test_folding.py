"""Constants worked out ahead of time: same outputs, no preparing operators left."""

from __future__ import annotations

import numpy as np
import pytest
from running import difference
from small_models import Draft
from test_pitfalls_of_cutting import sparse_model

from dse.flatbuffer.constants import Constants
from dse.flatbuffer.encode import encode
from dse.flatbuffer.folding import fold_constants
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.operators import operator_name
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.inputs import make_frames


def names(model):
    return [operator_name(model, operator) for operator in model.subgraphs[0].operators]


@pytest.mark.parametrize(
    "name", ["mediapipe__hand_landmark_lite", "mediapipe__pose_detection", "mediapipe__selfie_segmentation"]
)
def test_real_half_precision_and_sparse_models_keep_their_outputs(corpus, runner, name):
    path = corpus / "models" / f"{name}.tflite"
    file = read_model(path)
    folded = fold_constants(file.model)
    assert not {"DEQUANTIZE", "DENSIFY"} & set(names(folded))
    data = encode(folded)
    graph = build_graph(model_from_bytes(data))
    assert len(graph.layers) == len(build_graph(file).layers)
    frames = make_frames(graph, 2, 0)
    whole, ours = runner.run(path, frames), runner.run(bytes(data), frames)
    assert difference(whole, ours) <= 1e-5


def test_sparse_weights_become_dense():
    draft, dense, _ = sparse_model()
    model = fold_constants(draft.file().model)
    assert names(model) == ["ABS", "FULLY_CONNECTED"]
    weights = model.subgraphs[0].operators[1].inputs[1]
    np.testing.assert_array_equal(Constants(model).value(weights), dense)


def test_quantised_constants_are_dequantised_per_channel():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 3))
    stored = np.array([[1, -2, 3], [4, 5, -6]], np.int8)
    packed = main.constant("packed", stored, "INT8", scale=(0.5, 0.25), zero=1, axis=0)
    weights = main.tensor("weights", (2, 3))
    main.op("DEQUANTIZE", (packed,), (weights,))
    y = main.tensor("y", (1, 2))
    main.op("FULLY_CONNECTED", (x, weights, -1), (y,), "FullyConnectedOptions")
    main.inputs, main.outputs = (x,), (y,)
    model = fold_constants(draft.file().model)
    assert names(model) == ["FULLY_CONNECTED"]
    wanted = (stored.astype(np.float32) - 1) * np.array([[0.5], [0.25]], np.float32)
    np.testing.assert_array_equal(Constants(model).value(model.subgraphs[0].operators[0].inputs[1]), wanted)


def test_operators_on_activations_stay():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (2, 3), "FLOAT16")
    y = main.tensor("y", (2, 3))
    main.op("DEQUANTIZE", (x,), (y,))
    main.inputs, main.outputs = (x,), (y,)
    assert names(fold_constants(draft.file().model)) == ["DEQUANTIZE"]
