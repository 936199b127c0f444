"""An upper bound on the throughput that counts what every invocation costs.

The relaxation of ``solvers.bounds`` may put a thousandth of each block on an accelerator whose single layers
are nearly free and whose every invocation takes a millisecond.  But a frame either uses a slot or does
not.  With prices beta of the cores (as there), a frame that uses the slots S costs at least

    sum over b of min over r in S of price[r] * cost[b, r]  +  sum over r in S of price[r] * overhead[r],

and the least of that over all S is below what a frame costs on average.  Only the few slots with the
largest overheads are counted so; the others are free to use.  For one S this is concave in beta, and so is
the least of several.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np

from solvers.bounds import SAFETY, bound_costs, charge, relaxation
from solvers.problem import FloatArray, Problem
from solvers.topology import Blocks

MOST_COUNTED = 4
"""Slots whose overhead is counted: so many of the largest, compared with what their layers take."""
NOTICEABLE = 1e-2
"""Overheads below this share of a slot's layers are left out."""
N_STEPS = 48
"""Prices that are tried on the way from the best ones of the relaxation towards each cluster."""


def overhead_bound_hz(problem: Problem, blocks: Blocks) -> float:
    """Return frames per second that no mapping exceeds; ``inf`` where overheads hardly matter.

    Parameters
    ----------
    problem
        Costs that hold whatever else runs (``Problem.under_load``).
    blocks
        The problem's without ``colocated``.
    """
    if not problem.overhead.any():
        return float("inf")
    period = max(_period_ns(problem, blocks, besides) for besides in shares_ns(problem, blocks))
    return 1e9 / (period * (1 - SAFETY)) if period > 0 else float("inf")


def _period_ns(problem: Problem, blocks: Blocks, overhead: FloatArray) -> float:
    """Bound the time between frames, every stage being charged ``overhead`` besides its blocks."""
    cost = bound_costs(blocks, overhead)
    total = np.where(np.isinf(cost), 0, cost).sum(axis=0)
    share = overhead / np.maximum(1.0, total)
    counted = [int(slot) for slot in np.argsort(-share)[:MOST_COUNTED] if share[slot] >= NOTICEABLE]
    if not counted:
        return 0.0
    sizes = np.array(problem.cluster_sizes, np.float64)
    _, start = relaxation(cost, problem.cores, np.array(problem.cluster_sizes))
    period = 0.0
    best = start
    # From the best prices towards each cluster alone, then once more from the best of these.
    corners = [np.eye(len(sizes))[n] / size for n, size in enumerate(sizes) if size > 0]
    for _ in range(2):
        for corner in corners:
            for part in np.linspace(0, 1, N_STEPS, endpoint=False):
                beta = (1 - part) * best + part * corner
                found = _least_work(cost, problem.cores @ beta, overhead, counted)
                if found > period:
                    period, start = found, beta
        best = start
    return period


def shares_ns(problem: Problem, blocks: Blocks) -> tuple[FloatArray, ...]:
    """Return float64 (slots,) each: of a stage's time, what may be taken for its overhead.

    For ``bound_costs``, which takes it off what was measured.

    A whole stage that was measured tells one time, which may be below the overhead and the costs of its
    layers together.  Then what is missing is taken off the overhead, or off the layers: both are right.
    """
    off_overhead = problem.overhead.astype(np.float64)
    off_layers = off_overhead.copy()
    cost = bound_costs(blocks)
    of_layer = np.array(blocks.of_layer)
    # A block's cost is not told apart by layer here, so a stage is charged for every block it touches.
    for (layers, slot), time in problem.measured_ns.items():
        members = [layer for layer in layers if 0 <= layer < problem.n_layers]
        touched = cost[np.unique(of_layer[members]), slot] if members else np.zeros(0)
        paid = float(touched[np.isfinite(touched)].sum())
        off_overhead[slot] = min(off_overhead[slot], max(0.0, time - paid))
        off_layers[slot] = min(off_layers[slot], time)
    same = bool((off_overhead == off_layers).all())
    return (off_overhead,) if same else (off_overhead, off_layers)


def whole_model_ns(problem: Problem, blocks: Blocks) -> FloatArray:
    """Return float64 (slots,): the least time of a frame that runs on one slot alone, in however many stages.

    Parameters
    ----------
    problem, blocks
        As for ``overhead_bound_hz``; the problem is the one of the blocks.
    """
    totals = [bound_costs(blocks, besides).sum(axis=0) + besides for besides in shares_ns(problem, blocks)]
    least: FloatArray = np.max(totals, axis=0)
    return least


def _least_work(cost: FloatArray, price: FloatArray, overhead: FloatArray, counted: list[int]) -> float:
    """What a frame costs at least at these prices, over all choices of the counted slots."""
    charged = charge(cost, price)
    rest = [slot for slot in range(cost.shape[1]) if slot not in counted]
    free = charged[:, rest].min(axis=1, initial=np.inf)
    least = np.inf
    for chosen in chain.from_iterable(combinations(counted, n) for n in range(len(counted) + 1)):
        members = list(chosen)
        work = np.minimum(free, charged[:, members].min(axis=1, initial=np.inf)).sum()
        least = min(least, float(work + (price[members] * overhead[members]).sum()))
    return least if np.isfinite(least) else 0.0
