"""From files and command-line settings to an experiment, with every fault in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dse import yaml_io
from dse.config.experiment import Experiment, to_experiment, to_platform
from dse.config.faults import Where, describe, fault_lines, field_name
from dse.config.models import ExperimentSection, PlatformSection, Section
from dse.config.pins import Pin, expand
from dse.config.sweep import SweepSection, sweep_schema
from dse.errors import ConfigError
from dse.graph import NETWORK_NAME
from dse.platforms import Platform
from dse.yaml_io import PathKey

S = TypeVar("S", bound=Section)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ExperimentSection.model_json_schema(),
        "title": "tflite-dse experiment",
    }


def load_sweep_section(path: Path) -> tuple[SweepSection, yaml_io.Document]:
    """Read a sweep file; what its jobs are is checked when they are expanded.

    Raises
    ------
    ConfigError
        All faults of the file.
    """
    document = yaml_io.load(path)
    section = _validate(SweepSection, document.data, lambda p, key: document.where(p, key=key))
    return section, document


def sweep_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sweep file."""
    return sweep_schema(json_schema())


def load_experiment(path: Path, settings: Sequence[str] = ()) -> Experiment:
    """Read an experiment file.

    Parameters
    ----------
    path
        The YAML file.
    settings
        Further ``key=value`` pairs that win over the file, for example ``search.time_s=5``.

    Raises
    ------
    ConfigError
        All faults of the file, of the platform file that it names, and of the settings.
    """
    document = yaml_io.load(path)
    return _experiment(document, settings, base=path.parent, default_name=path.stem)


def experiment_for_model(path: Path, settings: Sequence[str] = ()) -> Experiment:
    """Return the experiment with all defaults for one model on this machine.

    Raises
    ------
    ConfigError
        There is no such file, or a setting has a fault.
    """
    document = yaml_io.Document({"model": str(path)}, "--model", {}, {})
    return _experiment(document, settings, base=Path(), default_name=path.stem)


def experiment_for_models(
    models: Sequence[str],
    links: Sequence[str] = (),
    settings: Sequence[str] = (),
    *,
    shapes: Sequence[str] = (),
    reshape: bool = False,
) -> Experiment:
    """Return the experiment with all defaults for a workload of several models on this machine.

    Parameters
    ----------
    models
        Each ``PATH`` or ``NAME=PATH``; without a name the file's own, with a number where it is taken.
    links
        Each ``NETWORK/TENSOR=NETWORK/INPUT``.
    settings
        See ``load_experiment``.
    shapes
        Each ``NETWORK/INPUT=1x224x224x3``.
    reshape
        Links may join tensors of other shapes with as many elements.

    Raises
    ------
    ConfigError
        A file is not there, or a link, shape or setting has a fault.
    """
    networks: dict[str, dict[str, Any]] = {}
    for text in models:
        name, path = _named_model(text)
        free = (f"{name}_{number}" if number > 1 else name for number in range(1, len(models) + 2))
        networks[next(key for key in free if key not in networks)] = {"file": path}
    faults = []
    for shape in shapes:
        network, _, rest = shape.partition("/")
        if network not in networks or not rest:
            faults.append(
                f"--shape {shape}: expected NETWORK/INPUT=1x2x3, networks are {', '.join(networks)}"
            )
        else:
            networks[network].setdefault("shapes", []).append(rest)
    pairs = []
    for link in links:
        source, equals, target = link.partition("=")
        if not equals:
            faults.append(f"--link {link}: expected NETWORK/OUTPUT=NETWORK/INPUT")
        pairs.append({"from": source, "to": target, "reshape": reshape})
    if faults:
        raise ConfigError(faults)
    data = {"models": [{"name": name, **rest} for name, rest in networks.items()]}
    data |= {"links": pairs} if pairs else {}
    document = yaml_io.Document(data, "--model", {}, {})
    return _experiment(document, settings, base=Path(), default_name="+".join(networks))


