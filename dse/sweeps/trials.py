"""Sweeps in which Optuna chooses the next job: one study per point, with an exact budget each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dse.config.sweep import StudyFieldSection, StudySection
from dse.errors import ConfigError, MissingExtraError
from dse.sweeps.address import EXTRA
from dse.sweeps.definition import SweepFile
from dse.sweeps.expansion import Expander, Job, Point
from dse.sweeps.presence import Driver
from dse.sweeps.store import Claim, Counts, Store
from dse.sweeps.tables import DONE, FAILED, WAITING
from solvers.errors import MissingSolverExtraError
from solvers.studies import Choice, Range, Study, StudyOptions, StudyTrial

JOURNAL = "studies.journal"
PLACES_PER_STUDY = 1_000_000
"""Trial n of study s stands at place s * this + n of the sweep."""


@dataclass
class _Running:
    """One study, and its trials that were taken over and are still to be begun."""

    study: Study
    point: Point
    first_place: int
    adopted: list[StudyTrial] = field(default_factory=list)


class StudySource:
    """The trials of a sweep's studies.

    Two trials with the same parameters are one job, which runs once.

    Parameters
    ----------
    store, sweep, driver
        Where jobs are kept, whose studies, and who runs trials.

    Raises
    ------
    ConfigError
        A point, or a value that a study may choose, is no valid experiment.
    MissingExtraError
        Optuna is not installed.
    """

    def __init__(self, store: Store, sweep: SweepFile, driver: Driver) -> None:
        if sweep.section.optuna is None:
            raise ValueError("a sweep without studies")
        self._store, self._sweep, self._driver = store, sweep, driver
        self._section: StudySection = sweep.section.optuna
        self._expander = Expander(sweep)
        faults: dict[str, None] = {}
        points = list(self._expander.points(faults))
        edges = [self._edge_jobs(point, faults) for point in points]
        if faults:
            raise ConfigError(list(faults))
        self.boards = frozenset(job.board for jobs in edges for job in jobs if job.board is not None)
        self._studies: list[_Running] = []
        try:
            for number, (point, jobs) in enumerate(zip(points, edges, strict=True)):
                # Another base, or other values, make another study.
                content = "".join([*(job.key for job in jobs), *self._section.objectives])
                name = f"{sweep.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
                study = Study(name, self._storage(), self._options(), self._lock(name))
                self._studies.append(_Running(study, point, number * PLACES_PER_STUDY))
        except MissingSolverExtraError:
            raise MissingExtraError(f"studies need the package optuna: {EXTRA}") from None
        self._trials_of: dict[str, list[tuple[_Running, int]]] = {}
        self._ready: list[Claim] = []
        self.look_again(0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the trials: whether they can be repeated."""
        if self._options().reproducible:
            return ("Trials are reproducible: the same seed gives the same parameters.",)
        return (
            "Trials are not reproducible from the seed: several run at a time and the sampler learns from "
            "those that have ended. Their parameters are stored; sampler: random is reproducible.",
        )

    def _edge_jobs(self, point: Point, faults: dict[str, None]) -> list[Job]:
        """Resolve a point with every value that stands at the edge of a field."""
        jobs = []
        for name, section in self._section.fields.items():
            for number, there in enumerate(_edges(section)):
                part = ("choices", number) if section.choices is not None else (("low", "high")[number],)
                places = {**point.places, name: ("optuna", "fields", name, *part)}
                try:
                    settings = {**point.settings, name: there}
                    jobs.append(self._expander.job(Point(settings, places, point.label)))
                except ConfigError as error:
                    faults.update(dict.fromkeys(error.faults))
        return jobs

    def _options(self) -> StudyOptions:
        section = self._section
        return StudyOptions(
            parameters={name: _parameter(there) for name, there in section.fields.items()},
            directions=tuple(section.objectives.values()),
            budget=section.budget,
            sampler=section.sampler,
            seed=section.seed,
            parallel=self._sweep.section.cluster.workers != 1,
        )

    def _storage(self) -> Path | str:
        if self._section.storage == "journal":
            self._sweep.output.mkdir(parents=True, exist_ok=True)
            return self._sweep.output / JOURNAL
        if self._store.is_sqlite:
            place = self._sweep.document.where(("optuna", "storage"))
            raise ConfigError(
                [
                    f"{place}: optuna.storage: expected journal, or a store in PostgreSQL, "
                    "got 'store' with SQLite"
                ]
            )
        return str(self._store.address.url.render_as_string(hide_password=False))

    def _lock(self, name: str) -> Any:
        return None if self._section.storage == "journal" else lambda: self._store.exclusive(name)

    def take(self, n_most: int) -> Sequence[Claim]:
        """Begin trials, of every study in turn."""
        claims, self._ready = self._ready[:n_most], self._ready[n_most:]
        left = list(self._studies)
        while left and len(claims) < n_most:
            for running in tuple(left):
                if len(claims) >= n_most:
                    break
                trial = running.adopted.pop(0) if running.adopted else running.study.claim(self._driver.id)
                if trial is None:
                    left.remove(running)
                    continue
                claim = self._begin(running, trial)
                if claim is not None:
                    claims.append(claim)
        return claims

    def _begin(self, running: _Running, trial: StudyTrial) -> Claim | None:
        """Make a trial's job; None when somebody runs that job, or it has ended."""
        chosen = {
            name: section.choices[int(trial.parameters[name])]
            if section.choices is not None
            else trial.parameters[name]
            for name, section in self._section.fields.items()
        }
        point = running.point
        places = {**point.places, **{name: ("optuna", "fields", name) for name in chosen}}
        job = self._expander.job(Point({**point.settings, **chosen}, places, point.label))
        place = running.first_place + trial.number
        self._store.add_member(self._sweep.name, place, job, str(self._sweep.output / "jobs"))
        self._trials_of.setdefault(job.key, []).append((running, trial.number))
        claim = self._store.claim_key(job.key, place, self._driver)
        if claim is None:
            self._settle(job.key)
        return claim

    def ended(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Tell the studies."""
        for outcome in outcomes:
            self._settle(outcome["key"])

    def _settle(self, key: str) -> bool:
        """End the trials of a job that has ended; say whether it has."""
        row = self._store.row(key)
        if row is None or row["status"] not in (DONE, FAILED):
            return False
        for running, number in self._trials_of.pop(key, ()):
            values = [row[name] for name in self._section.objectives]
            if row["status"] == FAILED:
                running.study.tell(number, None, f"job {key}: {row['error']}")
            elif None in values:
                running.study.tell(number, None, f"job {key}: not every objective has a figure: {values}")
            else:
                running.study.tell(number, values, f"job {key}")
        return True

    def look_again(self, n_given_back: int) -> None:
        """Take over trials of drivers that are gone, and see what others have ended."""
        living = self._store.living() | {self._driver.id}
        for running in self._studies:
            running.adopted += running.study.adopt(self._driver.id, lambda owner: owner not in living)
        for key, trials in tuple(self._trials_of.items()):
            if not self._settle(key) and self._store.status_of(key) == WAITING:
                running, number = trials[0]
                claim = self._store.claim_key(key, running.first_place + number, self._driver)
                if claim is not None:
                    self._ready.append(claim)

    def counts(self) -> Counts:
        """Count the trials of all studies."""
        counts = [running.study.counts for running in self._studies]
        done, failed = sum(c.complete for c in counts), sum(c.failed for c in counts)
        n_running = sum(c.running for c in counts)
        total = max(self._section.budget * len(self._studies), done + failed + n_running)
        return Counts(waiting=total - done - failed - n_running, running=n_running, done=done, failed=failed)

    def window(self, n_slots: int) -> tuple[int, int]:
        """Begin a trial when it can run: one begun earlier could not learn from the others."""
        return n_slots - 1, n_slots

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended."""
        counts = self.counts()
        return not counts.waiting and not counts.running


def _edges(section: StudyFieldSection) -> tuple[Any, ...]:
    return section.choices if section.choices is not None else (section.low, section.high)


def _parameter(section: StudyFieldSection) -> Choice | Range:
    if section.choices is not None:
        return Choice(len(section.choices))
    if section.low is None or section.high is None:
        raise ValueError("a field without a range")
    if section.whole:
        return Range(section.low, section.high, section.step, section.log)
    return Range(float(section.low), float(section.high), section.step, section.log)
