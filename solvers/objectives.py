"""Functions that score mappings for a search by trial: the evaluator, and the simulator."""

from __future__ import annotations

from collections.abc import Callable

from solvers.evaluate import evaluate
from solvers.mapping import Mapping
from solvers.problem import Goal, Problem
from solvers.simulate import Samples, SimulationOptions, simulate


def predicted(problem: Problem) -> Callable[[Mapping], float]:
    """Return an objective: what the evaluator says of the problem's goal, as a number to maximise."""

    def objective(mapping: Mapping) -> float:
        evaluation = evaluate(problem, mapping)
        goal = problem.objective.goal
        if goal is Goal.THROUGHPUT:
            instant = any(not lane.period_ns for lane in evaluation.lanes)
            return 0.0 if instant else -float(1 / evaluation.frames_per_ns)
        return -float(evaluation.latency_ns if goal is Goal.LATENCY else evaluation.energy_nj or 0)

    return objective


def simulated(
    problem: Problem,
    options: SimulationOptions | None = None,
    samples: Callable[[Mapping], Samples] | None = None,
) -> Callable[[Mapping], tuple[float, float]]:
    """Return an objective: (frames per second, 99th percentile of the latency in ns) in simulation.

    Directions are ``("maximize", "minimize")``.

    Parameters
    ----------
    samples
        Returns the times of the stages of a mapping; they are constant without.
    """

    def objective(mapping: Mapping) -> tuple[float, float]:
        result = simulate(problem, mapping, options, None if samples is None else samples(mapping))
        return result.throughput_hz, result.latency.p99_ns

    return objective
