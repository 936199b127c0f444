"""Kinds of clusters: what they are asked for, schedulers that are there already, TLS, boards, cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from dse.config.sweep import ClusterSection
from dse.errors import InputError
from dse.sweeps import clusters
from dse.sweeps.board_lock import machine
from dse.sweeps.clusters import ClusterError, usable_cores
from dse.sweeps.definition import read_sweep
from dse.sweeps.running import run_sweep
from tests.dse.sweeps.services import Daemons, free_port, wait_for


@pytest.fixture
def daemons():
    found = Daemons()
    yield found
    found.end()


def start_scheduler(daemons, folder, *more, address="tcp") -> str:
    port = free_port()
    daemons.start(
        *(sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", f"{address}://127.0.0.1:{port}"),
        *("--dashboard-address", "127.0.0.1:0", "--no-dashboard"),
        *more,
        log=folder / "scheduler.log",
    )
    return f"{address}://127.0.0.1:{port}"


def start_worker(daemons, lab, address, *more, name="worker") -> None:
    daemons.start(
        *(sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--name", name),
        *("--no-nanny", "--no-dashboard", "--local-directory", lab.folder, "--host", "127.0.0.1"),
        *more,
        log=lab.folder / f"{name}.log",
        env=lab.env,
        cwd=lab.folder,
    )


def test_a_scheduler_that_runs_already_is_used_and_left_running(lab, daemons):
    address = start_scheduler(daemons, lab.folder)
    start_worker(daemons, lab, address)
    path = lab.write("grid: {seed: [0, 1, 2]}", cluster=f"cluster: {address}")
    assert lab.json(path)["done"] == 3
    assert {row["worker"] for row in lab.rows(path)} == {"worker"}
    assert all(process.poll() is None for process in daemons.processes)


@pytest.mark.slow
def test_a_scheduler_that_dies_is_told_and_resume_goes_on(lab, daemons):
    address = start_scheduler(daemons, lab.folder)
    start_worker(daemons, lab, address)
    path = lab.write(f"grid: {{seed: [{', '.join(map(str, range(80)))}]}}", cluster=f"cluster: {address}")
    process = lab.start(path)
    wait_for(lambda: sum(row["status"] == "done" for row in lab.rows(path)) >= 2, "finished jobs")
    daemons.processes[0].kill()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "does not answer" in err
    assert "Traceback" not in err, err
    before = {row["key"]: row for row in lab.rows(path) if row["status"] == "done"}
    lab.write(
        f"grid: {{seed: [{', '.join(map(str, range(80)))}]}}", cluster="cluster: {kind: local, workers: 2}"
    )
    lab.dse("resume", path)
    rows = lab.rows(path)
    assert {row["status"] for row in rows} == {"done"}
    assert all(row == before.get(row["key"], row) for row in rows)


@pytest.mark.slow
def test_tls_is_passed_through(lab, daemons):
    distributed = pytest.importorskip("distributed")
    made = distributed.security.Security.temporary()
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        (lab.folder / f"{name}.pem").write_text(getattr(made, name))
    ca, cert, key = (lab.folder / f"tls_{name}.pem" for name in ("ca_file", "client_cert", "client_key"))
    options = ("--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key)
    address = start_scheduler(daemons, lab.folder, *options, address="tls")
    start_worker(daemons, lab, address, *options)
    security = f"security: {{ca_file: '{ca}', cert: '{cert}', key: '{key}'}}"
    cluster = f"cluster: {{kind: scheduler, address: '{address}', {security}, patience_s: 20}}"
    path = lab.write("grid: {seed: [0, 1]}", cluster=cluster)
    assert lab.json(path)["done"] == 2
    other = distributed.security.Security.temporary()
    cert.write_text(other.tls_client_cert)
    key.write_text(other.tls_client_key)
    path = lab.write("grid: {seed: [2]}", cluster=cluster.replace("patience_s: 20", "patience_s: 2"))
    assert "cluster: scheduler" in lab.dse(path, code=1)[1]


def test_no_scheduler_is_an_error_in_time(lab):
    path = lab.write(
        "", cluster=f"cluster: {{kind: scheduler, address: 'tcp://127.0.0.1:{free_port()}', patience_s: 1}}"
    )
    start = time.monotonic()
    _, err = lab.dse(path, code=1)
    assert "tcp://127.0.0.1" in err
    assert time.monotonic() - start < 60


MEASURED = """
base:
  model: tiny.tflite
  platform: auto
  profile: {budget_s: 1, precision: 0.5, min_samples: 1}
  search: {solver: interval_dp, candidates: 1}
  measure: {enabled: false}
list:
  - {label: measures, cache_dir: %(folder)s/first, seed: 1}
  - {label: measures too, cache_dir: %(folder)s/second, seed: 2}
  - {label: searches, profile.method: analytic, platform: %(platform)s}
  - {label: searches too, profile.method: analytic, platform: %(platform)s, seed: 2}
  - {label: searches as well, profile.method: analytic, platform: %(platform)s, seed: 3}
