"""Where the jobs of a sweep come from: the store's list, or the trials of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dse.sweeps.presence import Driver
from dse.sweeps.store import Claim, Counts, Store


class Source(Protocol):
    """Gives jobs to run and hears how they ended."""

    def take(self, n_most: int) -> Sequence[Claim]:
        """Claim at most so many jobs that can run now."""

    def ended(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Hear how jobs ended, after the store knows."""

    def look_again(self, n_given_back: int) -> None:
        """Hear that so many jobs of drivers that are gone wait again."""

    def counts(self) -> Counts:
        """Count the jobs, those of other drivers included."""

    def window(self, n_slots: int) -> tuple[int, int]:
        """Return at how many jobs under way to take more, and up to how many.

        Parameters
        ----------
        n_slots
            How many can run at a time.
        """

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do for anybody."""


class ListSource:
    """The jobs of a sweep, in its order.

    Parameters
    ----------
    store, sweep, driver
        Whose jobs, and who takes them.
    """

    def __init__(self, store: Store, sweep: str, driver: Driver) -> None:
        self._store, self._sweep, self._driver = store, sweep, driver
        self._after = -1

    def take(self, n_most: int) -> Sequence[Claim]:
        """Claim jobs; what was given back before is found after the end of the list."""
        claims = self._store.claim(self._sweep, self._driver, n_most, self._after)
        if not claims and self._after >= 0:
            claims = self._store.claim(self._sweep, self._driver, n_most)
        if claims:
            self._after = claims[-1].position
        return claims

    def ended(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Need not know."""

    def look_again(self, n_given_back: int) -> None:
        """Begin at the front of the list when there is something to find."""
        if n_given_back:
            self._after = -1

    def counts(self) -> Counts:
        """Count in the store."""
        return self._store.counts(self._sweep)

    def window(self, n_slots: int) -> tuple[int, int]:
        """Keep some ready, so that no worker waits for the store."""
        return max(4, 2 * n_slots), max(8, 4 * n_slots)

    @property
    def is_finished(self) -> bool:
        """Whether every job has ended."""
        counts = self.counts()
        return not counts.waiting and not counts.running
