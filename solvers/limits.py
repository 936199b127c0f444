"""What a search may spend, how it tells how far it is, and how it ends early without losing anything."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solvers.errors import ProblemError, StoppedError

if TYPE_CHECKING:
    from solvers.evaluation import Evaluation
    from solvers.mapping import Mapping

NO_GAP = 1e-9
"""Gaps up to this are rounding."""


def available_cores() -> int:
    """Return how many cores this process may use: the size of its affinity mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class SearchState:
    """How far a search is.

    Parameters
    ----------
    solver
        Name in the registry.
    mapping, evaluation
        The incumbent: the best feasible mapping so far; None before there is one.
    bound_hz
        No mapping has a higher throughput; None while nothing is known.
    elapsed_s
        Since the search began.
    """

    solver: str
    mapping: Mapping | None
    evaluation: Evaluation | None
    bound_hz: float | None
    elapsed_s: float

    @property
    def gap(self) -> float | None:
        """(bound - found) / found in throughput."""
        return throughput_gap(self.evaluation, self.bound_hz)


def throughput_gap(evaluation: Evaluation | None, bound_hz: float | None) -> float | None:
    """Return (bound - found) / found in throughput; None when either is not known."""
    if evaluation is None or bound_hz is None or evaluation.throughput_hz == 0:
        return None
    return max(0.0, bound_hz / evaluation.throughput_hz - 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may spend.

    Parameters
    ----------
    time_s
        Wall time.  A search that has no mapping yet goes on until it has one.
    gap
        Stop when (bound - found) / found in throughput is at most this.  A part of a search that can
        not gain more than this ends too.
    memory_bytes
        Working memory of one solver.
    workers
        Threads a solver may use; as many as the affinity mask has cores.
    seed
        Same seed, same answer, unless the time ran out.
    progress
        Told every incumbent and better bound.  What it raises ends the search like an error of
        the solver, except KeyboardInterrupt, which ends it like ``stop``.
    stop
        Once this event is set the search ends soon and answers its incumbent.  Ctrl-C does the same,
        and sets it, so that searches that share it all end.
    watch
        Who collects incumbents; ``solvers.registry.solve`` sets it.
    """

    time_s: float = 60.0
    gap: float = 0.0
    memory_bytes: int = 2 * 1024**3
    workers: int = field(default_factory=available_cores)
    seed: int = 0
    progress: Callable[[SearchState], None] | None = None
    stop: threading.Event | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("time_s", self.time_s, 0),
            ("gap", self.gap, 0),
            ("workers", self.workers, 1),
        ):
            if not value >= least:
                raise ProblemError(f"Limits.{name} is {value}, expected at least {least}")

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` is set."""
        return self.stop is not None and self.stop.is_set()

    @property
    def ends_early(self) -> bool:
        """Whether nothing more needs to be found: stopped, or within the wanted gap."""
        return self.stopped or self.close_enough

    @property
    def close_enough(self) -> bool:
        """Whether the incumbent is within the wanted gap."""
        return self.watch is not None and self.watch.close_enough

    def check(self) -> None:
        """Call this often in long loops.

        Raises
        ------
        StoppedError
            The search is to end: it was stopped, or its time is up and there is an incumbent.
        """
        if self.stopped:
            raise StoppedError("the search was stopped")
        if self.watch is not None and self.watch.out_of_time:
            raise StoppedError("the time is up")

    def found(self, mapping: Mapping, evaluation: Evaluation | None = None) -> None:
        """Tell a mapping that may be better than the incumbent, feasible or not, scored or not."""
        if self.watch is not None:
            self.watch.found(mapping, evaluation)

    def bounded(self, bound_hz: float) -> None:
        """Tell that no mapping has a higher throughput."""
        if self.watch is not None:
            self.watch.bounded(bound_hz)


class Watch:
    """Keeps the incumbent and the bound of one search, and tells them.

    Parameters
    ----------
    solver
        Name for ``SearchState``.
    evaluate
        Scores a mapping.
    better
        Whether an evaluation is feasible and better than that of the incumbent (None at first).
    limits
        Whose time, gap and callback count.
    """

    def __init__(
        self,
        solver: str,
        evaluate: Callable[[Mapping], Evaluation],
        better: Callable[[Evaluation, Evaluation | None], bool],
        limits: Limits,
    ) -> None:
        self._solver = solver
        self._evaluate = evaluate
        self._better = better
        self._limits = limits
        self._start = time.monotonic()
        self.mapping: Mapping | None = None
        self.evaluation: Evaluation | None = None
        self.bound_hz: float | None = None
        self.least_bound_hz = 0.0
        """No bound below this is taken: it is for some of the mappings only."""
        self.rate_counts = True
        """Whether the goal is throughput, so that the gap between rates says how good the incumbent is."""
        self.rescores = False
        """Whether known evaluations are not to be trusted: they are of a part of the problem."""

    @property
    def elapsed_s(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._start

    @property
    def out_of_time(self) -> bool:
        """Whether there is an incumbent and the time is up."""
        return self.mapping is not None and self.elapsed_s > self._limits.time_s

    @property
    def close_enough(self) -> bool:
        """Whether the incumbent is within the wanted gap."""
        gap = throughput_gap(self.evaluation, self.bound_hz) if self.rate_counts else None
        return gap is not None and gap <= max(self._limits.gap, NO_GAP)

    def found(self, mapping: Mapping, evaluation: Evaluation | None = None) -> None:
        """Take a mapping if it is better than the incumbent; ``evaluation`` if it is known already."""
        if evaluation is None or self.rescores:
            evaluation = self._evaluate(mapping)
        if self._better(evaluation, self.evaluation):
            self.mapping, self.evaluation = mapping, evaluation
            self._tell()

    def bounded(self, bound_hz: float) -> None:
        """Take a bound if it is better than the one so far."""
        bound_hz = max(bound_hz, self.least_bound_hz)
        if self.bound_hz is None or bound_hz < self.bound_hz:
            self.bound_hz = bound_hz
            self._tell()

    def _tell(self) -> None:
        if self._limits.progress is not None:
            self._limits.progress(
                SearchState(self._solver, self.mapping, self.evaluation, self.bound_hz, self.elapsed_s)
            )
