"""Models inside ZIP bundles (``.task`` and similar), also nested ones.

A member is named with exclamation marks: ``gesture.task!hand.task!detector.tflite``.  Members that are
stored without compression, the usual form, are read in place.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dse.errors import ModelError

SEPARATOR = "!"
_MAX_DEPTH = 4
_MAX_MEMBERS = 10_000
# A member that unpacks to more than this and this many times its packed size is an attack.
_MAX_UNPACKED_BYTES = 64 << 20
_MAX_RATIO = 100
_LOCAL_HEADER = struct.Struct("<26xHH")
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    EOFError,
    ValueError,
    struct.error,
    OSError,
)


@dataclass(frozen=True, slots=True)
class BundleMember:
    """A model inside a bundle.

    Parameters
    ----------
    name
        Path from the outermost bundle, parts separated by ``!``.
    data
        The file's bytes; a view into the bundle where it is stored without compression.
    """

    name: str
    data: memoryview


def is_zip(data: memoryview) -> bool:
    """Whether bytes are a ZIP archive; some bundles have two zero bytes in front."""
    return bytes(data[:4]) == b"PK\x03\x04" or bytes(data[:6]) == b"\0\0PK\x03\x04"


def list_members(data: memoryview, source: str) -> tuple[BundleMember, ...]:
    """Return the .tflite files in a bundle, and in bundles inside it.

    Parameters
    ----------
    data
        The bundle.
    source
        Its name, for messages.

    Raises
    ------
    ModelError
        The bundle is damaged, encrypted, nested too deep, or unpacks to far more than it holds.
    """
    return tuple(_members(data, source, "", 0))


def split_name(path: Path) -> tuple[Path, str]:
    """Split ``bundle.task!member`` at the first part that is a file; no member gives ``""``."""
    text = str(path)
    at = text.find(SEPARATOR)
    while at >= 0:
        front = Path(text[:at])
        if front.is_file():
            return front, text[at + 1 :]
        at = text.find(SEPARATOR, at + 1)
    return path, ""


def pick_member(data: memoryview, source: str, wanted: str) -> BundleMember:
    """Return one model of a bundle.

    Parameters
    ----------
    wanted
        Its name; the last part is enough where it fits only one.  Empty: the only one there is.

    Raises
    ------
    ModelError
        It is not there, or several fit; the message lists the members.
    """
    members = list_members(data, source)
    if not members:
        raise ModelError(f"{source}: this is a bundle without any .tflite file in it")
    found = [member for member in members if member.name == wanted]
    if not found:
        last = [member for member in members if not wanted or member.name.split(SEPARATOR)[-1] == wanted]
        found = last
    if len(found) == 1:
        return found[0]
    what = "this is a bundle" if not wanted else f"no single model in it is {wanted!r}"
    names = "".join(f"\n  {source}{SEPARATOR}{member.name}" for member in members)
    raise ModelError(f"{source}: {what}; give one of the models in it:{names}")


def read_member(data: memoryview, source: str, name: str) -> memoryview:
    """Return the bytes of one file of an archive, whatever it is.

    Raises
    ------
    ModelError
        The archive is damaged, encrypted, or has no such file.
    """
    try:
        archive = zipfile.ZipFile(_ViewFile(data))
        entry = archive.getinfo(name)
    except KeyError:
        raise ModelError(f"{source}: there is no file {name!r} in it") from None
    except _BROKEN as error:
        raise ModelError(f"{source}: damaged archive: {error}") from None
    return _content(archive, entry, data, f"{source}{SEPARATOR}{name}")


def _members(data: memoryview, source: str, prefix: str, depth: int) -> Iterator[BundleMember]:
    if depth >= _MAX_DEPTH:
        raise ModelError(f"{source}: bundles are nested more than {_MAX_DEPTH} deep")
    try:
        archive = zipfile.ZipFile(_ViewFile(data))
    except _BROKEN as error:
        raise ModelError(f"{source}{SEPARATOR}{prefix}: damaged bundle: {error}".rstrip(SEPARATOR)) from None
    entries = archive.infolist()
    if len(entries) > _MAX_MEMBERS:
        raise ModelError(f"{source}: a bundle with {len(entries)} members; at most {_MAX_MEMBERS} are read")
    for entry in entries:
        name = prefix + entry.filename
        if entry.is_dir() or not entry.file_size:
            continue
        where = f"{source}{SEPARATOR}{name}"
        if entry.filename.endswith(".tflite"):
            yield BundleMember(name, _content(archive, entry, data, where))
        elif entry.filename.endswith((".task", ".zip")):
            content = _content(archive, entry, data, where)
            if is_zip(content):
                yield from _members(content, source, name + SEPARATOR, depth + 1)


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, data: memoryview, where: str) -> memoryview:
    if entry.flag_bits & 1:
        raise ModelError(f"{where}: this member is encrypted; unpack it with its password first")
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size:
        try:
            lengths = _LOCAL_HEADER.unpack_from(data, entry.header_offset)
        except struct.error:
            raise ModelError(f"{where}: damaged bundle: its place lies beyond the end") from None
        start = entry.header_offset + _LOCAL_HEADER.size + sum(lengths)
        if entry.header_offset < 0 or start + entry.file_size > len(data):
            raise ModelError(f"{where}: damaged bundle: the member ends beyond the end")
        return data[start : start + entry.file_size]
    if entry.file_size > max(_MAX_UNPACKED_BYTES, _MAX_RATIO * entry.compress_size):
        raise ModelError(
            f"{where}: says that it unpacks from {entry.compress_size} to {entry.file_size} bytes; "
            "unpack it yourself if that is right"
        )
    try:
        return memoryview(archive.read(entry))
    except _BROKEN as error:
        raise ModelError(f"{where}: damaged bundle: {error}") from None


class _ViewFile(io.RawIOBase):
    """A read-only file over bytes, without copying them."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        view = memoryview(target)  # type: ignore[arg-type]
        piece = self._data[self._at : self._at + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, len(self._data))[whence]
        if base + offset < 0:
            raise ValueError("a position before the start of the bundle")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at
