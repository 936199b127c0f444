"""The frozen experiment that the rest of the product works with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dse.config.models import (
    ExperimentSection,
    MeasureSection,
    NetworkSection,
    PlatformSection,
    ProfileSection,
    SearchSection,
    Section,
    VariantsSection,
    ZooSection,
)
from dse.config.pins import Pin
from dse.graph import NetworkLink
from dse.platforms import Cluster, Link, Platform, parse_slot


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A .tflite file, or a member of a bundle (``all.task!one.tflite``).

    Parameters
    ----------
    path
        Where it is.
    signature
        Work on this signature instead of the main subgraph.
    shapes
        Sizes of inputs that the file leaves open, each ``NAME=1x224x224x3``.
    """

    path: Path
    signature: str | None = None
    shapes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people and for folders."""
        return self.path.stem


@dataclass(frozen=True)
class ZooModel:
    """An architecture of the zoo, to be built with seeded weights."""

    name: str
    parameters: Mapping[str, int]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a Python package, to be downloaded once.

    Parameters
    ----------
    package
        Name and version, ``name==1.2``.
    member
        Path in the package, also into a bundle (``models/all.task!one.tflite``).
    sha256
        Of the model's bytes.
    fallback
        What is taken when the package can not be had, or None.
    """

    package: str
    member: str
    sha256: str
    fallback: ZooModel | None = None
    signature: str | None = None
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Several models that run once per frame.

    Parameters
    ----------
    networks
        Where each comes from, by name.
    links
        What feeds what between them.
    """

    networks: Mapping[str, ModelPath | ZooModel | PackagedModel]
    links: tuple[NetworkLink, ...] = ()

    @property
    def name(self) -> str:
        """For people and for folders."""
        return "+".join(self.networks)


@dataclass(frozen=True)
class Experiment:
    """Which model, on which platform, and how the mapping is found.

    Parameters
    ----------
    model
        A file, an architecture of the zoo, or several of them as a workload.
    platform
        As described, or None for this machine (to be detected).
    variants, profile, search, measure
        Settings, see ``dse schema``.
    pins
        ``search.pins``, expanded.
    name
        Of the run folder.
    output
        Folder of the run folders.
    cache_dir
        Folder of measured costs, or None for the usual place.
    seed
        Of everything that draws numbers.
    origin
        Where the experiment was read, for messages.
    """

    model: ModelPath | ZooModel | Workload
    platform: Platform | None
    variants: VariantsSection
    profile: ProfileSection
    search: SearchSection
    measure: MeasureSection
    pins: tuple[Pin, ...]
    name: str
    output: Path
    cache_dir: Path | None
    seed: int
    origin: str

    def resolved(self) -> dict[str, Any]:
        """Return the experiment as plain data, every default written out; it can be loaded again."""
        return {
            "name": self.name,
            **_source(self.model),
            "platform": "auto" if self.platform is None else platform_data(self.platform),
            "variants": _plain(self.variants),
            "profile": _plain(self.profile),
            "search": _plain(self.search),
            "measure": _plain(self.measure),
            "output": str(self.output),
            **({} if self.cache_dir is None else {"cache_dir": str(self.cache_dir)}),
            "seed": self.seed,
        }


def _source(model: ModelPath | ZooModel | Workload) -> dict[str, Any]:
    """Return the keys that say which model is worked on."""
    if isinstance(model, ModelPath):
        return {"model": str(model.path), **_form(model)}
    if isinstance(model, ZooModel):
        return {"model": _zoo(model)}
    networks = []
    for name, source in model.networks.items():
        if isinstance(source, ZooModel):
            networks.append({"name": name, **_zoo(source)})
        elif isinstance(source, ModelPath):
            networks.append({"name": name, "file": str(source.path), **_form(source)})
        else:
            fallback = {} if source.fallback is None else {"fallback": _zoo(source.fallback)}
            place = {"package": source.package, "file": source.member, "sha256": source.sha256}
            networks.append({"name": name, **place, **_form(source), **fallback})
    links = [
        {
            "from": "/".join(link.source),
            "to": "/".join(link.target),
            **({"reshape": True} if link.reshape else {}),
        }
        for link in model.links
    ]
    return {"models": networks, **({"links": links} if links else {})}


def _zoo(model: ZooModel) -> dict[str, Any]:
    return {"zoo": model.name, "parameters": dict(model.parameters), "seed": model.seed}


def _form(model: ModelPath | PackagedModel) -> dict[str, Any]:
    """Return the settings that say in which form a file is worked on, when there are any."""
    return {
        **({} if model.signature is None else {"signature": model.signature}),
        **({"shapes": list(model.shapes)} if model.shapes else {}),
    }


def _plain(section: Section) -> dict[str, Any]:
    data: dict[str, Any] = section.model_dump(mode="json", exclude_none=True)
    return data


def platform_data(platform: Platform) -> dict[str, Any]:
    """Return a platform in the form of a platform file."""
    clusters = []
    for cluster in platform.clusters:
        data = {key: value for key, value in asdict(cluster).items() if value not in (None, (), "")}
        data["cores"] = list(data.pop("core_ids"))
        if data.pop("kernels") != ("default",):
            data["kernels"] = list(cluster.kernels)
        if cluster.host is not None:
            data["host"] = str(cluster.host)
        if "threads" in data:
            data["threads"] = list(data["threads"])
        clusters.append({"name": data.pop("name"), "cores": data.pop("cores"), **data})
    links = [
        {key: value for key, value in asdict(link).items() if value is not None and value is not False}
        for link in platform.links
    ]
    return {
        "name": platform.name,
        "clusters": clusters,
        **({"links": links} if links else {}),
        "overlap": platform.overlap,
        **({} if platform.memory_bytes is None else {"memory_bytes": platform.memory_bytes}),
        **({"emulated": True} if platform.emulated else {}),
        **({"notes": list(platform.notes)} if platform.notes else {}),
    }


def to_platform(section: PlatformSection) -> Platform:
    """Build the platform that a file describes; accelerators without a number get the next free one."""
    used = [core for cluster in section.clusters for core in cluster.cores]
    free = itertools.count(max(used, default=-1) + 1)
    return Platform(
        name=section.name,
        clusters=tuple(
            Cluster(
                name=cluster.name,
                core_ids=cluster.cores or (next(free),),
                kind=cluster.kind,
                kernels=cluster.kernels,
                host=None if cluster.host is None else parse_slot(cluster.host),
                device=cluster.device,
                capacity=cluster.capacity,
                max_hz=cluster.max_hz,
                threads=tuple(sorted(cluster.threads)),
                macs_per_s=cluster.macs_per_s,
                bytes_per_s=cluster.bytes_per_s,
                active_power_mw=cluster.active_power_mw,
                idle_power_mw=cluster.idle_power_mw,
                memory_bytes=cluster.memory_bytes,
            )
            for cluster in section.clusters
        ),
        links=_links(section),
        overlap=section.overlap,
        memory_bytes=section.memory_bytes,
        emulated=section.emulated,
        notes=section.notes,
    )


def _links(section: PlatformSection) -> tuple[Link, ...]:
    """Return the listed links, then those that ``hand_over`` stands for."""
    listed = tuple(
        Link(link.source, link.target, link.setup_ns, link.bandwidth_bytes_per_s, link.sender_pays)
        for link in section.links
    )
    usual = section.hand_over
    if usual is None:
        return listed
    names = [cluster.name for cluster in section.clusters]
    pairs = {(link.source, link.target) for link in listed}
    return listed + tuple(
        Link(source, target, usual.setup_ns, usual.bandwidth_bytes_per_s)
        for source in names
        for target in names
        if (source, target) not in pairs
    )


def to_model(section: ExperimentSection, base: Path) -> ModelPath | ZooModel | Workload:
    """Build the model source of a section; paths count from ``base``."""
    model = section.model
    if isinstance(model, str):
        return ModelPath((base / model).absolute(), section.signature, section.shapes)
    if model is not None:
        return _zoo_model(model)
    return Workload(
        {network.name: _network(network, base) for network in section.models},
        tuple(
            NetworkLink(_endpoint(link.source), _endpoint(link.target), link.reshape)
            for link in section.links
        ),
    )


def _network(section: NetworkSection, base: Path) -> ModelPath | ZooModel | PackagedModel:
    if section.zoo is not None:
        return ZooModel(section.zoo, dict(section.parameters), section.seed)
    file = section.file or ""
    if section.package is None:
        return ModelPath((base / file).absolute(), section.signature, section.shapes)
    fallback = None if section.fallback is None else _zoo_model(section.fallback)
    return PackagedModel(
        section.package, file, section.sha256 or "", fallback, section.signature, section.shapes
    )


def _zoo_model(section: ZooSection) -> ZooModel:
    return ZooModel(section.zoo, dict(section.parameters), section.seed)


def _endpoint(text: str) -> tuple[str, str]:
    network, _, tensor = text.partition("/")
    return network, tensor


def _absolute(profile: ProfileSection, base: Path) -> ProfileSection:
    """Let the paths of a section count from a folder."""

    def full(path: Path) -> Path:
        return (base / path).absolute()

    return profile.model_copy(
        update={
            "costs": None if profile.costs is None else full(profile.costs),
            "reuse": tuple(map(full, profile.reuse)),
            "examples": tuple(
                one.model_copy(update={"model": full(one.model), "costs": full(one.costs)})
                for one in profile.examples
            ),
        }
    )


def to_experiment(
    section: ExperimentSection,
    *,
    base: Path,
    platform: Platform | None,
    pins: tuple[Pin, ...],
    default_name: str,
    origin: str,
) -> Experiment:
    """Put the checked parts together; paths of models and cost tables count from ``base``.

    They become absolute, so that the resolved form means the same in any folder.
    """
    model = to_model(section, base)
    profile = _absolute(section.profile, base)
    return Experiment(
        model=model,
        platform=platform,
        variants=section.variants,
        profile=profile,
        search=section.search,
        measure=section.measure,
        pins=pins,
        name=section.name or default_name,
        output=section.output,
        cache_dir=None if section.cache_dir is None else section.cache_dir.absolute(),
        seed=section.seed,
        origin=origin,
    )
