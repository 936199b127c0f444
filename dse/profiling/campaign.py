"""The order in which many models are timed on many slots.

Slots take turns, so that a slow minute of the machine hits all of them; within a turn the models
come in random order; a model that has reached the asked precision is not visited again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dse import files
from dse.errors import InputError
from dse.platforms import Slot
from dse.profiling.background import Background
from dse.profiling.cache import Journal
from dse.profiling.calm import CalmWatch, precise_enough
from dse.profiling.inside_run import InsideRun, is_piece
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Loaded, SlotWorker, Visit
from dse.profiling.stats import median
from dse.progress import Task
from dse.units import NS_PER_S

MAX_RUNS_PER_VISIT = 16
SLOW_RUN_NS = 200_000_000
REQUEST_NS = NS_PER_S // 2
YARDSTICK = "yardstick"  # note of a journal, by slot: the shortest time of a fixed piece of arithmetic
GROWN = "grown bytes"  # note of a journal, by slot: how much loading a subject made the process grow


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to time.

    Parameters
    ----------
    name
        Unique, stable over runs: part of the journal.
    n_bytes
        Size of the model, for keeping the memory bounded.
    path
        The model's file, or None when ``build`` writes one.
    build
        Returns the bytes of the model, called when it is needed; an ``InputError`` means that it
        can not be a model of its own, and no slot gets a cost.
    values
        Files of numbers for some inputs, by position.
    only
        The slots that it is timed on, None for all.
    may_fall_back
        Whether it counts where an accelerator leaves a part of it to the CPU.
    """

    name: str
    n_bytes: int
    path: Path | None = None
    build: Callable[[], bytes | bytearray] | None = None
    values: Mapping[int, Path] = field(default_factory=dict)
    only: frozenset[Slot] | None = None
    may_fall_back: bool = False


