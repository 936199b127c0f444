"""Search by trial for objectives that only a function can score: a simulator, or the hardware.

The only importer of Optuna (Akiba et al., KDD 2019), which is the optional extra ``search``.  Its
samplers choose: TPE (Bergstra et al., NIPS 2011), NSGA-II (Deb et al., IEEE TEC 6, 2002) and random.
Every choice is made a feasible mapping by ``solvers.suggestions``.

Budgets are exact.  Whoever wants to start a trial first counts, under a lock, the trials that are
done or running: threads share a lock, processes that share a storage file a lock on a file beside
it.  A trial that was interrupted (its process died, or its user pressed Ctrl-C) does not count and is
made up for.  Each trial has a sampler of its own, seeded with the seed and the trial's number, so a
search that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from solvers.errors import MappingError, MissingSolverExtraError, ProblemError
from solvers.evaluate import evaluate, score_key
from solvers.limits import Limits
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.objectives import predicted
from solvers.pareto import pareto_front
from solvers.problem import Problem
from solvers.suggestions import MappingSpace, Suggestion, canonical
from solvers.trial_files import file_lock, from_text, to_text

if TYPE_CHECKING:
    import optuna

Objective = Callable[[Mapping], float | Sequence[float]]
Sampler = Literal["tpe", "nsga2", "random"]
Direction = Literal["maximize", "minimize"]

STUDY = "mappings"
POPULATION = 20
"""Of NSGA-II: small, because trials are dear."""
DEFAULT_TRIALS = 200
MOST_SOLVER_TRIALS = 100


@dataclass(frozen=True, slots=True)
class BlackBoxOptions:
    """How to search.

    Parameters
    ----------
    sampler
        ``tpe``, ``nsga2`` or ``random``.
    n_trials
        Trials in all, those of earlier runs with the same storage and of other processes included.
    directions
        One per objective value.
    workers
        Threads that call the objective.
    seed
        With one worker the same seed gives the same trials.
    storage
        A file that keeps the trials (made when missing), or None.
    warm_start
        Mappings to try first, for example from an exact solver.
    catch
        Errors of the objective that make a trial count as failed; any other ends the search.
    time_s
        Start no trial after so many seconds, or None.
    """

    sampler: Sampler = "tpe"
    n_trials: int = DEFAULT_TRIALS
    directions: tuple[Direction, ...] = ("maximize",)
    workers: int = 1
    seed: int = 0
    storage: Path | None = None
    warm_start: tuple[Mapping, ...] = ()
    catch: tuple[type[Exception], ...] = ()
    time_s: float | None = None

    def __post_init__(self) -> None:
        if self.sampler not in ("tpe", "nsga2", "random"):
            raise ProblemError(f"sampler is {self.sampler!r}, expected tpe, nsga2 or random")
        if not self.directions or any(word not in ("maximize", "minimize") for word in self.directions):
            raise ProblemError(f"directions are {self.directions}, expected maximize or minimize")
        if self.n_trials < 1 or self.workers < 1:
            raise ProblemError(
                f"n_trials is {self.n_trials} and workers {self.workers}, expected at least 1 of each"
            )


@dataclass(frozen=True, slots=True)
class Tried:
    """A mapping with its objective values, the number of the trial, and whether it was repaired."""

    mapping: Mapping
    values: tuple[float, ...]
    trial: int
    repaired: bool


@dataclass(frozen=True, slots=True)
class BlackBoxResult:
    """The Pareto front (one entry for one objective: the best), and what was tried."""

    front: tuple[Tried, ...]
    tried: tuple[Tried, ...]
    n_failed: int

    @property
    def best(self) -> Tried:
        """The first of the front."""
        return self.front[0]


def search_black_box(
    problem: Problem,
    objective: Objective,
    options: BlackBoxOptions | None = None,
    on_incumbent: Callable[[Tried], None] | None = None,
) -> BlackBoxResult:
    """Search the feasible mappings of a problem for the best values of a function.

    Parameters
    ----------
    problem
        Says which mappings there are; its own objective plays no part.
    objective
        Takes a feasible mapping, returns a number or one per direction.  A mapping that comes up
        again gets the values that it had.  Called from several threads when there are several workers.
    options
        Defaults to ``BlackBoxOptions()``.
    on_incumbent
        Called with every mapping that is better than all before, or enters the front.

    Raises
    ------
    MissingSolverExtraError
        Optuna is not installed.
    InfeasibleError
        No mapping is feasible.
    MappingError
        A mapping to start from is not feasible.
    ProblemError
        The objective returns something else than numbers; the storage holds another search.
    """
    options = options or BlackBoxOptions()
    return _Search(problem, objective, options, on_incumbent).run()


def solve_black_box(problem: Problem, limits: Limits) -> Solution:
    """Search by trial (TPE) with the evaluator as the objective; proves nothing.

    Searches stages that are contiguous in one of several orders, with and without shared units,
    in any mix of lanes; 20 trials and 10 per layer, at most 100, fewer when the time is up.  For
    comparison: the exact solvers are better at what the evaluator can score.

    Raises
    ------
    MissingSolverExtraError, InfeasibleError
    """
    score = predicted(problem)

    def objective(mapping: Mapping) -> float:
        limits.check()
        return score(mapping)

    n_trials = min(MOST_SOLVER_TRIALS, 20 + 10 * problem.n_layers)
    options = BlackBoxOptions(n_trials=n_trials, seed=limits.seed, time_s=limits.time_s)
    result = search_black_box(problem, objective, options, lambda tried: limits.found(tried.mapping))
    scored = [(evaluate(problem, tried.mapping), tried.mapping) for tried in result.tried]
    evaluation, mapping = min(scored, key=lambda pair: score_key(problem, pair[0]))
    return Solution("black_box", Status.FEASIBLE, Family.ALL, mapping, evaluation, None)


def load_optuna() -> Any:
    """Return the package Optuna, made quiet.

    Raises
    ------
    MissingSolverExtraError
        It is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise MissingSolverExtraError(
            "the solver black_box needs the package optuna, which is not installed: install the extra "
            "'search' (pip install 'tflite-dse[search]')"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _Locked:
    """Stands for Optuna's own file lock, which a killed process would leave behind.

    Needs to lock nothing: every write to the storage happens under the lock of the search.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def journal(path: Path) -> Any:
    """Open Optuna's journal in a file; whoever writes to it holds a lock of ours."""
    storages = load_optuna().storages
    return storages.JournalStorage(storages.journal.JournalFileBackend(str(path), _Locked()))


def make_sampler(optuna: Any, kind: Sampler, seed: int, number: int, *, parallel: bool) -> Any:
    """Return the sampler of one trial, seeded with the seed of the search and the trial's number."""
    drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=drawn)
    if kind == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=drawn)
    return optuna.samplers.TPESampler(seed=drawn, constant_liar=parallel)


