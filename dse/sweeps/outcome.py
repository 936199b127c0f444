"""How a job ended, as the columns of its row and as the file in its run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dse.answer import describe
from dse.results import PlanResult, RunResult, merit, score

FORMAT = "tflite-dse outcome"
VERSION = 1
FILE = "outcome.json"
LOG = "log.txt"
TAIL_LINES = 15
TAIL_CHARACTERS = 4000

Outcome = dict[str, Any]


def figures(result: RunResult) -> Outcome:
    """Return the columns that describe a result."""
    best, baseline = result.best, result.best_baseline
    stages = best.mapping.stages
    real = best.measured
    return {
        "winner": best.name,
        "mapping": describe(best),
        "solver": result.proof.solver,
        "proof": result.proof.status,
        "throughput_hz": score(best),
        "predicted_hz": best.predicted.throughput_hz,
        "measured_hz": None if real is None else real.throughput_hz,
        "latency_ns": best.predicted.latency_ns if real is None else real.empty_latency_ns,
        "memory_bytes": best.predicted.memory_bytes if real is None else real.memory_bytes,
        "energy_nj": best.predicted.energy_nj,
        "bound_hz": result.proof.bound_hz,
        "gap": result.proof.gap,
        "baseline_hz": None if baseline is None else score(baseline),
        "gain": None if baseline is None else _gain(best, baseline, result),
        "n_lanes": len(best.mapping.lanes),
        "n_stages": len(stages),
        "n_cores": len({core for stage in stages for core in stage.cores}),
    }


def _gain(best: PlanResult, baseline: PlanResult, result: RunResult) -> float | None:
    below = merit(baseline, result.goal)
    return None if below <= 0 else merit(best, result.goal) / below - 1


def outcome_text(outcome: Outcome) -> str:
    """Return the content of the file ``outcome.json``."""
    return json.dumps({"format": FORMAT, "version": VERSION, **outcome}, indent=1, ensure_ascii=False) + "\n"


def read_outcome(folder: Path, key: str) -> Outcome | None:
    """Return how a job ended that was done before, or None when it was not (or its file is damaged)."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or (data.pop("format", None), data.pop("version", None)) != (
        FORMAT,
        VERSION,
    ):
        return None
    return data if data.get("key") == key and data.get("status") == "done" else None


def log_tail(folder: Path, n_lines: int = TAIL_LINES) -> str:
    """Return the last lines of a job's log; empty when there is none."""
    try:
        with (folder / LOG).open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 4 * TAIL_CHARACTERS))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    # PostgreSQL can not keep the character NUL.
    return "\n".join(text.replace("\0", "?").splitlines()[-n_lines:])[-TAIL_CHARACTERS:]
