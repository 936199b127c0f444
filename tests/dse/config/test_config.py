"""Experiment and platform files: defaults, every fault with its place, pins, schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dse import yaml_io
from dse.config import (
    ModelPath,
    Pin,
    ZooModel,
    check_pins,
    experiment_for_model,
    json_schema,
    load_experiment,
    load_platform,
    platform_data,
)
from dse.errors import ConfigError
from dse.platforms import Cluster, Link, Platform

GOOD = """\
model: {zoo: mobilenet_v2, parameters: {width: 50}, seed: 3}
platform:
  name: board
  clusters:
    - {name: big, cores: 0-3, capacity: 1024, max_hz: 2.4e9, macs_per_s: 9.5e9, active_power_mw: 900}
    - {name: LITTLE, cores: [4, 5], threads: [1, 2], memory_bytes: 64 MiB}
    - {name: gpu, cores: 6, kind: gpu}
  links:
    - {source: big, target: LITTLE, setup_ns: 50000, bandwidth_bytes_per_s: 4e9}
  overlap: true
profile: {method: analytic, precision: 0.1}
search:
  goal: latency
  memory_limit: 1.5 GiB
  pins:
    - {layers: 0-1, on: 3 big}
    - {layers: [2, "conv*"], on: LITTLE}
measure: {enabled: false}
name: first
seed: 7
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str, *settings: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(folder, text), settings)
    return [fault.replace(f"{folder}/", "") for fault in caught.value.faults]


def test_everything_is_read(tmp_path):
    experiment = load_experiment(write(tmp_path, GOOD))
    assert experiment.model == ZooModel("mobilenet_v2", {"width": 50}, 3)
    assert experiment.platform == Platform(
        "board",
        (
            Cluster("big", (0, 1, 2, 3), "cpu", 1024, 2_400_000_000, (), 9_500_000_000, None, 900),
            Cluster("LITTLE", (4, 5), threads=(1, 2), memory_bytes=64 << 20),
            Cluster("gpu", (6,), "gpu"),
        ),
        (Link("big", "LITTLE", 50_000, 4_000_000_000),),
        overlap=True,
    )
    assert experiment.search.goal == "latency"
    assert experiment.search.memory_limit == 3 << 29
    assert experiment.measure.enabled is False
    assert experiment.name == "first"
    assert experiment.seed == 7
    where = f"{tmp_path}/x.yaml"
    assert experiment.pins == (
        Pin(("0-1",), "big", 3, where=f"{where}:16: search.pins[0]"),
        Pin((2, "conv*"), "LITTLE", None, where=f"{where}:17: search.pins[1]"),
    )


def test_resolved_form_is_the_same_experiment(tmp_path):
    first = load_experiment(write(tmp_path, GOOD))
    again = load_experiment(write(tmp_path, yaml_io.dump(first.resolved())))
    assert again.resolved() == first.resolved()
    assert again.platform == first.platform
    assert [(p.layers, p.cluster, p.threads) for p in again.pins] == [
        (p.layers, p.cluster, p.threads) for p in first.pins
    ]


def test_defaults_and_relative_paths(tmp_path):
    (tmp_path / "m.tflite").write_bytes(b"x")
    (tmp_path / "board.yaml").write_text("name: b\nclusters: [{name: cpu, cores: 0}]\n")
    (tmp_path / "costs.json").write_text("{}")
    experiment = load_experiment(
        write(tmp_path, "model: m.tflite\nplatform: board.yaml\nprofile: {costs: costs.json}\n")
    )
    assert experiment.model == ModelPath(tmp_path / "m.tflite")
    assert experiment.model.name == "m"
    assert experiment.platform == load_platform(tmp_path / "board.yaml")
    assert experiment.profile.costs == tmp_path / "costs.json"
    assert experiment.name == "x"
    assert experiment.output == Path("runs")


def test_experiment_for_a_model(tmp_path):
    path = tmp_path / "face.tflite"
    with pytest.raises(ConfigError, match=r"--model: model: expected a file.*no such file"):
        experiment_for_model(path)
    path.write_bytes(b"x")
    experiment = experiment_for_model(path, ["search.time_s=3", "platform=auto"])
    assert experiment.model == ModelPath(path)
    assert experiment.platform is None
    assert experiment.name == "face"
    assert experiment.search.time_s == 3
    assert experiment.resolved()["model"] == str(path)


