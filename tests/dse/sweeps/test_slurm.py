"""A sweep on a real Slurm, while its workers, and then the sweep itself, are killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import time
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from dse.sweeps.results import FIGURES
from tests.dse.sweeps.conftest import assert_ended_once
from tests.dse.sweeps.services import Slurm, wait_for

N_JOBS = 60
STUDY = """
grid:
  seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
  search.goal: [throughput, latency]
list:
  - {label: mix}
  - {label: pipeline, search.max_lanes: 1}
  - {label: big, search.slots: [big]}
"""
CLUSTER = """
cluster:
  kind: slurm
  workers: 3
  options:
    queue: main
    memory: 1GB
    walltime: "00:10:00"
    interface: lo
    scheduler_options: {interface: lo}
    local_directory: FOLDER
    log_directory: FOLDER
limits: {attempts: 20}
"""


@pytest.fixture
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.end()


def processes(slurm: Slurm) -> list[tuple[str, psutil.Process]]:
    """Workers, their nannies, and the processes of their jobs, on this Slurm only, with the Slurm job."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get("SLURM_CONF") == slurm.env["SLURM_CONF"] and "SLURM_JOB_ID" in environment:
                line = " ".join(process.cmdline())
                if "dask_worker" in line or "spawn_main" in line or "dse.sweeps.executor" in line:
                    found.append((environment["SLURM_JOB_ID"], process))
    return found


@pytest.mark.slow
def test_killed_workers_walltime_and_a_killed_sweep_lose_and_double_nothing(lab, slurm):
    serial = lab.write(STUDY, "serial.yaml", cluster="cluster: {kind: local, workers: 1}")
    path = lab.write(STUDY, "study.yaml", cluster=CLUSTER.replace("FOLDER", str(slurm.folder)))
    lab.env |= slurm.env
    draw = random.Random(os.environ.get("SWEEP_TEST_SEED", "7"))

    sweep = lab.start(path, start_new_session=True)
    kills: list[str] = []
    held: list[TextIO] = []
    try:
        doomed = wait_for(slurm.job_ids, "worker in Slurm")[0]
        # Jobs take as long as we hold the locks of their folders: one goes on after the other.
        for row in lab.rows(path):
            Path(row["run_dir"]).mkdir(parents=True, exist_ok=True)
            held.append((Path(row["run_dir"]) / "lock").open("a"))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        assert slurm.run("scontrol", "update", f"JobId={doomed}", "EndTime=now") == ""

        def timed_out() -> bool:
            assert sweep.poll() is None, sweep.communicate()
            if len(held) > 6:  # the last ones until the end, so that every worker is at one
                held.pop(0).close()
            victims = [process for job, process in processes(slurm) if job != doomed]
            if victims and len(kills) < 6 and len(held) > 10 and draw.random() < 0.3:
                victim = draw.choice(victims)
                with contextlib.suppress(psutil.NoSuchProcess):
                    kills.append(" ".join(victim.cmdline())[:60])
                    victim.kill()
            time.sleep(draw.uniform(0.1, 0.6))
            return "Reason=TimeLimit" in slurm.run("scontrol", "show", "job", doomed)

        wait_for(timed_out, "end by walltime", 120)
        time.sleep(draw.uniform(0, 3))
    finally:
        os.killpg(sweep.pid, signal.SIGKILL)  # the sweep itself, and with it the Dask scheduler
        sweep.communicate()
        for lock in held:
            lock.close()
    before = {row["key"]: row for row in lab.rows(path) if row["status"] == "done"}
    assert len(kills) >= 3, kills
    assert 0 < len(before) < N_JOBS

    again = lab.start("resume", path, start_new_session=True)
    _, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    rows = lab.rows(path)
    assert len(rows) == len({row["key"] for row in rows}) == N_JOBS
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:  # what was done stayed as it was, and nothing ran twice to its end
        assert row == before.get(row["key"], row)
        assert_ended_once(row)
    assert len(slurm.run("squeue", "-h").splitlines()) <= 3

    lab.dse(serial)
    compared = [name for name in FIGURES if name != "wall_s"] + ["mapping", "proof", "label"]
    for row, alone in zip(rows, lab.rows(serial), strict=True):
        assert row["settings"] == alone["settings"]
        assert [row[name] for name in compared] == [alone[name] for name in compared]
