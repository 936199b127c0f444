"""What the processes of a pipeline have in common: how they answer, and how they end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dse.errors import AffinityError, DeviceError, DseError, InputError, RuntimeRefusedError
from dse.pipeline.nodes import StageFailedError
from dse.pipeline.shared import remove_shared_files

KINDS: dict[str, type[DseError]] = {
    "affinity": AffinityError,
    "input": InputError,
    "refused": RuntimeRefusedError,
    "stage": DeviceError,
}
"""Errors of a process that the parent raises again as what they are."""


_POLL_S = 0.2
_REPARENTED_S = 5.0
"""A process sees the end of its input before its parent is gone for good; long before on a busy machine."""

_CLEANINGS = 10


def remove_when_orphaned(folder: Path | None, parent: int) -> None:
    """Remove the parent's temporary folder and shared memory when the parent was killed and can not.

    Parameters
    ----------
    folder
        None where there is none yet.
    parent
        The process that started this one.
    """
    end = time.monotonic() + _REPARENTED_S
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(_POLL_S)
    if folder is None or os.getppid() == parent:
        return
    remove_shared_files(folder)
    for _ in range(_CLEANINGS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        # A lane that has just finished is still writing there.
        time.sleep(_POLL_S)


def memory_now() -> dict[str, int]:
    """Resident bytes of this process: now, and at the peak."""
    names = {"VmRSS:": "rss_bytes", "VmHWM:": "peak_rss_bytes"}
    found = dict.fromkeys(names.values(), 0)
    for line in Path("/proc/self/status").read_text().splitlines():
        name, *rest = line.split()
        if name in names:
            found[names[name]] = int(rest[0]) * 1024
    return found


def named_faults(
    handler: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Turn errors that have a name in the parent into the answers that it reads (see ``KINDS``)."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        try:
            return handler(request)
        except StageFailedError as error:
            return {"failed": {"kind": "stage", "message": str(error)}}
        except DseError as error:
            kind = next((name for name, form in KINDS.items() if isinstance(error, form)), "stage")
            return {"failed": {"kind": kind, "message": str(error)}}

    return handle
