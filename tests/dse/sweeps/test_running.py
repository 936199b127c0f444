"""Sweeps on this machine, from the command line to the rows."""

from __future__ import annotations

import csv
import json
import signal
import time

import pytest
from pyarrow import parquet

from dse.config import load_experiment
from dse.explore import search
from dse.sweeps.definition import read_sweep
from dse.sweeps.running import run_sweep
from dse.sweeps.task import run_job

STUDY = """
grid:
  search.goal: [throughput, latency]
  search.max_stages: [1, 2]
list:
  - {label: big, search.slots: [big]}
  - {label: all}
include:
  - {label: too small, search.memory_limit: 1}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of nine jobs, one of which fails."""
    from tests.dse.sweeps.conftest import Lab

    lab = Lab(tmp_path_factory.mktemp("finished"))
    path = lab.write(STUDY)
    lab.dse(path, code=1)
    return lab, path


def test_every_job_has_the_figures_of_a_single_search(finished):
    lab, path = finished
    rows = lab.rows(path)
    assert [row["status"] for row in rows] == ["done"] * 8 + ["failed"]
    assert len({row["key"] for row in rows}) == 9
    for row in rows[:8]:
        job = lab.folder / "job.yaml"
        job.write_text(row["config"])
        result = search(load_experiment(job))
        best = result.best.predicted
        assert (row["throughput_hz"], row["latency_ns"], row["memory_bytes"]) == (
            best.throughput_hz,
            best.latency_ns,
            best.memory_bytes,
        )
        assert (row["bound_hz"], row["proof"]) == (result.proof.bound_hz, result.proof.status)
        kept = json.loads((lab.folder / row["run_dir"] / "results.json").read_text())
        assert kept["winner"] == row["winner"]
        assert row["code"].startswith("0.") and row["finished_s"] >= row["started_s"]


def test_a_failed_job_has_its_log_in_the_status_and_the_others_ran(finished):
    lab, path = finished
    status = lab.json("status", path)
    assert (status["done"], status["failed"], status["total"]) == (8, 1, 9)
    (failure,) = status["failures"]
    assert "limit 1 bytes" in failure["error"]
    assert "limit 1 bytes" in failure["log_tail"]
    out, _ = lab.dse("status", path)
    assert "8 of 9 jobs done, 1 failed" in out
    assert f"log: {failure['log']}" in out
    assert sum(worker["ended"] for worker in status["workers"]) == 9


def test_a_second_start_runs_nothing_again(finished):
    lab, path = finished
    before = lab.rows(path)
    summary = lab.json(path, code=1)
    assert summary["ended_before"] == summary["total"] == 9
    assert lab.rows(path) == before


def test_results_are_filtered_marked_and_exported(finished, tmp_path):
    lab, path = finished
    found = lab.json("results", path, "--where", "search.goal=latency", "--where", "throughput_hz>0")
    assert len(found) == 4
    assert {row["search.goal"] for row in found} == {"latency"}
    assert len(lab.json("results", path, "--where", "model=tiny", "--where", "platform!=other")) == 9
    marked = lab.json("results", path, "--pareto", "throughput_hz,memory_bytes")
    done = [row for row in marked if row["status"] == "done"]
    for row in done:  # by definition
        beaten = any(
            other["throughput_hz"] >= row["throughput_hz"]
            and other["memory_bytes"] <= row["memory_bytes"]
            and (other["throughput_hz"], other["memory_bytes"]) != (row["throughput_hz"], row["memory_bytes"])
            for other in done
        )
        assert row["front"] is not beaten
    lab.dse("results", path, "--csv", tmp_path / "r.csv", "--parquet", tmp_path / "r.parquet")
    with (tmp_path / "r.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    table = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert len(lines) == len(table) == 9
    for line, row, whole in zip(lines, table, lab.json("results", path), strict=True):
        assert line["key"] == row["key"] == whole["key"]
        if whole["throughput_hz"] is not None:
            assert float(line["throughput_hz"]) == row["throughput_hz"] == whole["throughput_hz"]
    out, _ = lab.dse("results", path, "--pivot", "label,throughput_hz", "--markdown")
    header = out.splitlines()[0]
    assert header == "| search.goal | search.max_stages | big | all | too small |"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "goal=latency"], "did you mean 'search.goal'"),
        (["--where", "latency"], "expected FIELD=VALUE"),
        (["--pareto", "status"], "expected figures out of"),
        (["--front-only"], "needs --pareto"),
        (["--pivot", "label"], "expected FIELD,FIGURE"),
    ],
)
def test_wrong_questions_to_results_are_told(finished, arguments, message):
    lab, path = finished
    assert message in lab.dse("results", path, *arguments, code=2)[1]


