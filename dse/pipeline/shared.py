"""Memory that the parent and a lane share: slots for a stream's inputs and outputs."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dse.errors import DeviceError
from dse.pipeline.engine import Array, numpy_type, padded_bytes
from dse.pipeline.plan import Port
from dse.units import format_bytes

Slots = list[tuple[Array, ...]]
_FAST = Path("/dev/shm")  # noqa: S108 - memory, not disk; the file's name is random and its mode 0600


def make_shared_file(inputs: Sequence[Port], outputs: Sequence[Port], n_slots: int, folder: Path) -> Path:
    """Make a file for the slots, in memory where the system has such a folder with room, else in ``folder``.

    Raises
    ------
    DeviceError
        There is no room in either.
    """
    size = max(mmap.PAGESIZE, n_slots * sum(padded_bytes(port.n_bytes) for port in (*inputs, *outputs)))
    found = _reserved(_FAST, folder, size) or _reserved(folder, folder, size)
    if found is None:
        raise DeviceError(
            f"expected room for {format_bytes(size)} of inputs and outputs in {_FAST} or {folder}: "
            f"make one of them larger, or set TMPDIR"
        )
    return found


def _reserved(place: Path, folder: Path, size: int) -> Path | None:
    """Make a file whose space is taken: where it was not there, the first write would kill the process."""
    if not os.access(place, os.W_OK):
        return None
    handle, name = tempfile.mkstemp(prefix=_prefix(folder), dir=place)
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        Path(name).unlink()
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENOMEM):
            return None
        raise
    except BaseException:
        Path(name).unlink()
        raise
    finally:
        os.close(handle)
    return Path(name)


def remove_shared_files(folder: Path) -> None:
    """Remove what ``make_shared_file`` made in memory for the pipeline with this temporary folder."""
    for path in _FAST.glob(f"{_prefix(folder)}*"):
        path.unlink(missing_ok=True)


def _prefix(folder: Path) -> str:
    return f"dse-slots-{folder.name}-"


def map_slots(
    path: Path, inputs: Sequence[Port], outputs: Sequence[Port], n_slots: int
) -> tuple[Slots, Slots]:
    """Map the file: per slot an array for each input, and for each output."""
    with path.open("r+b") as stream:
        memory = mmap.mmap(stream.fileno(), 0)
    offset = 0
    found: list[Slots] = []
    for ports in (inputs, outputs):
        slots: Slots = []
        for _ in range(n_slots):
            arrays = []
            for port in ports:
                kind = numpy_type(port)
                count = int(np.prod(port.shape, dtype=np.int64))
                arrays.append(np.frombuffer(memory, kind, count, offset).reshape(port.shape))
                offset += padded_bytes(port.n_bytes)
            slots.append(tuple(arrays))
        found.append(slots)
    return found[0], found[1]
