"""Both runners of a Linux bundle, called as a user calls them: what they give, and what they refuse."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from linux_bundles import Runner, make_bundle, make_order, small_model

TAIL = 16


def copy_of(bundle: Path, folder: Path) -> Path:
    return Path(shutil.copytree(bundle, folder / "copy"))


def many_frames(bundle: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames in an order that tells them apart, and their outputs."""
    inputs, outputs = (np.load(bundle / "reference" / f"{side}_0.npy") for side in ("input", "output"))
    order = [(7 * number + number // 3) % len(inputs) for number in range(n)]
    return inputs[order], outputs[order]


def flip(path: Path, at: int = -TAIL) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def repair_sums(bundle: Path) -> None:
    """Make the checksums right again, as somebody would who edits a bundle."""
    lines = (bundle / "SHA256SUMS").read_text().splitlines()
    names = [line[66:] for line in lines]
    sums = [f"{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (bundle / "SHA256SUMS").write_text("".join(sums))


@pytest.mark.parametrize("shape", ["chain", "lanes"])
def test_verify_passes_on_every_lane(runner, request, shape):
    bundle = request.getfixturevalue(shape)
    out, err = runner.run(bundle, "--verify", "--json")
    found = json.loads(out)
    assert found["verified"] is True
    assert err.count("equal: off by up to") == found["lanes"] == {"chain": 1, "lanes": 2}[shape]


def test_verify_fails_where_outputs_differ(runner, chain, tmp_path):
    bundle = copy_of(chain, tmp_path)
    path = bundle / "reference" / "output_0.npy"
    values = np.load(path)
    values[2, 0, 3] += 0.5
    np.save(path, values)
    repair_sums(bundle)
    _, err = runner.run(bundle, "--verify", code=1)
    assert "DIFFERENT: off by up to 0.5 on 4 frames" in err


@pytest.mark.parametrize("shape", ["chain", "lanes"])
def test_frames_come_out_in_order(runner, request, shape, tmp_path):
    bundle = request.getfixturevalue(shape)
    inputs, outputs = many_frames(bundle, 50)
    np.save(tmp_path / "clip.npy", inputs)
    out, _ = runner.run(bundle, "--frames", tmp_path / "clip.npy", "--output", tmp_path / "out", "--json")
    assert json.loads(out)["frames"] == 50
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "output_0.npy"), outputs)


def test_raw_frames_through_pipes(runner, chain):
    inputs, outputs = many_frames(chain, 23)
    out, _ = runner.run(chain, "--frames", "-", "--output", "-", data=inputs.tobytes())
    assert out == outputs.tobytes()


def test_full_speed_tells_rates_latencies_and_busy_times(runner, chain):
    out, _ = runner.run(chain, "--seconds", 0.4, "--json")
    lane, total = map(json.loads, out.splitlines())
    assert lane["frames"] > 0
    assert lane["hz"] == pytest.approx(total["hz"])
    assert 0 < lane["latency_ns"] <= lane["latency_p99_ns"]
    busy = lane["busy_ns"] if isinstance(lane["busy_ns"], list) else list(lane["busy_ns"].values())
    assert len(busy) == 3
    assert all(value > 0 for value in busy)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((2, 1, 32, 32, 4), np.float32),
        np.zeros((2, 1, 32, 32, 3), np.float64),
        np.zeros((1, 32, 32, 3), np.float32),
        np.zeros((2, 1, 32, 32, 3), ">f4"),
    ],
    ids=["shape", "type", "no frames", "byte order"],
)
def test_frames_of_another_form_are_refused(runner, chain, tmp_path, values):
    np.save(tmp_path / "clip.npy", values)
    _, err = runner.run(chain, "--frames", tmp_path / "clip.npy", code=2)
    assert "clip.npy" in err
    assert "expected frames of" in err


@pytest.mark.parametrize("content", [b"", b"not numpy at all, but long enough to be read", None])
def test_files_that_are_no_arrays_are_refused(runner, chain, tmp_path, content):
    if content is not None:
        (tmp_path / "clip.npy").write_bytes(content)
    _, err = runner.run(chain, "--frames", tmp_path / "clip.npy", code=2)
    assert "clip.npy" in err
    assert "not a" in err or "can not be read" in err


def test_an_array_that_ends_early_is_refused(runner, chain, tmp_path):
    inputs, _ = many_frames(chain, 3)
    np.save(tmp_path / "clip.npy", inputs)
    data = (tmp_path / "clip.npy").read_bytes()
    (tmp_path / "clip.npy").write_bytes(data[:-100])
    _, err = runner.run(chain, "--frames", tmp_path / "clip.npy", code=2)
    assert "clip.npy" in err


@pytest.mark.parametrize("n", [2, 200])
def test_standard_input_that_ends_inside_a_frame_is_refused(runner, chain, n):
    """Also when frames are under way that nobody takes any more."""
    inputs, _ = many_frames(chain, n)
    _, err = runner.run(chain, "--frames", "-", code=2, data=inputs.tobytes()[:-7])
    assert "standard input ended inside a frame" in err


