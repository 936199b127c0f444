"""The form of a sweep file, as pydantic models; ``dse schema --sweep`` prints it as JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from dse.config.models import PathText, Section, Size, expected

BatchSystem = Literal["slurm", "pbs", "sge", "lsf", "oar", "moab", "htcondor"]
BATCH_SYSTEMS: tuple[BatchSystem, ...] = ("slurm", "pbs", "sge", "lsf", "oar", "moab", "htcondor")
SCHEDULER_PREFIXES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
FIGURES = (
    "throughput_hz",
    "predicted_hz",
    "measured_hz",
    "latency_ns",
    "memory_bytes",
    "energy_nj",
    "bound_hz",
    "gap",
    "baseline_hz",
    "gain",
    "n_lanes",
    "n_stages",
    "n_cores",
    "wall_s",
)
"""Numbers of a finished job, by the name of their column."""

_SECRET_WORDS = ("password", "passwd", "passphrase", "secret", "token", "credential")


def _base(value: Any) -> Any:
    if (isinstance(value, str) and value) or isinstance(value, dict):
        return value
    raise expected("an experiment (model, platform, search, ...) or the path of its file")


Base = Annotated[
    Any,
    BeforeValidator(_base),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]
Settings = Annotated[dict[str, Any], Field(min_length=1)]


class StudyFieldSection(Section):
    """The values that a study may give to one field: ``choices``, or a range."""

    choices: Annotated[tuple[Any, ...], Field(min_length=1)] | None = Field(
        None, description="Any values, in no order."
    )
    low: float | int | None = Field(None, description="Smallest value.")
    high: float | int | None = Field(None, description="Largest value; it may be taken.")
    step: Annotated[float | int, Field(gt=0)] | None = None
    log: bool = Field(False, description="Whether ratios count instead of differences.")

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)

    @model_validator(mode="after")
    def _check(self) -> StudyFieldSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        is_range = self.low is not None or self.high is not None
        if (self.choices is None) != is_range or (self.low is None) != (self.high is None):
            faults.append(((), "either choices, or low and high", "neither or both"))
        elif self.low is not None and self.high is not None:
            if self.low > self.high:
                faults.append((("high",), f"at least low ({self.low:g})", self.high))
            if self.log and self.low <= 0:
                faults.append((("low",), "more than 0 with log", self.low))
            if self.log and self.step is not None:
                faults.append((("step",), "no step with log", self.step))
        self._raise(faults)
        return self


class StudySection(Section):
    """A search by trial over fields of the experiment (Optuna), one study per point of the sweep."""

    budget: Annotated[int, Field(ge=1)] = Field(
        description="Trials of each study in all, over every worker, process and resume."
    )
    fields: Annotated[dict[str, StudyFieldSection], Field(min_length=1)]
    objectives: Annotated[dict[str, Literal["maximize", "minimize"]], Field(min_length=1)] = Field(
        {"throughput_hz": "maximize"}, description="Figures of a job; several give a Pareto front."
    )
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    seed: Annotated[int, Field(ge=0)] = 0
    storage: Literal["journal", "store"] = Field(
        "journal",
        description="journal: a file in the sweep's folder; store: the PostgreSQL database of 'store'.",
    )

    @model_validator(mode="after")
    def _check(self) -> StudySection:
        known = ", ".join(FIGURES)
        self._raise(
            [
                (("objectives", name), f"one of {known}", name)
                for name in self.objectives
                if name not in FIGURES
            ]
        )
        return self


class SecuritySection(Section):
    """TLS of Dask, passed through (see ``distributed.security.Security``)."""

    ca_file: PathText
    cert: PathText = Field(description="Certificate of this client (PEM).")
    key: PathText = Field(description="Its private key (PEM).")
    require_encryption: bool = True


class ClusterSection(Section):
    """Where the jobs run."""

    kind: Literal[
        "local", "slurm", "pbs", "sge", "lsf", "oar", "moab", "htcondor", "ssh", "kubernetes", "scheduler"
    ]
    workers: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="Jobs at a time; local: as many as this process may use cores."
    )
    hosts: tuple[str, ...] = Field((), description="ssh: the scheduler's host first, then the workers'.")
    address: str | None = Field(None, description="scheduler: tcp://host:8786 or tls://host:8786.")
    security: SecuritySection | None = None
    options: dict[str, Any] = Field(
        {},
        description="Passed on to the class of dask-jobqueue, dask.distributed or dask-kubernetes. "
        "A secret is written as {env: NAME} or {file: PATH}.",
    )
    resources: dict[str, Annotated[float | int, Field(gt=0)]] = Field(
        {}, description="Boards of every worker that this sweep starts, for example {'board:pi5': 1}."
    )
    dashboard: bool | str = Field(False, description="Dask's dashboard: true, or an address such as ':8787'.")
    patience_s: Annotated[float | int, Field(gt=0)] = Field(
        600, description="How long to wait for the first worker; queues of batch systems can be long."
    )

    @model_validator(mode="after")
    def _check(self) -> ClusterSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        if self.kind == "scheduler":
            if self.address is None or not self.address.startswith(SCHEDULER_PREFIXES):
                faults.append((("address",), "an address such as tcp://host:8786", self.address))
            elif self.address.startswith("tls://") and self.security is None:
                faults.append((("security",), "ca_file, cert and key for a tls:// address", None))
        elif self.address is not None:
            faults.append((("address",), f"no address with kind {self.kind}", self.address))
        if self.kind == "ssh" and len(self.hosts) < 2:
            faults.append((("hosts",), "the scheduler's host and at least one worker's", self.hosts))
        if self.kind != "ssh" and self.hosts:
            faults.append((("hosts",), f"no hosts with kind {self.kind}", self.hosts))
        faults += [
            (("options", *path), "{env: NAME} or {file: PATH} for a secret", "a text in the file")
            for path in plain_secrets(self.options)
        ]
        self._raise(faults)
        return self


def plain_secrets(options: Any) -> list[tuple[str | int, ...]]:
    """Return the places of options that look like secrets and are written out."""
    found: list[tuple[str | int, ...]] = []
    items = (
        options.items()
        if isinstance(options, dict)
        else enumerate(options)
        if isinstance(options, tuple)
        else ()
    )
    for key, value in items:
        if (
            isinstance(value, str | int)
            and isinstance(key, str)
            and any(w in key.lower() for w in _SECRET_WORDS)
        ):
            found.append((key,))
        else:
            found += [(key, *rest) for rest in plain_secrets(value)]
    return found


class StoreSection(Section):
    """The database of the results."""

    url: str | None = Field(
        None, description="sqlite:///file.db or postgresql://user@host/database, without a password."
    )
    url_env: str | None = Field(None, description="Environment variable that holds the whole address.")
    password_env: str | None = Field(None, description="Environment variable that holds the password.")
    password_file: PathText | None = Field(None, description="File whose first line is the password.")

    @model_validator(mode="after")
    def _check(self) -> StoreSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        if (self.url is None) == (self.url_env is None):
            faults.append(((), "either url or url_env", "neither or both"))
        if self.password_env is not None and self.password_file is not None:
            faults.append((("password_file",), "password_env or password_file, not both", self.password_file))
        self._raise(faults)
        return self


class LimitsSection(Section):
    """What one job may take."""

    time_s: Annotated[float | int, Field(gt=0)] | None = Field(None, description="It is ended then.")
    memory: Size | None = Field(None, description="Resident memory of its process, for example 2 GiB.")
    attempts: Annotated[int, Field(ge=1, le=20)] = Field(
        5, description="How often a job begins when its worker gets killed; its own faults are final."
    )


def _cluster(value: Any) -> Any:
    if isinstance(value, str):
        if value.startswith(SCHEDULER_PREFIXES):
            return {"kind": "scheduler", "address": value}
        return {"kind": value}
    return value


def _store(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class SweepSection(Section):
    """A sweep: an experiment, the fields that vary, and where its jobs run."""

    base: Base = Field(description="The experiment that jobs start from: here, or the path of its file.")
    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(
        {}, description="Values by field (search.goal: [throughput, latency]); every combination is a job."
    )
    list: tuple[Settings, ...] = Field(
        (),
        description="Settings that belong together, each with an optional 'label'; combined with the grid.",
    )
    include: tuple[Settings, ...] = Field((), description="Further jobs, each with its own settings only.")
    exclude: tuple[Settings, ...] = Field((), description="Jobs that have all of these values are left out.")
    optuna: StudySection | None = None
    mode: Literal["auto", "search", "run"] = Field(
        "auto",
        description="search: predict only; run: also cut, check and measure; auto: run where it measures.",
    )
    cluster: Annotated[ClusterSection, BeforeValidator(_cluster)] = ClusterSection(kind="local")
    store: Annotated[StoreSection, BeforeValidator(_store)] | None = Field(
        None,
        description="sqlite:///results.db, postgresql://user@host/database, or {url_env: NAME}; "
        "a SQLite file in the sweep's folder when missing.",
    )
    boards: dict[str, str] = Field(
        {},
        description="Board by name of the measured platform; workers on it have {'board:NAME': 1}.",
    )
    limits: LimitsSection = LimitsSection()
    code: Literal["version", "exact", "any"] = Field(
        "version",
        description="What makes a finished job count as the same: the version of dse, "
        "its very source code, or neither.",
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Of the sweep in the store; the name of this file when missing."
    )
    output: PathText = Field(Path("runs"), description="Folder of the sweep's folder, from where dse is run.")


def sweep_schema(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a sweep file.

    Parameters
    ----------
    experiment
        The schema of an experiment, which becomes a part of it.
    """
    schema = SweepSection.model_json_schema()
    inner = dict(experiment)
    schema.setdefault("$defs", {}).update(inner.pop("$defs", {}))
    inner.pop("$schema", None)
    schema["$defs"]["ExperimentSection"] = inner
    schema["properties"]["base"]["anyOf"][1] = {"$ref": "#/$defs/ExperimentSection"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "tflite-dse sweep"}