def test_retry_runs_only_what_failed_and_resume_does_not(lab):
    path = lab.write("grid: {seed: [0, 1]}\ninclude: [{search.memory_limit: 1}]")
    lab.dse(path, code=1)
    before = lab.rows(path)
    assert lab.json("resume", path, code=1)["ended_before"] == 3
    assert lab.rows(path) == before
    assert lab.json("retry", "--failed", path, code=1)["ended_before"] == 2
    after = lab.rows(path)
    assert after[:2] == before[:2]
    assert after[2]["attempts"] == 2


def test_fail_fast_ends_at_the_first_failure(lab):
    path = lab.write(
        "grid: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}\n"
        "list: [{search.memory_limit: 1}, {label: fits}]",
        cluster="cluster: {kind: local, workers: 1}",
    )
    _, err = lab.dse("--fail-fast", path, code=1)
    assert "--fail-fast" in err
    assert "limit 1 bytes" in err
    statuses = [row["status"] for row in lab.rows(path)]
    assert "failed" in statuses
    assert statuses.count("waiting") > 16
    assert "running" not in statuses


@pytest.mark.slow
def test_ctrl_c_gives_jobs_back_and_resume_finishes(lab):
    path = lab.write(f"grid: {{seed: [{', '.join(map(str, range(60)))}]}}")
    process = lab.start(path)
    while True:
        with lab.store(path) as store:
            if store.counts("study").done >= 3:
                break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on from there" in err
    before = {row["key"]: row for row in lab.rows(path) if row["status"] == "done"}
    assert 3 <= len(before) < 60
    assert "running" not in {row["status"] for row in lab.rows(path)}
    assert lab.json("resume", path)["ended_before"] == len(before)
    after = lab.rows(path)
    assert {row["status"] for row in after} == {"done"}
    assert all(row == before.get(row["key"], row) for row in after)


@pytest.mark.slow
def test_cancel_stops_a_sweep_from_elsewhere(lab):
    path = lab.write(f"grid: {{seed: [{', '.join(map(str, range(300)))}]}}")
    process = lab.start(path)
    while True:
        with lab.store(path) as store:
            if store.counts("study").done >= 1:
                break
        time.sleep(0.05)
    out, _ = lab.dse("cancel", path)
    assert f"process {process.pid}" in out
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was cancelled" in err
    assert lab.json("status", path)["cancelled"]


def test_a_changed_file_is_taken_in_by_a_start_but_not_by_resume(lab):
    path = lab.write("grid: {seed: [0, 1]}")
    lab.dse(path)
    before = lab.rows(path)
    lab.write("grid: {seed: [1, 2, 3]}")
    assert "describes other jobs" in lab.dse("resume", path, code=2)[1]
    assert lab.json(path)["ended_before"] == 1
    after = lab.rows(path)
    assert len(after) == 3
    assert after[0] == before[1] | {"position": 0}


@pytest.mark.slow
def test_two_sweeps_share_the_jobs_they_have_in_common(lab):
    store = f"store: sqlite:///{lab.folder / 'shared.db'}\n"
    first = lab.write(store + "grid: {seed: [0, 1]}", "first.yaml")
    second = lab.write(store + "grid: {seed: [1, 2]}", "second.yaml")
    assert lab.json(first)["ended_before"] == 0
    assert lab.json(second)["ended_before"] == 1
    assert [row["seed"] for row in lab.json("results", first)] == [0, 1]
    assert [row["seed"] for row in lab.json("results", second)] == [1, 2]


