"""The sweep's process is killed again and again; several work on one store at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.dse.sweeps.conftest import assert_ended_once
from tests.dse.sweeps.services import wait_for

N_JOBS, N_KILLS = 200, 50


@pytest.mark.slow
def test_fifty_kills_of_the_sweep_lose_and_double_nothing(lab):
    path = lab.write(f"grid: {{seed: [{', '.join(map(str, range(N_JOBS)))}]}}")
    draw = random.Random(5)
    finished: dict[str, dict] = {}
    process = lab.start(path, start_new_session=True)
    wait_for(lambda: lab.rows(path), "jobs in the store")
    # A job goes on when we let go of its folder: the sweep lasts as long as there are kills.
    held = []
    for row in lab.rows(path):
        Path(row["run_dir"]).mkdir(parents=True, exist_ok=True)
        held.append((Path(row["run_dir"]) / "lock").open("a"))
        with contextlib.suppress(BlockingIOError):  # it runs already
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    for _ in range(N_KILLS):
        # At random: before the first job of this attempt, in the middle of one, after some.
        n_free = min(draw.randint(0, 2 * N_JOBS // N_KILLS - 1), len(held) - 2)
        for lock in held[:n_free]:
            lock.close()
        del held[:n_free]
        aim, end = len(finished) + draw.randint(0, n_free), time.monotonic() + 20
        while time.monotonic() < end:
            with lab.store(path) as store:
                if store.counts("study").done >= aim:
                    break
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.3))
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for row in lab.rows(path):
            before = finished.get(row["key"])
            assert before in (None, row), "a finished job changed"
            if row["status"] == "done":
                finished[row["key"]] = row
        process = lab.start("resume", path, start_new_session=True)
    assert 0 < len(finished) < N_JOBS
    for lock in held:
        lock.close()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = lab.rows(path)
    assert len(rows) == len({row["key"] for row in rows}) == N_JOBS
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        assert row == finished.get(row["key"], row)
        assert_ended_once(row)
    assert orphans(lab) == []


def orphans(lab) -> list[int]:
    """Processes of jobs that outlive their sweep."""

    def left() -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = " ".join(process.info["cmdline"] or ())
            if "dse.sweeps.executor" in line and process.info["cwd"] == str(lab.folder):
                found.append(process.pid)
        return found

    wait_for(lambda: not left(), "end of the jobs' processes", 10)
    return left()


@pytest.mark.slow
@pytest.mark.parametrize("study", [False, True], ids=["SQLite", "journal"])
def test_four_processes_at_once_share_one_sweep(lab, study):
    text = (
        "optuna:\n  budget: 60\n  fields: {seed: {low: 0, high: 9999}, search.max_lanes: {low: 1, high: 4}}"
        if study
        else f"grid: {{seed: [{', '.join(map(str, range(60)))}]}}"
    )
    path = lab.write(text, cluster="cluster: {kind: local, workers: 1}")
    processes = [lab.start(path, "--quiet") for _ in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=200)
        assert (process.returncode, err) == (0, "")
    rows = lab.rows(path)
    assert len(rows) == 60
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        assert_ended_once(row)
    assert lab.json("results", path) == lab.json("results", path)


@pytest.mark.slow
def test_two_sweeps_at_once_on_one_store_do_not_disturb_each_other(lab):
    store = f"store: sqlite:///{lab.folder / 'shared.db'}\n"
    one = lab.write(
        store + "grid: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}", "one.yaml"
    )
    two = lab.write(store + "grid: {seed: [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]}", "two.yaml")
    processes = [lab.start(path) for path in (one, two)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    first, second = lab.json("results", one), lab.json("results", two)
    assert [row["seed"] for row in first] == list(range(16))
    assert [row["seed"] for row in second] == list(range(8, 20))
    assert {row["status"] for row in first + second} == {"done"}
    assert [row for row in first if row["seed"] >= 8] == [row for row in second if row["seed"] < 16]
    for row in first + second:  # jobs in both were run by one of them
        assert (Path(row["run_dir"]) / "log.txt").read_text().count(" done: ") == 1
