"""Search by trial over named parameters, asked and told by whoever runs the trials (Optuna).

Budgets are exact: trials are counted under a lock that all processes share before one is begun.  A
trial whose process is gone is not thrown away and made up for; it has its parameters, and whoever
finds it takes it over.  So a study that was killed and resumed has as many trials as one that ran
through.

Each trial has a sampler of its own, seeded with the seed and the trial's number.  The random sampler
draws the same parameters whatever the order in which trials end; the others learn from the trials
that have ended, so with several at a time only their parameters, which are stored, can be repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solvers.black_box import Direction, Sampler, journal, load_optuna, make_sampler
from solvers.errors import ProblemError
from solvers.trial_files import file_lock

Lock = Callable[[], AbstractContextManager[Any]]

_OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, in no order; a trial gets the index."""

    n: int


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two others, which may be taken; whole when both are and ``step`` is.

    ``log`` draws such that ratios count.
    """

    low: float | int
    high: float | int
    step: float | int | None = None
    log: bool = False


@dataclass(frozen=True)
class StudyOptions:
    """What is searched, and how.

    Parameters
    ----------
    parameters
        By name.
    directions
        One per value of a trial.
    budget
        Trials in all, of every process and every resume.
    sampler, seed
        How parameters are drawn.
    parallel
        Whether several trials run at a time; TPE then keeps away from those under way.
    """

    parameters: Mapping[str, Choice | Range]
    directions: tuple[Direction, ...]
    budget: int
    sampler: Sampler = "tpe"
    seed: int = 0
    parallel: bool = True

    @property
    def reproducible(self) -> bool:
        """Whether the same seed gives the same trials."""
        return self.sampler == "random" or not self.parallel

    @property
    def about(self) -> dict[str, Any]:
        """What must be the same for all who share the study."""
        names = {
            name: [parameter.n]
            if isinstance(parameter, Choice)
            else [parameter.low, parameter.high, parameter.step, parameter.log]
            for name, parameter in self.parameters.items()
        }
        return {"parameters": names, "directions": list(self.directions)}


@dataclass(frozen=True, slots=True)
class StudyTrial:
    """A trial to run: its number, its parameters (the index, for a ``Choice``)."""

    number: int
    parameters: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class StudyCounts:
    """Trials by state."""

    running: int = 0
    complete: int = 0
    failed: int = 0


class Study:
    """A study in a journal file or a database, shared with other processes.

    Parameters
    ----------
    name
        Of the study in its storage.
    storage
        A journal file, or the address of a database.
    options
        What is searched.
    lock
        Keeps other processes out; a lock on a file beside the journal when None.

    Raises
    ------
    MissingSolverExtraError
        Optuna is not installed.
    ProblemError
        The storage holds a study of this name over other parameters.
    """

    def __init__(
        self, name: str, storage: Path | str, options: StudyOptions, lock: Lock | None = None
    ) -> None:
        self._optuna = load_optuna()
        self._states = self._optuna.trial.TrialState
        self._options = options
        if isinstance(storage, Path):
            self._lock: Lock = lock or (lambda: file_lock(storage, ".claims", exclusive=True))
        elif lock is None:
            raise ProblemError("a study in a database needs a lock that its processes share, got none")
        else:
            self._lock = lock
        with self._quiet(), self._lock():
            self._study = self._optuna.create_study(
                storage=journal(storage) if isinstance(storage, Path) else storage,
                study_name=name,
                directions=list(options.directions),
                load_if_exists=True,
            )
            stored = self._study.user_attrs.get("about")
            directions = [direction.name.lower() for direction in self._study.directions]
            if (stored or options.about) != options.about or directions != list(options.directions):
                raise ProblemError(
                    f"the study {name!r} searches {stored} with directions {directions}, expected "
                    f"{options.about}: give the changed one another name or storage"
                )
            if stored is None:
                self._study.set_user_attr("about", options.about)

    def claim(self, owner: str) -> StudyTrial | None:
        """Begin a trial, or return None when the budget is used up.

        Parameters
        ----------
        owner
            Who runs it; stored with the trial.
        """
        with self._quiet(), self._lock():
            n_begun = len(self._trials())
            if n_begun >= self._options.budget:
                return None
            options = self._options
            self._study.sampler = make_sampler(
                self._optuna, options.sampler, options.seed, n_begun, parallel=options.parallel
            )
            trial = self._study.ask()
            return self._parameters(trial, owner)

    def adopt(self, owner: str, is_gone: Callable[[str], bool]) -> tuple[StudyTrial, ...]:
        """Take over the trials that run nowhere any more.

        Parameters
        ----------
        is_gone
            Whether an owner is gone.  A trial without one was cut off while it was begun.
        """
        taken = []
        with self._quiet(), self._lock():
            for frozen in self._trials():
                if frozen.state != self._states.RUNNING:
                    continue
                holder = frozen.user_attrs.get(_OWNER)
                if holder is None or is_gone(str(holder)):
                    options = self._options
                    self._study.sampler = make_sampler(
                        self._optuna, options.sampler, options.seed, frozen.number, parallel=options.parallel
                    )
                    trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
                    taken.append(self._parameters(trial, owner))
        return tuple(taken)

    def _parameters(self, trial: Any, owner: str) -> StudyTrial:
        """Draw the parameters that the trial does not have yet, and sign it."""
        drawn: dict[str, int | float] = {}
        for name, parameter in self._options.parameters.items():
            if isinstance(parameter, Choice):
                drawn[name] = int(trial.suggest_categorical(name, list(range(parameter.n))))
            elif all(isinstance(x, int) for x in (parameter.low, parameter.high, parameter.step or 1)):
                drawn[name] = int(
                    trial.suggest_int(
                        name, parameter.low, parameter.high, step=parameter.step or 1, log=parameter.log
                    )
                )
            else:
                drawn[name] = float(
                    trial.suggest_float(
                        name, parameter.low, parameter.high, step=parameter.step, log=parameter.log
                    )
                )
        trial.set_user_attr(_OWNER, owner)
        return StudyTrial(trial.number, drawn)

    def tell(self, number: int, values: Sequence[float] | None, note: str = "") -> None:
        """End a trial with its values, or as failed; one that has ended stays as it is.

        Parameters
        ----------
        note
            What is to be kept with it: the job that ran it, or why it failed.
        """
        with self._quiet(), self._lock():
            frozen = self._trials()[number]
            if frozen.state != self._states.RUNNING:
                return
            if note:
                self._study._storage.set_trial_user_attr(frozen._trial_id, "note", note)
            if values is None:
                self._study.tell(number, state=self._states.FAIL)
            else:
                self._study.tell(number, list(values))

    @property
    def counts(self) -> StudyCounts:
        """Trials by state."""
        states = [trial.state for trial in self._trials()]
        return StudyCounts(
            states.count(self._states.RUNNING),
            states.count(self._states.COMPLETE),
            states.count(self._states.FAIL),
        )

    def best(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Return number and values of the best trial, or of the Pareto front."""
        return tuple((trial.number, tuple(trial.values)) for trial in self._study.best_trials)

    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)  # type: ignore[no-any-return]

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            yield
