"""Getting an architecture by name: its parameters checked, drawn, built, or written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dse.errors import InputError
from dse.files import write_bytes
from dse.flatbuffer import records
from dse.zoo.assemble import assemble
from dse.zoo.catalogue import ZOO
from dse.zoo.draft import Draft
from dse.zoo.entries import ZooEntry

__all__ = ["ZOO", "build", "build_file", "draw", "resolve"]


def resolve(name: str, parameters: Mapping[str, int] | None = None) -> tuple[ZooEntry, dict[str, int]]:
    """Find an architecture and complete its parameters.

    Raises
    ------
    InputError
        Unknown name or parameter, or a value out of range; the message lists what there is.
    """
    entry = ZOO.get(name)
    if entry is None:
        raise InputError(f"no architecture named {name!r} in the zoo; there are: {', '.join(ZOO)}")
    complete = entry.parameters
    for key, value in (parameters or {}).items():
        setting = entry.settings.get(key)
        if setting is None:
            raise InputError(f"{name} has no parameter {key!r}; it has: {', '.join(entry.settings)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{name}: {key} must be a whole number, got {value!r}")
        if not setting.low <= value <= setting.high:
            raise InputError(
                f"{name}: {key} must be between {setting.low} and {setting.high}, got {value}; "
                f"it is: {setting.meaning}"
            )
        complete[key] = value
    return entry, complete


def draw(name: str, parameters: Mapping[str, int] | None = None, seed: int = 0) -> Draft:
    """Draw an architecture: the form before the file.

    Raises
    ------
    InputError
        See ``resolve``; also for a negative seed.
    """
    entry, complete = resolve(name, parameters)
    if seed < 0:
        raise InputError(f"the seed must not be negative, got {seed}")
    return entry.draw(complete, seed)


def build(name: str, parameters: Mapping[str, int] | None = None, seed: int = 0) -> records.Model:
    """Build an architecture with seeded random weights.

    Parameters
    ----------
    name
        A key of ``ZOO``.
    parameters
        Values other than the defaults.
    seed
        Seed of the weights: the same seed gives the same bytes.

    Raises
    ------
    InputError
        Unknown name or parameter, or a value out of range.
    """
    return assemble(draw(name, parameters, seed))


def build_file(name: str, path: Path, parameters: Mapping[str, int] | None = None, seed: int = 0) -> None:
    """Build an architecture and write it as a ``.tflite`` file, atomically.

    Raises
    ------
    InputError
        Unknown name or parameter, a value out of range, or no such folder.
    """
    from dse.flatbuffer.encode import encode

    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")
    write_bytes(path, encode(build(name, parameters, seed)))