def _named_model(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH``; a path may have a name made of its own."""
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists() and NETWORK_NAME.fullmatch(name):
        return name, path
    stem = Path(text).stem.rpartition("!")[2]
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("_.-")[:48] or "network", text


def load_platform(path: Path) -> Platform:
    """Read a platform file.

    Raises
    ------
    ConfigError
        All faults of the file.
    """
    document = yaml_io.load(path)
    section = _validate(PlatformSection, document.data, lambda p, key: document.where(p, key=key))
    return to_platform(section)


def _validate(model: type[S], data: Any, where: Where) -> S:
    try:
        return model.model_validate(_tuples(data))
    except ValidationError as error:
        raise ConfigError(fault_lines(error, model.model_json_schema(), where)) from None


def _tuples(data: Any) -> Any:
    """Turn lists into tuples: frozen models hold tuples, and strict pydantic does not convert."""
    if isinstance(data, list):
        return tuple(_tuples(item) for item in data)
    if isinstance(data, dict):
        return {key: _tuples(value) for key, value in data.items()}
    return data


def _experiment(
    document: yaml_io.Document, settings: Sequence[str], *, base: Path, default_name: str
) -> Experiment:
    faults: list[str] = []
    data = document.data
    set_paths: dict[PathKey, str] = {}
    for setting in settings:
        try:
            data, path = _set(data, setting)
            set_paths[path] = f"--set {setting.partition('=')[0]}"
        except ConfigError as error:
            faults += error.faults

    def where(path: PathKey, key: bool = False) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in set_paths:
                return set_paths[path[:length]]
        return document.where(path, key=key)

    try:
        experiment = build_experiment(data, where, base=base, default_name=default_name, origin=document.name)
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from None
    if faults:
        raise ConfigError(faults)
    return experiment


def build_experiment(
    data: Any,
    where: Where,
    *,
    base: Path,
    default_name: str,
    origin: str,
    read_platform: Callable[[Path], Platform] = load_platform,
) -> Experiment:
    """Check the plain data of an experiment and build it.

    Parameters
    ----------
    data
        As read from YAML.
    where
        Finds ``file:line`` of a path in the data.
    base
        Folder from which paths count.
    default_name
        Name of the experiment, when it gives none.
    origin
        Where the data was read, for messages.
    read_platform
        Reads a platform file.

    Raises
    ------
    ConfigError
        All faults.
    """
    faults: list[str] = []
    section: ExperimentSection | None = None
    try:
        section = _validate(ExperimentSection, data, where)
    except ConfigError as error:
        faults += error.faults
    platform: Platform | None = None
    raw = data if isinstance(data, dict) else {}
    named = raw.get("platform", "auto")
    if isinstance(named, str) and named not in ("", "auto"):
        try:
            platform = read_platform(base / named)
        except ConfigError as error:
            faults += [f"{where(('platform',), False)}: platform: {fault}" for fault in error.faults]
    elif section is not None and isinstance(section.platform, PlatformSection):
        platform = to_platform(section.platform)
    files: list[tuple[PathKey, Any]] = [
        (("model",), raw.get("model")),
        (("profile", "costs"), _get(raw, "profile", "costs")),
    ]
    networks = raw.get("models")
    for number, network in enumerate(networks if isinstance(networks, list) else ()):
        if isinstance(network, dict) and "package" not in network:
            files.append((("models", number, "file"), network.get("file")))
    for place, value in files:
        # 'all.task!one.tflite' is a member of the bundle all.task.
        if isinstance(value, str) and value and not (base / value.partition("!")[0]).is_file():
            what = f"expected a file, got {describe(value)}: no such file"
            faults.append(f"{where(place, False)}: {field_name(place)}: {what}")
    pins: tuple[Pin, ...] = ()
    if section is not None:
        pins = _pins(section, where)
        faults += check_pins(pins, platform) if platform is not None else []
    if faults or section is None:
        raise ConfigError(faults)
    return to_experiment(
        section, base=base, platform=platform, pins=pins, default_name=default_name, origin=origin
    )


def _get(data: Mapping[str, Any], *keys: str) -> Any:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _pins(section: ExperimentSection, where: Where) -> tuple[Pin, ...]:
    found: list[Pin] = []
    for number, pin in enumerate(section.search.pins):
        place = f"{where(('search', 'pins', number), False)}: search.pins[{number}]"
        found += expand(pin.layers, pin.on, pin.cores, pin.each, place)
    return tuple(found)


def check_pins(pins: Sequence[Pin], platform: Platform) -> list[str]:
    """Return the faults of pins on a platform: unknown clusters or cores, more threads than cores."""
    faults = []
    clusters = {cluster.name: cluster for cluster in platform.clusters}
    known = ", ".join(f"{cluster.n_cores} {cluster.name}" for cluster in platform.clusters)
    cores = set(platform.cpu_cores)
    n_rest = 0
    for pin in pins:
        n_rest += pin.rest
        if pin.rest and n_rest > 1:
            faults.append(f"{pin.where}: layers: expected 'rest' in one pin only")
        if pin.cluster is not None and pin.cluster not in clusters:
            faults.append(
                f"{pin.where}: on: expected a cluster of platform {platform.name} ({known}), "
                f"got {pin.cluster!r}"
            )
        elif pin.cluster is not None and pin.threads is not None:
            counts = clusters[pin.cluster].thread_counts
            if pin.threads not in counts:
                faults.append(
                    f"{pin.where}: on: expected {', '.join(map(str, counts))} cores of {pin.cluster} "
                    f"(platform {platform.name}), got {pin.threads}"
                )
        if pin.cluster in clusters and pin.kernels not in (None, *clusters[pin.cluster].kernels):
            offered = ", ".join(clusters[pin.cluster].kernels)
            faults.append(
                f"{pin.where}: on: expected kernels that cluster {pin.cluster} offers ({offered}; see "
                f"'kernels' of the cluster), got {pin.kernels!r}"
            )
        missing = sorted(set(pin.cores) - cores)
        if missing:
            faults.append(
                f"{pin.where}: cores: expected cores of platform {platform.name} "
                f"({', '.join(map(str, sorted(cores)))}), got {missing[0]}"
            )
    return faults


def _set(data: Any, setting: str) -> tuple[Any, PathKey]:
    """Return a copy of the data with one ``a.b=value`` set."""
    dotted, equals, text = setting.partition("=")
    keys = tuple(dotted.strip().split("."))
    if not equals or not all(keys):
        raise ConfigError([f"--set {setting}: expected key=value, for example search.time_s=5"])
    value = yaml_io.load(text, f"--set {dotted}").data if text.strip() else None
    return with_value(data, keys, value), keys


def with_value(data: Any, keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of plain data with the value at ``a.b.c`` replaced or added."""
    changed = dict(data) if isinstance(data, dict) else {}
    place = changed
    for key in keys[:-1]:
        below = place.get(key)
        place[key] = dict(below) if isinstance(below, dict) else {}
        place = place[key]
    place[keys[-1]] = value
    return changed
