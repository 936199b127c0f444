"""C++ for the Arm Compute Library: generated, compiled for aarch64, run on the real library."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from arm_bundles import ZOO, contents, cores, order, zoo_model
from operator_model import OperatorModel, more_of_arm_compute, supported_everywhere
from small_models import Draft

from dse.deploy.arm_compute.target import ArmCompute
from dse.deploy.arm_compute.translate import stage_code
from dse.deploy.bundle import write_bundle
from dse.deploy.support import unsupported_layers
from dse.errors import InputError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes

FIXED_SOURCES = ("main.cpp", "bundle.cpp", "lanes.cpp", "net.cpp", "plan.c", "files.c")
RUNTIME = "/usr/aarch64-linux-gnu"
TIMEOUT_S = 240


@dataclass(frozen=True)
class Toolchain:
    """A compiler for aarch64, the library, and an emulator."""

    library: Path
    objects: Path

    def compile(self, *arguments) -> None:
        headers = self.library / "include/aarch64-linux-gnu"
        strict = ("-std=c++14", "-Wall", "-Wextra", "-Werror")
        done = subprocess.run(
            ["aarch64-linux-gnu-g++", *strict, "-isystem", headers, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr

    def build(self, bundle: Path, program: Path) -> Path:
        """Compile the generated source of a bundle and link it with what is the same in all bundles."""
        libraries = ("-larm_compute_graph", "-larm_compute", "-larm_compute_core", "-lpthread")
        objects = [self.objects / f"{name}.o" for name in FIXED_SOURCES]
        folder = self.library / "lib/aarch64-linux-gnu"
        self.compile(
            "-O0",
            bundle / "source/graphs.cpp",
            *objects,
            "-o",
            program,
            f"-L{folder}",
            *libraries,
        )
        return program

    def run(self, program: Path, *arguments) -> subprocess.CompletedProcess:
        folder = self.library / "lib/aarch64-linux-gnu"
        emulator = ["qemu-aarch64-static", "-L", RUNTIME, "-E", f"LD_LIBRARY_PATH={folder}"]
        return subprocess.run(
            [*emulator, program, *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory):
    library = Path(os.environ.get("TFLITE_DSE_ARM_COMPUTE", "/")) / "usr"
    if not (library / "include/aarch64-linux-gnu/arm_compute/graph.h").is_file():
        pytest.skip("no libarm-compute-dev for arm64: unpack it and set TFLITE_DSE_ARM_COMPUTE, see .ci/run")
    for program in ("aarch64-linux-gnu-g++", "qemu-aarch64-static", "cmake"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: g++-aarch64-linux-gnu qemu-user-static cmake)")
    # As the bundle's README says; what is the same in every bundle is built once.
    folder = tmp_path_factory.mktemp("toolchain")
    write_bundle(ArmCompute(), order(zoo_model(folder, "mobilenet_v1")), folder / "bundle")
    compilers = ["-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc", "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"]
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DACL_ROOT={library}"]
    configure = ["cmake", "-S", folder / "bundle/source", "-B", folder / "build", *compilers, *system]
    for command in (configure, ["cmake", "--build", folder / "build", "-j", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
    made = Toolchain(library, folder / "build/CMakeFiles/pipeline.dir")
    done = made.run(folder / "build/pipeline", folder / "bundle", "--verify")
    assert done.returncode == 0, done.stderr
    return made


def check(toolchain, folder, ordered) -> subprocess.CompletedProcess:
    """Export, build, and compare with LiteRT's outputs; the tolerance is 1e-3 of their range."""
    write_bundle(ArmCompute(), ordered, folder / "bundle")
    program = toolchain.build(folder / "bundle", folder / "pipeline")
    # The sums are another test's matter: emulated, they take longer than the network.
    done = toolchain.run(program, folder / "bundle", "--verify", "--no-sums")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("verify output")]
    assert len(lines) == len(ordered.graph.outputs)
    assert all(" ok " in line for line in lines)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("draw", [supported_everywhere, more_of_arm_compute])