"""
BOARD = "{name: other, clusters: [{name: cpu, cores: 0-1, macs_per_s: 1.0e+9, bytes_per_s: 1.0e+9}]}"


@pytest.mark.slow
def test_a_job_that_measures_has_its_board_to_itself(lab):
    path = lab.write(
        "",
        base=MEASURED % {"platform": BOARD, "folder": lab.folder},
        cluster="cluster: {kind: local, workers: 3}",
    )
    lab.dse(path)
    rows = lab.rows(path)
    assert [row["board"] for row in rows] == ["auto", "auto", None, None, None]
    assert {row["status"] for row in rows} == {"done"}
    for alone in rows[:2]:
        for row in rows:
            apart = row["finished_s"] <= alone["started_s"] or row["started_s"] >= alone["finished_s"]
            assert apart or row is alone, "something ran beside a measurement"


@pytest.mark.slow
def test_jobs_find_the_worker_that_has_their_board(lab, daemons):
    address = start_scheduler(daemons, lab.folder)
    start_worker(daemons, lab, address, name="plain")
    start_worker(daemons, lab, address, "--resources", "board:kitchen=1", name="board")
    base = MEASURED % {"platform": BOARD, "folder": lab.folder}
    path = lab.write("boards: {auto: kitchen}", base=base, cluster=f"cluster: {address}")
    lab.dse(path)
    assert [row["worker"] for row in lab.rows(path)[:2]] == ["board", "board"]


@pytest.mark.slow
def test_a_board_that_no_worker_has_is_told(lab, daemons):
    address = start_scheduler(daemons, lab.folder)
    start_worker(daemons, lab, address)
    cluster = f"cluster: {{kind: scheduler, address: '{address}', patience_s: 4}}"
    path = lab.write("", base=MEASURED % {"platform": BOARD, "folder": lab.folder}, cluster=cluster)
    _, err = lab.dse(path, code=1)
    assert "--resources 'board:auto=1'" in err
    assert [row["status"] for row in lab.rows(path)] == ["waiting", "waiting", "done", "done", "done"]


def test_who_wants_to_be_alone_is_not_starved(tmp_path):
    """A stream of others can not keep a measurement from its turn."""
    import threading

    stop, turns = threading.Event(), []

    def others() -> None:
        while not stop.is_set():
            with machine(alone=False, folder=tmp_path):
                time.sleep(0.02)

    threads = [threading.Thread(target=others) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            with machine(alone=True, folder=tmp_path):
                turns.append(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(turns) == 3


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    """Affinity mask, control group and Slurm's allocation, not the cores of the machine."""
    mask = os.sched_getaffinity(0)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    assert usable_cores() <= len(mask)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert usable_cores() == 1
        with_mask = subprocess.run(
            [sys.executable, "-c", "from dse.sweeps.clusters import usable_cores; print(usable_cores())"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert with_mask.stdout.strip() == "1"
    finally:
        os.sched_setaffinity(0, mask)
    monkeypatch.setattr(clusters.os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(clusters, "cpu_quota", lambda: 12.5)
    assert usable_cores() == 12
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert usable_cores() == 3


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge", "lsf", "oar", "moab", "htcondor"])
def test_batch_systems_get_the_options_and_the_boards(kind, monkeypatch):
    clusters._package("dask_jobqueue", "dask-jobqueue", clusters.EXTRA)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Ctrl-C stays Ctrl-C"
    monkeypatch.setattr("dask_jobqueue.core.JobQueueCluster.scale", lambda *a, **k: None)
    section = ClusterSection(
        kind=kind,
        options={
            "memory": "3GB",
            "interface": "lo",
            "job_extra_directives": ["--mark=1"] if kind != "htcondor" else {},
            **({"disk": "1GB"} if kind == "htcondor" else {}),
        },
        resources={"board:pi5": 1},
    )
    cluster = clusters._cluster(section, 2, frozenset(), "127.0.0.1:0")
    try:
        script = cluster.job_script()
    finally:
        cluster.close()
    assert "--resources board:pi5=1" in script
    assert "--nthreads 1" in script
    assert sys.executable in script
    if kind != "htcondor":
        assert "--mark=1" in script


def test_an_unknown_option_of_a_cluster_is_told(lab):
    path = lab.write("", cluster="cluster: {kind: slurm, options: {colour: red}}")
    assert "colour" in lab.dse(path, code=2)[1]


def test_secrets_of_options_come_from_the_environment_or_a_file(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("SWEEP_TOKEN", "from the environment")
    options = {"a": {"password": {"env": "SWEEP_TOKEN"}}, "b": [{"file": str(tmp_path / "secret")}], "c": 1}
    assert clusters.filled_in(options, "options") == {
        "a": {"password": "from the environment"},
        "b": ["from a file"],
        "c": 1,
    }
    with pytest.raises(InputError, match=r"options\.x: expected an environment variable"):
        clusters.filled_in({"x": {"env": "NOT_SET_ANYWHERE"}}, "options")


def test_kubernetes_without_its_package_names_the_extra(lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_kubernetes", None)
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", None)
    path = lab.write("", cluster="cluster: {kind: kubernetes, workers: 2, options: {name: x}}")
    assert "tflite-dse[kubernetes]" in lab.dse(path, code=2)[1]


@pytest.mark.slow
def test_a_queue_that_gives_no_worker_ends_the_sweep(lab, daemons):
    address = start_scheduler(daemons, lab.folder)
    sweep = read_sweep(
        lab.write("", cluster=f"cluster: {{kind: scheduler, address: '{address}', patience_s: 2}}")
    )
    with pytest.raises(ClusterError, match="no worker for 2 s"):
        run_sweep(sweep)
