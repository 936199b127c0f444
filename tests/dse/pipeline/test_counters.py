"""What a run costs the machine: the kernel's figures against work that is known."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time

import pytest

from dse.pipeline import counters
from dse.pipeline.counters import Counting
from dse.pipeline.supervise import Pipeline


def test_cpu_time_faults_and_switches_are_of_the_block_only():
    before = mmap.mmap(-1, 64 << 20)
    for at in range(0, len(before), mmap.PAGESIZE):
        before[at] = 1
    with Counting([threading.get_native_id()]) as counting:
        begin = time.process_time_ns()
        memory = mmap.mmap(-1, 4 << 20)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        for _ in range(20):
            time.sleep(1e-4)
        while time.process_time_ns() - begin < 50_000_000:
            pass
    found = counting.result(10)
    assert found.n_frames == 10
    assert found.user_ns + found.system_ns >= 40_000_000
    assert 1024 <= found.minor_faults < (64 << 20) // mmap.PAGESIZE
    assert found.voluntary_switches >= 20
    assert found.minor_faults - counting.result(10, 4 << 20).minor_faults == 1024


def test_hardware_counts_are_there_or_it_is_said_why_not():
    with Counting([threading.get_native_id()]) as counting:
        sum(range(100_000))
    found = counting.result(1)
    if found.unavailable:
        assert (found.cycles, found.instructions, found.memory_bytes) == (None, None, None)
    else:
        assert found.instructions is not None
        assert found.instructions > 100_000
        assert found.memory_bytes is not None
        assert found.memory_bytes % 32 == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOENT, "virtual machine"), (errno.EACCES, "perf_event_paranoid"), (errno.EMFILE, "open files")],
)
def test_refusals_are_explained_and_nothing_stays_open(monkeypatch, code, words):
    opened = []

    def refuse(event: int, tid: int) -> int:
        if len(opened) == 2:
            raise OSError(code, os.strerror(code))
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return opened[-1]

    monkeypatch.setattr(counters, "_open", refuse)
    with Counting([1, 2]) as counting:
        pass
    assert words in counting.result(1).unavailable
    for file in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_counts_that_shared_a_counter_are_scaled(tmp_path):
    path = tmp_path / "count"
    path.write_bytes(b"".join(value.to_bytes(8, "little") for value in (1000, 400, 100)))
    file = os.open(path, os.O_RDONLY)
    try:
        assert counters._read(file) == 4000
    finally:
        os.close(file)


def test_a_run_is_counted(tiny, cores):
    plan = tiny.plan([tiny.stage(n, (cores[n % 2],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        (run,) = pipeline.run(n_frames=300)
    assert run.counters.n_frames == 300
    assert run.counters.user_ns + run.counters.system_ns > 0


def test_time_stamps_do_not_count_as_memory_of_the_model(tiny, cores):
    """So many frames of three stages leave 18 MiB of stamps."""
    with Pipeline(tiny.chain(cores[0], cores[0], cores[0]), tiny.frames(1)) as pipeline:
        (few,) = pipeline.run(n_frames=500)
        (many,) = pipeline.run(n_frames=200_000)
        (again,) = pipeline.run(n_frames=500)
    assert many.stamps.nbytes > 18 << 20
    assert abs(many.memory.peak_rss_bytes - few.memory.peak_rss_bytes) < 4 << 20
    assert abs(again.memory.peak_rss_bytes - few.memory.peak_rss_bytes) < 4 << 20
    assert many.counters.minor_faults < many.stamps.nbytes // mmap.PAGESIZE / 2