MODEL = "model: {zoo: a}\n"
BOARD = "platform:\n  name: b\n  clusters:\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("name: x\n", r"x.yaml:1: model: required, but missing"),
        ("- 1\n", r"x.yaml:1: the file: expected a mapping \(key: value\), got the list \[1\]"),
        ("model: 3\n", r"x.yaml:1: model: expected a path or \{zoo: name\}, got 3"),
        ("model: nowhere.tflite\n", r"x.yaml:1: model: expected a file, got the text 'nowhere.tflite': no such file"),
        ("model:\n  zo: bert\n", r"x.yaml:2: model.zo: unknown key; did you mean 'zoo'\?"),
        (MODEL + "serch: {}\n", r"x.yaml:2: serch: unknown key; did you mean 'search'\?"),
        (MODEL + "qqq: {}\n", r"x.yaml:2: qqq: unknown key; known keys: model, .*platform, .*seed"),
        (MODEL + "search:\n  time_s: '3'\n", r"x.yaml:3: search.time_s: expected a number, got the text '3'"),
        (MODEL + "search:\n  time_s: .inf\n", r"x.yaml:3: search.time_s: expected a finite number, got inf"),
        (MODEL + "search:\n  time_s: 0\n", r"x.yaml:3: search.time_s: expected more than 0, got 0"),
        (MODEL + "search: {goal: fast}\n", r"search.goal: expected 'throughput', 'latency' or 'energy', got"),
        (MODEL + "search: {max_lanes: 0}\n", r"search.max_lanes: expected at least 1, got 0"),
        (MODEL + "search: {candidates: 2.5}\n", r"search.candidates: expected a whole number, got 2.5"),
        (MODEL + "search: {memory_limit: 3 parsec}\n", r"search.memory_limit: expected bytes .*'64 MiB', got"),
        (MODEL + "search: [1]\n", r"x.yaml:2: search: expected a mapping \(key: value\), got the list \[1\]"),
        (MODEL + "search: {pins: {a: 1}}\n", r"search.pins: expected a list, got a mapping"),
        (MODEL + "profile: {method: guess}\n", r"profile.method: expected 'auto', 'in_situ', 'extracted', 'analytic' or 'learned', got"),
        (MODEL + "profile: {refresh: 1}\n", r"profile.refresh: expected true or false, got 1"),
        (MODEL + "profile: {costs: none.json}\n", r"profile.costs: expected a file, got the text 'none.json'"),
        (MODEL + "profile: {costs: 3}\n", r"profile.costs: expected a path, got 3"),
        (MODEL + "measure: {enabled: perhaps}\n", r"measure.enabled: expected true, false or auto, got the text"),
        (MODEL + "measure: {enabled: 1}\n", r"measure.enabled: expected true, false or auto, got 1"),
        (MODEL + "measure: {enabled: yes}\n", r'x.yaml:2:20: yes is yes or no .* write true / false'),
        (MODEL + "name: ''\n", r"name: expected a text that is not empty, got the text ''"),
        (MODEL + "seed: true\n", r"seed: expected a whole number, got true"),
        (MODEL + "platform: 3\n", r"platform: expected auto, a path, or a description with clusters, got 3"),
        (MODEL + "platform: no.yaml\n", r"x.yaml:2: platform: no.yaml: can not be read: No such file"),
        (MODEL + "platform: {name: b, clusters: []}\n", r"platform.clusters: expected at least 1 entry"),
        (MODEL + BOARD + "    - {name: a}\n", r"x.yaml:5: platform.clusters\[0\].cores: expected core numbers"),
        (MODEL + BOARD + "    - {name: a, cores: 3-1}\n", r"clusters\[0\].cores: expected a range that runs up"),
        (MODEL + BOARD + "    - {name: a, cores: x}\n", r"clusters\[0\].cores: expected numbers such as 2, 0-3"),
        (MODEL + BOARD + "    - {name: a, cores: [1, 1]}\n", r"clusters\[0\].cores: expected each number once"),
        (MODEL + BOARD + "    - {name: a, cores: [-1]}\n", r"clusters\[0\].cores: expected numbers such as"),
        (MODEL + BOARD + "    - {name: a, cores: 0-1, kind: gpu}\n", r"cores: expected one number \(a gpu is"),
        (MODEL + BOARD + "    - {name: a, cores: 0-1, threads: 3}\n", r"threads: expected counts from 1 to 2"),
        (MODEL + BOARD + "    - {name: a, cores: 0, kind: tpu}\n", r"kind: expected 'cpu', 'gpu' or 'npu', got"),
        (MODEL + BOARD + "    - {name: a, cores: 0}\n    - {name: a, cores: 1}\n",
         r"x.yaml:6: platform.clusters\[1\].name: expected a name no other cluster has"),
        (MODEL + BOARD + "    - {name: a, cores: 0-1}\n    - {name: b, cores: 1}\n",
         r"x.yaml:6: platform.clusters\[1\].cores: expected cores of one cluster only \(core 1 is also in a\)"),
        (MODEL + BOARD + "    - {name: a, cores: 0}\n  links: [{source: a, target: q, setup_ns: 1}]\n",
         r"x.yaml:6: platform.links\[0\].target: expected one of a, got the text 'q'"),
        (MODEL + BOARD + "    - {name: a, cores: 0}\n  links: [{source: a, target: a, setup_ns: -1}]\n",
         r"links\[0\].setup_ns: expected at least 0, got -1"),
        (MODEL + "search:\n  pins:\n    - {layers: 0}\n", r"x.yaml:4: search.pins\[0\]: expected one of 'on' .*'cores'"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, on: 3}\n", r"x.yaml:4: search.pins\[0\].on: expected a text, got 3"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, on: '3'}\n", r"pins\[0\].on: expected cores of a cluster"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, on: 0 big}\n", r"pins\[0\].on: expected cores of a cluster"),
        (MODEL + "search:\n  pins:\n    - {layers: [], on: big}\n", r"pins\[0\].layers: expected at least one layer"),
        (MODEL + "search:\n  pins:\n    - {layers: [1.5], on: big}\n", r"pins\[0\].layers: expected layer numbers"),
        (MODEL + "search:\n  pins:\n    - {layers: [-1], on: big}\n", r"pins\[0\].layers: expected numbers from 0"),
        (MODEL + "search:\n  pins:\n    - {layers: [rest, 0], on: big}\n", r"pins\[0\].layers: .*'rest' alone"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, cores: b}\n", r"pins\[0\].cores: expected numbers such as"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, cores: [x]}\n", r"pins\[0\].cores: expected"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, cores: '{i}'}\n", r"pins\[0\].cores: expected 'each' to say"),
        (MODEL + "search:\n  pins:\n    - {layers: 0, cores: 0, each: {i: 0-1}}\n", r"pins\[0\].each: expected \{i\}"),
        (MODEL + "search:\n  pins:\n    - {layers: 'a{i}', cores: 0, each: {i: x}}\n", r"pins\[0\].each: expected num"),
        (MODEL + "search:\n  pins:\n    - {layers: 'a{i}', cores: 0, each: {i: 1.5}}\n", r"each.i: expected numbers"),
        ("name: x\nlinks: [{from: a/b, to: c/d}]\n", r"x.yaml:1: model: required, but missing"),
        (MODEL + "models: [{name: a, zoo: b}]\n", r"x.yaml:2: models: expected either 'model' or 'models', got .*both"),
        (MODEL + "links: [{from: a/b, to: c/d}]\n", r"x.yaml:2: links: expected 'models' beside it"),
        ("models: [{name: 'a b', zoo: b}]\n", r"models\[0\].name: expected a name of letters.*got the text 'a b'"),
        ("models: [{name: a}]\n", r"models\[0\]: expected either 'file' or 'zoo' for network a, got .*neither"),
        ("models: [{name: a, zoo: b}, {name: a, zoo: c}]\n", r"models\[1\].name: expected a name no other network has"),
        ("models: [{name: a, file: gone.tflite}]\n", r"models\[0\].file: expected a file, got .*gone.tflite.*no such file"),
        ("models: [{name: a, zoo: b, fallback: {zoo: c}}]\n", r"models\[0\].fallback: expected 'package' beside it"),
        ("models: [{name: a, zoo: b, sha256: '" + "0" * 64 + "'}]\n", r"models\[0\].sha256: expected 'package' beside it"),
        ("models: [{name: a, package: b==1, file: c}]\n", r"models\[0\].package: expected 'sha256' of the model"),
        ("models: [{name: a, zoo: b}]\nshapes: [x=1]\n", r"shapes: expected this setting at a network of 'models'"),
        ("models: [{name: a, zoo: b}]\nlinks: [{from: a/x, to: q/y}]\n", r"x.yaml:2: links\[0\].to: expected one of the networks a"),
        ("models: [{name: a, zoo: b}]\nlinks: [{from: a, to: a/y}]\n", r"links\[0\].from: expected network/tensor.*got the text 'a'"),
        ("models: [{name: a, zoo: b}]\nlinks: [{form: a/x, to: a/y}]\n", r"links\[0\].form: unknown key; did you mean 'from'\?"),
    ],
)  # fmt: skip
def test_one_fault(tmp_path, text, wanted):
    found = faults(tmp_path, text)
    assert len(found) == 1, found
    assert re.search(wanted, found[0]), found[0]


