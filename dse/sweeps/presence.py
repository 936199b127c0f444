"""Whether the process that hands out a job is still there."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from dse.files import read_text

BEAT_S = 2.0
"""A driver gives a sign of life this often."""
SILENT_S = 60.0
"""A driver on another host counts as gone after this silence."""
_START_TOLERANCE_S = 1.0


def boot_id() -> str:
    """Return what is new after every start of this machine (and differs between machines)."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that hands out jobs.

    Parameters
    ----------
    id
        Unique.
    host, boot, pid, pid_started_s
        Which process on which machine.
    seen_s
        Last sign of life, by the clock of the store.
    """

    id: str
    host: str
    boot: str
    pid: int
    pid_started_s: float
    seen_s: float = 0.0

    @classmethod
    def this(cls) -> Driver:
        """Return the driver that this process is."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), boot_id(), pid, psutil.Process(pid).create_time())

    def is_alive(self, now_s: float) -> bool:
        """Whether it may still be there: exactly on this machine, by its silence on another.

        Parameters
        ----------
        now_s
            The clock of the store.
        """
        if self.boot == boot_id():
            try:
                process = psutil.Process(self.pid)
                same = abs(process.create_time() - self.pid_started_s) < _START_TOLERANCE_S
                if same:
                    return process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                pass
            # Containers of one machine do not see each other's processes: fall back to the silence.
            if self.host == socket.gethostname():
                return False
        return now_s - self.seen_s < SILENT_S
