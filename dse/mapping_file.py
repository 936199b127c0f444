"""``mapping.yaml``: a mapping as people read it, edit it, and hand it to deployment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dse import yaml_io
from dse.errors import ConfigError
from dse.files import write_text
from dse.graph import LayerGraph
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import DEVICES, KERNELS

FORMAT = "tflite-dse mapping"
VERSION = 1


@dataclass(frozen=True, slots=True)
class MappingFile:
    """A mapping with the model that it is for.

    Parameters
    ----------
    model_name, model_hash
        Which model (sha256 of the file).
    platform_name
        Which platform.
    mapping
        What runs where.
    files
        Stage file by stage name, relative to the mapping's folder; empty when nothing was cut.
    networks
        Of a workload: by stage name the networks that have layers in it.  For readers: layers decide.
    """

    model_name: str
    model_hash: str
    platform_name: str
    mapping: PlacedMapping
    files: dict[str, str]
    networks: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: LayerGraph,
        model_hash: str,
        platform_name: str,
        mapping: PlacedMapping,
        files: dict[str, str],
    ) -> MappingFile:
        """Gather what is to be written of a mapping of a model."""
        found = {stage.name: graph.networks_of(stage.layers) for stage in mapping.stages}
        networks = {name: own for name, own in found.items() if own}
        return cls(graph.name, model_hash, platform_name, mapping, files, networks)


def write_mapping(path: Path, content: MappingFile) -> None:
    """Write the file atomically."""
    lanes = [
        {
            "stages": [
                {
                    "name": stage.name,
                    "layers": stage.span,
                    **(
                        {"networks": list(content.networks[stage.name])}
                        if stage.name in content.networks
                        else {}
                    ),
                    "cluster": stage.cluster,
                    "threads": stage.threads,
                    "cores": list(stage.cores),
                    **stage_options(stage),
                    **({"file": content.files[stage.name]} if stage.name in content.files else {}),
                }
                for stage in lane.stages
            ]
        }
        for lane in content.mapping.lanes
    ]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": {"name": content.model_name, "sha256": content.model_hash},
        "platform": content.platform_name,
        "lanes": lanes,
    }
    write_text(path, yaml_io.dump(data))


def stage_options(stage: PlacedStage) -> dict[str, Any]:
    """Return what says how a stage runs, where that is not the usual: kernels, accelerator, its host."""
    return {
        **({} if stage.kernels == "default" else {"kernels": stage.kernels}),
        **({} if stage.device == "cpu" else {"device": stage.device}),
        **({"host_cores": list(stage.host_cores)} if stage.host_cores else {}),
    }


def read_mapping(path: Path) -> MappingFile:
    """Read the file.

    Raises
    ------
    ConfigError
        All faults at once: not a mapping, another version, missing or unknown fields, layers or
        cores that make no sense.
    """
    document = yaml_io.load(path)
    reader = _Reader(document)
    top = reader.fields((), {"format": str, "version": int, "model": dict, "platform": str, "lanes": list})
    if not reader.faults and (top["format"] != FORMAT or top["version"] != VERSION):
        reader.fault(("format",), f"expected format {FORMAT!r}, version {VERSION}")
    model: dict[str, Any] = {}
    lanes: list[PlacedLane] = []
    files: dict[str, str] = {}
    networks: dict[str, tuple[str, ...]] = {}
    if not reader.faults:
        model = reader.fields(("model",), {"name": str, "sha256": str})
        for number in range(len(top["lanes"])):
            lanes.append(_lane(reader, ("lanes", number), files, networks))
        if not lanes:
            reader.fault(("lanes",), "expected at least one lane")
    if reader.faults:
        raise ConfigError(reader.faults)
    mapping = PlacedMapping(tuple(lanes))
    return MappingFile(model["name"], model["sha256"], top["platform"], mapping, files, networks)


def _lane(
    reader: _Reader,
    path: yaml_io.PathKey,
    files: dict[str, str],
    networks: dict[str, tuple[str, ...]],
) -> PlacedLane:
    stages: list[PlacedStage] = []
    n_stages = len(reader.fields(path, {"stages": list}).get("stages", ()))
    for number in range(n_stages):
        place = (*path, "stages", number)
        wanted = {"name": str, "layers": (str, int), "cluster": str, "threads": int, "cores": list}
        optional = {"networks": list, "kernels": str, "device": str, "host_cores": list, "file": str}
        fields = reader.fields(place, wanted, optional=optional)
        if not wanted.keys() <= fields.keys():
            continue
        layers = parse_span(str(fields["layers"]))
        if layers is None:
            reader.fault(
                (*place, "layers"), f"expected layers such as '0-16' or '0-4,7', got {fields['layers']!r}"
            )
            continue
        cores = tuple(fields["cores"])
        if not all(isinstance(core, int) and core >= 0 for core in cores) or len(cores) != fields["threads"]:
            reader.fault(
                (*place, "cores"),
                f"expected {fields['threads']} core numbers (as 'threads' says), got {list(cores)}",
            )
            continue
        device, kernels = fields.get("device", "cpu"), fields.get("kernels", "default")
        hosts = tuple(fields.get("host_cores", ()))
        for name, value, known in (("device", device, DEVICES), ("kernels", kernels, KERNELS)):
            if value not in known:
                reader.fault((*place, name), f"expected one of {', '.join(known)}, got {value!r}")
        if not all(isinstance(core, int) and core >= 0 for core in hosts) or (hosts and device == "cpu"):
            reader.fault((*place, "host_cores"), f"expected core numbers, at accelerators only, got {hosts}")
        if any(stage.name == fields["name"] for stage in stages) or fields["name"] in files:
            reader.fault((*place, "name"), f"stage name {fields['name']!r} appears twice")
        names = fields.get("networks", [])
        if not all(isinstance(name, str) for name in names):
            reader.fault((*place, "networks"), f"expected names of networks, got {names}")
        if names:
            networks[fields["name"]] = tuple(names)
        if "file" in fields:
            files[fields["name"]] = fields["file"]
        slot = fields["cluster"], fields["threads"]
        stages.append(PlacedStage(fields["name"], layers, *slot, cores, kernels, device, hosts))
    if n_stages == 0:
        reader.fault(path, "expected at least one stage")
    return PlacedLane(tuple(stages))


def parse_span(text: str) -> tuple[int, ...] | None:
    """Read layers as ``PlacedStage.span`` writes them, ``0-4,7``; None when it is something else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdigit() and (not dash or last.isdigit())) or len(first) > 7 or len(last) > 7:
            return None
        low, high = int(first), int(last) if dash else int(first)
        if high < low or (found and low <= found[-1]):
            return None
        found.extend(range(low, high + 1))
    return tuple(found)


class _Reader:
    """Reads typed fields of a document and collects faults with their lines."""

    def __init__(self, document: yaml_io.Document) -> None:
        self.document = document
        self.faults: list[str] = []

    def fault(self, path: yaml_io.PathKey, text: str) -> None:
        field = f"{'.'.join(str(part) for part in path)}: " if path else ""
        self.faults.append(f"{self.document.where(path)}: {field}{text}")

    def fields(
        self, path: yaml_io.PathKey, wanted: dict[str, Any], optional: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the fields that are there and of the right type; the rest becomes faults."""
        value = self.document.data
        for part in path:
            value = value[part]
        if not isinstance(value, dict):
            self.fault(path, f"expected a mapping with {', '.join(wanted)}, got {type(value).__name__}")
            return {}
        known = {**wanted, **(optional or {})}
        for name in value.keys() - known.keys():
            self.fault((*path, name), f"unknown key; expected one of {', '.join(known)}")
        found: dict[str, Any] = {}
        for name, kind in known.items():
            if name not in value:
                if name in wanted:
                    self.fault(path, f"field {name!r} is missing")
            elif not isinstance(value[name], kind) or isinstance(value[name], bool):
                self.fault((*path, name), f"wrong type {type(value[name]).__name__} ({value[name]!r})")
            else:
                found[name] = value[name]
        return found
