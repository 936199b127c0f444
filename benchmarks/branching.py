"""How fast the best contiguous plan of layer graphs is proved: ``python -m benchmarks.branching FOLDER``.

FOLDER holds PipeDream profiles (``*.txt``).  Every graph goes onto 4 big + 4 LITTLE cores, with several
made-up speeds and preferences, copies allowed; one line each: ideals, period, status and processor time of
the whole search.  ``--rate`` makes handing a tensor over cost its size by so many bytes per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.graph_files import NS_PER_MS, read_pipedream
from solvers.ideals import enumerate_ideals
from solvers.limits import Limits
from solvers.problem import Problem
from solvers.registry import solve
from solvers.topology import contract

SIZES = (4, 4)
RATIOS = (2.5, 1.8, 3.5)
"""How much slower a LITTLE core is; the preferences of layers are drawn anew with each."""


def instances(folder: Path, rate: float) -> Iterator[tuple[str, float, Problem]]:
    """Yield name, ratio and problem of every graph and ratio."""
    for path in sorted(folder.glob("*.txt")):
        if path.stem != "LICENSE":
            for seed, ratio in enumerate(RATIOS):
                problem = read_pipedream(path, SIZES, (1.0, ratio), seed)
                yield path.stem, ratio, replace(problem, bandwidth_bytes_per_s=np.full((2, 2), rate))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table in Markdown; exit code 1 when a plan is not proved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds per graph and ratio")
    parser.add_argument("--rate", type=float, default=float("inf"), help="bytes per second of hand-over")
    parser.add_argument("--only", default="", help="graphs whose name contains this")
    given = parser.parse_args(arguments)
    print("| graph | layers | ideals | LITTLE slower by | period ms | status | s |")
    print("|---|---|---|---|---|---|---|")
    proved = True
    for name, ratio, problem in instances(given.folder, given.rate):
        if given.only not in name:
            continue
        ideals = len(enumerate_ideals(contract(problem), 1_000_000))
        start = time.process_time()
        solution = solve(problem, "ideal_dp", Limits(time_s=given.time_limit, workers=1))
        took = time.process_time() - start
        period = "-"
        if solution.evaluation is not None:
            period = f"{float(1 / solution.evaluation.frames_per_ns) / NS_PER_MS:.4f}"
        status = solution.status.value
        proved &= status == "optimal"
        print(
            f"| {name} | {problem.n_layers} | {ideals:,} | {ratio} | {period} | {status} | {took:.2f} |",
            flush=True,
        )
    return 0 if proved else 1


if __name__ == "__main__":
    raise SystemExit(main())
