"""The C library of the stage loop: built with the system's compiler, and its structures.

The structures mirror ``stage_loop.h``; the library tells their sizes, which are compared.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TypeVar

from dse.errors import DseError
from dse.files import default_cache_folder

LINE = 64
VERSION = 4
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_S = 60
_SOURCES = tuple(Path(__file__).parent / name for name in ("stage_loop.c", "stage_loop.h"))

_I64 = ctypes.c_int64
_Pointer = ctypes.c_void_p
_Placed = TypeVar("_Placed", bound=ctypes.Structure)


class NativeUnavailableError(DseError):
    """The loop in C can not be had here; says why."""


class Counter(ctypes.Structure):
    """``stage_counter``."""

    _fields_ = (("value", _I64), ("pad", ctypes.c_char * (LINE - 8)))


class Gate(ctypes.Structure):
    """``stage_gate``."""

    _fields_ = (
        ("tick", ctypes.c_uint32),
        ("asleep", ctypes.c_uint32),
        ("rest_ns", _I64),
        ("rest_error_ns", _I64),
        ("work_ns", _I64),
        ("rested_ns", _I64),
        ("pad", ctypes.c_char * (LINE - 40)),
    )


class PortHandles(ctypes.Structure):
    """``stage_port``."""

    _fields_ = (("handles", _Pointer), ("n_slots", _I64))


class Node(ctypes.Structure):
    """``stage_node``."""

    _fields_ = (
        ("begun", Counter),
        ("taken", Counter),
        ("done", Counter),
        ("index", _I64),
        ("n_slots", _I64),
        ("model", _Pointer),
        ("n_inputs", _I64),
        ("n_outputs", _I64),
        ("inputs", _Pointer),
        ("outputs", _Pointer),
        ("input_handles", _Pointer),
        ("output_handles", _Pointer),
        ("n_sources", _I64),
        ("n_users", _I64),
        ("n_wake_done", _I64),
        ("n_wake_entering", _I64),
        ("sources", _Pointer),
        ("users", _Pointer),
        ("wake_done", _Pointer),
        ("wake_entering", _Pointer),
        ("is_final", _I64),
        ("enters", _I64),
        ("patience", _I64),
    )


class Lane(ctypes.Structure):
    """``stage_lane``."""

    _fields_ = (
        ("limit", Counter),
        ("stopped", Counter),
        ("available", Counter),
        ("taken", Counter),
        ("sink", Gate),
        ("run", _Pointer),
        ("n_finals", _I64),
        ("finals", _Pointer),
        ("in_flight", _I64),
        ("spin_ns", _I64),
        ("n_stages", _I64),
        ("times", _Pointer),
        ("n_times", _I64),
        ("last_times", _I64),
        ("status", _Pointer),
    )


class Failure(ctypes.Structure):
    """``stage_failure``."""

    _fields_ = (("stage", _I64), ("frame", _I64), ("status", _I64))


class Arena:
    """Memory for structures, each at a boundary of cache lines as C expects; kept while in use."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(1, n_bytes))
        self._at = 0
        self._kept: list[object] = []

    def place(self, kind: type[_Placed]) -> _Placed:
        """Return a zeroed structure."""
        made = kind.from_buffer(self._memory, self._at)
        self._at += lines(ctypes.sizeof(kind))
        return made

    def keep(self, thing: ctypes.Array[ctypes.c_void_p]) -> int:
        """Keep an array alive; return its address."""
        self._kept.append(thing)
        return ctypes.addressof(thing)


def lines(n_bytes: int) -> int:
    """Return a size rounded up to whole cache lines."""
    return -(-n_bytes // LINE) * LINE


@cache
def load_library() -> ctypes.CDLL:
    """Return the library, compiled if it is not in the cache folder yet.

    Raises
    ------
    NativeUnavailableError
        There is no compiler, it fails, or the structures differ from the ones here.
    """
    try:
        path = _build(default_cache_folder())
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"the stage loop can not be built or loaded: {error}") from None
    library.stage_loop_get.restype = _I64
    library.stage_loop_get.argtypes = (_Pointer,)
    library.stage_loop_set.restype = None
    library.stage_loop_set.argtypes = (_Pointer, _I64)
    library.stage_loop_wake.restype = None
    library.stage_loop_wake.argtypes = (_Pointer,)
    library.stage_loop_wait.argtypes = (_Pointer, _I64, _I64)
    library.stage_loop_work.argtypes = (_Pointer, _Pointer, _I64, _Pointer, _Pointer)
    sizes = (_I64 * 7)()
    library.stage_loop_layout.restype = None
    library.stage_loop_layout(sizes)
    kinds = (Counter, Gate, PortHandles, Node, Lane, Failure)
    own = [
        lines(ctypes.sizeof(kind)) if kind in (Counter, Gate, Node, Lane) else ctypes.sizeof(kind)
        for kind in kinds
    ]
    if list(sizes) != [*own, VERSION]:
        raise NativeUnavailableError(
            f"the stage loop's structures have sizes {list(sizes)}, expected {[*own, VERSION]}"
        )
    return library


def _build(folder: Path) -> Path:
    """Compile into the cache folder, under a name that tells source, flags and compiler."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeUnavailableError(f"no C compiler was found (looked for {', '.join(_COMPILERS)})")
    digest = hashlib.sha256(" ".join((compiler, *FLAGS, os.uname().machine)).encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    path = folder / f"stage_loop-{digest.hexdigest()[:16]}.so"
    if path.is_file() and path.stat().st_uid == os.getuid():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stage_loop-", dir=folder) as work:
        made = Path(work) / path.name
        command = [compiler, *FLAGS, "-o", str(made), str(_SOURCES[0])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        except subprocess.TimeoutExpired:
            raise NativeUnavailableError(f"{compiler} did not finish within {_BUILD_S} s") from None
        if done.returncode:
            raise NativeUnavailableError(f"{compiler} failed: {(done.stderr or done.stdout).strip()[:400]}")
        made.replace(path)
    return path