@pytest.mark.parametrize("file", ["stages/*.tflite", "plan.txt", "mapping.yaml", "SHA256SUMS"])
def test_a_flipped_byte_is_refused_before_anything_runs(runner, chain, tmp_path, file):
    bundle = copy_of(chain, tmp_path)
    path = next(iter(sorted(bundle.glob(file))))
    # In the list of sums: one of a sum that every run needs.
    at = path.read_text().index("  plan.txt") - 1 if file == "SHA256SUMS" else -TAIL
    flip(path, at)
    _, err = runner.run(bundle, code=2)
    assert "was changed" in err or "expected" in err


@pytest.mark.parametrize(
    "file", ["README.md", "reference/input_0.npy", "run.py", "native/pipeline.c", "signatures.json"]
)
def test_verify_refuses_a_flipped_byte_in_any_file(runner, chain, tmp_path, file):
    bundle = copy_of(chain, tmp_path)
    if file == "run.py":
        (bundle / file).write_bytes((bundle / file).read_bytes() + b"\n")
    else:
        flip(bundle / file)
    _, err = runner.run(bundle, "--verify", code=2)
    assert f"{file} was changed" in err


def test_a_missing_file_is_named(runner, chain, tmp_path):
    bundle = copy_of(chain, tmp_path)
    gone = next(iter(sorted(bundle.glob("stages/*.tflite"))))
    gone.unlink()
    _, err = runner.run(bundle, code=2)
    assert f"stages/{gone.name} can not be read" in err
    (bundle / "SHA256SUMS").unlink()
    _, err = runner.run(bundle, code=2)
    assert "SHA256SUMS" in err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tflite-dse plan 1", "tflite-dse plan 2"),
        ("\nstage lane0.stage0 1 ", "\nstage lane0.stage0 many "),
        ("\nlane\n", "\nlame\n"),
        ("tolerance ", "tolerances "),
        ("x3 ", "x5 "),
    ],
)
def test_a_damaged_plan_is_refused_with_its_line(runner, chain, tmp_path, old, new):
    bundle = copy_of(chain, tmp_path)
    path = bundle / "plan.txt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    repair_sums(bundle)
    _, err = runner.run(bundle, code=2)
    assert "plan.txt" in err


def test_a_plan_of_another_mapping_is_refused(runner, chain, tmp_path):
    bundle = copy_of(chain, tmp_path)
    path = bundle / "mapping.yaml"
    path.write_text(path.read_text() + "# edited\n")
    repair_sums(bundle)
    _, err = runner.run(bundle, code=2)
    assert "plan.txt does not belong to this mapping.yaml" in err


def test_a_stage_that_the_runtime_refuses_is_named(runner, chain, tmp_path):
    bundle = copy_of(chain, tmp_path)
    path = sorted(bundle.glob("stages/*.tflite"))[1]
    path.write_bytes(b"\0\0\0\0NONE" + b"\0" * 100)
    repair_sums(bundle)
    _, err = runner.run(bundle, code=1)
    assert "lane0.stage1" in err


def test_a_core_that_the_machine_lacks_is_named(runner, tmp_path):
    bundle = make_bundle(tmp_path / "bundle", make_order(small_model(tmp_path), [[(1.0, 1000)]]))
    _, err = runner.run(bundle, "--verify", code=1)
    assert "lane0.stage0" in err
    assert "core" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_full_speed_cleanly(runner, lanes, number):
    process = runner.start(lanes, "--seconds", 100, "--json")
    wait_for_output(process, b"lane 1")
    time.sleep(0.7)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["frames"] > 0


def test_a_signal_stops_a_stream_whose_source_waits(runner, chain):
    inputs, outputs = many_frames(chain, 3)
    process = runner.start(chain, "--frames", "-", "--output", "-")
    process.stdin.write(inputs.tobytes())
    process.stdin.flush()
    got = process.stdout.read(outputs.nbytes)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    assert process.returncode == 0, process.stderr.read()
    assert got == outputs.tobytes()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_a_killed_runner_leaves_no_process(runner, lanes):
    process = runner.start(lanes, "--seconds", 100)
    wait_for_output(process, b"lane 1")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_bad_usage_is_told(runner, chain):
    _, err = runner.run(chain, "--nonsense", code=2)
    assert "usage" in err
    out, _ = runner.run(chain, "--help")
    for option in (b"--verify", b"--frames", b"--output", b"--seconds", b"--json"):
        assert option in out


def test_lanes_without_state_take_one_source(runner, lanes):
    clip = lanes / "reference"
    _, err = runner.run(lanes, "--frames", clip, "--frames", clip, code=2)
    assert "one" in err


