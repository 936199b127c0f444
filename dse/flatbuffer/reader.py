"""Opening a .tflite file: mapped into memory, checked, nothing copied."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dse.errors import ModelError
from dse.files import write_bytes
from dse.flatbuffer.bundles import SEPARATOR, is_zip, pick_member, split_name
from dse.flatbuffer.decode import decode
from dse.flatbuffer.records import Model

_HASH_CHUNK = 1 << 20


@dataclass(frozen=True)
class ModelFile:
    """A model and the file that it came from.

    Parameters
    ----------
    path
        Where it was read from.
    model
        Its content; large data are views into ``data``.
    data
        The bytes of the file, mapped: pages are read from disk when they are touched.
    warnings
        What is unusual about the file, one line each.
    on_disk
        Whether ``path`` is a file with exactly these bytes, which the runtime can open; a member of
        a bundle or a model in memory is not.
    """

    path: Path
    model: Model
    data: memoryview = field(repr=False)
    warnings: tuple[str, ...] = ()
    on_disk: bool = True

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return len(self.data)

    @property
    def name(self) -> str:
        """Short name for people: the file's name without its ending."""
        return self.path.stem.split(SEPARATOR)[-1]

    def in_folder(self, folder: Path) -> ModelFile:
        """Return this model as a file that the runtime can open: itself, or a copy in the folder."""
        if self.on_disk:
            return self
        path = folder / f"{self.name}.tflite"
        write_bytes(path, self.data)
        return read_model(path)

    @cached_property
    def sha256(self) -> str:
        """Hash of the whole file, hexadecimal; read once, on first use."""
        digest = hashlib.sha256()
        for start in range(0, len(self.data), _HASH_CHUNK):
            digest.update(self.data[start : start + _HASH_CHUNK])
        return digest.hexdigest()


def read_model(path: Path) -> ModelFile:
    """Read and check a .tflite file.

    Parameters
    ----------
    path
        The file; it must not change while the result is in use, since it is mapped.  A model in a
        bundle is named ``bundle.task!member.tflite`` (see ``bundles``); its bytes are no file that
        the runtime could open, see ``ModelFile.in_folder``.

    Raises
    ------
    ModelError
        It is missing, empty, a folder, a bundle of several models, damaged, or inconsistent.
    """
    outer, wanted = split_name(path)
    data = map_file(outer)
    if wanted or is_zip(data):
        if not is_zip(data):
            raise ModelError(f"{outer}: expected a bundle with {wanted!r} in it, this is not a ZIP file")
        member = pick_member(data, str(outer), wanted)
        path, data = Path(f"{outer}{SEPARATOR}{member.name}"), member.data
    decoded = decode(data, str(path), lambda name: _open_group(path, name))
    return ModelFile(path, decoded.model, data, decoded.warnings, on_disk=path == outer)


def model_from_bytes(data: bytes | bytearray | memoryview, name: str = "model") -> ModelFile:
    """Make a ``ModelFile`` of bytes that are not in a file (for example, of ``encode``)."""
    view = memoryview(data).toreadonly()
    decoded = decode(view, name)
    return ModelFile(Path(f"{name}.tflite"), decoded.model, view, decoded.warnings, on_disk=False)


def map_file(path: Path) -> memoryview:
    """Map a file read-only.

    Raises
    ------
    ModelError
        There is no such file, it is empty, a folder, or not readable.
    """
    try:
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file{_similar(path)}") from None
    except IsADirectoryError:
        found = sorted(entry.name for entry in path.glob("*.tflite"))
        hint = f"; models in it: {', '.join(found[:5])}" if found else ""
        raise ModelError(f"{path}: expected a .tflite file, this is a folder{hint}") from None
    except PermissionError:
        raise ModelError(f"{path}: no permission to read this file") from None
    except ValueError:
        raise ModelError(f"{path}: expected a .tflite file, this one is empty") from None
    except OSError as error:
        raise ModelError(f"{path}: can not be read: {error.strerror or error}") from None
    return memoryview(mapped)


def _open_group(path: Path, name: str) -> memoryview:
    # Only files beside the model: a model must not make us read elsewhere.
    if not name or Path(name).name != name or name in {".", ".."}:
        raise ModelError(f"{path}: its weights are said to be in {name!r}, which is not a plain file name")
    return map_file(path.parent / name)


def _similar(path: Path) -> str:
    names: Iterable[str] = ()
    if path.parent.is_dir():
        names = sorted(entry.name for entry in path.parent.glob("*.tflite"))[:5]
    listed = ", ".join(names)
    return f"; in that folder: {listed}" if listed else ""
