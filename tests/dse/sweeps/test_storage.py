"""Storage is tried before anything runs; what the store does with drivers, claims and full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from sqlalchemy import event

from dse.errors import InputError
from dse.sweeps.database import StoreError
from dse.sweeps.definition import read_sweep
from dse.sweeps.expansion import Expander
from dse.sweeps.presence import SILENT_S, Driver
from dse.sweeps.running import run_sweep
from dse.sweeps.storage import file_system, probe
from dse.sweeps.store import Store

# What some network file systems do: every lock is granted.
NO_LOCKS = """
#define _GNU_SOURCE
#include <fcntl.h>
int flock(int fd, int how) { return 0; }
int fcntl(int fd, int command, ...) { return 0; }
int fcntl64(int fd, int command, ...) { return 0; }
"""
REFUSED = "#include <errno.h>\nint flock(int fd, int how) { errno = ENOLCK; return -1; }\n"


def preload(folder, text) -> str:
    if shutil.which("cc") is None:
        pytest.skip("not installed: a C compiler")
    (folder / "locks.c").write_text(text)
    library = folder / "locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "locks.c"], check=True)
    return str(library)


@pytest.mark.parametrize(
    ("text", "why"),
    [(NO_LOCKS, "two processes got one lock at once"), (REFUSED, "flock: refused: No locks available")],
    ids=["granted to everybody", "refused"],
)
def test_locks_that_do_not_work_are_told_before_anything_runs(lab, tmp_path, monkeypatch, text, why):
    path = lab.write("grid: {seed: [0]}")
    monkeypatch.setenv("LD_PRELOAD", preload(tmp_path, text))
    _, err = lab.dse(path, code=2)
    assert why in err
    assert "use PostgreSQL" in err
    assert not (lab.folder / "runs" / "study" / "results.db").exists()


def test_a_good_folder_passes_and_stays_empty(tmp_path):
    assert not probe(tmp_path / "new").is_network
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another output"):
        probe(tmp_path / "file")


def test_the_file_system_is_that_of_the_deepest_mount(tmp_path):
    mounts = (
        "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
        f"30 22 0:42 / {str(tmp_path).replace('/', chr(47))} rw - nfs4 server:/home rw\n"
        "31 22 0:43 / /with\\040space rw - cifs //host/x rw\n"
    )
    assert file_system(tmp_path / "a", mounts) == "nfs4"
    assert file_system(tmp_path.parent, mounts) == "ext4"


@pytest.mark.slow
def test_a_full_disk_loses_no_finished_job(lab, monkeypatch):
    """SQLite itself says that the disk is full, for a while; the jobs wait in memory."""
    path = lab.write("grid: {seed: [0, 1, 2, 3, 4, 5]}")
    from dse.sweeps import running

    said = []
    full = {"until": 0.0}

    class FullForAWhile(running.Store):
        def __init__(self, *arguments, **more) -> None:
            super().__init__(*arguments, **more)

            @event.listens_for(self._engine, "begin")
            def limit(connection) -> None:
                pages = 1 if time.monotonic() < full["until"] else 1 << 30
                connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        def finish(self, outcomes):
            if outcomes and not full["until"]:
                full["until"] = time.monotonic() + 2.5
                for outcome in outcomes:  # too large for the pages that are there
                    outcome["log_tail"] = "x" * 200_000
            return super().finish(outcomes)

    class Heard(running.SilentProgress):
        def log(self, message) -> None:
            said.append(message)

    monkeypatch.setattr(running, "Store", FullForAWhile)
    summary = run_sweep(read_sweep(path), progress=Heard())
    assert (summary.counts.done, summary.counts.failed) == (6, 0)
    assert any("full" in line for line in said), said


@pytest.mark.slow
def test_a_store_that_stays_locked_is_an_error_in_the_end(lab, monkeypatch):
    monkeypatch.setattr("dse.sweeps.database.LOCK_WAIT_MS", 100)
    said = []
    with lab.store(lab.write("grid: {seed: [0]}")) as store:
        other = Store(store.address, patience_s=1.5, say=said.append)
        with store._transaction(), pytest.raises(StoreError, match="kept in their run folders"):
            other.cancel("study")
        other.cancel("study")
        other.close()
    assert "database is locked" in said[0]


def fill(store, lab, path) -> list:
    jobs = list(Expander(read_sweep(path)).jobs())
    store.put_sweep("study", "{}", ["seed"], jobs, str(lab.folder))
    return jobs


def test_many_claim_at_once_and_every_job_goes_to_one(lab):
    path = lab.write(f"grid: {{seed: [{', '.join(map(str, range(100)))}]}}")
    with lab.store(path) as store:
        fill(store, lab, path)

        def take(number: int) -> list[str]:
            driver, got = Driver.this(), []
            with lab.store(path) as own:
                while claims := own.claim("study", driver, 1 + number):
                    got += [claim.key for claim in claims]
            return got

        with ThreadPoolExecutor(4) as threads:
            every = [key for got in threads.map(take, range(4)) for key in got]
        assert len(every) == len(set(every)) == 100


def test_a_result_is_written_once(lab):
    path = lab.write("grid: {seed: [0]}")
    with lab.store(path) as store:
        (job,) = fill(store, lab, path)
        assert store.finish([{"key": job.key, "status": "failed", "error": "a"}]) == 1
        assert store.finish([{"key": job.key, "status": "done", "throughput_hz": 1.0}]) == 1
        assert store.finish([{"key": job.key, "status": "done", "throughput_hz": 2.0}]) == 0
        assert store.finish([{"key": job.key, "status": "failed", "error": "b"}]) == 0
        assert store.row(job.key)["throughput_hz"] == 1.0


def test_jobs_of_drivers_that_are_gone_wait_again(lab, monkeypatch):
    """Zombies: a driver on this machine that died, one elsewhere that fell silent, one that lives."""
    path = lab.write("grid: {seed: [0, 1, 2, 3]}")
    child = subprocess.Popen(["sleep", "60"])
    try:
        started = psutil.Process(child.pid).create_time()
    finally:
        child.kill()
        child.wait()
    here = Driver.this()
    dead = Driver("dead", here.host, here.boot, child.pid, started)
    reused = Driver("reused", here.host, here.boot, os.getpid(), here.pid_started_s - 1000)
    silent = Driver("silent", "elsewhere", "another boot", 1, 0.0)
    with lab.store(path) as store:
        fill(store, lab, path)
        for driver in (here, dead, reused, silent):
            store.beat(driver, "study")
            store.claim("study", driver, 1)
        assert store.counts("study").running == 4
        assert store.reconcile() == 2  # elsewhere may still be at work
        assert store.counts("study").running == 2
        later = store.now_s + SILENT_S + 1
        monkeypatch.setattr(Store, "now_s", property(lambda self: later))
        assert store.reconcile() == 1
        assert [row["status"] for row in store.rows("study")].count("running") == 1
