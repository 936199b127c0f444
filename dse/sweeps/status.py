"""How far a sweep is, who works on it, and the last words of what failed."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from dse.sweeps.definition import SweepFile
from dse.sweeps.expansion import Expander
from dse.sweeps.results import columns_text
from dse.sweeps.store import Store
from dse.units import format_ns


def read_status(store: Store, sweep: SweepFile, n_failures: int) -> dict[str, Any]:
    """Return the state of a sweep as plain data.

    Parameters
    ----------
    n_failures
        How many failed jobs to show with the tail of their logs.
    """
    counts = store.counts(sweep.name)
    workers = store.workers(sweep.name)
    failed = itertools.islice(store.rows(sweep.name, status="failed"), n_failures)
    spent_s = sum(worker[3] for worker in workers)
    n_ended = counts.done + counts.failed
    return {
        "sweep": sweep.name,
        "store": store.address.text,
        "cancelled": store.is_cancelled(sweep.name),
        "total": counts.total,
        "trials": None if sweep.section.optuna is None else n_trials(sweep),
        **asdict(counts),
        "seconds_per_job": spent_s / n_ended if n_ended else None,
        "drivers": [
            {"host": driver.host, "pid": driver.pid, "alive": alive}
            for driver, alive in store.drivers(sweep.name)
        ],
        "workers": [
            {"host": host, "worker": name, "ended": ended, "busy_s": busy_s, "last_s": last_s}
            for host, name, ended, busy_s, last_s in workers
        ],
        "failures": [
            {
                "key": row["key"],
                "label": row["label"],
                "settings": row["settings"],
                "error": row["error"],
                "log": f"{row['run_dir']}/log.txt",
                "log_tail": row["log_tail"],
            }
            for row in failed
        ],
    }


def n_trials(sweep: SweepFile) -> int:
    """Return the budget of all studies of a sweep together."""
    if sweep.section.optuna is None:
        return 0
    return sweep.section.optuna.budget * sum(1 for _ in Expander(sweep).points({}))


def status_text(status: dict[str, Any]) -> str:
    """Write the state of a sweep for a person."""
    begun = "" if status["trials"] is None else f", trials begun: {status['total']} of {status['trials']}"
    lines = [
        f"{status['sweep']}: {status['done']} of {status['total']} jobs done, {status['failed']} failed, "
        f"{status['running']} running, {status['waiting']} waiting"
        + begun
        + (" (cancelled)" if status["cancelled"] else ""),
        f"store: {status['store']}",
    ]
    for driver in status["drivers"]:
        state = "at work" if driver["alive"] else "gone"
        lines.append(f"driver: process {driver['pid']} on {driver['host']}, {state}")
    if status["seconds_per_job"] is not None:
        lines.append(f"a job takes {format_ns(status['seconds_per_job'] * 1e9)} on average")
    if status["workers"]:
        rows = [
            [str(w["host"]), str(w["worker"]), str(w["ended"]), format_ns(w["busy_s"] * 1e9)]
            for w in status["workers"]
        ]
        lines += ["", columns_text(["host", "worker", "jobs", "busy"], rows)]
    for failure in status["failures"]:
        settings = ", ".join(f"{name}={value}" for name, value in failure["settings"].items())
        lines += ["", f"failed: {failure['label']} {settings}".rstrip(), f"  {failure['error']}"]
        lines += [f"  | {line}" for line in (failure["log_tail"] or "").splitlines()]
        lines.append(f"  log: {failure['log']}")
    return "\n".join(lines)