def test_streams_of_a_model_with_state_stay_apart(runner, corpus, tmp_path, two_cores):
    """Two lanes, two streams: each gives what the whole model gives from a fresh state."""
    model = corpus / "models" / "pymicro_wakeword__alexa.tflite"
    bundle = make_bundle(tmp_path / "bundle", make_order(model, [[(1.0, core)] for core in two_cores]))
    runner.run(bundle, "--verify")
    inputs, outputs = (np.load(bundle / "reference" / f"{side}_0.npy") for side in ("input", "output"))
    assert len(np.unique(outputs)) > 1, "the frames move the outputs"
    np.save(tmp_path / "left.npy", inputs)
    np.save(tmp_path / "right.npy", inputs[::-1])
    streams = ("--frames", tmp_path / "left.npy", "--frames", tmp_path / "right.npy")
    runner.run(bundle, *streams, "--output", tmp_path / "left", "--output", tmp_path / "right")
    left, right = (np.load(tmp_path / side / "output_0.npy") for side in ("left", "right"))
    np.testing.assert_array_equal(left, outputs)
    assert left.shape == right.shape
    assert not np.array_equal(left, right)
    runner.run(bundle, "--frames", tmp_path / "right.npy", "--output", tmp_path / "alone")
    np.testing.assert_array_equal(np.load(tmp_path / "alone" / "output_0.npy"), right)


def test_variable_tensors(runner, corpus, tmp_path, two_cores):
    """The C API refuses them: one runner falls back, the other says what to do."""
    order = make_order(corpus / "models" / "y_lstm_fused.tflite", [[(1.0, two_cores[0])]])
    bundle = make_bundle(tmp_path / "bundle", order)
    if runner.kind == "python":
        _, err = runner.run(bundle, "--verify")
        assert "interpreter" in err
    else:
        _, err = runner.run(bundle, "--verify", code=1)
        assert "variable tensors" in err
        assert "run.py" in err


def test_an_array_in_the_other_order(runner, chain, tmp_path):
    inputs, outputs = many_frames(chain, 5)
    np.save(tmp_path / "clip.npy", np.asfortranarray(inputs))
    arguments = ("--frames", tmp_path / "clip.npy", "--output", tmp_path / "out")
    if runner.kind == "native":
        _, err = runner.run(chain, *arguments, code=2)
        assert "'fortran_order': True" in err
    else:
        runner.run(chain, *arguments)
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "output_0.npy"), outputs)


class TestPythonOnly:
    RUNNER = Runner("python")

    def test_callables_of_the_user(self, chain, tmp_path):
        (tmp_path / "mine.py").write_text(
            "import numpy as np, sys\n"
            f"values = np.load({str(chain / 'reference' / 'input_0.npy')!r})\n"
            "def frames():\n    for number in range(6):\n        yield [values[number % 3]]\n"
            "def show(number, outputs):\n    sys.stdout.write(f'{number} {outputs[0].shape}\\n')\n"
            "def wrong():\n    yield [values[0][..., :2]]\n"
        )
        out, _ = self.RUNNER.run(chain, "--source", "mine:frames", "--output", "mine:show", cwd=tmp_path)
        assert out.decode().splitlines() == [f"{number} (1, 10)" for number in range(6)]
        _, err = self.RUNNER.run(chain, "--source", "mine:wrong", cwd=tmp_path, code=2)
        assert "frame 0: expected float32(1, 32, 32, 3), got float32(1, 32, 32, 2)" in err
        _, err = self.RUNNER.run(chain, "--source", "mine:nothing", cwd=tmp_path, code=2)
        assert "MODULE:FUNCTION" in err

    @pytest.mark.parametrize("streaming", [False, True])
    def test_a_killed_lane_ends_the_runner(self, lanes, streaming):
        arguments = ("--frames", "-") if streaming else ("--seconds", "100")
        process = self.RUNNER.start(lanes, *arguments)
        if streaming:
            inputs, _ = many_frames(lanes, 8)
            process.stdin.write(inputs.tobytes())
            process.stdin.flush()
        wait_for_output(process, b"lane 1")
        time.sleep(0.3)
        for child in psutil.Process(process.pid).children():
            child.kill()
            break
        if streaming:
            # Until a frame meets the dead lane.
            for _ in range(20):
                try:
                    process.stdin.write(inputs.tobytes())
                    process.stdin.flush()
                except BrokenPipeError:
                    break
        _, err = process.communicate(timeout=30) if not streaming else (b"", finish(process))
        assert process.returncode == 1, err
        assert b"lane 0" in err
        assert b"killed by signal 9" in err or b"died" in err

    def test_both_engines_give_the_same(self, chain):
        for engine in ("compiled", "interpreter"):
            _, err = self.RUNNER.run(chain, "--verify", "--engine", engine)
            assert err.count(f", {engine})") == 3


def finish(process) -> bytes:
    process.wait(timeout=30)
    err = process.stderr.read()
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return err


def wait_for_output(process, text: bytes) -> None:
    """Read standard error until it says that all lanes are there."""
    seen = b""
    os.set_blocking(process.stderr.fileno(), True)
    while text not in seen:
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, f"ended early: {seen!r}"
        seen += piece
