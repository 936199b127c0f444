"""Mappings as text, and locks that end with the process that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from solvers.mapping import Lane, Mapping, Stage


def to_text(mapping: Mapping) -> str:
    """Write a mapping as one line of JSON."""
    return json.dumps(
        [[[list(stage.layers), stage.slot, stage.unit] for stage in lane.stages] for lane in mapping.lanes]
    )


def from_text(text: str) -> Mapping:
    """Read what ``to_text`` wrote."""
    return Mapping(
        tuple(
            Lane(tuple(Stage(tuple(layers), slot, unit) for layers, slot, unit in lane))
            for lane in json.loads(text)
        )
    )


@contextmanager
def file_lock(storage: Path | None, suffix: str, *, exclusive: bool, wait: bool = True) -> Iterator[bool]:
    """Lock a file beside the storage; yields whether the lock was got (always, when waiting)."""
    if storage is None:
        yield True
        return
    import fcntl

    with storage.with_name(storage.name + suffix).open("a") as file:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
