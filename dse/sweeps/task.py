"""The one function that Dask workers run: a job as text goes in, its outcome as text comes out.

A worker keeps one child process per thread and gives it job after job.  Only texts (JSON) cross the
wire; Dask's own messages are pickles, so a scheduler and its workers must be trusted, and TLS keeps
others out.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dse.devices.child import Child
from dse.errors import ChildDiedError, RuntimeRefusedError
from dse.sweeps.outcome import log_tail

LOOK_EVERY_S = 0.5
"""How often time and memory of a job are looked at."""

DIED = "died"
"""Status of a job whose process was killed from outside: it begins again."""

_idle: list[Child] = []
_guard = threading.Lock()
_folder: list[tempfile.TemporaryDirectory[str]] = []


def run_job(text: str) -> str:
    """Run one job in a child process of this worker.

    Parameters
    ----------
    text
        JSON: ``key``, ``config``, ``mode``, ``board``, ``model_sha256``, ``run_dir``, ``code``, and the
        limits ``time_s`` and ``memory_bytes`` (or null).

    Returns
    -------
    str
        JSON: the columns of the job's row; ``status`` is ``done``, ``failed`` or ``died``.
    """
    request = {**json.loads(text), "command": "job", "worker": _worker_name()}
    start_s = time.time()
    child = _take()
    try:
        outcome: dict[str, Any] = _supervise(child, request)["outcome"]
    except _LimitError as error:
        child.kill()
        outcome = {"status": "failed", "error": str(error)}
    except ChildDiedError as error:
        # A kill from outside (a user, the kernel out of memory) is not the job's fault; a crash is.
        outside = error.signal in (signal.SIGKILL, signal.SIGTERM)
        outcome = {"status": DIED if outside else "failed", "error": str(error).partition("\n")[0]}
    except RuntimeRefusedError as error:  # the child could not even begin: no folder, a full disk
        _give_back(child)
        outcome = {"status": "failed", "error": str(error)}
    else:
        _give_back(child)
        return json.dumps(outcome)
    now_s = time.time()
    outcome |= {
        "key": request["key"],
        "host": socket.gethostname(),
        "worker": request["worker"],
        "started_s": start_s,
        "finished_s": now_s,
        "wall_s": now_s - start_s,
        "log_tail": log_tail(Path(request["run_dir"])),
    }
    return json.dumps(outcome)


class _LimitError(Exception):
    """A job took more than it may."""


def _supervise(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    """Wait for the answer; look at time and memory now and then."""
    time_s, memory_bytes = request.pop("time_s"), request.pop("memory_bytes")
    deadline = None if time_s is None else time.monotonic() + time_s
    child.send(request)
    while not select.select([child.fileno()], [], [], LOOK_EVERY_S)[0]:
        if deadline is not None and time.monotonic() > deadline:
            raise _LimitError(f"took longer than limits.time_s ({time_s:g} s) and was ended")
        used = 0 if memory_bytes is None else _resident_bytes(child.pid)
        if memory_bytes is not None and used > memory_bytes:
            raise _LimitError(
                f"used {used / 2**20:.0f} MiB, more than limits.memory ({memory_bytes / 2**20:.0f} MiB), "
                "and was ended"
            )
    return child.receive(60.0, f"running job {request['key'][:12]}")


def _resident_bytes(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(int(p.memory_info().rss) for p in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0


def _take() -> Child:
    with _guard:
        if not _folder:
            _folder.append(tempfile.TemporaryDirectory(prefix="dse-worker-"))
        while _idle:
            child = _idle.pop()
            if not select.select([child.fileno()], [], [], 0)[0]:
                return child
            child.kill()  # it died while it was idle
            child.close()
        log = Path(_folder[0].name) / f"executor-{time.monotonic_ns()}.log"
        return Child("dse.sweeps.executor", log_path=log, name="the job's process")


def _give_back(child: Child) -> None:
    with _guard:
        _idle.append(child)


def close_children() -> None:
    """End the idle children of this process."""
    with _guard:
        while _idle:
            _idle.pop().close()
        while _folder:
            _folder.pop().cleanup()


def _worker_name() -> str:
    try:
        from distributed import get_worker

        return str(get_worker().name)
    except (ImportError, ValueError):
        return "none"
