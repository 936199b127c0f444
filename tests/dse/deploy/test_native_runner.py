"""The native runner from inside: its checksums, its library, and the sanitizers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from linux_bundles import LIBRARY, Runner, build_runner
from test_runners import copy_of, many_frames, wait_for_output

SIZES = (0, 1, 55, 56, 63, 64, 65, 119, 120, 127, 128, 65535, 65536, 65537, 200_001)


def test_checksums_are_those_of_sha256(native, tmp_path):
    """Files of every length modulo the block, and around the buffer's."""
    random = np.random.default_rng(0)
    lines = []
    for size in SIZES:
        data = random.bytes(size)
        (tmp_path / f"{size}.bin").write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {size}.bin\n")
    for name in ("plan.txt", "mapping.yaml"):
        (tmp_path / name).write_text("no plan\n")
        lines.append(f"{hashlib.sha256(b'no plan' + bytes([10])).hexdigest()}  {name}\n")
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    runner = Runner("native", native / "run")
    _, err = runner.run(tmp_path, "--verify", code=2)
    assert "plan.txt: expected" in err, "all sums are right"
    for size in SIZES[1:]:
        path = tmp_path / f"{size}.bin"
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 0x80]))
        _, err = runner.run(tmp_path, "--verify", code=2)
        assert f"{size}.bin was changed" in err
        path.write_bytes(data)


USER = """
import ctypes, json, sys
import numpy as np
library, litert, bundle = sys.argv[1:]
c = ctypes.CDLL(library)
for name in ("lrt_load", "pl_open"):
    getattr(c, name).restype = ctypes.c_void_p
c.pl_error.restype = ctypes.c_char_p
P, error = ctypes.c_void_p, ctypes.create_string_buffer(1024)
runtime = P(c.lrt_load(litert.encode(), error, 1024))
assert runtime.value, error.value
text = open(bundle + "/plan.txt", "rb").read()
assert not c.pl_open(runtime, text, bundle.encode(), 7, ctypes.c_int64(0), error, 1024)
assert b"lanes 0 to 0" in error.value, error.value
lane = P(c.pl_open(runtime, text, bundle.encode(), 0, ctypes.c_int64(20000), error, 1024))
assert lane.value, error.value
x, y = (np.load(f"{bundle}/reference/{side}_0.npy") for side in ("input", "output"))
n = len(x)
def pointers(arrays):
    return (P * len(arrays))(*[array.ctypes.data for array in arrays])
frames = [np.ascontiguousarray(frame) for frame in x]
assert c.pl_set_frames(lane, pointers(frames), n) == n
assert c.pl_warm_up(lane) == 0, c.pl_error(lane)
class Request(ctypes.Structure):
    _fields_ = [(k, ctypes.c_int64) for k in ("max_frames", "max_ns", "warm_ns", "start_ns")] + [
        ("in_flight", ctypes.c_int32), ("reserved", ctypes.c_int32), ("stamps", P), ("stamp_frames", ctypes.c_uint64)]
class Figures(ctypes.Structure):
    _fields_ = [("frames", ctypes.c_uint64), ("counted", ctypes.c_uint64), ("first_ns", ctypes.c_int64),
                ("last_ns", ctypes.c_int64), ("latencies", ctypes.c_uint32 * 2048)]
stages = c.pl_n_stages(lane)
stamps = np.zeros((40, stages, 4), np.int64)
figures = Figures()
for in_flight in (0, 1):
    request = Request(max_frames=40, in_flight=in_flight, stamps=stamps.ctypes.data, stamp_frames=40)
    assert c.pl_run(lane, ctypes.byref(request), ctypes.byref(figures)) == 0, c.pl_error(lane)
    assert figures.frames == 40 and figures.counted == 39
    assert sum(figures.latencies) == 39
    assert (stamps[:, :, 2] > stamps[:, :, 1]).all()
    assert (stamps[:, 1:, 0] >= stamps[:, :-1, 3]).all(), "a stage starts when its source has sent"
    if in_flight:
        assert (stamps[1:, 0, 0] >= stamps[:-1, -1, 3]).all(), "one frame at a time"
request = Request(max_ns=200_000_000)
assert c.pl_run(lane, ctypes.byref(request), ctypes.byref(figures)) == 0
assert figures.frames > 0
for round in range(2):
    assert c.pl_start(lane) == 0
    pushed = pulled = 0
    out = np.zeros(y.shape[1:], y.dtype)
    while pulled < 30:
        if pushed < 30 and c.pl_push(lane, pointers([frames[pushed % n]]), ctypes.c_int64(0)) == 1:
            pushed += 1
            continue
        assert c.pl_pull(lane, pointers([out]), ctypes.c_int64(-1)) == 1
        assert np.array_equal(out, y[pulled % n]), pulled
        pulled += 1
    assert c.pl_pull(lane, pointers([out]), ctypes.c_int64(1_000_000)) == 0
    c.pl_end(lane)
    assert c.pl_pull(lane, pointers([out]), ctypes.c_int64(-1)) == 2
    assert c.pl_finish(lane) == 0
    assert c.pl_reset(lane) == 0
threads = c.pl_check_affinity(lane)
c.pl_close(lane)
c.lrt_unload(runtime)
print(json.dumps({"threads": threads, "stages": stages}))
"""


