"""Which operators of a merged model belong to which network: a note among the model's metadata."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence

from dse.flatbuffer.records import Buffer, Metadata, Model
from dse.graph import NETWORK_NAME, Network

METADATA_NAME = "tflite-dse networks"
_MAX_NOTE_BYTES = 1 << 20


def networks_note(names: Sequence[str], n_operators: Sequence[int], buffer: int) -> tuple[Metadata, Buffer]:
    """Return the note for networks whose operators follow each other in the main subgraph."""
    networks = [{"name": name, "n_operators": n} for name, n in zip(names, n_operators, strict=True)]
    return Metadata(METADATA_NAME, buffer), Buffer(json.dumps({"networks": networks}).encode())


def has_note(model: Model) -> bool:
    """Whether the model says that it is a workload of several networks."""
    return any(entry.name == METADATA_NAME for entry in model.metadata)


def read_networks(model: Model, layers: Sequence[Sequence[int]]) -> tuple[Network, ...]:
    """Return the networks of a model.

    Parameters
    ----------
    model
        A checked model.
    layers
        Operators of each layer, the layer itself last.

    Returns
    -------
    tuple of Network
        Empty for a plain model, and where the note does not fit: another tool may have changed the
        operators since.
    """
    borders = _borders(model)
    if borders is None:
        return ()
    members: list[list[int]] = [[] for _ in borders]
    ends = [end for _, end in borders]
    for index, operators in enumerate(layers):
        members[bisect_right(ends, operators[-1])].append(index)
    return tuple(Network(name, tuple(own)) for (name, _), own in zip(borders, members, strict=True))


def _borders(model: Model) -> list[tuple[str, int]] | None:
    """Return each network's name and the operator behind its last one; None without a fitting note."""
    found = [entry for entry in model.metadata if entry.name == METADATA_NAME]
    data = model.buffers[found[0].buffer].data if len(found) == 1 else None
    if data is None or len(data) > _MAX_NOTE_BYTES:
        return None
    try:
        listed = json.loads(bytes(data).decode())["networks"]
        counts = [(entry["name"], entry["n_operators"]) for entry in listed]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    borders: list[tuple[str, int]] = []
    end = 0
    for name, n in counts:
        if not isinstance(name, str) or not NETWORK_NAME.fullmatch(name) or type(n) is not int or n < 0:
            return None
        end += n
        borders.append((name, end))
    names = {name for name, _ in borders}
    fits = borders and len(names) == len(borders) and end == len(model.subgraphs[0].operators)
    return borders if fits else None
