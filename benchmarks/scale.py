"""How time and memory grow with the number of layers: ``python -m benchmarks.scale``.

Random layer graphs on 4 big + 4 LITTLE + 2 small cores; every size runs in a process of its own, so that
the peak memory is its own.  ``spread`` is how much layers prefer one cluster over another.  The time limit
is 2 s for 1,000 layers and 3 ms a layer beyond.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from solvers.limits import Limits
from solvers.problem import Flow, Problem, Slot
from solvers.registry import solve

SIZES = (4, 4, 2)
RATIOS = (1.0, 2.0, 3.0)
THREAD_EXPONENT = 0.8


def random_problem(n_layers: int, spread: float, seed: int = 0) -> Problem:
    """Make a random layer graph: a chain with skips, costs with preferences.

    Parameters
    ----------
    n_layers
        Number of layers.
    spread
        Relative preference of layers for clusters: costs vary by this much either way.
    seed
        Same seed, same problem.
    """
    rng = np.random.default_rng(seed)
    slots = tuple(Slot(c, threads) for c, size in enumerate(SIZES) for threads in range(1, size + 1))
    base = rng.integers(10_000, 1_000_000, n_layers)
    taste = rng.uniform(1 - spread, 1 + spread, (n_layers, len(SIZES)))
    cost = np.stack(
        [base * RATIOS[s.cluster] * taste[:, s.cluster] / s.threads**THREAD_EXPONENT for s in slots], axis=1
    )
    skips = np.minimum(n_layers - 1, np.arange(n_layers) + 1 + rng.geometric(0.2, n_layers))
    flows = tuple(Flow(n, tuple(sorted({n + 1, int(skips[n])})), 1000) for n in range(n_layers - 1))
    return Problem(cost.astype(np.int64), np.ones(cost.shape, np.bool_), slots, SIZES, flows)


def run_one(n_layers: int, spread: float, solver: str) -> None:
    """Solve one size and print a JSON line."""
    problem = random_problem(n_layers, spread)
    start, cpu = time.monotonic(), time.process_time()
    solution = solve(problem, solver, Limits(time_s=2.0 if n_layers <= 1000 else 3e-3 * n_layers))
    print(
        json.dumps(
            {
                "layers": n_layers,
                "spread": spread,
                "solver": solver,
                "gap": solution.gap,
                "status": solution.status.value,
                "stages": None if solution.evaluation is None else solution.evaluation.n_stages,
                "wall_s": round(time.monotonic() - start, 2),
                "cpu_s": round(time.process_time() - cpu, 2),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all sizes, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--spread", type=float, nargs="*", default=[0.0, 0.2])
    parser.add_argument("--solver", nargs="*", default=["lanes", "portfolio"])
    parser.add_argument("--here", action="store_true", help="in this process (one size)")
    given = parser.parse_args(arguments)
    for spread in given.spread:
        for solver in given.solver:
            for n_layers in given.layers:
                if given.here:
                    run_one(n_layers, spread, solver)
                    continue
                command = [sys.executable, "-m", "benchmarks.scale", "--here"]
                command += ["--layers", str(n_layers), "--spread", str(spread), "--solver", solver]
                subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
