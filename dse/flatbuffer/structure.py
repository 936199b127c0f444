"""Which operators are layers, which only prepare something for them, and which belong together.

An operator all of whose inputs are constants, directly or through other such operators, prepares a
constant: DEQUANTIZE and DENSIFY of weights, mostly.  Handles of resources and their initialisers
likewise only prepare.  Such operators are copied to each layer that needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.errors import ModelError
from dse.flatbuffer.checks import is_constant
from dse.flatbuffer.operators import CONTROL_FLOW, HANDLES, RANDOM, READS_STATE, WRITES_STATE, operator_name
from dse.flatbuffer.records import Model
from dse.flatbuffer.sizes import HANDLE_TYPES, dtype_name
from dse.flatbuffer.state import Effects, Resource, is_initialiser, operator_effects

# Constants are prepared by a handful of operators each.
_MAX_ENTRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class Structure:
    """The main subgraph taken apart.

    Parameters
    ----------
    names
        Type of each operator.
    stored
        Tensors whose value is in the file.
    prepared
        Tensors that preparing operators make: constants and handles.
    layers
        Operators of each layer, the layer itself last.
    groups
        Group of each layer, or None.
    shared
        What each group shares, in words, by group.
    stateful
        Whether a frame can depend on an earlier one.
    """

    names: tuple[str, ...]
    stored: frozenset[int]
    prepared: frozenset[int]
    layers: tuple[tuple[int, ...], ...]
    groups: tuple[int | None, ...]
    shared: tuple[frozenset[Resource], ...]
    stateful: bool


def build_structure(model: Model) -> Structure:
    """Take the main subgraph of a checked model apart."""
    main = model.subgraphs[0]
    names = tuple(operator_name(model, operator) for operator in main.operators)
    stored = frozenset(i for i, tensor in enumerate(main.tensors) if is_constant(model, tensor))
    given = _never_made(model) | stored
    preparing, prepared = _preparing(model, names, given)
    maker = {index: number for number in preparing for index in main.operators[number].outputs}
    effects = operator_effects(model)
    initialisers = {
        number for number, operator in enumerate(main.operators) if is_initialiser(model, operator)
    }
    initialisers_of: dict[Resource, list[int]] = {}
    for number in sorted(initialisers):
        for resource in effects[number].writes:
            initialisers_of.setdefault(resource, []).append(number)
    outputs = set(main.outputs)
    layers: list[tuple[int, ...]] = []
    n_entries = 0
    for number, operator in enumerate(main.operators):
        needed_by_outside = not outputs.isdisjoint(operator.outputs)
        if number in initialisers or (number in preparing and not needed_by_outside):
            continue
        helpers = _helpers(model, number, maker)
        touched = effects[number].reads | effects[number].writes
        helpers.update(other for resource in touched for other in initialisers_of.get(resource, ()))
        layers.append((*sorted(helpers), number))
        n_entries += len(layers[-1])
        if n_entries > _MAX_ENTRIES:
            raise ModelError(
                f"the layers depend on more than {_MAX_ENTRIES} operators that prepare constants, "
                "counted for each layer"
            )
    changed = frozenset().union(*(effects[layer[-1]].writes for layer in layers))
    groups, shared, stateful = _groups(model, layers, effects, changed, prepared)
    return Structure(
        names=names,
        stored=stored,
        prepared=frozenset(prepared),
        layers=tuple(layers),
        groups=groups,
        shared=shared,
        stateful=stateful,
    )


def _never_made(model: Model) -> frozenset[int]:
    """Tensors without value and without maker: undefined memory, best kept beside their user."""
    main = model.subgraphs[0]
    made = set(main.inputs).union(*(operator.outputs for operator in main.operators))
    return frozenset(
        index for index, tensor in enumerate(main.tensors) if index not in made and not tensor.is_variable
    )


def _preparing(model: Model, names: tuple[str, ...], given: frozenset[int]) -> tuple[set[int], set[int]]:
    """Return the preparing operators and the tensors that they make; one pass in execution order."""
    main = model.subgraphs[0]
    operators: set[int] = set()
    tensors: set[int] = set()
    for number, operator in enumerate(main.operators):
        if names[number] not in HANDLES:
            if not _is_pure(names[number]):
                continue
            if any(i >= 0 and i not in given and i not in tensors for i in operator.inputs):
                continue
            if any(main.tensors[i].is_variable for i in operator.outputs if i >= 0):
                continue
        operators.add(number)
        tensors.update(index for index in operator.outputs if index >= 0)
    return operators, tensors


def _is_pure(name: str) -> bool:
    """Whether equal inputs surely give equal outputs and nothing else happens."""
    impure = name in RANDOM or name in CONTROL_FLOW or name in READS_STATE or name in WRITES_STATE
    return not impure and not name.startswith(("CUSTOM:", "BUILTIN_"))


def _helpers(model: Model, number: int, maker: dict[int, int]) -> set[int]:
    """Return the preparing operators that an operator depends on, directly or not."""
    operators = model.subgraphs[0].operators
    found: set[int] = set()
    waiting = [number]
    while waiting:
        for index in operators[waiting.pop()].inputs:
            helper = maker.get(index)
            if helper is not None and helper not in found and helper != number:
                found.add(helper)
                waiting.append(helper)
    return found


def _groups(
    model: Model,
    layers: list[tuple[int, ...]],
    effects: list[Effects],
    changed: frozenset[Resource],
    prepared: set[int],
) -> tuple[tuple[int | None, ...], tuple[frozenset[Resource], ...], bool]:
    """Join layers that share something which can not be in two stages."""
    main = model.subgraphs[0]
    # Each thing that is shared, with the layers that use it.
    users: dict[object, list[int]] = {}
    resources: dict[int, set[Resource]] = {}
    stateful = False
    for layer, numbers in enumerate(layers):
        operator, effect = main.operators[numbers[-1]], effects[numbers[-1]]
        for index in {i for i in (*operator.inputs, *operator.outputs) if i >= 0}:
            tensor = main.tensors[index]
            handle = dtype_name(tensor.type) in HANDLE_TYPES and index not in prepared
            if tensor.is_variable or handle:
                users.setdefault(("tensor", index), []).append(layer)
                stateful = stateful or tensor.is_variable
        for resource in sorted((effect.reads | effect.writes) & changed):
            users.setdefault(resource, []).append(layer)
            resources.setdefault(layer, set()).add(resource)
            stateful = True
        for variable in sorted(effect.variables):
            users.setdefault(("variable", *variable), []).append(layer)
            stateful = True
    parent = list(range(len(layers)))

    def root(layer: int) -> int:
        while parent[layer] != layer:
            parent[layer] = parent[parent[layer]]
            layer = parent[layer]
        return layer

    members: set[int] = set()
    for together in users.values():
        members.update(together)
        for layer in together[1:]:
            first, second = sorted((root(together[0]), root(layer)))
            parent[second] = first
    numbers_by_root: dict[int, int] = {}
    groups: list[int | None] = []
    for layer in range(len(layers)):
        groups.append(
            numbers_by_root.setdefault(root(layer), len(numbers_by_root)) if layer in members else None
        )
    shared: list[set[Resource]] = [set() for _ in numbers_by_root]
    for layer, found in resources.items():
        group = groups[layer]
        if group is not None:
            shared[group] |= found
    return tuple(groups), tuple(frozenset(found) for found in shared), stateful
