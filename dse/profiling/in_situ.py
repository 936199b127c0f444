"""Layer times from inside the whole model: what the runtime's own profiler says, layer by layer.

Each kernel is timed in its true cache state and fusion.  The profiler tells operators by their
number and kernels by their order in a delegate, so kernels are aligned with layers by order and
kind (``partition``, ``kernels``); where that does not work out, the layers stay unresolved and are
timed on their own instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.graph import Layer, LayerGraph
from dse.profiling.kernels import align
from dse.profiling.partition import Epoch, Node, epochs
from dse.profiling.slot_worker import Piece

if TYPE_CHECKING:
    from dse.flatbuffer.records import Model

OPERATOR, KERNEL = 2, 8
# What an operator that has no kernel of its own has become part of.
_INTO_NEXT = frozenset({"PAD", "DEQUANTIZE", "TRANSPOSE", "MUL", "SQUARE", "READ_VARIABLE", "VAR_HANDLE"})


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a layer's time is.

    Parameters
    ----------
    pieces
        Positions in the profiler's list; empty for a layer that runs inside another's kernel.
    host
        That other layer's index, when it is known.
    """

    pieces: tuple[int, ...]
    host: int | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where the time of each layer is.

    Parameters
    ----------
    layers
        By layer index; layers that are not in it are not resolved.
    reason
        Why some layers are not resolved, else empty.
    """

    layers: Mapping[int, Resolved]
    reason: str = ""


def resolve(model: Model, graph: LayerGraph, pieces: Sequence[Piece]) -> Resolution:
    """Align what the profiler timed with the layers of a model.

    Parameters
    ----------
    model
        The file that was profiled.
    graph
        Its layers.
    pieces
        What was timed, in execution order.
    """
    own = [piece.index for piece in pieces if piece.kind == OPERATOR]
    steps = _steps(pieces)
    expected = _epochs(model, own)
    if not _fits(steps, expected):
        return Resolution({}, "the order of operators and kernels is not the one that was expected")
    users = _users(graph)
    found: dict[int, list[int]] = {}
    vanished: list[Layer] = []
    unresolved: list[str] = []
    at = 0
    for epoch in expected:
        if not epoch.delegated:
            for operator in epoch.operators:
                # One that only prepares constants counts once, for the first layer that uses it.
                layer = _main(users, operator) or next(iter(users.get(operator, ())), None)
                if layer is not None:
                    found.setdefault(layer.index, []).extend(steps[at].positions)
                at += 1
            continue
        positions = steps[at].positions
        at += 1
        inside = [main for operator in epoch.operators if (main := _main(users, operator)) is not None]
        shares = align([layer.op for layer in inside], [pieces[position].tag for position in positions])
        if shares is None:
            unresolved.append(f"{len(inside)} layers and {len(positions)} kernels do not fit together")
            for member in inside:
                found.pop(member.index, None)
            continue
        for member, share in zip(inside, shares, strict=True):
            found.setdefault(member.index, []).extend(positions[share.start : share.stop])
            if share.vanished:
                vanished.append(member)
    hosts = {layer.index: _host(graph, layer, vanished) for layer in vanished}
    layers = {
        index: Resolved(tuple(places), None if places else hosts.get(index))
        for index, places in found.items()
    }
    return Resolution(layers, "; ".join(unresolved))


@dataclass(frozen=True, slots=True)
class _Step:
    """An operator (its number), or a delegate (None), and the positions of what it was timed as."""

    operator: int | None
    positions: tuple[int, ...]


def _steps(pieces: Sequence[Piece]) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for position, piece in enumerate(pieces):
        if piece.kind == OPERATOR:
            steps.append(_Step(piece.index, (position,)))
        elif steps and steps[-1].operator is None and piece.index > 0:
            steps[-1] = _Step(None, (*steps[-1].positions, position))
        else:
            steps.append(_Step(None, (position,)))
    return tuple(steps)


def _epochs(model: Model, own: Sequence[int]) -> tuple[Epoch, ...]:
    main = model.subgraphs[0]
    nodes = [
        Node(index, tuple(tensor for tensor in operator.inputs if tensor >= 0), operator.outputs)
        for index, operator in enumerate(main.operators)
    ]
    made = {tensor for node in nodes for tensor in node.outputs}
    ready = [tensor for tensor in range(len(main.tensors)) if tensor not in made]
    alone = set(own)
    return epochs(nodes, ready, [node.index for node in nodes if node.index not in alone])


def _fits(steps: Sequence[_Step], expected: Sequence[Epoch]) -> bool:
    order: list[int | None] = []
    for epoch in expected:
        order.extend([None] if epoch.delegated else epoch.operators)
    return [step.operator for step in steps] == order


def _users(graph: LayerGraph) -> dict[int, list[Layer]]:
    users: dict[int, list[Layer]] = {}
    for layer in graph.layers:
        for operator in layer.operators:
            users.setdefault(operator, []).append(layer)
    return users


def _main(users: Mapping[int, Sequence[Layer]], operator: int) -> Layer | None:
    """Return the layer that an operator is, or None for one that only prepares constants."""
    return next((layer for layer in users.get(operator, ()) if layer.operators[-1] == operator), None)


def _host(graph: LayerGraph, layer: Layer, vanished: Sequence[Layer]) -> int | None:
    """Return the layer whose kernel does a vanished layer's work: the user, or the producer."""
    gone = {other.index for other in vanished}
    if layer.op in _INTO_NEXT:
        near = [user for tensor in layer.outputs for user in graph.consumers.get(tensor, ())]
    else:
        near = [graph.producer[tensor] for tensor in layer.inputs if tensor in graph.producer]
    return next((index for index in near if index not in gone), None)
