"""Make cores slower than they are, to test with unlike cores on a machine that has none.

``python -m benchmarks.slow_core --cpu 1 -- dse run --model m.tflite -p {platform} -s measure.enabled=true``

On each core a real-time thread (SCHED_FIFO, so nothing else gets in its way) spins for a share of
every millisecond, counted from absolute times.  Whatever else runs there gets the rest, in slices
much shorter than a layer of a model takes: so the *core* is slower, not the process.  How much slower
is measured, with a loop that counts, and written into a platform file that says ``emulated: true``;
``{platform}`` in the command stands for that file, and every result says that the cores are emulated.
Needs the right to run real-time threads (root, or CAP_SYS_NICE).
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dse.config import platform_data
from dse.detection import cluster_names, detect_platform
from dse.errors import PlatformError
from dse.files import write_text
from dse.platforms import Platform
from dse.profiling.stats import median
from dse.yaml_io import dump

PERIOD_NS = 1_000_000
PRIORITY = 10
MOST_SHARE = 0.9  # the kernel stops real-time threads at 95 %
FASTEST_CAPACITY = 1024
N_COUNTS, COUNT_S = 9, 0.05
START_S = 20.0
_TIMER_ABSTIME = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command while some cores are slow; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu", type=int, action="append", required=True, help="A core; may be given again.")
    parser.add_argument("--share", type=float, default=0.6, help="Of the time that is taken away [0.6].")
    parser.add_argument("--platform", type=Path, help="Write the platform file here [a temporary file].")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args(arguments)
    if not 0 < options.share <= MOST_SHARE:
        parser.error(f"--share: expected a share above 0, up to {MOST_SHARE}, got {options.share}")
    with tempfile.TemporaryDirectory(prefix="dse-slow-") as folder:
        path = options.platform or Path(folder) / "emulated.yaml"
        try:
            with slow_cores(options.cpu, options.share) as ratio:
                platform = emulated_platform(detect_platform(), options.cpu, ratio)
                write_text(path, dump(platform_data(platform)))
                print(f"{platform.notes[-1]}; platform file: {path}", file=sys.stderr, flush=True)
                command = [word.replace("{platform}", str(path)) for word in options.command]
                return subprocess.run(command, check=False).returncode
        except (PermissionError, PlatformError) as error:
            print(f"slow_core: {error}", file=sys.stderr)
            return 2


@contextmanager
def slow_cores(cpus: Sequence[int], share: float) -> Iterator[float]:
    """Slow cores down; gives their speed in units of what it was before (the slowest one's).

    Raises
    ------
    PermissionError
        This process may not run real-time threads.
    """
    context = multiprocessing.get_context("spawn")
    spinners = [context.Process(target=spin, args=(cpu, share, os.getpid()), daemon=True) for cpu in cpus]
    for spinner in spinners:
        spinner.start()
    try:
        _wait_until_urgent([spinner.pid or 0 for spinner in spinners])
        pairs = zip(cpus, spinners, strict=True)
        yield min(speed(cpu, spinner.pid or 0) for cpu, spinner in pairs)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.join()


def _wait_until_urgent(pids: Sequence[int]) -> None:
    end = time.monotonic() + START_S
    while any(os.sched_getscheduler(pid) != os.SCHED_FIFO for pid in pids):
        if time.monotonic() > end:
            raise PermissionError("the spinning threads did not become real-time threads (root is needed)")
        time.sleep(0.01)


def speed(cpu: int, spinner: int) -> float:
    """Return how fast a core is beside its spinner, in units of what it is while that is stopped.

    In turns, since what the rest of the machine does changes a core's speed too.
    """
    free, slowed = [], []
    for _ in range(N_COUNTS):
        os.kill(spinner, signal.SIGSTOP)
        free.append(count(cpu))
        os.kill(spinner, signal.SIGCONT)
        slowed.append(count(cpu))
    return median(slowed) / median(free)


def spin(cpu: int, share: float, parent: int) -> None:
    """Take a share of every period of a core away, until the parent is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    busy_ns = round(PERIOD_NS * share)
    clock = time.monotonic_ns
    wake = _TimeSpec()
    start = clock()
    while os.getppid() == parent:
        for _ in range(1000):
            end = start + busy_ns
            while clock() < end:
                pass
            # From the clock's grid, not from now: a late start makes the share no larger.
            start += PERIOD_NS
            if (now := clock()) > start + PERIOD_NS:
                start = now
            wake.seconds, wake.nanoseconds = divmod(start, 10**9)
            libc.clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(wake), None)


def count(cpu: int) -> int:
    """Return how many steps a loop makes on a core in ``COUNT_S`` seconds.

    Less urgent than a spinner, more urgent than everything else: the load of others does not count.
    """
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY - 1))
    try:
        steps, end = 0, time.perf_counter() + COUNT_S
        while time.perf_counter() < end:
            steps += 1
        return steps
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, mask)


def emulated_platform(here: Platform, cpus: Sequence[int], ratio: float) -> Platform:
    """Part the one cluster of a machine into slow and fast cores.

    Raises
    ------
    PlatformError
        The machine has unlike cores anyway, or a core is not there or none is left.
    """
    (cluster, *others) = here.clusters
    slow = tuple(core for core in cluster.core_ids if core in cpus)
    fast = tuple(core for core in cluster.core_ids if core not in cpus)
    if others or set(slow) != set(cpus) or not fast:
        raise PlatformError(
            f"expected some, not all, of the alike cores {list(cluster.core_ids)}, got {sorted(cpus)}"
            + (" on a machine that has unlike cores already" if others else "")
        )
    names = cluster_names(2)
    clusters = (
        dataclasses.replace(
            cluster, name=names[0], core_ids=slow, threads=(), capacity=round(FASTEST_CAPACITY * ratio)
        ),
        dataclasses.replace(cluster, name=names[1], core_ids=fast, threads=(), capacity=FASTEST_CAPACITY),
    )
    note = f"emulated: cores {list(slow)} run at {ratio:.2f} of their speed"
    return dataclasses.replace(
        here, name=f"{here.name} (emulated)", clusters=clusters, emulated=True, notes=(*here.notes, note)
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if __name__ == "__main__":
    sys.exit(main())
