"""A supervised child process that answers JSON lines: the parent's side.

Native code can crash on any model, so models are only ever loaded in such a child; its death
becomes an error that says what was being done.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dse.errors import ChildDiedError, ChildTimeoutError, RuntimeRefusedError

LOG_TAIL_LINES = 12
# The child's libraries must not start threads of their own beside the runtime's.
_QUIET_ENV = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONUNBUFFERED": "1",
}


class Child:
    """A child process that runs ``python -m module args`` and talks JSON lines.

    Parameters
    ----------
    module
        A module whose main calls ``dse.devices.serving.serve``.
    args
        Further arguments.
    log_path
        File that collects the child's stderr (and whatever native code prints).
    name
        For messages, for example ``lane 0 of plan 'two copies'``.
    env
        Further environment variables.

    Notes
    -----
    The child leads a process group of its own, so it never sees the terminal's Ctrl-C and can be
    ended with everything it started.  It exits by itself when its standard input closes, so it
    does not outlive a killed parent.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        *,
        log_path: Path,
        name: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._buffer = b""
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **_QUIET_ENV, **(env or {})},
            )

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    def fileno(self) -> int:
        """Descriptor that becomes readable when an answer waits or the child has died."""
        assert self._process.stdout is not None  # noqa: S101 - we asked for a pipe
        return self._process.stdout.fileno()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; its answer comes through ``receive``.

        Raises
        ------
        ChildDiedError
            The child is gone.
        """
        assert self._process.stdin is not None  # noqa: S101 - we asked for a pipe
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            raise self._death(str(request.get("command", "a request"))) from None

    def receive(self, timeout_s: float, doing: str = "working") -> dict[str, Any]:
        """Wait for the next answer.

        Parameters
        ----------
        timeout_s
            After this the child is killed.
        doing
            What the child is at, for messages.

        Raises
        ------
        ChildDiedError, ChildTimeoutError
            No answer, and why; the end of the child's log is part of the message.
        RuntimeRefusedError
            The child answered that it could not do it.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.fileno()], [], [], left)[0]
            if not ready:
                self.kill()
                raise ChildTimeoutError(
                    f"{self.name}: no answer within {timeout_s:.0f} s while {doing}; the process was ended."
                    f"{self.log_tail()}"
                )
            chunk = os.read(self.fileno(), 1 << 16)
            if not chunk:
                raise self._death(doing)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            self.kill()
            raise ChildDiedError(f"{self.name}: answered with garbage while {doing}") from None
        if not isinstance(answer, dict):
            self.kill()
            raise ChildDiedError(f"{self.name}: answered with garbage while {doing}")
        if "error" in answer:
            raise RuntimeRefusedError(str(answer["error"]))
        return answer

    def request(
        self, request: Mapping[str, Any], *, timeout_s: float = 60.0, doing: str = ""
    ) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.receive(timeout_s, doing or str(request.get("command", "working")))

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self, timeout_s: float = 2.0) -> None:
        """Let the child finish; end it when it does not."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def _death(self, doing: str) -> ChildDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        code = self._process.poll()
        self.kill()
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended with exit code {code}"
        error = ChildDiedError(f"{self.name}: the process {how} while {doing}.{self.log_tail()}")
        error.signal = -code if code is not None and code < 0 else None
        return error

    def log_tail(self) -> str:
        """Return the last lines of the child's log, each on a line of its own, for messages."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            return ""
        return "".join(f"\n  log: {line}" for line in lines)
