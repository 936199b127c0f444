"""Hands that edit a mapping: what is possible is done, what is not is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dse.errors import ConfigError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import LayerGraph
from dse.mapping_check import check_mapping
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Platform
from dse.zoo.registry import build_file

BOARD = Platform(
    "board",
    (Cluster("big", (4, 5, 6, 7)), Cluster("LITTLE", (0, 1, 2, 3)), Cluster("GPU", (100,), kind="gpu")),
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> LayerGraph:
    path = tmp_path_factory.mktemp("model") / "net.tflite"
    build_file("mobilenet_v2", path, {"size": 32, "width": 25, "classes": 10})
    return build_graph(read_model(path))


def stage(name: str, first: int, last: int, cluster: str, *cores: int, **more) -> PlacedStage:
    return PlacedStage(name, tuple(range(first, last + 1)), cluster, max(1, len(cores)), cores, **more)


def mapping(*lanes: list[PlacedStage]) -> PlacedMapping:
    return PlacedMapping(tuple(PlacedLane(tuple(stages)) for stages in lanes))


def test_possible_mappings_pass(graph):
    last = len(graph.layers) - 1
    a, b = stage("a", 0, 9, "big", 4, 5), stage("b", 10, last, "LITTLE", 0)
    check_mapping(mapping([a, b]), graph, BOARD)
    check_mapping(mapping([a, b], [stage("c", 0, last, "LITTLE", 1)]), graph, BOARD)
    # Stages of a lane may take turns on the same cores.
    check_mapping(mapping([stage("a", 0, 9, "big", 4), stage("b", 10, last, "big", 4)]), graph, BOARD)
    on_gpu = stage("b", 10, last, "GPU", 100, device="gpu", host_cores=(6,))
    check_mapping(mapping([a, on_gpu]), graph, BOARD)


def faults(edited: PlacedMapping, graph: LayerGraph) -> str:
    with pytest.raises(ConfigError) as caught:
        check_mapping(edited, graph, BOARD)
    return str(caught.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda last: stage("b", 11, last, "LITTLE", 0), "layer 10 .* is in no stage"),
        (lambda last: stage("b", 9, last, "LITTLE", 0), "layer 9 .* twice"),
        (lambda last: stage("b", 10, last + 3, "LITTLE", 0), "there is no layer"),
        (lambda last: stage("b", 10, last, "HUGE", 0), "no cluster 'HUGE', only big, LITTLE"),
        (
            lambda last: stage("b", 10, last, "LITTLE", 6),
            "LITTLE of platform board has cores 0, 1, 2, 3, not 6",
        ),
        (lambda last: stage("b", 10, last, "big", 4), "core 4 is used by a and by b"),
        (lambda last: stage("b", 10, last, "LITTLE", 0, 0), "core 0 is listed twice"),
        (lambda last: stage("b", 10, last, "GPU", 100), "cluster GPU is a gpu, not a cpu"),
    ],
)
def test_each_impossible_edit_is_named(graph, second, message):
    import re

    last = len(graph.layers) - 1
    text = faults(mapping([stage("a", 0, 9, "big", 4, 5), second(last)]), graph)
    assert re.search(message, text), text


def test_lanes_share_no_cores(graph):
    last = len(graph.layers) - 1
    text = faults(mapping([stage("a", 0, last, "big", 4)], [stage("b", 0, last, "big", 4)]), graph)
    assert "core 4 is used by a and by b" in text


def test_stages_in_the_wrong_order_and_in_a_circle(graph):
    last = len(graph.layers) - 1
    a, b = stage("a", 0, 9, "big", 4), stage("b", 10, last, "LITTLE", 0)
    assert "of a, which is listed after it" in faults(mapping([b, a]), graph)
    circle = replace(a, layers=(*range(5), *range(10, last + 1)))
    text = faults(mapping([circle, replace(b, layers=tuple(range(5, 10)))]), graph)
    assert "wait for each other" in text


def test_state_stays_together(corpus):
    graph = build_graph(read_model(Path(corpus) / "models" / "pymicro_wakeword__alexa.tflite"))
    shared = next(layer.index for layer in graph.layers if layer.group is not None)
    last = len(graph.layers) - 1
    text = faults(
        mapping([stage("a", 0, shared, "big", 4), stage("b", shared + 1, last, "LITTLE", 0)]), graph
    )
    assert "share" in text
    assert "must be in one stage" in text


def test_all_faults_come_at_once(graph):
    last = len(graph.layers) - 1
    text = faults(mapping([stage("a", 0, 9, "HUGE", 4), stage("b", 11, last, "LITTLE", 9)]), graph)
    assert "HUGE" in text
    assert "not 9" in text
    assert "layer 10" in text