def test_the_library_serves_other_programs(native, chain):
    command = [sys.executable, "-c", USER, native / "libpipeline.so", LIBRARY, chain]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stages"] == 3
    assert found["threads"] >= 2, "a thread for each set of cores"


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def checked(request, tmp_path_factory) -> Runner:
    """The runner built with sanitizers; LiteRT's own library is not, so races inside it are not seen."""
    folder = tmp_path_factory.mktemp("checked")
    build = build_runner(folder, f"-DSANITIZE={request.param}", "-DCMAKE_BUILD_TYPE=Debug")
    return Runner(request.param, build / "run")


@pytest.mark.slow
def test_sanitizers_find_nothing(checked, chain, lanes, tmp_path, monkeypatch):
    """Verify, full speed, streams, and everything that is refused; reports of ours are not suppressed."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
    monkeypatch.setenv("UBSAN_OPTIONS", "halt_on_error=1:exitcode=99")
    monkeypatch.setenv("TSAN_OPTIONS", "exitcode=99")
    for bundle in (chain, lanes):
        for spin_us in (0, 50):
            checked.run(bundle, "--verify", "--spin-us", spin_us)
            checked.run(bundle, "--seconds", 0.5, "--spin-us", spin_us)
        inputs, outputs = many_frames(bundle, 200)
        np.save(tmp_path / "clip.npy", inputs)
        checked.run(bundle, "--frames", tmp_path / "clip.npy", "--output", tmp_path / "out")
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "output_0.npy"), outputs)
        out, _ = checked.run(bundle, "--frames", "-", "--output", "-", data=inputs.tobytes())
        assert out == outputs.tobytes()
        checked.run(bundle, "--frames", "-", data=inputs.tobytes()[:-1], code=2)
        checked.run(bundle, "--frames", tmp_path / "missing.npy", code=2)
        process = checked.start(bundle, "--seconds", 100)
        wait_for_output(process, b"lane0.stage0")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


@pytest.mark.slow
def test_sanitizers_find_nothing_in_damaged_files(checked, chain, tmp_path):
    """Random damage of the plan, the sums and an array: an error or a success, never a report."""
    random = np.random.default_rng(1)
    bundle = copy_of(chain, tmp_path)
    for name in ("plan.txt", "SHA256SUMS", "reference/input_0.npy"):
        path = bundle / name
        good = path.read_bytes()
        head = min(len(good), 1500)
        for _ in range(12):
            data = bytearray(good)
            for at in random.integers(0, head, random.integers(1, 6)):
                data[at] = random.integers(0, 256)
            if random.random() < 0.3:
                del data[random.integers(0, head) :]
            path.write_bytes(data)
            if name != "SHA256SUMS":
                _repair(bundle)
            command = checked.command(bundle, "--verify")
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
            assert done.returncode in (0, 1, 2), done.stderr
            assert b"Sanitizer" not in done.stderr
            assert b"runtime error" not in done.stderr
        path.write_bytes(good)
        _repair(bundle)


def _repair(bundle: Path) -> None:
    from test_runners import repair_sums

    sums = bundle / "SHA256SUMS"
    try:
        repair_sums(bundle)
    except (OSError, UnicodeDecodeError, ValueError):
        os.utime(sums)