def test_every_operator_in_every_form(toolchain, tmp_path, draw):
    path = tmp_path / "operators.tflite"
    path.write_bytes(draw().draft.data())
    check(toolchain, tmp_path, order(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_well_known_networks(toolchain, tmp_path, name):
    check(toolchain, tmp_path, order(zoo_model(tmp_path, name)))


@pytest.mark.slow
def test_a_real_model_in_half_precision(toolchain, tmp_path, corpus):
    path = corpus / "models/mediapipe__hand_landmark_lite.tflite"
    n_threads = min(2, len(cores()))
    done = check(toolchain, tmp_path, order(path, threads=n_threads))
    here = " | ".join(str(core) for core in cores()[:n_threads])
    assert f"stage lane0.stage0 threads on cores {here}" in done.stdout.splitlines()


@pytest.fixture(scope="module")
def staged(toolchain, tmp_path_factory):
    """A network as three stages in as many lanes as there are cores, two at most."""
    folder = tmp_path_factory.mktemp("staged")
    n_lanes = min(2, len(cores()))
    ordered = order(zoo_model(folder, "mobilenet_v2"), n_stages=3, n_lanes=n_lanes)
    write_bundle(ArmCompute(), ordered, folder / "bundle")
    return folder / "bundle", toolchain.build(folder / "bundle", folder / "pipeline"), n_lanes


@pytest.mark.slow
def test_stages_on_their_cores_give_the_whole_models_outputs(toolchain, staged):
    bundle, program, n_lanes = staged
    done = toolchain.run(program, bundle, "--frames", "12", "--repeats", "2", "--warmup", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "ok (head/probabilities)" in lines[0]
    for lane in range(n_lanes):
        for stage in range(3):
            name = f"lane{lane}.stage{stage}"
            assert f"stage {name} threads on cores {cores()[lane]}" in lines
            assert any(line.startswith(f"stage {name} busy_ms ") for line in lines)
    assert sum(line.startswith("repeat ") and "throughput_hz" in line for line in lines) == 2
    # All 24 frames of the two repeats went through the first stage of some lane.
    counts = [int(line.split()[-1]) for line in lines if ".stage0 busy_ms " in line]
    assert sum(counts) == 24


@pytest.mark.slow
def test_damaged_bundles_and_wrong_calls_are_refused(toolchain, staged, tmp_path):
    bundle, program, _ = staged
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    weights = next((copy / "weights").glob("layer0_weights.npy"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = toolchain.run(program, copy, "--verify")
    assert (done.returncode, "weights/layer0_weights.npy was changed" in done.stderr) == (1, True)
    weights.write_bytes(data[:-4])
    done = toolchain.run(program, copy, "--verify", "--no-sums")
    assert (done.returncode, "layer0_weights.npy: its size does not fit its shape" in done.stderr) == (
        1,
        True,
    )
    weights.unlink()
    done = toolchain.run(program, copy, "--verify", "--no-sums")
    assert (done.returncode, "layer0_weights.npy: can not be read" in done.stderr) == (1, True)
    plan = (copy / "plan.txt").read_text()
    for old, new, wanted in (
        ("float32", "int8", "plan.txt:6: the line is damaged"),
        (f"stage lane0.stage0 1 {cores()[0]} ", "stage lane0.stage0 1 1000 ", "may not use core 1000"),
        ("stages/layers-0", "stages/other-0", "this program has no graph for stages/other-0"),
        ("tflite-dse plan 1", "tflite-dse plan 2", "expected 'tflite-dse plan 1'"),
    ):
        assert old in plan
        (copy / "plan.txt").write_text(plan.replace(old, new, 1))
        done = toolchain.run(program, copy, "--verify", "--no-sums")
        assert (done.returncode, wanted in done.stderr) == (1, True), done.stderr
    for arguments in (["--frames", "0"], ["--frames"], ["--what"], ["a", "b"]):
        done = toolchain.run(program, *arguments)
        assert (done.returncode, "usage: pipeline" in done.stderr) == (2, True)


def test_everything_unsupported_is_named_before_anything_is_written(tmp_path):
    m = OperatorModel()
    x = m.raw_input(1, 4, 4, 2)
    first = m.inner("CEIL", (x,), (1, 4, 4, 2))
    second = m.inner("RELU", (first,), (1, 4, 4, 2))
    m.show("last", "COS", (second,), (1, 4, 4, 2))
    path = tmp_path / "m.tflite"
    path.write_bytes(m.draft.data())
    with pytest.raises(InputError) as caught:
        write_bundle(ArmCompute(), order(path), tmp_path / "bundle")
    message = str(caught.value)
    assert "2 of its 3 layers" in message
    assert "layer 0 (t2): CEIL: the operator is not supported" in message
    assert "layer 2 (last): COS" in message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.tflite"]


def dynamic_weights(m):
    m.show(
        "y",
        "CONV_2D",
        (m.raw_input(1, 4, 4, 2), m.raw_input(3, 1, 1, 2), m.constant([0, 0, 0])),
        (1, 4, 4, 3),
        "Conv2DOptions",
    )


def high_rank(m):
    m.show(
        "y", "ADD", (m.raw_input(1, 1, 4, 4, 2), m.raw_input(1, 1, 4, 4, 2)), (1, 1, 4, 4, 2), "AddOptions"
    )


def parted_mean(m):
    x, axes = m.raw_input(2, 3, 4, 5), m.constant((0, 2), "INT32")
    m.show("y", "MEAN", (x, axes), (3, 5), "ReducerOptions", keep_dims=False)


def both_repeated(m):
    m.show("y", "ADD", (m.raw_input(1, 4, 1), m.raw_input(1, 1, 3)), (1, 4, 3), "AddOptions")


def integers(m):
    x = m.main.tensor("x", (1, 4), "INT32")
    y = m.main.tensor("y", (1, 4), "INT32")
    m.main.inputs, m.main.outputs = (x,), (y,)
    m.main.op("ADD", (x, x), (y,), "AddOptions")


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (dynamic_weights, "its weights would have to be constant"),
        (high_rank, "has 5 dimensions, at most 4"),
        (parted_mean, "are not neighbours"),
        (both_repeated, "both of its values would have to be repeated"),
        (integers, "is int32, only float32"),
    ],
)
def test_what_exactly_is_not_supported(draw, reason):
    m = OperatorModel()
    draw(m)
    file = m.file()
    reasons = unsupported_layers("arm-compute", file, build_graph(file))
    assert list(reasons) == [0]
    assert reason in reasons[0]


def test_same_order_same_bytes_and_nothing_is_overwritten(tmp_path):
    ordered = order(zoo_model(tmp_path, "mobilenet_v1"), n_stages=2)
    write_bundle(ArmCompute(), ordered, tmp_path / "first")
    write_bundle(ArmCompute(), ordered, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert (tmp_path / "first/source/graphs.cpp").read_text().count("void build_") == 2
    with pytest.raises(InputError, match="already there"):
        write_bundle(ArmCompute(), ordered, tmp_path / "first")
    (tmp_path / "first/weights/extra.npy").touch()
    write_bundle(ArmCompute(), ordered, tmp_path / "first", force=True)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_names_of_a_model_can_not_become_code():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    y = main.tensor('end */ "\n); evil(); //\\', (1, 4))
    main.op("RELU", (x,), (y,))
    main.inputs, main.outputs = (x,), (y,)
    file = model_from_bytes(draft.data())
    code = stage_code(file, build_graph(file), [0], "build").code
    assert "evil" in code
    for line in code.splitlines():
        if "evil" in line:
            assert line.strip().startswith("// 0 RELU '")
            assert line.endswith("'")
