"""How long work tells how far it is, without knowing about terminals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work with a known number of steps."""

    def advance(self, steps: float = 1, note: str = "") -> None:
        """Tell that ``steps`` more are done; ``note`` says what is at hand."""


class Progress(Protocol):
    """Something that shows tasks to a person (see ``dse.cli``) or to nobody."""

    @contextmanager
    def task(self, title: str, total: float) -> Iterator[Task]:
        """Open a task of ``total`` steps for the time of a ``with`` block."""
        ...

    def log(self, message: str) -> None:
        """Say one line."""


class _Silent:
    def advance(self, steps: float = 1, note: str = "") -> None:
        """Do nothing."""


class SilentProgress:
    """Shows nothing; the default of every library function."""

    @contextmanager
    def task(self, title: str, total: float) -> Iterator[Task]:
        """Open a task that nobody sees."""
        yield _Silent()

    def log(self, message: str) -> None:
        """Say nothing."""
