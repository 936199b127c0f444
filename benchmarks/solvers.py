"""Compare all solvers and published heuristics: ``python -m benchmarks.solvers CORPUS``.

CORPUS is a folder with ``dnn-partitioning``, ``pipedream`` and ``bettertogether_pixel.csv``.  Measured cost
tables (of ``dse profile -o`` or ``benchmarks.collect_costs``) are compared with
``--tables FOLDER --models FOLDER``; tables of another machine need its ``--platform FILE``
(``dse platform detect`` there).  One line per instance and method: mean time between frames, gap to the
best bound of the run, and wall time.  With ``--rows FILE`` an interrupted run continues where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.cost_graphs import read
from benchmarks.graph_files import read_bettertogether, read_pipedream
from benchmarks.predictors import load
from dse.config import load_platform
from dse.costs import CostTable
from dse.platforms import Cluster, Kernels, Platform
from dse.problems import build_problem
from solvers.errors import SolverError
from solvers.limits import Limits
from solvers.problem import Problem
from solvers.published import PUBLISHED, published_plan
from solvers.registry import DEFAULT, SOLVERS, solve

METHODS = tuple(name for name in SOLVERS if name not in ("exhaustive", "black_box"))
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


def measured_instances(
    tables: Path, models: Sequence[Path], platform: Platform | None
) -> Iterator[tuple[str, Problem]]:
    """Yield one instance per cost table, on a platform or on the cores that the table's slots need."""
    for graph, table in load(tables, models):
        where = platform or platform_of(table)
        yield f"{graph.name}, {where.name}", build_problem(graph, where, table)


def platform_of(table: CostTable) -> Platform:
    """Return the clusters that the slots of a table show: as many cores as the largest slot has."""
    threads: dict[str, set[int]] = {}
    kernels: dict[str, list[Kernels]] = {}
    for slot in table.slots:
        threads.setdefault(slot.cluster, set()).add(slot.threads)
        kernels.setdefault(slot.cluster, []).append(slot.kernels)
    clusters, first = [], 0
    for name, counts in threads.items():
        cores = tuple(range(first, first + max(counts)))
        first += len(cores)
        both = tuple(dict.fromkeys(kernels[name]))
        clusters.append(Cluster(name, cores, threads=tuple(sorted(counts)), kernels=both))
    return Platform(table.platform_name, tuple(clusters))


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


def judge(lines: list[Line]) -> tuple[float, str | None]:
    """Return the best bound (ms) of one instance, and the published heuristic that beats ``auto``."""
    bounds = [line.bound_ms for line in lines if line.bound_ms is not None]
    ours = min(
        (line.period_ms for line in lines if line.period_ms and line.method == DEFAULT), default=np.inf
    )
    for line in lines:
        feasible = line.period_ms is not None and line.method not in METHODS and not line.note
        if feasible and line.period_ms is not None and line.period_ms < ours * (1 - 1e-12):
            return max(bounds, default=0.0), line.method
    return max(bounds, default=0.0), None


def table(done: dict[str, list[Line]]) -> str:
    """Return the comparison in Markdown: a line per instance, then one table per instance."""
    parts = [
        "| instance | best bound ms | best of ours | best published | gap of portfolio | slowest s |",
        "|---|---|---|---|---|---|",
    ]
    for name, lines in done.items():
        bound, _ = judge(lines)
        found = {line.method: line.period_ms for line in lines if line.period_ms is not None}
        ours = min((period, method) for method, period in found.items() if method in METHODS)
        others = [
            (line.period_ms, line.method)
            for line in lines
            if line.period_ms is not None and line.method not in METHODS and not line.note
        ]
        theirs = f"{min(others)[0]:.4f} ({min(others)[1]})" if others else "none keeps to the limits"
        gap = _gap(found.get("portfolio"), bound)
        slowest = max(line.wall_s for line in lines if line.method in METHODS)
        parts.append(
            f"| {name} | {bound:.4f} | {ours[0]:.4f} ({ours[1]}) | {theirs} | {gap} | {slowest:.1f} |"
        )
    for name, lines in done.items():
        bound, _ = judge(lines)
        parts += ["", f"### {name}", "", "| method | period ms | gap | s | |", "|---|---|---|---|---|"]
        for line in lines:
            period = "-" if line.period_ms is None else f"{line.period_ms:.4f}"
            gap = _gap(line.period_ms, bound)
            parts.append(f"| {line.method} | {period} | {gap} | {line.wall_s:.2f} | {line.note} |")
    return "\n".join(parts) + "\n"


def _gap(period_ms: float | None, bound_ms: float) -> str:
    return "" if period_ms is None or not bound_ms else f"{max(0.0, 100 * (period_ms / bound_ms - 1)):.2f} %"


def read_rows(path: Path) -> dict[str, list[Line]]:
    """Read the instances that an earlier run finished, from its JSON lines."""
    done: dict[str, list[Line]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        lines = [Line(**line) for line in json.loads(text)]
        done[lines[0].instance] = lines
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; exit code 1 when a published heuristic beats the best solver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--tables", type=Path, help="folder of measured cost tables")
    parser.add_argument("--models", type=Path, nargs="+", default=[], help="folders of the models profiled")
    parser.add_argument(
        "--platform", type=Path, help="machine of the tables; without it, what their slots show"
    )
    parser.add_argument("--time-limit", type=float, default=8.0, help="seconds per solver and instance")
    parser.add_argument("--only", default="", help="instances whose name contains this")
    parser.add_argument(
        "--rows", type=Path, help="JSON lines: finished instances are kept there, not run again"
    )
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    given = parser.parse_args(arguments)
    if given.corpus is None and given.tables is None:
        parser.error("expected a corpus, or --tables")
    every = list(instances(given.corpus)) if given.corpus else []
    if given.tables:
        platform = load_platform(given.platform) if given.platform else None
        every += measured_instances(given.tables, given.models, platform)
    limits = Limits(time_s=given.time_limit, workers=len(os.sched_getaffinity(0)))
    done = read_rows(given.rows) if given.rows else {}
    for name, problem in every:
        if given.only not in name or name in done:
            continue
        done[name] = compare(name, problem, limits)
        print(f"{name}: {sum(line.wall_s for line in done[name]):.1f} s", file=sys.stderr, flush=True)
        if given.rows:
            with given.rows.open("a") as file:
                file.write(json.dumps([asdict(line) for line in done[name]]) + "\n")
    text = table(done)
    winners = [f"{judge(lines)[1]} on {name}" for name, lines in done.items() if judge(lines)[1]]
    text += f"\nPublished heuristics won: {', '.join(winners) or 'nowhere'}.\n"
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 1 if winners else 0


if __name__ == "__main__":
    raise SystemExit(main())
