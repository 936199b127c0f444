"""From a sweep to its points, and from points to jobs: every fault of every job in one message."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dse.config import Experiment, Workload, ZooModel, build_experiment, load_platform, with_value
from dse.config.faults import describe
from dse.errors import ConfigError, InputError
from dse.planning import check_solver
from dse.problems import wanted_slots
from dse.sweeps.definition import SweepFile
from dse.sweeps.identity import Fingerprints, job_key
from dse.yaml_io import PathKey
from dse.zoo.registry import resolve

MOST_JOBS = 1_000_000
MOST_FAULTS = 40
LABEL = "label"


@dataclass(frozen=True, slots=True)
class Job:
    """One experiment of a sweep, ready to run anywhere.

    Parameters
    ----------
    key
        Hash over everything that decides the result.
    label
        For people, from the sweep file, or empty.
    settings
        The fields that vary, with this job's values.
    config
        The resolved experiment as JSON text.
    mode
        ``search`` or ``run``.
    board
        Board that it measures on and must have to itself, or None.
    model, platform
        Names, for tables.
    model_sha256
        Of the model's files; empty for the zoo.
    """

    key: str
    label: str
    settings: Mapping[str, Any]
    config: str
    mode: str
    board: str | None
    model: str
    platform: str
    model_sha256: str


@dataclass(frozen=True)
class Point:
    """Settings of one job (or study), and where the file gives each of them."""

    settings: Mapping[str, Any]
    places: Mapping[str, PathKey]
    label: str = ""


@dataclass
class Expander:
    """Makes jobs of points; platform files and hashes of models are read once.

    Parameters
    ----------
    sweep
        What to expand.
    """

    sweep: SweepFile
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def __post_init__(self) -> None:
        self._read_platform = lru_cache(maxsize=64)(load_platform)

    def jobs(self) -> Iterator[Job]:
        """Yield each job once.

        Raises
        ------
        ConfigError
            After the last job: all faults of all points.
        """
        faults: dict[str, None] = {}
        seen: set[str] = set()
        for point in self.points(faults):
            try:
                job = self.job(point)
            except ConfigError as error:
                faults.update(dict.fromkeys(error.faults))
                if len(faults) > MOST_FAULTS:
                    break
                continue
            if job.key not in seen:
                seen.add(job.key)
                yield job
        if not seen and not faults:
            faults[f"{self.sweep.document.where(('exclude',))}: exclude: every job is left out"] = None
        if faults:
            told = list(faults)[:MOST_FAULTS]
            raise ConfigError(told if len(told) == len(faults) else [*told, "... and more of the kind"])

    def points(self, faults: dict[str, None]) -> Iterator[Point]:
        """Yield the points of grid, list and include that are not excluded."""
        section = self.sweep.section
        n_points = max(1, len(section.list))
        for values in section.grid.values():
            n_points *= len(values)
        if n_points + len(section.include) > MOST_JOBS:
            faults[
                f"{self.sweep.document.where(('grid',))}: grid: expected at most {MOST_JOBS} jobs, "
                f"got {n_points + len(section.include)}"
            ] = None
            return
        used = [False] * len(section.exclude)
        for point in self._all_points(faults):
            hits = [number for number, entry in enumerate(section.exclude) if self._matches(point, entry)]
            for number in hits:
                used[number] = True
            if not hits:
                yield point
        for number, hit in enumerate(used):
            if not hit:
                where = self.sweep.document.where(("exclude", number))
                faults[
                    f"{where}: exclude[{number}]: expected values of a job of this sweep, got none that match"
                ] = None

    def _all_points(self, faults: dict[str, None]) -> Iterator[Point]:
        section = self.sweep.section
        fields = list(section.grid)
        for entry in section.list:
            for name in sorted(set(entry) & set(fields)):
                where = self.sweep.document.where(("grid", name), key=True)
                faults[f"{where}: grid: expected {name} in grid or in list, got it in both"] = None
        cases = [self._case("list", number, entry) for number, entry in enumerate(section.list)] or [
            Point({}, {})
        ]
        for numbers in itertools.product(*(range(len(section.grid[name])) for name in fields)):
            settings = {
                name: section.grid[name][number] for name, number in zip(fields, numbers, strict=True)
            }
            places: dict[str, PathKey] = {
                name: ("grid", name, number) for name, number in zip(fields, numbers, strict=True)
            }
            for case in cases or [Point({}, {})]:
                yield Point({**settings, **case.settings}, {**places, **case.places}, case.label)
        for number, entry in enumerate(section.include):
            yield self._case("include", number, entry)

    @staticmethod
    def _case(part: str, number: int, entry: Mapping[str, Any]) -> Point:
        settings = {name: value for name, value in entry.items() if name != LABEL}
        places: dict[str, PathKey] = {name: (part, number, name) for name in settings}
        return Point(settings, places, str(entry.get(LABEL, "")))

    def _matches(self, point: Point, entry: Mapping[str, Any]) -> bool:
        return all(
            point.label == value if name == LABEL else self._value(point, name) == value
            for name, value in entry.items()
        )

    def _value(self, point: Point, name: str) -> Any:
        if name in point.settings:
            return point.settings[name]
        value: Any = self.sweep.base
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return tuple(value) if isinstance(value, list) else value

    def job(self, point: Point) -> Job:
        """Resolve one point.

        Raises
        ------
        ConfigError
            All faults of this point.
        """
        experiment = self.experiment(point)
        self._check(experiment, point)
        section = self.sweep.section
        mode = self._mode(experiment)
        if mode == "search" and experiment.search.threads is None:
            # Jobs share the machine; with one thread each the answer also does not depend on its cores.
            search = experiment.search.model_copy(update={"threads": 1})
            experiment = Experiment(**{**vars(experiment), "search": search})
        resolved = experiment.resolved()
        for where_it_is_put in ("name", "output"):
            resolved.pop(where_it_is_put, None)
        board = self._board(experiment, mode)
        try:
            key = job_key(experiment, mode, board, self.fingerprints, section.code)
            model_sha256 = self.fingerprints.model(experiment.model)
        except OSError as error:
            raise ConfigError([f"{error.filename}: can not be read: {error.strerror}"]) from None
        return Job(
            key=key,
            label=point.label,
            settings={name: _plain(value) for name, value in point.settings.items()},
            config=json.dumps(resolved, sort_keys=True, ensure_ascii=False),
            mode=mode,
            board=board,
            model=experiment.model.name,
            platform="auto" if experiment.platform is None else experiment.platform.name,
            model_sha256=model_sha256,
        )

    def _check(self, experiment: Experiment, point: Point) -> None:
        """Find what can be found before any model is read: names of architectures, solvers, slots."""
        try:
            check_solver(experiment.search.solver)
            model = experiment.model
            for source in model.networks.values() if isinstance(model, Workload) else (model,):
                if isinstance(source, ZooModel):
                    resolve(source.name, source.parameters)
            if experiment.platform is not None:
                wanted_slots(experiment.platform, experiment.search.slots)
        except InputError as error:
            place = next(iter(point.places.values()), ("base",))
            raise ConfigError([f"{self.sweep.document.where(place)}: {error}"]) from None

    def experiment(self, point: Point) -> Experiment:
        """Return the experiment of a point; faults are told where the sweep or its base gives the value."""
        data: Any = dict(self.sweep.base)
        document = self.sweep.document
        places: dict[PathKey, PathKey] = {}
        for name, value in point.settings.items():
            keys = tuple(name.split("."))
            if not all(keys):
                place = document.where(point.places[name], key=True)
                raise ConfigError([f"{place}: expected a field such as search.goal, got {describe(name)}"])
            data = with_value(data, keys, _plain(value))
            places[keys] = point.places[name]

        def where(path: PathKey, key: bool) -> str:
            for length in range(len(path), 0, -1):
                if path[:length] in places:
                    return document.where((*places[path[:length]], *path[length:]))
            if self.sweep.base_document is not None:
                return self.sweep.base_document.where(path, key=key)
            return document.where(("base", *path), key=key)

        return build_experiment(
            data,
            where,
            base=self.sweep.folder,
            default_name=self.sweep.name,
            origin=self.sweep.document.name,
            read_platform=self._read_platform,
        )

    def _mode(self, experiment: Experiment) -> str:
        wanted = self.sweep.section.mode
        if wanted != "auto":
            return wanted
        enabled = experiment.measure.enabled
        here = experiment.platform is None
        return "run" if enabled is True or (enabled == "auto" and here) else "search"

    def _board(self, experiment: Experiment, mode: str) -> str | None:
        """Return the board that a job must have to itself: it times layers or whole plans there."""
        here = experiment.platform is None or experiment.measure.enabled is True
        profile = experiment.profile
        times_layers = here and profile.costs is None and profile.method not in ("analytic", "learned")
        times_plans = mode == "run" and here and experiment.measure.enabled is not False
        if not (times_layers or times_plans):
            return None
        name = "auto" if experiment.platform is None else experiment.platform.name
        return self.sweep.section.boards.get(name, name)


def _plain(value: Any) -> Any:
    """Turn tuples back into lists, as they come from YAML."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
