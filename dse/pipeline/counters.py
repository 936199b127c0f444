"""What a run cost the machine besides time: CPU time, switches, faults, and hardware counts.

The kernel's figures of a process are always there.  Cycles, instructions and last-level cache
misses come from the processor's counters where the machine offers them (virtual machines often do
not); then the traffic to memory is misses times the length of a cache line [1]_, a lower bound, as
prefetches and write-backs are not in it.

References
----------
.. [1] perf_event_open(2), Linux manual page; ``PERF_COUNT_HW_CACHE_MISSES``.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dse.files import read_int

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "armv7l": 364}
_HARDWARE, _ATTR_BYTES = 0, 128
_EVENTS = {"cycles": 0, "instructions": 1, "cache_misses": 3}
_EXCLUDE_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6
_TOTAL_TIME_ENABLED_AND_RUNNING = 1 | 2
_LINE_BYTES = 64
_LINE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/coherency_line_size")


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over a lane's process from start to end of a run, warm-up included.

    Parameters
    ----------
    n_frames
        Frames made meanwhile.
    user_ns, system_ns
        CPU time.
    voluntary_switches, involuntary_switches
        How often a thread waited, and how often it was put off its core.
    minor_faults, major_faults
        Pages that were touched first, and pages read from disk.
    cycles, instructions, memory_bytes
        By the processor's counters, None where it offers none.
    unavailable
        Why those are None, else empty.
    """

    n_frames: int
    user_ns: int
    system_ns: int
    voluntary_switches: int
    involuntary_switches: int
    minor_faults: int
    major_faults: int
    cycles: int | None
    instructions: int | None
    memory_bytes: int | None
    unavailable: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counters:
        """Build from the dictionary form that a lane's process sends."""
        return cls(**{name: data[name] for name in cls.__slots__})


class Counting:
    """Counts while a block runs.

    Parameters
    ----------
    tids
        Threads of this process that the processor's counters follow.
    """

    def __init__(self, tids: Collection[int]) -> None:
        self._tids = tids
        self._files: dict[str, list[int]] = {}
        self._unavailable = ""

    def __enter__(self) -> Counting:
        try:
            for name, event in _EVENTS.items():
                self._files[name] = []
                for tid in self._tids:
                    self._files[name].append(_open(event, tid))
        except OSError as error:
            self._close()
            self._unavailable = _why(error)
        self._before = resource.getrusage(resource.RUSAGE_SELF)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._after = resource.getrusage(resource.RUSAGE_SELF)
        self._counts = {name: sum(map(_read, files)) for name, files in self._files.items()}
        self._close()

    def result(self, n_frames: int, own_bytes: int = 0) -> Counters:
        """Return what was counted, after the block; the measuring itself touched ``own_bytes``."""
        before, after = self._before, self._after
        misses = self._counts.get("cache_misses")
        return Counters(
            n_frames=n_frames,
            user_ns=round((after.ru_utime - before.ru_utime) * 1e9),
            system_ns=round((after.ru_stime - before.ru_stime) * 1e9),
            voluntary_switches=after.ru_nvcsw - before.ru_nvcsw,
            involuntary_switches=after.ru_nivcsw - before.ru_nivcsw,
            minor_faults=max(0, after.ru_minflt - before.ru_minflt - own_bytes // mmap.PAGESIZE),
            major_faults=after.ru_majflt - before.ru_majflt,
            cycles=self._counts.get("cycles"),
            instructions=self._counts.get("instructions"),
            memory_bytes=None if misses is None else misses * (read_int(_LINE_SIZE) or _LINE_BYTES),
            unavailable=self._unavailable,
        )

    def _close(self) -> None:
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files = {}


def _open(event: int, tid: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known how to ask on {platform.machine()}")
    attributes = bytearray(_ATTR_BYTES)
    struct.pack_into("IIQ", attributes, 0, _HARDWARE, _ATTR_BYTES, event)
    struct.pack_into("QQ", attributes, 32, _TOTAL_TIME_ENABLED_AND_RUNNING, _EXCLUDE_KERNEL_AND_HYPERVISOR)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTR_BYTES).from_buffer(attributes)
    file = libc.syscall(number, buffer, tid, -1, -1, 0)
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(file)


def _read(file: int) -> int:
    """Return a count, scaled up where the kernel had to share the counter with others."""
    value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
    return int(value if running in (0, enabled) else value * enabled / running)


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the processor's counters are not there (a virtual machine?)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "the kernel does not allow counting (see /proc/sys/kernel/perf_event_paranoid)"
    return f"the processor's counters can not be read: {error.strerror}"
