"""Where the threads of this process may run, read back from the kernel.

Worker threads of the runtime inherit the mask of the thread that creates them and keep it, and a
mask can be accepted without being applied; so what counts is what /proc says afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dse.errors import AffinityError

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """One thread: which stage it works for, where it should and where it may run."""

    stage: str
    tid: int
    role: str
    wanted: tuple[int, ...]
    got: tuple[int, ...]


def thread_ids() -> frozenset[int]:
    """Return the ids of all threads of this process."""
    return frozenset(int(entry.name) for entry in _TASKS.iterdir())


def read_mask(tid: int) -> tuple[int, ...]:
    """Return the cores that a thread of this process may run on, ascending.

    Raises
    ------
    FileNotFoundError, ProcessLookupError
        The thread has ended.
    """
    for line in (_TASKS / str(tid) / "status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cores(line.split(":", 1)[1])
    # Some sandboxed kernels leave the line out, but answer the system call.
    return tuple(sorted(os.sched_getaffinity(tid)))


def parse_cores(text: str) -> tuple[int, ...]:
    """Read the kernel's list form, for example ``0-2,5``."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def read_back(
    threads: Mapping[int, tuple[str, str, tuple[int, ...]]], strangers: Iterable[int] = ()
) -> tuple[ThreadRecord, ...]:
    """Compare the masks of threads with what they should be.

    Parameters
    ----------
    threads
        Thread id -> (stage, role, wanted cores).
    strangers
        Threads of the runtime that appeared later: each must have the mask of one of ``threads``.

    Raises
    ------
    AffinityError
        Names the stage, the thread, the wanted and the actual cores.
    """
    records = []
    for tid, (stage, role, wanted) in threads.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            got = read_mask(tid)
            if set(got) != set(wanted):
                raise AffinityError(
                    f"{stage}: {role} thread {tid} may run on cores {_text(got)}, wanted {_text(wanted)}. "
                    f"A thread keeps the mask that it is created with, and some kernels accept a mask "
                    f"without applying it; check cpusets and that nothing moves the process"
                )
            records.append(ThreadRecord(stage, tid, role, tuple(sorted(wanted)), got))
    allowed = {frozenset(wanted): stage for stage, _, wanted in threads.values()}
    for tid in strangers:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            got = read_mask(tid)
            stage = allowed.get(frozenset(got), "")
            if not stage:
                raise AffinityError(
                    f"a thread of the runtime that started late ({tid}) may run on cores {_text(got)}, "
                    f"which is the set of no stage: expected one of "
                    f"{'; '.join(_text(tuple(cores)) for cores in allowed)}"
                )
            records.append(ThreadRecord(stage, tid, "late runtime", got, got))
    return tuple(records)


def _text(cores: Iterable[int]) -> str:
    return ",".join(str(core) for core in sorted(cores)) or "none"