@dataclass(slots=True)
class Campaign:
    """Times subjects on slots until they are precise enough or the budget is spent.

    Parameters
    ----------
    workers
        One pinned process per slot.
    journal
        Gets every sample at once, and knows what earlier runs have measured.
    options
        Precision, budget, rounds, seed.
    folder
        For model files, which are removed when they are no longer needed.
    task
        Progress: one step per subject and slot.
    batch_bytes
        Models of about this size in all are resident at a time.
    inside
        The whole model under the runtime's profiler, which takes part in every round.
    background
        Keeps the other cores busy while a slot has its turn.
    budget_s
        Instead of that of the options.
    stopped_by
        What ended it: ``precision`` (everything is as precise as was asked), ``budget`` or ``rounds``.
    """

    workers: Mapping[Slot, SlotWorker]
    journal: Journal
    options: ProfileOptions
    folder: Path
    task: Task
    batch_bytes: int
    inside: InsideRun | None = None
    background: Background | None = None
    budget_s: float | None = None
    stopped_by: str = "precision"
    _estimate_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    _only: dict[str, frozenset[Slot]] = field(default_factory=dict)

    def run(self, subjects: Sequence[Subject], always: Sequence[Subject] = ()) -> None:
        """Time all subjects; those of ``always`` are resident with every batch, and loaded first."""
        self._only = {s.name: s.only for s in (*always, *subjects) if s.only is not None}
        budget_s = self.options.budget_s if self.budget_s is None else self.budget_s
        deadline = time.monotonic() + budget_s
        for slot in self.workers:
            known = [s.name for s in (*always, *subjects) if self._precise(slot, s.name)]
            self.journal.finish(
                str(slot), [n for n in known if not self._done(slot, n)], self.options.precision
            )
        batches = list(self._batches([s for s in subjects if self._unfinished(s)]))
        waiting = self.inside is not None and any(self.inside.todo(slot) for slot in self.workers)
        if not batches and (waiting or any(self._unfinished(s) for s in always)):
            batches = [[]]
        n_known = sum(self._done(slot, s.name) for s in (*always, *subjects) for slot in self.workers)
        self.task.advance(n_known, "known from before")
        left = sum(len(batch) + len(always) for batch in batches)
        for batch in batches:
            members = [*always, *batch]
            now = time.monotonic()
            self._run_batch(members, now + max(0.0, deadline - now) * len(members) / left)
            left -= len(members)
        every = (*always, *subjects)
        short = [s.name for s in every for slot in self.workers if not self._done(slot, s.name)]
        if short or (self.inside is not None and any(self.inside.todo(slot) for slot in self.workers)):
            self.stopped_by = "budget" if time.monotonic() > deadline else "rounds"
        if self.inside is not None:
            self.inside.finish()
        for slot in self.workers:
            names = [s.name for s in (*always, *subjects) if not self._done(slot, s.name)]
            self.journal.finish(str(slot), names, self.options.precision)

    def _batches(self, subjects: Iterable[Subject]) -> Iterable[list[Subject]]:
        batch: list[Subject] = []
        for subject in subjects:
            if batch and sum(s.n_bytes for s in batch) + subject.n_bytes > self.batch_bytes:
                yield batch
                batch = []
            batch.append(subject)
        if batch:
            yield batch

    def _run_batch(self, batch: Sequence[Subject], deadline: float) -> None:
        paths = {subject.name: path for subject in batch if (path := self._write(subject)) is not None}
        batch = [subject for subject in batch if subject.name in paths]
        try:
            for slot, worker in self.workers.items():
                grown = {
                    subject.name: loaded.grown_bytes
                    for subject in batch
                    if (loaded := self._load(slot, worker, subject, paths[subject.name])) is not None
                }
                if grown:
                    known = self.journal.extra.get(f"{GROWN} {slot}", {})
                    self.journal.note(f"{GROWN} {slot}", {**known, **grown})
                worker.check_affinity()
            self._run_rounds([subject.name for subject in batch], deadline)
            for worker in self.workers.values():
                worker.unload([subject.name for subject in batch])
        finally:
            for subject in batch:
                if subject.path is None:
                    paths[subject.name].unlink(missing_ok=True)

    def _write(self, subject: Subject) -> Path | None:
        if subject.path is not None or subject.build is None:
            return subject.path
        path = self.folder / f"{subject.name}.tflite"
        try:
            files.write_bytes(path, subject.build())
        except InputError as error:
            for slot in self.workers:
                self.journal.refuse(str(slot), subject.name, str(error))
            self.task.advance(len(self.workers), f"{subject.name}: can not run alone")
            return None
        return path

    def _load(self, slot: Slot, worker: SlotWorker, subject: Subject, path: Path) -> Loaded | None:
        name = subject.name
        if self._done(slot, name):
            return None
        loaded = worker.load(name, path, subject.values)
        if not isinstance(loaded, str) and loaded.fallback and not subject.may_fall_back:
            worker.unload([name])
            loaded = f"left to the CPU: {'; '.join(loaded.fallback)}"
        if isinstance(loaded, str):
            self.journal.refuse(str(slot), name, loaded)
            self.task.advance(1, f"{name}: refused on {slot}")
            return None
        self._estimate_ns[str(slot), name] = max(1, loaded.second_ns)
        return loaded

    def _run_rounds(self, names: Sequence[str], deadline: float) -> None:
        # Not cryptography: the order only has to be spread and repeatable.
        order = random.Random(self.options.seed)  # noqa: S311
        for round_number in range(self.options.max_rounds):
            slots = list(self.workers)
            order.shuffle(slots)
            for slot in slots:
                if self.background is not None:
                    self.background.surround(self.workers[slot].cores)
                todo = [name for name in names if not self._done(slot, name)]
                order.shuffle(todo)
                watch = CalmWatch(self.workers[slot], self.journal.extra.get(f"{YARDSTICK} {slot}"))
                visited = self._turn(slot, todo, round_number, deadline)
                disturbance = "" if slot.cluster in self.options.time_shared else watch.disturbance()
                self.journal.note(f"{YARDSTICK} {slot}", watch.yardstick_ns)
                if disturbance:
                    self.journal.disturb(str(slot), visited, disturbance)
                self._finish_precise(slot, visited)
                if round_number > 0 and time.monotonic() > deadline:
                    return
            inside_done = self.inside is None or not any(self.inside.todo(slot) for slot in slots)
            if inside_done and all(self._done(slot, name) for slot in slots for name in names):
                return

    def _turn(self, slot: Slot, todo: Sequence[str], round_number: int, deadline: float) -> list[str]:
        """Visit subjects, and the inside of the whole model; return whom there was time for."""
        visited: list[str] = []
        for visits in self._requests(slot, todo):
            if round_number > 0 and time.monotonic() > deadline:
                return visited
            visited += self._visit(slot, visits, round_number)
        if self.inside is not None and (round_number == 0 or time.monotonic() <= deadline):
            visited += self.inside.visit(slot, self.workers[slot])
        return visited

    def _requests(self, slot: Slot, names: Sequence[str]) -> Iterable[list[Visit]]:
        """Part the visits of a turn, so that no request takes long (for Ctrl-C and the display)."""
        request: list[Visit] = []
        spent_ns = 0
        for name in names:
            estimate = self._estimate_ns.get((str(slot), name), self.options.visit_ns)
            n_timed = max(1, min(MAX_RUNS_PER_VISIT, self.options.visit_ns // estimate))
            n_warmup = 1 if estimate < SLOW_RUN_NS else 0
            request.append((name, n_warmup, n_timed))
            spent_ns += estimate * (n_timed + n_warmup)
            if spent_ns > REQUEST_NS:
                yield request
                request, spent_ns = [], 0
        if request:
            yield request

    def _visit(self, slot: Slot, visits: Sequence[Visit], round_number: int) -> list[str]:
        samples, refused = self.workers[slot].time(visits)
        self.journal.add_samples(str(slot), samples)
        for name, reason in refused.items():
            self.journal.refuse(str(slot), name, reason)
        for name, values in samples.items():
            self._estimate_ns[str(slot), name] = max(1, median(values))
        self._advance(len(samples), len(refused), round_number, slot)
        return list(samples)

    def _finish_precise(self, slot: Slot, names: Sequence[str]) -> None:
        precise = [name for name in names if not is_piece(name) and self._precise(slot, name)]
        self.journal.finish(str(slot), precise, self.options.precision)
        if self.inside is not None:
            self.inside.finish_precise(slot)

    def _advance(self, n_samples: int, n_refused: int, round_number: int, slot: Slot) -> None:
        share = 1 / self.options.min_rounds if round_number < self.options.min_rounds else 0.0
        note = f"round {round_number + 1} on {slot}" + ("" if share else ", for precision")
        self.task.advance(n_samples * share + n_refused, note)

    def _unfinished(self, subject: Subject) -> bool:
        return any(not self._done(slot, subject.name) for slot in self.workers)

    def _done(self, slot: Slot, name: str) -> bool:
        if name in self._only and slot not in self._only[name]:
            return True
        return self.journal.record(str(slot), name).satisfies(self.options.precision)

    def _precise(self, slot: Slot, name: str) -> bool:
        return precise_enough(self.journal.record(str(slot), name), self.options)
