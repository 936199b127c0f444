"""State between invocations: who reads it, who changes it, who initialises it.

State lives in variable tensors (fused LSTM, SVDF) and behind resource handles (variables, hash
tables), which CALL_ONCE initialises.  Handles are made by operators that cost nothing, so every user
gets its own copy; only layers that share state which something changes must stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.errors import ModelError
from dse.flatbuffer.operators import HANDLES, RANDOM, WRITES_STATE, clean, operator_name, operator_subgraphs
from dse.flatbuffer.records import Model, Operator
from dse.flatbuffer.schema import enum_value

# A resource, named as the runtime names it: kind, container (or table number), shared name.
Resource = tuple[str, str, str]
_MAX_ENTRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class Effects:
    """What an operator does to state, itself and through the subgraphs that it runs.

    Parameters
    ----------
    reads, writes
        Resources that it uses, and those of them that it may change.
    variables
        Variable tensors of other subgraphs, as (subgraph, tensor).
    """

    reads: frozenset[Resource]
    writes: frozenset[Resource]
    variables: frozenset[tuple[int, int]] = frozenset()


def resource_of(operator: Operator, name: str) -> Resource:
    """Return the resource that a VAR_HANDLE or HASHTABLE operator names."""
    options = operator.builtin_options
    if options is None:
        return name, "", ""
    if name == "HASHTABLE":
        return name, str(options.get("table_id")), ""
    return name, clean(options.get("container", "")), clean(options.get("shared_name", ""))


def describe(resource: Resource) -> str:
    """Return a resource's name for people."""
    kind, container, shared_name = resource
    if kind == "HASHTABLE":
        return f"hash table {container}"
    return f"variable {shared_name or '(unnamed)'!r}" + (f" in container {container!r}" if container else "")


def operator_effects(model: Model, subgraph_index: int = 0) -> list[Effects]:
    """Return the effects of each operator of a subgraph.

    Raises
    ------
    ModelError
        The operators use so many resources in so many ways that no real model can be meant.

    Notes
    -----
    Handles are followed through tensors: a resource tensor that an operator makes (WHILE hands
    them through) may be any of those that came in.  The checks exclude circles among subgraphs, so
    the recursion ends.
    """
    return _EffectsFinder(model).subgraph(subgraph_index, {})


class _EffectsFinder:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._handle_types = {enum_value("TensorType", name) for name in ("RESOURCE", "VARIANT")}
        # A body's effects depend on the resources that are handed to it.
        self._bodies: dict[tuple[int, tuple[frozenset[Resource], ...]], Effects] = {}
        self._left = _MAX_ENTRIES

    def subgraph(self, index: int, given: dict[int, frozenset[Resource]]) -> list[Effects]:
        """Return effects by operator; ``given`` holds resources of the subgraph's inputs."""
        subgraph = self._model.subgraphs[index]
        held = dict(given)
        found: list[Effects] = []
        for operator in subgraph.operators:
            name = operator_name(self._model, operator)
            if name in HANDLES:
                resource = frozenset({resource_of(operator, name)})
                held.update(dict.fromkeys(operator.outputs, resource))
                found.append(Effects(resource, frozenset()))
                continue
            effects = self._operator(operator, name, held)
            self._left -= 1 + len(effects.reads) + len(effects.variables)
            if self._left < 0:
                raise ModelError(f"operators use resources in more than {_MAX_ENTRIES} ways")
            for tensor in operator.outputs:
                if tensor >= 0 and subgraph.tensors[tensor].type in self._handle_types:
                    held[tensor] = effects.reads
            found.append(effects)
        return found

    def _operator(self, operator: Operator, name: str, held: dict[int, frozenset[Resource]]) -> Effects:
        reads = frozenset().union(*(held.get(index, frozenset()) for index in operator.inputs))
        writes = reads if _may_write(name) else frozenset()
        variables: frozenset[tuple[int, int]] = frozenset()
        for called in operator_subgraphs(operator):
            inner = self._body(called, operator, held)
            reads, writes, variables = reads | inner.reads, writes | inner.writes, variables | inner.variables
        return Effects(reads, writes, variables)

    def _body(self, called: int, operator: Operator, held: dict[int, frozenset[Resource]]) -> Effects:
        body = self._model.subgraphs[called]
        # IF has its condition in front of the branch's arguments: align from the end.
        arguments = operator.inputs[-len(body.inputs) :] if body.inputs else ()
        handed = tuple(held.get(index, frozenset()) for index in arguments)
        key = (called, handed)
        if key not in self._bodies:
            inner = self.subgraph(called, dict(zip(body.inputs, handed)))
            own = frozenset((called, i) for i, tensor in enumerate(body.tensors) if tensor.is_variable)
            self._bodies[key] = Effects(
                frozenset().union(*(effects.reads for effects in inner)),
                frozenset().union(*(effects.writes for effects in inner)),
                own.union(*(effects.variables for effects in inner)),
            )
        return self._bodies[key]


def _may_write(name: str) -> bool:
    # What a custom operator does with a handle is not known: assume that it writes.
    return name in WRITES_STATE or name.startswith(("CUSTOM:", "BUILTIN_"))


def is_initialiser(model: Model, operator: Operator) -> bool:
    """Whether an operator is a CALL_ONCE that only sets resources to constants.

    Such an operator can be copied, like a constant, to every stage that uses one of its resources.
    """
    if operator_name(model, operator) != "CALL_ONCE" or operator.inputs or operator.outputs:
        return False
    bodies = [model.subgraphs[called] for called in operator_subgraphs(operator)]
    return all(
        not body.inputs
        and all(
            _only_prepares(operator_name(model, inner)) and not operator_subgraphs(inner)
            for inner in body.operators
        )
        for body in bodies
    )


def _only_prepares(name: str) -> bool:
    return name not in RANDOM and not name.startswith(("CUSTOM:", "BUILTIN_")) and name != "READ_VARIABLE"
