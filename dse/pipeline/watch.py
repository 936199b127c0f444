"""Noticing that something stands still."""

from __future__ import annotations

import time
from collections.abc import Callable


class StallWatch:
    """Notices that a lane's counters have not moved for too long.

    Parameters
    ----------
    limit_s
        How long is too long.
    clock
        Seconds; for tests.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}

    def stuck(self, lane: int, counters: tuple[int, ...]) -> bool:
        """Look at a lane's counters; whether they are the same for longer than the limit."""
        before = self._seen.get(lane)
        if before is None or before[0] != counters:
            self._seen[lane] = (counters, self._clock())
            return False
        return self._clock() - before[1] > self.limit_s

    def forget(self, lane: int | None = None) -> None:
        """Start anew, for one lane or for all: it had nothing to do, or nobody looked."""
        if lane is None:
            self._seen.clear()
        else:
            self._seen.pop(lane, None)
