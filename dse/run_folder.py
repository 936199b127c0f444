"""The folder of one run: built under a hidden name, renamed when it is complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from dse.errors import InputError
from dse.progress import Progress, Task

JOURNAL_NAME = "measurements.jsonl"
"""Where a run writes down at once what it measures; what a killed run left is kept if this is there."""
LOG_NAME = "log.txt"
_NEW_S = 60
_PARTIAL = re.compile(r"^\.(?P<name>.+)\.partial-(?P<pid>\d+)$")


class RunFolder:
    """A run folder in the making.

    Parameters
    ----------
    output
        Folder that holds the run folders; made when missing.
    name
        Wanted name; a number is added when it is taken.

    Notes
    -----
    Everything is written below ``path`` (a hidden name).  ``finish`` gives it its name, also when
    the run failed, so that what was found out is kept.  What a killed run left behind is named
    ``NAME-killed`` by the next one if something had been measured, else removed.
    """

    def __init__(self, output: Path, name: str) -> None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output folder {output}: can not be made ({error.strerror}); choose another with --output"
            ) from None
        _settle_left_behind(output)
        self._output = output
        self._name = clean_name(name)
        self.path = output / f".{self._name}.partial-{os.getpid()}"
        try:
            self.path.mkdir()
            (self.path / "work").mkdir()
        except OSError as error:
            raise InputError(f"output folder {output}: not writable ({error.strerror})") from None
        self._log: TextIO | None = (self.path / LOG_NAME).open("w", encoding="utf-8")
        # Held until the process ends, however it ends: tells those who find the folder that it is alive.
        with contextlib.suppress(OSError):
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def work(self) -> Path:
        """Folder for files that do not stay."""
        return self.path / "work"

    def log(self, line: str) -> None:
        """Add a line with the time to the run's log."""
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            self._log.flush()

    def finish(self) -> Path:
        """Remove the working files, give the folder its name, and return its path."""
        self.path = _settle(self.path, self._output / self._name)
        self._close_log()
        return self.path

    def discard(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._close_log()

    def _close_log(self) -> None:
        """Give up the lock; last, or another machine would take the folder for one that was left behind."""
        if self._log is not None:
            self._log.close()
            self._log = None


def clean_name(name: str) -> str:
    """Return a name that is safe as the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


def _settle(path: Path, target: Path) -> Path:
    """Remove a run's working files and give its folder a name, with a number if that is taken; return it."""
    shutil.rmtree(path / "work", ignore_errors=True)
    number = 1
    while True:
        free = target if number == 1 else target.with_name(f"{target.name}-{number}")
        if not free.exists():
            try:
                return path.rename(free)
            except OSError:
                if not free.exists():
                    raise
        number += 1


def _lives(path: Path, pid: int) -> bool:
    """Whether a run folder's process lives, on this machine or on another that shares the folder."""
    if Path(f"/proc/{pid}").exists():
        return True
    try:
        with (path / LOG_NAME).open("r+", encoding="utf-8") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        # Just made on another machine, or left behind in that moment.
        return time.time() - path.stat().st_mtime < _NEW_S
    except OSError:
        return True
    return False


def _settle_left_behind(output: Path) -> None:
    for path in output.iterdir():
        found = _PARTIAL.match(path.name)
        if found and path.is_dir() and not _lives(path, int(found["pid"])):
            if (path / JOURNAL_NAME).is_file():
                # Another run may have been quicker.
                with contextlib.suppress(FileNotFoundError):
                    _settle(path, output / f"{found['name']}-killed")
            else:
                shutil.rmtree(path, ignore_errors=True)


class LoggedProgress:
    """Shows progress through another ``Progress`` and writes what is said to the run's log."""

    def __init__(self, inner: Progress, folder: RunFolder) -> None:
        self._inner = inner
        self._folder = folder

    @contextmanager
    def task(self, title: str, total: float) -> Iterator[Task]:
        """Open a task; its start and end are logged."""
        self._folder.log(f"{title}: start")
        with self._inner.task(title, total) as task:
            yield task
        self._folder.log(f"{title}: done")

    def log(self, message: str) -> None:
        """Say one line, and log it."""
        self._folder.log(message)
        self._inner.log(message)
