"""A model as a graph of layers: what every other part reasons about.

No bytes of a file are held here; ``layer.operators`` leads back to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

NETWORK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Form of a network's name; it has no slash, which ends the name in the names of tensors."""

TensorKind = Literal["input", "activation", "constant", "variable"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the main subgraph.

    Parameters
    ----------
    index
        Index in the file's main subgraph (not dense over the graph: constants are there too).
    name
        As in the file.
    dtype
        Lower-case name of the element type, for example ``float32``, ``int4``.
    shape
        Shape with placeholders resolved.
    dynamic
        Whether the file says that some dimension is only known at run time.
    n_bytes
        Size of the values: by bits for sub-byte types, by the buffer for sparse constants.
    kind
        ``constant`` also covers what is computed from constants only.
    """

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    kind: TensorKind
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator together with the operators that only prepare its constants.

    Parameters
    ----------
    index
        Dense, in execution order (a topological order).
    name
        Name of the first output tensor: unique enough for people.
    op
        Operator type, for example ``CONV_2D`` or ``CUSTOM:Name``.
    operators
        Operator indices in the main subgraph, in execution order; the last is the layer itself,
        those before it are constant operators.
    inputs, outputs
        Tensor indices; optional inputs and constants are left out of ``inputs``.
    constants
        Tensor indices of constants that live in a buffer (what a stage has to ship).
    macs
        Multiply-accumulates, or None when no formula is known (never 0 for "unknown").
    element_ops
        Other arithmetic on elements, or None.
    weight_bytes
        Sum over ``constants``.
    key
        Equal keys mean: same operator, options, shapes and types, so equal cost.
    group
        Layers with one group number share state and must sit in one stage; None for no state.
    """

    index: int
    name: str
    op: str
    operators: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]
    macs: int | None
    element_ops: int | None
    weight_bytes: int
    key: str
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """One of the models that a workload runs for every frame.

    Parameters
    ----------
    name
        Also the start of the names of its tensors and layers: ``detection/...``.
    layers
        Indices of its layers, ascending.
    """

    name: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A tensor of one network that another network takes as its input.

    Parameters
    ----------
    source
        Network and tensor: an output of it, or one of its inputs (then both get the same values).
    target
        Network and its input.
    reshape
        The input has another shape with as many elements: the values are taken in their order.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    reshape: bool = False

    def __str__(self) -> str:
        return f"{'/'.join(self.source)} -> {'/'.join(self.target)}"


@dataclass(frozen=True)
class LayerGraph:
    """A model as layers and the tensors between them.

    Parameters
    ----------
    name
        Usually the stem of the file.
    layers
        In execution order.
    tensors
        By tensor index of the main subgraph.
    inputs, outputs
        Tensor indices, in the model's own order.
    stateful
        Whether frames depend on earlier frames.
    shared
        What each group of layers shares, in words, by group number.
    networks
        The models of a workload; empty for a plain model.
    """

    name: str
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stateful: bool = False
    shared: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @cached_property
    def producer(self) -> dict[int, int]:
        """Layer index by the tensor index that it produces."""
        return {tensor: layer.index for layer in self.layers for tensor in layer.outputs}

    @cached_property
    def consumers(self) -> dict[int, tuple[int, ...]]:
        """Layer indices by the tensor index that they use; each layer once."""
        found: dict[int, list[int]] = {}
        for layer in self.layers:
            for tensor in dict.fromkeys(layer.inputs):
                found.setdefault(tensor, []).append(layer.index)
        return {tensor: tuple(users) for tensor, users in found.items()}

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer layer, consumer layer), each once, sorted."""
        pairs = {
            (self.producer[tensor], user)
            for tensor, users in self.consumers.items()
            if tensor in self.producer
            for user in users
        }
        return tuple(sorted(pairs))

    def networks_of(self, layers: Collection[int]) -> tuple[str, ...]:
        """Return the names of the networks that have some of these layers; none for a plain model."""
        inside = set(layers)
        return tuple(network.name for network in self.networks if not inside.isdisjoint(network.layers))

    @property
    def macs(self) -> int | None:
        """Sum over the layers, or None when one of them is unknown."""
        total = 0
        for layer in self.layers:
            if layer.macs is None:
                return None
            total += layer.macs
        return total

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all constants, each buffer-backed tensor once."""
        used = {tensor for layer in self.layers for tensor in layer.constants}
        return sum(self.tensors[tensor].n_bytes for tensor in used)


def label_of(stage: str, networks: Collection[str]) -> str:
    """Return a stage's name with the networks that it works for, as in ``hand+face (lane0.stage1)``."""
    return f"{'+'.join(networks)} ({stage})" if networks else stage
