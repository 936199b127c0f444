"""What a command prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dse.progress import Progress, SilentProgress, Task
from dse.units import format_ns

if TYPE_CHECKING:
    import rich.progress

INTERRUPTED = 130
"""Exit code."""

PLAIN_LINE_EVERY_S = 15.0

_BOLD = re.compile("(\033\\[[01]m)")


class Terminal:
    """Where a command's words go.

    Parameters
    ----------
    as_json
        One JSON document on stdout instead of text.
    quiet
        No progress.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    @property
    def colour(self) -> bool:
        """Whether stdout shows bold text."""
        import os

        return sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def result(self, text: str, data: Any) -> None:
        """Print the result: ``data`` as JSON, or ``text``."""
        print(json.dumps(data, indent=1, ensure_ascii=False) if self.as_json else printable(text))

    def say(self, text: str) -> None:
        """Print a remark on stderr, unless quiet."""
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show progress for the time of a ``with`` block.

        Bars with elapsed and remaining time on a terminal, else plain lines; nothing when quiet.
        """
        if self.quiet:
            yield SilentProgress()
        elif self.as_json or not sys.stderr.isatty():
            yield PlainProgress()
        else:
            with _bars() as bars:
                yield RichProgress(bars)


def printable(text: str) -> str:
    """Replace control characters, so that names can not steer a terminal; line breaks and our bold stay."""
    parts = _BOLD.split(text)
    return "".join(
        part if _BOLD.fullmatch(part) else "".join(c if c == "\n" or c.isprintable() else "?" for c in part)
        for part in parts
    )


class _PlainTask:
    def __init__(self, title: str, total: float) -> None:
        self._title, self._total = title, total
        self._done = 0.0
        self._start = self._last = time.monotonic()

    def advance(self, steps: float = 1, note: str = "") -> None:
        """Print a line now and then."""
        self._done += steps
        now = time.monotonic()
        if now - self._last < PLAIN_LINE_EVERY_S or self._done >= self._total:
            return
        self._last = now
        if not self._done:
            _line(f"{self._title}: {note}")
        else:
            left_s = (now - self._start) * (self._total / self._done - 1)
            share = self._done / self._total
            _line(f"{self._title}: {share:.0%}, about {format_ns(left_s * 1e9)} left {note}".rstrip())


class PlainProgress:
    """One line at the start and end of each task, and every 15 s between, for logs."""

    @contextmanager
    def task(self, title: str, total: float) -> Iterator[Task]:
        """Open a task."""
        _line(f"{title} ...")
        start = time.monotonic()
        yield _PlainTask(title, total)
        _line(f"{title}: done in {format_ns((time.monotonic() - start) * 1e9)}")

    def log(self, message: str) -> None:
        """Print one line."""
        _line(message)


def _line(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


class _RichTask:
    def __init__(self, bars: rich.progress.Progress, number: rich.progress.TaskID) -> None:
        self._bars, self._number = bars, number

    def advance(self, steps: float = 1, note: str = "") -> None:
        """Move the bar."""
        self._bars.update(self._number, advance=steps, note=printable(note).replace("\n", " "))


class RichProgress:
    """Bars with elapsed time and an estimate of the time left."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars

    @contextmanager
    def task(self, title: str, total: float) -> Iterator[Task]:
        """Open a bar; when it is done a line with its time stays."""
        number = self._bars.add_task(printable(title), total=total, note="")
        start = time.monotonic()
        try:
            yield _RichTask(self._bars, number)
        finally:
            self._bars.remove_task(number)
        self.log(f"{title}: done in {format_ns((time.monotonic() - start) * 1e9)}")

    def log(self, message: str) -> None:
        """Print one line above the bars."""
        self._bars.console.print(printable(message), markup=False, highlight=False)


def _bars() -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn(
            "{task.fields[note]}", markup=False, style="dim", table_column=Column(no_wrap=True, ratio=1)
        ),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )
