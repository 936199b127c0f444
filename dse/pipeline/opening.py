"""From a ``mapping.yaml`` with its stage files to a plan that can be run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse import yaml_io
from dse.errors import InputError
from dse.flatbuffer.cut import tensor_names
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import LayerGraph
from dse.mapping_check import check_model
from dse.mapping_file import MappingFile, read_mapping
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan, planned_stage, port_of
from dse.placement import PlacedStage

CONFIG = "config.yaml"
MANIFEST = "manifest-lane{}.json"
"""How the stages of a cut lane connect, by the lane's number; beside its stage files."""


def open_mapping(path: Path, model: Path | None = None) -> PipelinePlan:
    """Read a mapping and its stage files.

    Parameters
    ----------
    path
        A ``mapping.yaml``; its stage files lie where it says.
    model
        The whole model.  By default the one named by the ``config.yaml`` beside the mapping, if it
        is still there and unchanged.  Without it (workloads have no such file) inputs and outputs are
        told by the manifest beside the stage files; where there is none, from the stage files themselves
        (an output that another stage uses as well is then not an output of the pipeline).

    Raises
    ------
    InputError
        Files are missing or do not belong together; says which and what to do.
    """
    content = read_mapping(path)
    whole = _Whole.read(model, content) if model is not None else _beside(path, content)
    lanes = []
    keys: dict[str, int] = dict(whole.keys) if whole is not None else {}
    for lane in content.mapping.lanes:
        lanes.append(LanePlan(tuple(_stage(path, content, stage, whole, keys) for stage in lane.stages)))
    if whole is not None:
        inputs, outputs = whole.ports
        return PipelinePlan(path.stem, tuple(lanes), inputs, outputs, whole.graph.stateful)
    number = min(range(len(lanes)), key=lambda n: len(lanes[n].stages))
    inputs, outputs = _told_ends(number, lanes[number], keys) or _ends(lanes[number])
    stateful = any(
        build_graph(read_model(stage.model_path)).stateful for lane in lanes for stage in lane.stages
    )
    return PipelinePlan(path.stem, tuple(lanes), inputs, outputs, stateful)


@dataclass(frozen=True)
class _Whole:
    """The uncut model: its file, its graph, and the key of each tensor that has a name."""

    path: Path
    graph: LayerGraph
    keys: Mapping[str, int]

    @classmethod
    def read(cls, path: Path, content: MappingFile) -> _Whole:
        file = read_model(path)
        check_model(content, file)
        graph = build_graph(file)
        return cls(path, graph, {name: tensor for tensor, name in tensor_names(graph).items()})

    @property
    def ports(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        inputs, outputs = (
            tuple(port_of(self.graph.tensors[index]) for index in side)
            for side in (self.graph.inputs, self.graph.outputs)
        )
        return inputs, outputs


def _beside(path: Path, content: MappingFile) -> _Whole | None:
    """Find the whole model through the configuration of the run that wrote the mapping."""
    config = path.parent / CONFIG
    if not config.is_file():
        return None
    named = yaml_io.load(config).data
    model = named.get("model") if isinstance(named, dict) else None
    if not isinstance(model, str) or not Path(model).is_file():
        return None
    try:
        return _Whole.read(Path(model), content)
    except InputError:
        return None


def _stage(
    path: Path, content: MappingFile, stage: PlacedStage, whole: _Whole | None, keys: dict[str, int]
) -> StagePlan:
    known = whole.graph.networks_of(stage.layers) if whole is not None else None
    networks = content.networks.get(stage.name, ()) if known is None else known
    named = content.files.get(stage.name)
    if named is None:
        if whole is None:
            raise InputError(
                f"{path}: {stage.name} has no file, so it runs the whole model "
                f"{content.model_name}: give its path as well (model=...)"
            )
        if len(stage.layers) != len(whole.graph.layers):
            raise InputError(
                f"{path}: {stage.name} has no file, but only layers {stage.span} of "
                f"{len(whole.graph.layers)}: cut the model first (dse split --mapping)"
            )
        return planned_stage(stage, whole.path, *whole.ports, networks)
    file = path.parent / named
    if not file.is_file():
        raise InputError(f"{path}: the file of {stage.name} is missing: {file}")
    graph = build_graph(read_model(file))
    names = tensor_names(graph)
    sides = []
    for side in (graph.inputs, graph.outputs):
        ports = []
        for index in side:
            tensor = graph.tensors[index]
            key = _key_of(names[index], keys)
            ports.append(Port(key, tensor.name, tensor.dtype, tensor.shape, tensor.n_bytes))
        sides.append(tuple(ports))
    return planned_stage(stage, file, sides[0], sides[1], networks)


def _key_of(name: str, keys: dict[str, int]) -> int:
    """Return the key of a tensor, a new one where its name is new."""
    return keys.setdefault(name, max(keys.values(), default=-1) + 1)


def _told_ends(
    number: int, lane: LanePlan, keys: dict[str, int]
) -> tuple[tuple[Port, ...], tuple[Port, ...]] | None:
    """Inputs and outputs as a run's manifest of a cut lane tells them; None where none fits the lane."""
    path = lane.stages[0].model_path.parent / MANIFEST.format(number)
    if len(lane.stages) == 1 or not path.is_file():
        return None
    entering = {port.name: port for stage in lane.stages for port in stage.inputs}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if [stage["file"] for stage in told["stages"]] != [stage.model_path.name for stage in lane.stages]:
            return None  # an edited mapping
        leaving = [{port.name: port for port in stage.outputs} for stage in lane.stages]
        return (
            tuple(entering.get(entry["name"]) or _unread(entry, keys) for entry in told["inputs"]),
            tuple(leaving[entry["stage"]][entry["name"]] for entry in told["outputs"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: damaged manifest ({type(error).__name__}: {error})") from None


def _unread(entry: Mapping[str, Any], keys: dict[str, int]) -> Port:
    """Return the port of an input that no layer, and so no stage, reads."""
    shape = tuple(int(size) for size in entry["shape"])
    key = _key_of(str(entry["name"]), keys)
    return Port(key, str(entry["name"]), str(entry["dtype"]), shape, int(entry["bytes"]))


def _ends(lane: LanePlan) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs that no stage makes, and outputs that no stage uses (exact for a lane of one stage)."""
    made = {port.tensor for stage in lane.stages for port in stage.outputs}
    used = {port.tensor for stage in lane.stages for port in stage.inputs}
    inputs = {port.tensor: port for stage in lane.stages for port in stage.inputs if port.tensor not in made}
    outputs = {
        port.tensor: port for stage in lane.stages for port in stage.outputs if port.tensor not in used
    }
    return tuple(inputs.values()), tuple(outputs.values())