def request(lab, **more) -> str:
    from dse.sweeps.expansion import Expander

    path = lab.write("grid: {seed: [0]}")
    (job,) = Expander(read_sweep(path)).jobs()
    return json.dumps(
        {
            "key": job.key,
            "config": job.config,
            "mode": job.mode,
            "board": None,
            "model_sha256": job.model_sha256,
            "run_dir": str(lab.folder / "job"),
            "code": "",
            "time_s": None,
            "memory_bytes": None,
            **more,
        }
    )


def test_a_job_that_was_done_is_not_run_again(lab):
    first = json.loads(run_job(request(lab)))
    second = json.loads(run_job(request(lab)))
    assert first["status"] == "done"
    assert second == first


def test_limits_end_a_job_and_only_that_job(lab):
    # Another process holds the job's folder, so the job waits for ever.
    import fcntl

    (lab.folder / "job").mkdir()
    with (lab.folder / "job" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        late = json.loads(run_job(request(lab, time_s=1)))
        large = json.loads(run_job(request(lab, memory_bytes=1 << 20)))
    assert late["status"] == large["status"] == "failed"
    assert "longer than limits.time_s (1 s)" in late["error"]
    assert "more than limits.memory (1 MiB)" in large["error"]
    assert json.loads(run_job(request(lab)))["status"] == "done"


def test_a_model_that_differs_on_the_worker_is_refused(lab):
    text = request(lab)
    (lab.folder / "tiny.tflite").write_bytes((lab.folder / "tiny.tflite").read_bytes() + b"\0")
    outcome = json.loads(run_job(text))
    assert outcome["status"] == "failed"
    assert "differs between hosts" in outcome["error"]


def test_other_code_on_the_worker_is_refused(lab):
    outcome = json.loads(run_job(request(lab, code="0.0.1")))
    assert outcome["status"] == "failed"
    assert "install the same everywhere" in outcome["error"]


def test_a_job_whose_process_is_killed_begins_again(lab, monkeypatch):
    """The kernel kills for want of memory; the worker and the sweep go on."""
    from dse.sweeps import task

    kills = []
    original = task._supervise

    def killing(child, wanted):
        if len(kills) < 2:
            kills.append(child.pid)
            import os

            os.kill(child.pid, signal.SIGKILL)
        return original(child, wanted)

    monkeypatch.setattr(task, "_supervise", killing)
    path = lab.write("grid: {seed: [0, 1, 2]}")
    summary = run_sweep(read_sweep(path))
    assert len(kills) == 2
    assert (summary.counts.done, summary.counts.failed) == (3, 0)


TRIALS = """
list: [{label: one, search.max_lanes: 1}, {label: any}]
optuna:
  budget: 6
  sampler: random
  fields: {search.max_stages: {low: 1, high: 3}, platform.overlap: {choices: [true, false]}}
  objectives: {throughput_hz: maximize, memory_bytes: minimize}
"""


@pytest.mark.slow
def test_studies_have_their_budgets_and_the_same_seed_gives_the_same_trials(lab):
    path = lab.write(TRIALS)
    summary = lab.json(path)
    assert (summary["done"], summary["total"]) == (12, 12)
    assert "are reproducible" in summary["notes"][0]
    rows = lab.json("results", path)
    assert [row["label"] for row in rows] == ["one"] * 6 + ["any"] * 6
    assert "trials begun: 12 of 12" in lab.dse("status", path)[0]
    assert lab.json("resume", path)["ended_before"] == 12
    other = lab.write(TRIALS, "other.yaml")
    assert lab.json(other)["done"] == 12
    for name in ("search.max_stages", "platform.overlap", "throughput_hz"):
        assert [row[name] for row in lab.json("results", other)] == [row[name] for row in rows]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fields: {search.max_stages: {low: 0, high: 3}}", "search.max_stages: expected at least 1"),
        ("fields: {search.gaol: {choices: [1]}}", "did you mean 'goal'"),
        ("storage: store\n  fields: {seed: {low: 0, high: 3}}", "expected journal, or a store in PostgreSQL"),
    ],
)
def test_values_that_a_study_may_not_choose_are_told_before_it_begins(lab, line, message):
    assert message in lab.dse(lab.write(f"optuna:\n  budget: 5\n  {line}"), code=2)[1]
