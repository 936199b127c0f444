"""Several models as one: a workload that everything else works on like on any model.

The main subgraphs are laid one behind the other.  A linked input is replaced by the tensor that it
is linked to.  Tensors get their network's name in front; state is kept apart: variables get their
network's name as container, hash tables new numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dse.errors import CutError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.extraction import minimal_model
from dse.flatbuffer.networks import networks_note
from dse.flatbuffer.operators import operator_name, quantization_tensors, renumber_subgraphs
from dse.flatbuffer.ports import NetworkPorts, Side
from dse.flatbuffer.reader import ModelFile, model_from_bytes
from dse.flatbuffer.records import (
    Buffer,
    Metadata,
    Model,
    Operator,
    OperatorCode,
    Options,
    SignatureDef,
    SubGraph,
    Tensor,
    TensorMap,
)
from dse.flatbuffer.schema import builtin, enum_value
from dse.flatbuffer.sizes import dtype_name
from dse.graph import NETWORK_NAME, NetworkLink

SIGNATURE = "workload"
_RUNTIME_VERSION = "min_runtime_version"
_MAX_TABLE_ID = 0x7FFFFFFF


def merge_models(
    networks: Mapping[str, ModelFile], links: Sequence[NetworkLink] = (), *, name: str = ""
) -> ModelFile:
    """Merge models that run once per frame into one.

    Parameters
    ----------
    networks
        Models by name; each is worked on through its main subgraph.
    links
        What feeds what between them.
    name
        Of the whole; by default the networks' names joined.

    Returns
    -------
    ModelFile
        In memory (``in_folder`` makes a file of it).  Inputs and outputs are those of the networks,
        in the order given, without linked inputs; linked outputs stay outputs.  One signature
        ``workload`` names them ``network/name``.  The same models and links give the same bytes.

    Raises
    ------
    CutError
        A name is no name, a link leads nowhere, joins tensors that differ, or networks feed each
        other in a circle; the message says what there is.
    ModelError
        A model has something that can not be written.
    """
    _check_names(networks)
    alone = {key: _Alone(key, file.model) for key, file in networks.items()}
    feeds = _resolve(alone, links)
    merger = _Merger()
    for key in _order(list(networks), links):
        merger.add(alone[key], feeds[key])
    return model_from_bytes(encode(merger.model(list(networks))), name or "+".join(networks))


class _Alone:
    """One network, reduced to its main subgraph and what that runs."""

    def __init__(self, name: str, model: Model) -> None:
        main = model.subgraphs[0]
        self.name = name
        self.ports = NetworkPorts(name, model)
        self.runtime_versions = [
            bytes(model.buffers[entry.buffer].data or b"")
            for entry in model.metadata
            if entry.name == _RUNTIME_VERSION
        ]
        # Signatures of other subgraphs and unused subgraphs, buffers and codes fall away.
        self.model = minimal_model(
            replace(model, signature_defs=(), metadata=()),
            range(len(main.operators)),
            [(tensor, "") for tensor in dict.fromkeys(main.inputs)],
            [(tensor, "") for tensor in dict.fromkeys(main.outputs)],
        )


@dataclass(frozen=True, slots=True)
class _Feed:
    """Where an input (by position) comes from: a port of another network."""

    source: str
    side: Side
    position: int
    reshape: bool


def _check_names(networks: Mapping[str, ModelFile]) -> None:
    if not networks:
        raise CutError("a workload needs at least one network")
    for name in networks:
        if not NETWORK_NAME.fullmatch(name):
            raise CutError(f"network name {name!r}: expected letters, digits, '_', '-', '.', at most 64")


def _resolve(alone: Mapping[str, _Alone], links: Sequence[NetworkLink]) -> dict[str, dict[int, _Feed]]:
    """Find the tensors that links name, and check that they fit."""
    feeds: dict[str, dict[int, _Feed]] = {name: {} for name in alone}
    for link in links:
        for network, _ in (link.source, link.target):
            if network not in alone:
                raise CutError(f"link {link}: there is no network {network!r}; there are {', '.join(alone)}")
        source, target = alone[link.source[0]], alone[link.target[0]]
        if source is target:
            raise CutError(f"link {link}: a network can not feed itself within one frame")
        side, position = source.ports.find_any(link.source[1], f"link {link}")
        place = target.ports.find("inputs", link.target[1], f"link {link}")
        if place in feeds[target.name]:
            raise CutError(f"link {link}: this input is already linked")
        made, wanted = source.ports.record(side, position), target.ports.record("inputs", place)
        _check_fit(link, made, wanted)
        feeds[target.name][place] = _Feed(source.name, side, position, made.shape != wanted.shape)
    return feeds


def _check_fit(link: NetworkLink, made: Tensor, wanted: Tensor) -> None:
    ours, theirs = dtype_name(made.type), dtype_name(wanted.type)
    if ours != theirs:
        raise CutError(f"link {link}: the output is {ours}, the input takes {theirs}")
    for tensor, what in ((made, "output"), (wanted, "input")):
        if any(size < 0 for size in (*(tensor.shape_signature or ()), *(tensor.shape or ()))):
            raise CutError(
                f"link {link}: a size of the {what} is only known at run time; fix it first "
                "(shapes of the network, --shape)"
            )
    shapes = [list(tensor.shape or ()) for tensor in (made, wanted)]
    if shapes[0] != shapes[1]:
        text = f"link {link}: the output is {shapes[0]}, the input takes {shapes[1]}"
        if math.prod(shapes[0]) != math.prod(shapes[1]):
            raise CutError(text)
        if not link.reshape:
            raise CutError(
                f"{text}; both have as many elements: say 'reshape: true' (--reshape) if that is meant"
            )
    if _scaling(made) != _scaling(wanted):
        raise CutError(
            f"link {link}: the two are quantised in different ways, (scale, zero point) "
            f"{_scaling(made)} and {_scaling(wanted)}: the values would be misread"
        )


def _scaling(tensor: Tensor) -> tuple[tuple[float, ...], tuple[int, ...]]:
    found = tensor.quantization
    if found is None or not found.scale:
        return (), ()
    return tuple(found.scale), tuple(found.zero_point or ())


def _order(names: list[str], links: Sequence[NetworkLink]) -> list[str]:
    """Order networks so that each comes after those that feed it, else as given."""
    waits = {name: {link.source[0] for link in links if link.target[0] == name} for name in names}
    order: list[str] = []
    while len(order) < len(names):
        ready = [name for name in names if name not in order and waits[name] <= set(order)]
        if not ready:
            left = [name for name in names if name not in order]
            raise CutError(f"the networks {', '.join(left)} feed each other in a circle, so none can start")
        order.append(ready[0])
    return order


class _Merger:
    """Lays networks one behind the other, everything renumbered."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._operators: list[Operator] = []
        self._bodies: list[SubGraph] = []
        self._buffers: list[Buffer] = [Buffer()]
        self._codes: dict[OperatorCode, int] = {}
        self._ports: dict[str, dict[Side, list[int]]] = {}
        self._port_names: dict[str, NetworkPorts] = {}
        self._given: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}
        self._table_ids: dict[tuple[str, int], int] = {}
        self._runtime_versions: list[bytes] = []
        self._unknown = False

    def add(self, network: _Alone, feeds: Mapping[int, _Feed]) -> None:
        """Add a network; those that feed it are there already."""
        model, main = network.model, network.model.subgraphs[0]
        before = len(self._operators)
        buffers = self._add_buffers(model)
        replaced: dict[int, int] = {}
        for position, feed in feeds.items():
            source = self._ports[feed.source][feed.side][feed.position]
            if not feed.reshape:
                replaced[main.inputs[position]] = source
        kept = [index for index in range(len(main.tensors)) if index not in replaced]
        numbers = {-1: -1, **replaced}
        numbers.update((old, len(self._tensors) + new) for new, old in enumerate(kept))
        for index in kept:
            tensor = _tensor(main.tensors[index], buffers, numbers)
            self._tensors.append(replace(tensor, name=f"{network.name}/{tensor.name or f'tensor_{index}'}"))
        linked = {main.inputs[position] for position in feeds}
        for position, feed in feeds.items():
            if feed.reshape:
                source = self._ports[feed.source][feed.side][feed.position]
                self._reshape(source, numbers[main.inputs[position]])
        # No operator can name the main subgraph: nothing may call itself.
        bodies = {old: len(self._bodies) + old for old in range(1, len(model.subgraphs))}
        self._operators += [self._operator(network, operator, numbers, bodies) for operator in main.operators]
        self._bodies += [self._body(network, body, buffers, bodies) for body in model.subgraphs[1:]]
        ports: dict[Side, list[int]] = {
            "inputs": [numbers[index] for index in main.inputs],
            "outputs": [numbers[index] for index in main.outputs],
        }
        self._ports[network.name] = ports
        self._port_names[network.name] = network.ports
        self._given[network.name] = [place for place, index in enumerate(main.inputs) if index not in linked]
        self._counts[network.name] = len(self._operators) - before
        self._runtime_versions += network.runtime_versions
        self._unknown = self._unknown or model.unknown

    def model(self, names: Sequence[str]) -> Model:
        """Return the whole; inputs and outputs by network in this order."""
        inputs = [self._port(name, "inputs", place) for name in names for place in self._given[name]]
        outputs = [
            self._port(name, "outputs", place)
            for name in names
            for place in range(len(self._ports[name]["outputs"]))
        ]
        main = SubGraph(
            tensors=tuple(self._tensors),
            inputs=tuple(dict.fromkeys(entry.tensor_index for entry in inputs)),
            outputs=tuple(dict.fromkeys(entry.tensor_index for entry in outputs)),
            operators=tuple(self._operators),
            name="main",
        )
        metadata = self._metadata()
        return Model(
            subgraphs=(main, *self._bodies),
            operator_codes=tuple(self._codes),
            metadata=metadata,
            buffers=tuple(self._buffers),
            description=f"workload of {', '.join(names)}",
            signature_defs=(SignatureDef(tuple(inputs), tuple(outputs), SIGNATURE),),
            unknown=self._unknown,
        )

    def _port(self, network: str, side: Side, place: int) -> TensorMap:
        name = self._port_names[network].name(side, place)
        return TensorMap(f"{network}/{name}", self._ports[network][side][place])

    def _metadata(self) -> tuple[Metadata, ...]:
        """Return the metadata; their contents become buffers."""
        found = []
        if self._runtime_versions:
            found.append(Metadata(_RUNTIME_VERSION, len(self._buffers)))
            self._buffers.append(Buffer(max(self._runtime_versions, key=_version)))
        note, content = networks_note(list(self._counts), list(self._counts.values()), len(self._buffers))
        self._buffers.append(content)
        return (*found, note)

    def _add_buffers(self, model: Model) -> dict[int, int]:
        """Return new numbers of a model's buffers."""
        numbers = {0: 0, **{old: len(self._buffers) + old - 1 for old in range(1, len(model.buffers))}}
        self._buffers += model.buffers[1:]
        return numbers

    def _code(self, code: OperatorCode) -> int:
        return self._codes.setdefault(code, len(self._codes))

    def _reshape(self, source: int, target: int) -> None:
        """Add an operator that gives a tensor the shape of a linked input."""
        shape = self._tensors[target].shape or ()
        self._buffers.append(Buffer(np.asarray(shape, "<i4").tobytes()))
        name = f"{self._tensors[target].name}/shape"
        number = enum_value("TensorType", "INT32")
        self._tensors.append(
            Tensor(shape=(len(shape),), type=number, buffer=len(self._buffers) - 1, name=name)
        )
        self._operators.append(
            Operator(
                opcode_index=self._code(OperatorCode(builtin("RESHAPE"))),
                inputs=(source, len(self._tensors) - 1),
                outputs=(target,),
                builtin_options=Options("ReshapeOptions", {"new_shape": shape}),
            )
        )

    def _body(
        self, network: _Alone, body: SubGraph, buffers: dict[int, int], bodies: dict[int, int]
    ) -> SubGraph:
        same = {index: index for index in range(-1, len(body.tensors))}
        return replace(
            body,
            name=f"{network.name}/{body.name or 'body'}",
            tensors=tuple(_tensor(tensor, buffers, same) for tensor in body.tensors),
            operators=tuple(self._operator(network, operator, same, bodies) for operator in body.operators),
        )

    def _operator(
        self, network: _Alone, operator: Operator, numbers: dict[int, int], bodies: dict[int, int]
    ) -> Operator:
        model = network.model
        options = renumber_subgraphs(operator.builtin_options, bodies)
        name = operator_name(model, operator)
        if name == "VAR_HANDLE":
            fields = {} if options is None else dict(options.fields)
            fields["container"] = f"{network.name}/{fields.get('container', '')}"
            options = Options("VarHandleOptions", fields)
        elif name == "HASHTABLE":
            fields = {} if options is None else dict(options.fields)
            fields["table_id"] = self._table_id(network.name, int(fields.get("table_id", 0)))
            options = Options("HashtableOptions", fields)
        return replace(
            operator,
            opcode_index=self._code(model.operator_codes[operator.opcode_index]),
            inputs=tuple(numbers[index] for index in operator.inputs),
            outputs=tuple(numbers[index] for index in operator.outputs),
            intermediates=None
            if operator.intermediates is None
            else tuple(numbers[index] for index in operator.intermediates),
            builtin_options=options,
            builtin_options_2=renumber_subgraphs(operator.builtin_options_2, bodies),
        )

    def _table_id(self, network: str, old: int) -> int:
        """Return a number of its own for a hash table, far from the small numbers of variables."""
        if (network, old) not in self._table_ids:
            number = zlib.crc32(f"{network}/{old}".encode()) & _MAX_TABLE_ID
            while number in self._table_ids.values():
                number = (number + 1) & _MAX_TABLE_ID
            self._table_ids[network, old] = number
        return self._table_ids[network, old]


def _tensor(tensor: Tensor, buffers: Mapping[int, int], numbers: Mapping[int, int]) -> Tensor:
    tensor = replace(tensor, buffer=buffers[tensor.buffer])
    named = quantization_tensors(tensor)
    quantization = tensor.quantization
    if not named or quantization is None or quantization.details is None:
        return tensor
    fields = {**quantization.details.fields, **{field: numbers[index] for field, index in named}}
    details = Options(quantization.details.table, fields)
    return replace(tensor, quantization=replace(quantization, details=details))


def _version(text: bytes) -> tuple[int, ...]:
    """Read ``2.3.0``, filled up with zero bytes; what is no version counts as the oldest."""
    parts = text.rstrip(b"\0").split(b".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
