"""What a pipeline is told to run: lanes of stages, each a model file on named cores.

A plan is pure data, checked when it is built, and has a JSON form for the lanes' processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dse.errors import InputError
from dse.flatbuffer.stages import StageModel
from dse.graph import LayerGraph, Tensor, label_of
from dse.placement import PlacedStage
from dse.platforms import DEVICES, KERNELS, ClusterKind, Kernels

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor at the edge of a stage or of the whole model.

    Parameters
    ----------
    tensor
        Key of the tensor: equal keys are the same values (index in the uncut model).
    name
        Name in the stage's file; checked against the file when it is not empty.
    dtype
        Element type as in ``dse.graph.Tensor``.
    shape
        Shape, without placeholders.
    n_bytes
        Size of one frame's values.
    """

    tensor: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A model file run by one interpreter on one set of cores.

    Parameters
    ----------
    name
        For messages and tables, for example ``stage 0``.
    model_path
        The stage's own .tflite file.
    cluster
        Name of the cluster that the cores belong to.
    cores
        Numbers of the cores; stages of a lane with equal cores share a thread.  Of a stage on an
        accelerator: the cores that drive it, none for any.
    threads
        Threads of the interpreter.
    inputs, outputs
        In the order of the file's inputs and outputs.
    kernels
        Kernel library (``dse.platforms.Kernels``).
    device
        What kind of thing the cluster is.  A stage on an accelerator runs in a process of its own.
    networks
        Of a workload: the networks that have layers in it, for whoever draws or profiles it.
    """

    name: str
    model_path: Path
    cluster: str
    cores: tuple[int, ...]
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: Kernels = "default"
    device: ClusterKind = "cpu"
    networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cores and not self.is_apart:
            raise InputError(f"{self.name}: expected at least one core, got none")
        if len(set(self.cores)) != len(self.cores):
            raise InputError(f"{self.name}: expected a set of different cores, got {self.cores}")
        if self.threads < 1:
            raise InputError(f"{self.name}: expected at least 1 thread, got {self.threads}")

    @property
    def label(self) -> str:
        """Its name with the networks that it works for."""
        return label_of(self.name, self.networks)

    @property
    def is_apart(self) -> bool:
        """Whether it runs in a process of its own."""
        return self.device != "cpu"

    @property
    def place(self) -> str:
        """Where it runs, for people: ``cpu cores 0,1``; of an accelerator also what drives it."""
        cores = ",".join(map(str, self.cores))
        if self.is_apart:
            return f"{self.cluster}, driven by cores {cores}" if cores else self.cluster
        return f"{self.cluster} cores {cores}"

    @property
    def seats(self) -> frozenset[int | str]:
        """What it occupies: cores, and the accelerator."""
        return frozenset((*self.cores, self.cluster) if self.is_apart else self.cores)


@dataclass(frozen=True, slots=True)
class LanePlan:
    """A complete copy of the model; every stage comes after the stages that feed it."""

    stages: tuple[StagePlan, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise InputError("a lane needs at least one stage")
        for number, stage in enumerate(self.stages):
            for other in self.stages[:number]:
                shared = stage.seats & other.seats
                if shared and stage.seats != other.seats:
                    text = ", ".join(sorted(map(str, shared)))
                    raise InputError(
                        f"{stage.name} and {other.name} share cores [{text}] but not all of them: "
                        f"two stages use either the same cores or disjoint ones"
                    )

    @property
    def cores(self) -> frozenset[int]:
        """All cores of the lane."""
        return frozenset(core for stage in self.stages for core in stage.cores)

    @property
    def producer(self) -> dict[int, int]:
        """Stage index by the key of the tensor that it produces."""
        return {port.tensor: number for number, stage in enumerate(self.stages) for port in stage.outputs}

    def sources(self, stage: int) -> tuple[int | None, ...]:
        """For each input of a stage the earlier stage that makes it, or None for an input of the model."""
        made = {port.tensor: n for n, one in enumerate(self.stages[:stage]) for port in one.outputs}
        return tuple(made.get(port.tensor) for port in self.stages[stage].inputs)

    @property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the stages of each set of cores, in order of first use."""
        found: dict[frozenset[int | str], list[int]] = {}
        for number, stage in enumerate(self.stages):
            found.setdefault(stage.seats, []).append(number)
        return tuple(tuple(members) for members in found.values())


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Lanes on disjoint cores that together run one model.

    Parameters
    ----------
    name
        Unique in a measurement, for example ``two copies``.
    lanes
        Complete copies of the model.
    inputs, outputs
        Of the model, in its own order.
    stateful
        Whether frames depend on earlier frames.

    Raises
    ------
    InputError
        A core is used twice, a tensor has no or two makers or is used before it is made, or maker
        and user disagree about its type, shape or size; the message names the stage and tensor.
    """

    name: str
    lanes: tuple[LanePlan, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    stateful: bool = False

    def __post_init__(self) -> None:
        if not self.lanes:
            raise InputError(f"plan {self.name!r} has no lane")
        used: dict[int | str, int] = {}
        for number, lane in enumerate(self.lanes):
            for seat in sorted({seat for stage in lane.stages for seat in stage.seats}, key=str):
                if seat in used:
                    what = f"core {seat}" if isinstance(seat, int) else seat
                    raise InputError(
                        f"plan {self.name!r}: {what} is in lane {used[seat]} and in lane {number}"
                    )
                used[seat] = number
            self._check_lane(number, lane)

    def _check_lane(self, number: int, lane: LanePlan) -> None:
        made: dict[int, tuple[str, Port]] = {port.tensor: ("the model's input", port) for port in self.inputs}
        handed_through = {port.tensor for port in self.inputs} & {port.tensor for port in self.outputs}
        for stage in lane.stages:
            where = f"plan {self.name!r}, lane {number}, {stage.name}"
            for port in stage.inputs:
                if port.tensor not in made:
                    raise InputError(
                        f"{where}: input {_label(port)} comes neither from an earlier stage "
                        f"nor from the model's inputs"
                    )
                _check_same(where, *made[port.tensor], port)
            for port in stage.outputs:
                maker, same = made.get(port.tensor, ("", port))
                if maker and port.tensor not in handed_through:
                    raise InputError(f"{where}: output {_label(port)} is already made by {maker}")
                if maker:
                    _check_same(where, maker, same, port)
                made[port.tensor] = (stage.name, port)
        for port in self.outputs:
            where = f"plan {self.name!r}, lane {number}"
            if port.tensor not in made:
                raise InputError(f"{where}: no stage makes the model's output {_label(port)}")
            _check_same(where, *made[port.tensor], port)

    @property
    def n_stages(self) -> int:
        """Stages of all lanes."""
        return sum(len(lane.stages) for lane in self.lanes)

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores in use, ascending."""
        return tuple(sorted(core for lane in self.lanes for core in lane.cores))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "stateful": self.stateful,
            "inputs": [_port_json(port) for port in self.inputs],
            "outputs": [_port_json(port) for port in self.outputs],
            "lanes": [[stage_to_json(stage) for stage in lane.stages] for lane in self.lanes],
        }

    @classmethod
    def from_json(cls, data: Any, where: str = "plan") -> PipelinePlan:
        """Read the JSON form.

        Raises
        ------
        InputError
            A field is missing or of the wrong type, or the plan contradicts itself; the message
            starts with ``where``.
        """
        try:
            return cls(
                str(data["name"]),
                tuple(LanePlan(tuple(stage_from_json(stage) for stage in lane)) for lane in data["lanes"]),
                tuple(_port(port) for port in data["inputs"]),
                tuple(_port(port) for port in data["outputs"]),
                bool(data["stateful"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: damaged plan ({type(error).__name__}: {error})") from None


def levels(lane: LanePlan) -> tuple[int, ...]:
    """Longest way, in hand-overs, from the model's inputs to each stage."""
    found: list[int] = []
    for number in range(len(lane.stages)):
        before = [found[source] for source in lane.sources(number) if source is not None]
        found.append(1 + max(before, default=-1))
    return tuple(found)


def entering_stages(lane: LanePlan) -> tuple[int, ...]:
    """Stages that read an input of the model."""
    return tuple(n for n in range(len(lane.stages)) if None in lane.sources(n))


def final_stages(lane: LanePlan, outputs: Sequence[Port]) -> tuple[int, ...]:
    """Stages after which a frame has left: those that make an output, or that feed nobody."""
    wanted = {port.tensor for port in outputs}
    feeding = {source for n in range(len(lane.stages)) for source in lane.sources(n)}
    return tuple(
        number
        for number, stage in enumerate(lane.stages)
        if number not in feeding or any(port.tensor in wanted for port in stage.outputs)
    )


def port_of(tensor: Tensor) -> Port:
    """Return the port of a tensor of a layer graph."""
    return Port(tensor.index, tensor.name, tensor.dtype, tensor.shape, tensor.n_bytes)


def model_ports(graph: LayerGraph) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the ports of a model's inputs and of its outputs."""
    return (
        tuple(port_of(graph.tensors[index]) for index in graph.inputs),
        tuple(port_of(graph.tensors[index]) for index in graph.outputs),
    )


def stage_ports(model: StageModel) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the ports of a cut-out stage's inputs and of its outputs."""
    inputs, outputs = (
        tuple(Port(t.tensor, t.name, t.dtype, t.shape, t.n_bytes) for t in side)
        for side in (model.inputs, model.outputs)
    )
    return inputs, outputs


def planned_stage(
    stage: PlacedStage,
    path: Path,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    networks: tuple[str, ...] = (),
) -> StagePlan:
    """Plan a stage of a mapping, whose file is ``path``."""
    slot = stage.cluster, stage.cpu_cores, stage.threads
    return StagePlan(stage.name, path, *slot, inputs, outputs, stage.kernels, stage.device, networks)


def whole_model_plan(
    name: str, graph: LayerGraph, model_path: Path, cluster: str, copies: Sequence[tuple[int, ...]]
) -> PipelinePlan:
    """Plan copies of the whole model: one lane per set of cores, a thread per core."""
    inputs, outputs = model_ports(graph)
    lanes = tuple(
        LanePlan((StagePlan("whole model", model_path, cluster, tuple(cores), len(cores), inputs, outputs),))
        for cores in copies
    )
    return PipelinePlan(name, lanes, inputs, outputs, graph.stateful)


def _label(port: Port) -> str:
    return f"{port.tensor} {port.name!r}" if port.name else str(port.tensor)


def _check_same(where: str, maker: str, made: Port, used: Port) -> None:
    for what in ("dtype", "shape", "n_bytes"):
        ours, theirs = getattr(used, what), getattr(made, what)
        if ours != theirs:
            raise InputError(
                f"{where}: tensor {_label(used)} has {what} {ours}, but {maker} makes it with {theirs}"
            )


def _port_json(port: Port) -> dict[str, Any]:
    return {
        "tensor": port.tensor,
        "name": port.name,
        "dtype": port.dtype,
        "shape": list(port.shape),
        "n_bytes": port.n_bytes,
    }


def stage_to_json(stage: StagePlan) -> dict[str, Any]:
    """Return the JSON form of a stage."""
    return {
        "name": stage.name,
        "model_path": str(stage.model_path),
        "cluster": stage.cluster,
        "cores": list(stage.cores),
        "threads": stage.threads,
        "inputs": [_port_json(port) for port in stage.inputs],
        "outputs": [_port_json(port) for port in stage.outputs],
        "kernels": stage.kernels,
        "device": stage.device,
        "networks": list(stage.networks),
    }


def _one_of(value: Any, known: tuple[T, ...]) -> T:
    if value not in known:
        raise ValueError(f"expected one of {', '.join(map(str, known))}, got {value!r}")
    return known[known.index(value)]


def _port(data: dict[str, Any]) -> Port:
    return Port(
        int(data["tensor"]),
        str(data["name"]),
        str(data["dtype"]),
        tuple(int(size) for size in data["shape"]),
        int(data["n_bytes"]),
    )


def stage_from_json(data: dict[str, Any]) -> StagePlan:
    """Read the JSON form of a stage; faults raise ``KeyError``, ``TypeError`` or ``ValueError``."""
    return StagePlan(
        str(data["name"]),
        Path(data["model_path"]),
        str(data["cluster"]),
        tuple(int(core) for core in data["cores"]),
        int(data["threads"]),
        tuple(_port(port) for port in data["inputs"]),
        tuple(_port(port) for port in data["outputs"]),
        _one_of(data["kernels"], KERNELS),
        _one_of(data["device"], DEVICES),
        tuple(str(name) for name in data["networks"]),
    )
