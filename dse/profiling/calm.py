"""Whether the machine was calm while something was timed, and when a number is good enough.

A visit during which the threads had to wait for their cores, a hypervisor took time away, the cores
were slower than before, or the clock or the temperature moved, is made again: it stays in the
journal, and where too few visits were calm the fastest third of all counts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dse import conditions
from dse.profiling.cache import Record
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import reached_precision
from dse.units import NS_PER_S

# Restless machines never get enough calm visits; after this many times the rounds, the fastest count.
PATIENCE = 3
SHORTEST_WATCH_S = 0.2
MUCH_WAITING = 0.05
SLOW = 0.9


class CalmWatch:
    """Watches the cores of a slot from its making until ``disturbance`` is asked.

    Parameters
    ----------
    worker
        The slot's process, whose own work does not disturb; nor does that of this process, which only
        works while the other one waits for it.
    best_yardstick_ns
        The shortest time of the slot's yardstick (see ``dse.devices.worker``) that is known so far.
    """

    def __init__(self, worker: SlotWorker, best_yardstick_ns: int | None = None) -> None:
        self._worker = worker
        first = worker.yardstick_ns()
        self.yardstick_ns = first if best_yardstick_ns is None else min(first, best_yardstick_ns)
        self._slowest_ns = first
        self._start = time.monotonic()
        self._before = conditions.snapshot(worker.cores)
        self._own_before = _cpu_seconds(worker.pid) + time.process_time()
        self._waited_before = _waited_ns(worker.pid)

    def disturbance(self) -> str:
        """Return what disturbed, or an empty text.

        Waiting is known to the nanosecond.  The kernel counts other things in hundredths of a second,
        so very short times tell nothing of them.
        """
        took_s = time.monotonic() - self._start
        last = self._worker.yardstick_ns()
        self.yardstick_ns = min(self.yardstick_ns, last)
        self._slowest_ns = max(self._slowest_ns, last)
        waiting = (_waited_ns(self._worker.pid) - self._waited_before) / (took_s * NS_PER_S)
        if waiting > MUCH_WAITING * len(self._worker.cores):
            return f"its threads waited for their cores for {waiting:.0%} of the time"
        speed = self.yardstick_ns / self._slowest_ns
        if speed < SLOW:
            return f"the core worked at {speed:.0%} of its speed (its clock, or who shares the physical core)"
        if took_s < SHORTEST_WATCH_S:
            return ""
        own_s = max(0.0, _cpu_seconds(self._worker.pid) + time.process_time() - self._own_before)
        after = conditions.snapshot(self._worker.cores)
        return "; ".join(conditions.drift(self._before, after, own_busy_s=own_s).warnings)


def precise_enough(record: Record, options: ProfileOptions) -> bool:
    """Whether a subject has enough visits and they agree as well as was asked."""
    n_calm = sum(record.calm)
    enough = n_calm >= options.min_rounds
    if not enough and len(record.visits) < PATIENCE * options.min_rounds:
        return False
    precision = reached_precision(record.used_visits)
    return precision is not None and precision <= options.precision


def _waited_ns(pid: int) -> int:
    """Return how long the threads of a process have been ready to run but did not, in all.

    That is the second number of ``/proc/<pid>/task/*/schedstat``; 0 where the kernel does not tell.
    """
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # the thread has ended
            continue
    return total


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far, or 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
