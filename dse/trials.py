"""Search by trial: mappings are tried out by a function instead of being built by a solver.

``search: {solver: black_box}`` tries them in the evaluator, in the simulator, or by running them.
Whoever can score a mapping otherwise gives ``Trials`` another objective.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from dse.config import Experiment
from dse.costs import CostTable
from dse.errors import DeviceError, InputError, MismatchError
from dse.platforms import Slot
from solvers.black_box import BlackBoxOptions, Direction, Sampler, Tried, search_black_box
from solvers.evaluate import evaluate
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.objectives import predicted, simulated
from solvers.problem import Goal, Problem
from solvers.registry import solve
from solvers.simulate import Samples, SimulationOptions
from solvers.under_load import rate_bound_hz
from solvers.whole_models import without_search

Objective = Callable[[Mapping], float | Sequence[float]]

SOLVER = "black_box"
N_FRAMES = 500
"""Frames of one simulation."""
LEAST_SAMPLES = 5
"""Of a whole model on a slot; of fewer no scatter can be told."""


@dataclass(frozen=True, slots=True)
class Trials:
    """How mappings are tried.

    Parameters
    ----------
    name
        Of the objective: trials of different objectives are kept apart.
    objective
        Takes the problem, returns the function that scores a mapping: with a number, or one per direction.
    directions
        Of these numbers; the first decides for the goals throughput and energy, the last for latency.
    sampler, n_trials, seed
        See ``solvers.black_box.BlackBoxOptions``; trials of interrupted searches count.
    folder
        Where trials are kept, so that an interrupted search goes on; None keeps none.
    valid_for
        What the values depend on; when empty, on the whole problem with its costs.
    catch
        Errors of the objective that make a trial count as failed.
    """

    name: str
    objective: Callable[[Problem], Objective]
    directions: tuple[Direction, ...] = ("maximize",)
    sampler: Sampler = "tpe"
    n_trials: int = 200
    seed: int = 0
    folder: Path | None = None
    valid_for: str = ""
    catch: tuple[type[Exception], ...] = ()

    def search(self, problem: Problem, limits: Limits) -> tuple[Solution, tuple[Mapping, ...]]:
        """Search; return the best mapping as a solution, and all that no other one beats.

        Raises
        ------
        SolverError
            See ``search_black_box``.
        KeyboardInterrupt
            Before anything was tried.
        """
        options = BlackBoxOptions(
            sampler=self.sampler,
            n_trials=self.n_trials,
            directions=self.directions,
            seed=self.seed,
            storage=self._storage(problem),
            warm_start=_known(problem, limits),
            time_s=limits.time_s,
            catch=self.catch,
        )
        start = time.monotonic_ns()
        best: list[Tried] = []
        interrupted = False
        try:
            result = search_black_box(problem, self.objective(problem), options, best.append)
            front = list(result.front)
        except KeyboardInterrupt:
            if not best:
                raise
            front, interrupted = best, True
        decides = -1 if problem.objective.goal is Goal.LATENCY else 0
        sign = 1 if self.directions[decides] == "minimize" else -1
        front.sort(key=lambda tried: (sign * tried.values[decides], tried.trial))
        mapping = front[0].mapping
        solution = Solution(
            SOLVER,
            Status.FEASIBLE,
            Family.ALL,
            mapping,
            evaluate(problem, mapping),
            rate_bound_hz(problem),
            wall_ns=time.monotonic_ns() - start,
            interrupted=interrupted,
        )
        return solution, tuple(tried.mapping for tried in front)

    def _storage(self, problem: Problem) -> Path | None:
        """One file for each problem and way to search: what is in it is valid for no other."""
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        valid_for = self.valid_for or _fingerprint(problem)
        text = f"{self.name} {self.directions} {self.sampler} {self.seed} {valid_for}"
        return self.folder / f"trials-{hashlib.sha256(text.encode()).hexdigest()[:20]}.log"


def _known(problem: Problem, limits: Limits) -> tuple[Mapping, ...]:
    """Mappings to try first: what needs no search, and what the exact search finds."""
    found = dict.fromkeys(without_search(problem))
    exact = solve(problem, "lanes", replace(limits, time_s=limits.time_s / 10, progress=None))
    if exact.interrupted:
        raise KeyboardInterrupt
    if exact.mapping is not None:
        found[exact.mapping] = None
    return tuple(mapping for mapping in found if evaluate(problem, mapping).feasible)


def _fingerprint(problem: Problem) -> str:
    digest = hashlib.sha256()
    for field in fields(problem):
        value = getattr(problem, field.name)
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()


def trials_of(
    experiment: Experiment,
    costs: CostTable,
    slots: Sequence[Slot],
    folder: Path,
    measured: Callable[[Problem], Objective] | None = None,
) -> Trials | None:
    """Return how an experiment wants mappings to be tried; None where another solver is asked for.

    Parameters
    ----------
    costs
        How whole models scattered when they were measured, and how much load slows them down.
    slots
        Columns of the problem.
    folder
        Where trials are kept.
    measured
        Scores mappings by running them; None where nothing can be run.

    Raises
    ------
    InputError
        Mappings are to be tried by running them, and they can not be run or the goal is energy.
    """
    section = experiment.search
    if section.solver != SOLVER:
        return None
    if section.objective == "measured":
        return _by_running(experiment, costs, folder, measured)

    def in_simulation(problem: Problem) -> Objective:
        scatter, contention = _scatter(costs, slots), _contention(problem)
        options = SimulationOptions(N_FRAMES, experiment.seed, contention=contention)
        # The simulator slows stages down itself, while another cluster works.
        costs_of = problem if contention is None else problem.isolated
        return simulated(costs_of, options, lambda mapping: _samples(costs_of, mapping, scatter))

    simulates = section.objective == "simulated"
    return Trials(
        section.objective,
        in_simulation if simulates else predicted,
        ("maximize", "minimize") if simulates else ("maximize",),
        section.sampler,
        section.trials,
        experiment.seed,
        folder,
    )


def _by_running(
    experiment: Experiment, costs: CostTable, folder: Path, measured: Callable[[Problem], Objective] | None
) -> Trials:
    section = experiment.search
    if measured is None:
        raise InputError(
            "search.objective is measured, which runs mappings: use 'dse run' on the machine that they are "
            "for (with measure.enabled true), or the objective predicted or simulated"
        )
    if section.goal == "energy":
        raise InputError("search.objective is measured, but energy is not measured: use another goal")
    measure = experiment.measure
    wishes = (section.goal, section.queue_depth, section.slots, section.pins)
    running = (measure.seconds, measure.spin_us)
    limits = (section.max_lanes, section.max_stages, section.memory_limit, section.supported_by)
    return Trials(
        section.objective,
        measured,
        ("minimize",) if section.goal == "latency" else ("maximize",),
        section.sampler,
        section.trials,
        experiment.seed,
        folder,
        # Not on the costs: what was run stays true when they are corrected.
        f"{costs.model_hash} {costs.platform_name} {costs.slots} {wishes} {running} {limits}",
        (DeviceError, MismatchError),
    )


def _scatter(costs: CostTable, slots: Sequence[Slot]) -> list[tuple[float, ...]]:
    """Per slot: measured times of the whole model over their median; empty where too few are known."""
    found: list[tuple[float, ...]] = []
    for slot in slots:
        whole = costs.whole[costs.slots.index(slot)]
        samples = () if whole is None else whole.samples_ns
        middle = statistics.median(samples) if samples else 0
        enough = len(samples) >= LEAST_SAMPLES and middle > 0
        found.append(tuple(sample / middle for sample in samples) if enough else ())
    return found


def _samples(problem: Problem, mapping: Mapping, scatter: Sequence[tuple[float, ...]]) -> Samples:
    """Times of every stage: its predicted busy time, scattered as the whole model is on its slot."""
    found: dict[tuple[int, int], list[int]] = {}
    for lane_number, (lane, scored) in enumerate(zip(mapping.lanes, evaluate(problem, mapping).lanes)):
        for number, (stage, numbers) in enumerate(zip(lane.stages, scored.stages)):
            if scatter[stage.slot]:
                found[lane_number, number] = [round(numbers.busy_ns * share) for share in scatter[stage.slot]]
    return found


def _contention(problem: Problem) -> tuple[float, ...] | None:
    """How much slower each slot is while other clusters work, where both costs are known."""
    if problem.loaded_cost_ns is None or len(problem.cluster_sizes) == 1:
        return None
    alone = np.where(problem.supported, problem.cost_ns, 0).sum(axis=0)
    loaded = np.where(problem.supported, problem.loaded_cost_ns, 0).sum(axis=0)
    return tuple(float(ratio) for ratio in np.maximum(1, loaded / np.maximum(alone, 1)))
