"""mapping.yaml: what is written is read back, and every fault is named with its line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.errors import ConfigError
from dse.graph import LayerGraph, Network
from dse.mapping_file import MappingFile, read_mapping, write_mapping
from dse.placement import PlacedLane, PlacedMapping, PlacedStage


def example() -> MappingFile:
    lane = PlacedLane(
        (
            PlacedStage("lane0.stage0", (0, 1, 2, 5), "big", 3, (4, 5, 6)),
            PlacedStage("lane0.stage1", (3, 4), "LITTLE", 1, (0,)),
        )
    )
    files = {"lane0.stage0": "stages/a.tflite"}
    networks = {"lane0.stage0": ("hand", "face"), "lane0.stage1": ("face",)}
    return MappingFile("net", "ab" * 32, "board", PlacedMapping((lane,)), files, networks)


def test_round_trip(tmp_path):
    path = tmp_path / "mapping.yaml"
    write_mapping(path, example())
    assert read_mapping(path) == example()
    assert "layers: 0-2,5" in path.read_text()
    assert "networks:\n    - hand\n    - face\n" in path.read_text()


def test_stages_of_a_workload_tell_their_networks():
    networks = (Network("hand", (0, 1, 2)), Network("face", (3, 4, 5)))
    graph = LayerGraph("both", (), (), (), (), networks=networks)
    content = MappingFile.of(graph, "ab" * 32, "board", example().mapping, example().files)
    assert content.networks == example().networks
    plain = MappingFile.of(replace(graph, networks=()), "ab" * 32, "board", example().mapping, {})
    assert plain.networks == {}


@settings(max_examples=60, deadline=None)
@given(
    layers=st.sets(st.integers(0, 300), min_size=1, max_size=40),
    name=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
)
def test_any_layers_and_names_survive(tmp_path_factory, layers, name):
    stage = PlacedStage("s", tuple(sorted(layers)), name, 1, (0,))
    content = MappingFile(name, "0" * 64, name, PlacedMapping((PlacedLane((stage,)),)), {})
    path = tmp_path_factory.mktemp("m") / "mapping.yaml"
    write_mapping(path, content)
    assert read_mapping(path) == content


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format: tflite-dse mapping", "format: something", "expected format"),
        ("version: 1", "version: 7", "expected format"),
        ("layers: 0-2,5", "layers: 5-0", "expected layers such as"),
        ("layers: 0-2,5", "layers: 0-2,1", "expected layers such as"),
        ("layers: 0-2,5", "layers: all", "expected layers such as"),
        ("cores: [4, 5, 6]", "cores: [4, 5]", "expected 3 core numbers"),
        ("cores: [4, 5, 6]", "cores: [4, 5, -6]", "expected 3 core numbers"),
        ("threads: 3", "threads: three", "wrong type str"),
        ("cluster: big", "clusters: big", "unknown key"),
        ("name: lane0.stage1", "name: lane0.stage0", "appears twice"),
        ("platform: board\n", "", r"yaml:\d+: field 'platform' is missing"),
        ("    - hand\n", "    - 3\n", "expected names of networks"),
        ("networks:\n    - face\n", "networks: face\n", "wrong type str"),
        ("lanes:", "lanes: []\nmore:", "at least one lane|unknown key"),
    ],
)
def test_each_fault_is_named(tmp_path, old, new, message):
    path = tmp_path / "mapping.yaml"
    write_mapping(path, example())
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        read_mapping(path)
    assert str(path) in str(caught.value)


def test_all_faults_come_in_one_message(tmp_path):
    path = tmp_path / "mapping.yaml"
    write_mapping(path, example())
    path.write_text(path.read_text().replace("0-2,5", "x").replace("cores: [0]", "cores: []"))
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    assert len(caught.value.faults) == 2