def test_all_faults_at_once_in_order(tmp_path):
    text = """\
modle: {zoo: a}
platform:
  name: p
  clusters:
    - {name: big, cores: 0-3, max_hz: fast}
search:
  time_s: none
  pins:
    - {layers: 0, on: 3}
measure: {repeats: 0}
"""
    found = faults(tmp_path, text, "seed=-1", "nonsense", "profile.what=1")
    places = [re.match(r"(?:x\.yaml:(\d+)|--set (\S+)):", fault).group() for fault in found]
    assert sorted(places) == sorted(
        ["--set nonsense:", "--set seed:", "--set profile.what:"]
        + [f"x.yaml:{line}:" for line in (1, 5, 7, 9, 10)]
    )
    lines = [int(place.split(":")[1]) for place in places if place.startswith("x.yaml")]
    assert lines == sorted(lines)


def test_faults_of_a_platform_file_name_that_file(tmp_path):
    (tmp_path / "board.yaml").write_text("name: b\nclusters:\n  - {name: a, cores: 0, kind: tpu}\n")
    (fault,) = faults(tmp_path, MODEL + "platform: board.yaml\n")
    assert fault.startswith("x.yaml:2: platform: board.yaml:3: clusters[0].kind: expected")


def test_pins_are_checked_against_a_described_platform(tmp_path):
    text = (
        MODEL
        + BOARD
        + "    - {name: big, cores: 0-3, threads: [1, 2]}\n"
        + "search:\n  pins:\n    - {layers: 0, on: 3 big}\n    - {layers: 1, on: 1 huge}\n"
        + "    - {layers: 2, cores: 9}\n    - {layers: rest, on: big}\n    - {layers: rest, on: big}\n"
    )
    assert faults(tmp_path, text) == [
        "x.yaml:8: search.pins[0]: on: expected 1, 2 cores of big (platform b), got 3",
        "x.yaml:9: search.pins[1]: on: expected a cluster of platform b (4 big), got 'huge'",
        "x.yaml:10: search.pins[2]: cores: expected cores of platform b (0, 1, 2, 3), got 9",
        "x.yaml:12: search.pins[4]: layers: expected 'rest' in one pin only",
    ]


