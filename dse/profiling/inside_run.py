"""Timing the whole model under the runtime's profiler, in visits that interleave with others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from dse.platforms import Slot
from dse.profiling.cache import Journal
from dse.profiling.calm import precise_enough
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Piece, SlotWorker
from dse.profiling.stats import median, middle_mean, reached_precision

TOTAL = "inside"
VISIT_SHARE = 5  # a visit to the whole model may last this many times a visit to a layer
FEWEST_RUNS, MOST_RUNS = 4, 32
FEWEST_RUNS_IN_ALL = 48


def piece_name(position: int) -> str:
    """Return the name under which a piece's samples are in the journal."""
    return f"{TOTAL} {position}"


def is_piece(name: str) -> bool:
    """Whether a subject's name is that of the profiled model or of one of its pieces."""
    return name == TOTAL or name.startswith(f"{TOTAL} ")


def known_pieces(journal: Journal, slot: Slot) -> tuple[Piece, ...]:
    """Return what the profiler timed on a slot, as the journal knows it."""
    return tuple(Piece(kind, tag, index) for kind, tag, index in journal.extra.get(f"{TOTAL} {slot}", ()))


@dataclass(slots=True)
class InsideRun:
    """The whole model under the profiler on every slot.

    One sample per piece and visit: the mean of the middle half of its runs, since the profiler
    counts whole microseconds.

    Parameters
    ----------
    path
        The model.
    journal
        Gets the samples.
    options
        Precision and rounds.
    """

    path: Path
    journal: Journal
    options: ProfileOptions
    _n_runs: dict[Slot, int] = field(default_factory=dict)

    def load(self, slot: Slot, worker: SlotWorker) -> None:
        """Load the model into a slot's process; a refusal is noted in the journal."""
        if not self.todo(slot):
            return
        loaded = worker.load_inside(self.path)
        if isinstance(loaded, str):
            self.journal.refuse(str(slot), TOTAL, loaded)
            return
        wanted = VISIT_SHARE * self.options.visit_ns // max(1, loaded.second_ns)
        self._n_runs[slot] = max(FEWEST_RUNS, min(MOST_RUNS, wanted))

    def todo(self, slot: Slot) -> bool:
        """Whether a slot still needs visits."""
        return not self.journal.record(str(slot), TOTAL).satisfies(self.options.precision)

    def visit(self, slot: Slot, worker: SlotWorker) -> list[str]:
        """Run the model some times and keep one sample per piece; return the subjects it was for."""
        if not self.todo(slot):
            return []
        times = worker.time_inside(1, self._n_runs[slot])
        if isinstance(times, str):
            self.journal.refuse(str(slot), TOTAL, times)
            return []
        known = known_pieces(self.journal, slot)
        if not known:
            self.journal.note(f"{TOTAL} {slot}", [[p.kind, p.tag, p.index] for p in times.pieces])
        elif known != times.pieces:
            reason = "the runtime's profiler reports other kernels than before"
            self.journal.refuse(str(slot), TOTAL, reason)
            return []
        # Interruptions that make a time-shared core slow would be among the outliers.
        summed_up = fmean if slot.cluster in self.options.time_shared else middle_mean
        samples = [round(1000 * summed_up(piece)) for piece in times.times_us]
        named = {piece_name(position): [sample] for position, sample in enumerate(samples)}
        named[TOTAL] = [sum(samples)]
        self.journal.add_samples(str(slot), named)
        return list(named)

    def finish_precise(self, slot: Slot) -> None:
        """Note that no more is to be measured on a slot when it is precise enough."""
        record = self.journal.record(str(slot), TOTAL)
        n_runs = len(record.visits) * self._n_runs.get(slot, 0)
        if (
            self.todo(slot)
            and n_runs >= FEWEST_RUNS_IN_ALL
            and precise_enough(record, self.options)
            and self._typical_precision(slot) <= self.options.precision
        ):
            self.journal.finish(str(slot), [TOTAL], self.options.precision)

    def _typical_precision(self, slot: Slot) -> float:
        """Return the relative half-width of the pieces' intervals, weighted by their time."""
        spread = total = 0.0
        for position in range(len(known_pieces(self.journal, slot))):
            visits = self.journal.record(str(slot), piece_name(position)).used_visits
            weight = sum(median(visit) for visit in visits) / len(visits)
            spread += weight * (reached_precision(visits) or 0.0)
            total += weight
        return spread / total if total else 0.0

    def finish(self) -> None:
        """Note that no more is to be measured: the budget is spent."""
        for slot in self._n_runs:
            if self.todo(slot):
                self.journal.finish(str(slot), [TOTAL], self.options.precision)
