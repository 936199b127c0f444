"""What a job of a sweep costs beside its own work, and whether memory stays flat, on this machine.

``python -m benchmarks.sweep_overhead [--jobs 10000] [--workers 2] [--out FILE]``

A sweep of trivial jobs (one layer on a board of one core) runs as ``dse sweep`` runs it.  What a worker
spends on a job outside of the search itself (queue, start, files, store) is the overhead: medians over
windows of the sweep, the first one, in which processes start, left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from dse.files import write_bytes, write_json
from dse.profiling.tiny import doubling_model
from dse.sweeps.definition import read_sweep
from dse.sweeps.running import open_store, run_sweep

SWEEP = """
name: overhead
base:
  model: tiny.tflite
  platform: {{name: one, clusters: [{{name: cpu, cores: 0, macs_per_s: 1.0e+9, bytes_per_s: 1.0e+9}}]}}
  profile: {{method: analytic}}
  search: {{solver: interval_dp, candidates: 1}}
  measure: {{enabled: false}}
grid:
  search.queue_depth: [{depths}]
  seed: [{seeds}]
cluster: {{kind: local, workers: {workers}}}
output: {folder}
"""
N_WINDOWS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dse-bench-") as folder:
        figures = measure(Path(folder), arguments.jobs, arguments.workers)
    for name, value in figures.items():
        print(f"{name}: {value}")
    if arguments.out is not None:
        write_json(arguments.out, figures)
    return 0


def measure(folder: Path, n_jobs: int, n_workers: int) -> dict[str, Any]:
    """Run the sweep in a folder and return its figures."""
    write_bytes(folder / "tiny.tflite", doubling_model(1000))
    path = folder / "overhead.yaml"
    n_depths = max(1, n_jobs // 100)
    path.write_text(
        SWEEP.format(
            depths=", ".join(map(str, range(1, n_depths + 1))),
            seeds=", ".join(map(str, range(-(-n_jobs // n_depths)))),
            workers=n_workers,
            folder=folder,
        )
    )
    sweep = read_sweep(path)
    memory = _Memory()
    start = time.monotonic()
    with memory:
        summary = run_sweep(sweep)
    wall_s = time.monotonic() - start
    with open_store(sweep) as store:
        rows = [(row["finished_s"], row["wall_s"]) for row in store.rows(sweep.name)]
    rows.sort()
    size = max(1, len(rows) // N_WINDOWS)
    overheads_ms, works_ms = [], []
    for first in range(size, len(rows) - size, size):
        window = rows[first : first + size]
        spent_s = n_workers * (window[-1][0] - rows[first - 1][0]) / len(window)
        work_s = statistics.fmean(wall for _, wall in window)
        overheads_ms.append(1e3 * (spent_s - work_s))
        works_ms.append(1e3 * work_s)
    return {
        "jobs": summary.counts.total,
        "failed": summary.counts.failed,
        "workers": n_workers,
        "cores": len(os.sched_getaffinity(0)),
        "wall_s": round(wall_s, 1),
        "jobs_per_s": round(len(rows) / (rows[-1][0] - rows[0][0]), 1),
        "overhead_ms_per_job_median": round(statistics.median(overheads_ms), 2),
        "overhead_ms_per_job_worst_window": round(max(overheads_ms), 2),
        "work_ms_per_job_median": round(statistics.median(works_ms), 2),
        "memory_mib_after_a_tenth": round(memory.at(0.1) / 2**20, 1),
        "memory_mib_at_the_end": round(memory.at(1.0) / 2**20, 1),
        "load_1min_at_the_end": os.getloadavg()[0],
    }


class _Memory:
    """Resident bytes of this process and its children, twice a second."""

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.5):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self._samples.append(total)

    def at(self, share: float) -> float:
        """Return the median around a point of the run, the very end (when processes end) left out."""
        usable = self._samples[:-3] or [0]
        middle = min(len(usable) - 1, round(share * len(usable)))
        around = usable[max(0, middle - 5) : middle + 6]
        return statistics.median(around)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


if __name__ == "__main__":
    sys.exit(main())