class _OptunaChooser:
    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial

    def integer(self, name: str, low: int, high: int) -> int:
        return int(self._trial.suggest_int(name, low, high))

    def category(self, name: str, n: int) -> int:
        return int(self._trial.suggest_categorical(name, list(range(n))))

    def share(self, name: str) -> float:
        return float(self._trial.suggest_float(name, 0.0, 1.0))


class _Search:
    """One process's part of a search."""

    def __init__(
        self,
        problem: Problem,
        objective: Objective,
        options: BlackBoxOptions,
        on_incumbent: Callable[[Tried], None] | None,
    ) -> None:
        self._optuna = load_optuna()
        self._states = self._optuna.trial.TrialState
        self._problem = problem
        self._objective = objective
        self._options = options
        self._on_incumbent = on_incumbent
        self._space = MappingSpace(problem, Limits(seed=options.seed))
        self._lock = threading.RLock()
        self._known: dict[Mapping, tuple[float, ...]] = {}
        self._front: list[Tried] = []
        self._error: BaseException | None = None
        self._deadline = None if options.time_s is None else time.monotonic() + options.time_s

    def run(self) -> BlackBoxResult:
        with self._presence():
            with self._exclusive():
                self._study = self._open()
                self._warm_up()
            for one in self._tried():
                self._known[one.mapping] = one.values
                self._enter(one)
            if self._options.workers == 1:
                self._work()
            else:
                self._work_in_threads()
        if self._error is not None:
            raise self._error
        tried = self._tried()
        front = pareto_front([self._point(one.values) for one in tried])
        failed = [trial for trial in self._spent() if trial.state == self._states.FAIL]
        return BlackBoxResult(tuple(tried[n] for n in front), tuple(tried), len(failed))

    def _work_in_threads(self) -> None:
        threads = [threading.Thread(target=self._work) for _ in range(self._options.workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C: finish what is running, start nothing
            self._error = error
            for thread in threads:
                thread.join()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads, and other processes with the same storage, out."""
        with self._lock, file_lock(self._options.storage, ".claims", exclusive=True):
            yield

    @contextmanager
    def _presence(self) -> Iterator[None]:
        """Tell other processes with the same storage that this one works on it.

        A process that finds itself alone knows that trials that seem to run were abandoned.
        """
        with file_lock(self._options.storage, ".searchers", exclusive=True, wait=False) as alone:
            if alone and self._options.storage is not None and self._options.storage.exists():
                with self._exclusive():
                    self._study = self._open()
                    for trial in self._trials():
                        if trial.state == self._states.RUNNING:
                            self._abandon(trial.number)
        with file_lock(self._options.storage, ".searchers", exclusive=False):
            yield

    def _open(self) -> Any:
        storage = None
        if self._options.storage is not None:
            storage = journal(self._options.storage)
        study = self._optuna.create_study(
            storage=storage,
            study_name=STUDY,
            directions=list(self._options.directions),
            load_if_exists=True,
        )
        problem = self._problem
        about = {
            "directions": [direction.name.lower() for direction in study.directions],
            "layers": problem.n_layers,
            "slots": [[slot.cluster, slot.threads] for slot in problem.slots],
            "clusters": list(problem.cluster_sizes),
        }
        wanted = {**about, "directions": list(self._options.directions)}
        stored = study.user_attrs.get("about", wanted)
        if stored != wanted or about != wanted:
            raise ProblemError(
                f"{self._options.storage} holds another search ({stored}), expected {wanted}: "
                "take another file"
            )
        study.set_user_attr("about", wanted)
        return study

    def _warm_up(self) -> None:
        """Queue the mappings to start from, and the one that every repair can fall back to."""
        wanted = [*self._options.warm_start, self._space.fallback]
        waiting = [trial for trial in self._trials() if trial.state == self._states.WAITING]
        there = {trial.user_attrs.get("given") for trial in (*self._spent(), *waiting)}
        for mapping in wanted:
            violations = evaluate(self._problem, mapping).violations
            if violations:
                raise MappingError(f"can not start from this mapping: {violations[0]}")
            text = to_text(canonical(mapping))
            if text not in there:
                there.add(text)
                self._study.enqueue_trial(self._space.choices(mapping), user_attrs={"given": text})

    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)  # type: ignore[no-any-return]

    def _spent(self) -> list[Any]:
        """Trials that count: started, and not abandoned."""
        abandoned = set(self._study.user_attrs.get("abandoned", ()))
        return [
            trial
            for trial in self._trials()
            if trial.state != self._states.WAITING and trial.number not in abandoned
        ]

    def _abandon(self, number: int) -> None:
        """Mark a trial that never ended; it will be made up for."""
        self._study.set_user_attr("abandoned", [*self._study.user_attrs.get("abandoned", ()), number])
        self._study.tell(number, state=self._states.FAIL)

    def _tried(self) -> list[Tried]:
        return [
            Tried(
                from_text(trial.user_attrs["mapping"]),
                tuple(trial.values),
                trial.number,
                bool(trial.user_attrs["repaired"]),
            )
            for trial in self._trials()
            if trial.state == self._states.COMPLETE
        ]

    def _work(self) -> None:
        """Take one trial after the other until the budget, or the time, is used up."""
        try:
            while True:
                claimed = self._claim()
                if claimed is None:
                    return
                self._try(*claimed)
        except BaseException as error:  # raised again by the thread that waits
            self._error = self._error or error

    def _claim(self) -> tuple[Any, Suggestion] | None:
        with self._exclusive(), warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            late = self._deadline is not None and time.monotonic() >= self._deadline
            n_spent = len(self._spent())
            done = n_spent >= self._options.n_trials or (late and n_spent)  # one trial in any case
            if done or self._error is not None:
                return None
            options = self._options
            self._study.sampler = make_sampler(
                self._optuna, options.sampler, options.seed, n_spent, parallel=options.workers > 1
            )
            trial = self._study.ask()
            suggestion = self._space.suggest(_OptunaChooser(trial))
            given = trial.user_attrs.get("given")
            if given is not None:
                suggestion = Suggestion(from_text(given), repaired=False)
            mapping = canonical(suggestion.mapping)
            trial.set_user_attr("mapping", to_text(mapping))
            trial.set_user_attr("repaired", suggestion.repaired)
            return trial, Suggestion(mapping, suggestion.repaired)

    def _try(self, trial: Any, suggestion: Suggestion) -> None:
        values = self._known.get(suggestion.mapping)
        try:
            if values is None:
                values = self._checked(self._objective(suggestion.mapping))
        except self._options.catch as error:
            with self._exclusive():
                trial.set_user_attr("error", f"{type(error).__name__}: {error}")
                self._study.tell(trial, state=self._states.FAIL)
            return
        except BaseException:
            with self._exclusive():
                self._abandon(trial.number)
            raise
        with self._exclusive():
            self._known[suggestion.mapping] = values
            self._study.tell(trial, list(values))
            tried = Tried(suggestion.mapping, values, trial.number, suggestion.repaired)
            if self._enter(tried) and self._on_incumbent is not None:
                self._on_incumbent(tried)

    def _checked(self, answer: float | Sequence[float]) -> tuple[float, ...]:
        try:
            values = tuple(map(float, np.atleast_1d(answer)))
        except (TypeError, ValueError):
            values = ()
        if len(values) != len(self._options.directions) or any(np.isnan(values)):
            raise ProblemError(
                f"the objective returned {answer!r}, expected {len(self._options.directions)} "
                f"number{'s' if len(self._options.directions) > 1 else ''}"
            )
        return values

    def _point(self, values: Sequence[float]) -> tuple[float, ...]:
        pairs = zip(values, self._options.directions, strict=True)
        return tuple(-value if direction == "maximize" else value for value, direction in pairs)

    def _enter(self, tried: Tried) -> bool:
        """Put a mapping into the front, unless one there is as good; say whether."""
        everyone = [*self._front, tried]
        front = pareto_front([self._point(one.values) for one in everyone])
        self._front = [everyone[n] for n in front]
        return len(everyone) - 1 in front
