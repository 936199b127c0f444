"""The clocks of cores at work."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from dse.conditions import read_clocks


class ClockWatch:
    """Reads the clocks of cores while they work; before and after they may be slower, which is no drift.

    Parameters
    ----------
    cores
        Whose.
    at_s
        When, in seconds from the start.
    """

    def __init__(self, cores: Collection[int], at_s: Sequence[float]) -> None:
        self._cores = tuple(cores)
        self._seen: list[dict[int, int]] = []
        # Nothing is started where the kernel tells no clocks.
        times = at_s if read_clocks(self._cores) else ()
        self._timers = [threading.Timer(seconds, self._look) for seconds in times]

    def __enter__(self) -> ClockWatch:
        for timer in self._timers:
            timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()

    @property
    def first(self) -> dict[int, int]:
        """Clocks by core when it looked first; empty when it did not."""
        return self._seen[0] if self._seen else {}

    @property
    def last(self) -> dict[int, int]:
        """Clocks by core when it looked last."""
        return self._seen[-1] if self._seen else {}

    def _look(self) -> None:
        self._seen.append(read_clocks(self._cores))