def test_each_writes_a_pin_several_times(tmp_path):
    text = MODEL + "search:\n  pins:\n    - {layers: 'encoder/layer_{i}/*', cores: '{i}', each: {i: 0-3}}\n"
    pins = load_experiment(write(tmp_path, text)).pins
    assert [(pin.layers, pin.cores) for pin in pins] == [((f"encoder/layer_{i}/*",), (i,)) for i in range(4)]
    assert all(pin.where.endswith("x.yaml:4: search.pins[0]") for pin in pins)
    platform = Platform("p", (Cluster("cpu", (0, 1, 2)),))
    (fault,) = check_pins(pins, platform)
    assert "got 3" in fault


def test_settings_win_over_the_file(tmp_path):
    experiment = load_experiment(
        write(tmp_path, GOOD), ["search.goal=energy", "name=b", "measure.enabled=auto"]
    )
    assert (experiment.search.goal, experiment.name, experiment.measure.enabled) == ("energy", "b", "auto")
    assert experiment.search.memory_limit == 3 << 29
    assert faults(tmp_path, GOOD, "search.goal=on") == [
        '--set search.goal:1:1: on is yes or no to some readers and text to others: write "on" in quotes '
        "if you mean text or write true / false"
    ]


def test_schema_describes_the_file():
    schema = json_schema()
    json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert schema["anyOf"] == [{"required": ["model"]}, {"required": ["models"]}]
    assert "description" in schema["properties"]["platform"]
    assert {"PinSection", "ClusterSection"} <= set(schema["$defs"])


def test_a_frozen_experiment_can_not_be_changed(tmp_path):
    experiment = load_experiment(write(tmp_path, GOOD))
    with pytest.raises(AttributeError):
        experiment.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        experiment.search.time_s = 3


@pytest.mark.parametrize(
    ("lines", "links"),
    [
        ("", ()),
        ("  links: [{source: a, target: b, setup_ns: 0}]\n", (Link("a", "b", 0, None),)),
        (
            "  links: [{source: a, target: b, setup_ns: 0}]\n  hand_over: {setup_ns: 7, bandwidth_bytes_per_s: 1e9}\n",
            (
                Link("a", "b", 0, None),
                Link("a", "a", 7, 10**9),
                Link("b", "a", 7, 10**9),
                Link("b", "b", 7, 10**9),
            ),
        ),
    ],
)
def test_hand_over_stands_for_pairs_that_are_not_listed(tmp_path, lines, links):
    text = MODEL + BOARD + "    - {name: a, cores: 0}\n    - {name: b, cores: 1}\n" + lines
    platform = load_experiment(write(tmp_path, text)).platform
    assert platform.links == links
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(platform_data(platform)))
    assert load_platform(again) == platform
