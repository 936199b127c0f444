"""Lower bounds on the latency and the energy of any mapping: every block where it costs least."""

from __future__ import annotations

import numpy as np

from solvers.bounds import SAFETY, bound_costs, least_overhead_ns
from solvers.topology import Blocks


def latency_bound_ns(blocks: Blocks) -> float:
    """Return nanoseconds that every frame takes at least: the longest path, each block where it is quickest.

    Blocks of a stage run one after another, and a stage waits for those that feed it.

    Parameters
    ----------
    blocks
        Without ``colocated``; costs of units that work alone, which load makes no smaller.
    """
    quickest = bound_costs(blocks).min(axis=1)
    done = np.zeros(blocks.n_blocks)
    for block, before in enumerate(blocks.predecessors):
        start = max((float(done[other]) for other in before), default=0.0)
        done[block] = start + quickest[block]
    return float(done.max() + least_overhead_ns(blocks.problem).min()) * (1 - SAFETY)


def energy_bound_nj(blocks: Blocks, period_ns: float) -> float:
    """Return nanojoules that every frame takes at least; 0 where powers are not known.

    Parameters
    ----------
    blocks
        As for ``latency_bound_ns``.
    period_ns
        The mean time between frames is at least that: so long idle power is drawn.
    """
    problem = blocks.problem
    if problem.active_power_mw is None:
        return 0.0
    power = np.array(problem.active_power_mw, np.float64)
    cost = bound_costs(blocks)
    drawn = np.where(np.isinf(cost), np.inf, np.where(np.isinf(cost), 0, cost) * power)
    picojoules = float(drawn.min(axis=1).sum() + (least_overhead_ns(problem) * power).min())
    picojoules += (problem.idle_power_mw or 0) * period_ns
    return max(0.0, picojoules / 1000 * (1 - SAFETY) - 0.5)  # the evaluator rounds to whole nanojoules
