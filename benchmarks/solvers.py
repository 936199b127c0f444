"""Compare all solvers and published heuristics: ``python -m benchmarks.solvers CORPUS``.

CORPUS is a folder with ``dnn-partitioning``, ``pipedream`` and ``bettertogether_pixel.csv``.  One line per
instance and method: mean time between frames, gap to the best bound of the run, and time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cost_graphs import read
from benchmarks.graph_files import read_bettertogether, read_pipedream
from solvers.errors import SolverError
from solvers.limits import Limits
from solvers.problem import Problem
from solvers.published import PUBLISHED, published_plan
from solvers.registry import solve

METHODS = ("lanes", "interval_dp", "ideal_dp", "assignment", "portfolio")
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Line:
    """One method on one instance; ``period_ms`` is None when it has no answer, ``note`` says why."""

    instance: str
    method: str
    period_ms: float | None
    bound_ms: float | None
    wall_s: float
    note: str


def instances(corpus: Path) -> Iterator[tuple[str, Problem]]:
    """Yield all instances of a corpus folder."""
    for path in sorted((corpus / "dnn-partitioning").glob("*.json")):
        yield path.stem, read(path).problem
    for path in sorted((corpus / "pipedream").glob("*.txt")):
        if path.stem != "LICENSE":
            yield f"{path.stem}, 4 big + 4 LITTLE", read_pipedream(path, (4, 4), (1.0, 2.5))
    pixel = corpus / "bettertogether_pixel.csv"
    if pixel.exists():
        yield "pixel, loaded", read_bettertogether(pixel, "loaded")


def compare(name: str, problem: Problem, limits: Limits) -> list[Line]:
    """Run every method on one instance."""
    lines = []
    for method in METHODS:
        start = time.monotonic()
        try:
            solution = solve(problem, method, limits)
        except SolverError as error:
            lines.append(Line(name, method, None, None, time.monotonic() - start, str(error)[:60]))
            continue
        bound = None if not solution.bound_hz else 1e9 / solution.bound_hz / NS_PER_MS
        period = None
        if solution.evaluation is not None:
            period = float(1 / solution.evaluation.frames_per_ns) / NS_PER_MS
        note = f"{solution.status.value}, {solution.family.name.lower()}"
        lines.append(Line(name, method, period, bound, time.monotonic() - start, note))
    for title in PUBLISHED:
        start = time.monotonic()
        plan = published_plan(problem, title)
        wall = time.monotonic() - start
        if plan is not None:
            broken = ", ".join(sorted({v.constraint for v in plan.evaluation.violations}))
            period = float(1 / plan.evaluation.frames_per_ns) / NS_PER_MS
            lines.append(Line(name, title, period, None, wall, f"breaks {broken}" if broken else ""))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; exit code 1 when a published heuristic beats the best solver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds per solver and instance")
    parser.add_argument("--only", default="", help="instances whose name contains this")
    given = parser.parse_args(arguments)
    limits = Limits(time_s=given.time_limit, workers=len(os.sched_getaffinity(0)))
    beaten = False
    for name, problem in instances(given.corpus):
        if given.only not in name:
            continue
        lines = compare(name, problem, limits)
        bound = max((line.bound_ms for line in lines if line.bound_ms is not None), default=None)
        ours = min(line.period_ms for line in lines if line.period_ms is not None and line.method in METHODS)
        print(f"\n{name} ({problem.n_layers} layers), best bound {bound:.4f} ms")
        for line in lines:
            if line.period_ms is None:
                print(f"  {line.method:34} {'-':>12} {'':>8} {line.wall_s:8.2f} s  {line.note}")
                continue
            gap = f"{100 * (line.period_ms / bound - 1):7.2f}%" if bound else ""
            print(f"  {line.method:34} {line.period_ms:9.4f} ms {gap} {line.wall_s:8.2f} s  {line.note}")
            published = line.method not in METHODS and not line.note
            beaten |= published and line.period_ms < ours * (1 - 1e-12)
    print("\nA published heuristic won somewhere." if beaten else "\nNo published heuristic won anywhere.")
    return 1 if beaten else 0


if __name__ == "__main__":
    raise SystemExit(main())
