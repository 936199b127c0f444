"""One job at a time measures on a machine, and nothing else of ours runs beside it.

Whoever starts it: other drivers, other sweeps, other schedulers.  Jobs that only search share the
machine; a job that measures waits for those that run and keeps new ones out.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_folder() -> Path:
    """Return this user's folder for locks on this machine (never on a network)."""
    folder = Path(tempfile.gettempdir()) / f"tflite-dse-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def machine(*, alone: bool, folder: Path | None = None) -> Iterator[None]:
    """Hold the machine for the time of a ``with`` block, alone or together with others.

    Parameters
    ----------
    alone
        Whether nobody else may hold it.
    folder
        Where the locks are; ``lock_folder()`` when None.

    Notes
    -----
    Everybody passes a gate first; who wants to be alone keeps it shut, so that a stream of others
    can not starve him.  The kernel takes the locks back from whoever dies.
    """
    folder = folder or lock_folder()
    with (folder / "gate.lock").open("a") as gate, (folder / "machine.lock").open("a") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield
