"""Which operators a delegate runs together, and in which order: the runtime's rule, replayed.

The runtime parts the operators of a graph into epochs.  An epoch takes, in execution order and
again and again until nothing changes, every operator whose inputs are there and that is of the
epoch's kind (delegated or not); the first operator that is ready sets the kind.  (The rule is that
of ``PartitionGraphIntoIndependentNodeSubsets`` in TensorFlow Lite's ``graph_info.h``.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: its number, and the tensors that it needs and makes (no optional ones)."""

    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Operators that run one after the other; delegated ones run as one."""

    delegated: bool
    operators: tuple[int, ...]


def epochs(nodes: Sequence[Node], ready: Collection[int], delegated: Collection[int]) -> tuple[Epoch, ...]:
    """Replay the partitioning of a graph.

    Parameters
    ----------
    nodes
        In execution order.
    ready
        Tensors that are there from the start: inputs, constants, variables.
    delegated
        Numbers of the operators that the delegate takes.

    Returns
    -------
    tuple of Epoch
        In execution order.  Operators whose inputs never come (a damaged model) are left out.
    """
    there = set(ready)
    waiting = list(nodes)
    taken = set(delegated)
    found: list[Epoch] = []
    while waiting:
        members: list[int] = []
        kind: bool | None = None
        moved = True
        while moved:
            moved, left = False, []
            for node in waiting:
                of_kind = node.index in taken
                if (kind is None or of_kind == kind) and there.issuperset(node.inputs):
                    kind = of_kind
                    members.append(node.index)
                    there.update(node.outputs)
                    moved = True
                else:
                    left.append(node)
            waiting = left
        if kind is None:
            break
        found.append(Epoch(kind, tuple(members)))
    return tuple(found)
