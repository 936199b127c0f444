"""Measurements on disk: an append-only journal per model, device and runtime.

One line of JSON per visit of a slot, written with one system call, so whatever ends the program -
Ctrl-C, ``kill -9``, a full disk - loses at most the line being written.  Lines that are not
complete JSON objects are skipped on reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from dse.errors import InputError
from dse.files import default_cache_folder

FORMAT = "tflite-dse measurements"
VERSION = 1
ENOUGH_CALM = 3
FEWEST_RESTLESS = 6


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that may change a measured time.

    Parameters
    ----------
    model_sha256
        Of the whole file.
    device
        What the device is: clusters, cores, CPU.
    runtime
        Name and version.
    options
        Options of the runtime and of the method; not precision, budget or seed, which only say
        how many samples are wanted.
    """

    model_sha256: str
    device: str
    runtime: str
    options: str

    @property
    def file_name(self) -> str:
        """Name of the journal: readable start, then a hash over all fields."""
        text = json.dumps([self.model_sha256, self.device, self.runtime, self.options])
        return f"{self.model_sha256[:12]}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.jsonl"


@dataclass(slots=True)
class Record:
    """What is known about one subject (a layer, the whole model) on one slot.

    Parameters
    ----------
    visits
        Samples in nanoseconds, grouped by visit.
    calm
        By visit, whether the machine was calm meanwhile (see ``dse.profiling.calm``).
    refused
        Why the slot can not run it, else empty.
    finished_precision
        The precision that was asked for when measuring it ended, or None while it is unfinished.
    """

    visits: list[tuple[int, ...]] = field(default_factory=list)
    calm: list[bool] = field(default_factory=list)
    refused: str = ""
    finished_precision: float | None = None

    @property
    def used_visits(self) -> tuple[tuple[int, ...], ...]:
        """The visits that count: the calm ones; where too few were calm, the fastest third.

        Whatever disturbs only ever takes time away.
        """
        calm = tuple(visit for visit, quiet in zip(self.visits, self.calm, strict=True) if quiet)
        if len(calm) >= ENOUGH_CALM:
            return calm
        n_kept = max(FEWEST_RESTLESS, len(self.visits) // 3)
        fastest = sorted(range(len(self.visits)), key=lambda number: statistics.median(self.visits[number]))[
            :n_kept
        ]
        return tuple(self.visits[number] for number in sorted(fastest))

    @property
    def samples_ns(self) -> tuple[int, ...]:
        """The samples of the visits that count, in the order taken."""
        return tuple(sample for visit in self.used_visits for sample in visit)

    def satisfies(self, precision: float) -> bool:
        """Whether nothing is left to measure for this precision."""
        if self.refused:
            return True
        return self.finished_precision is not None and self.finished_precision <= precision


class Journal:
    """The measurements of one ``CacheKey``; without a path they only live in memory.

    Use it as a context manager.  ``record`` gives what is known, the other methods add to it and
    write it down at once.
    """

    def __init__(self, path: Path | None = None, key: CacheKey | None = None) -> None:
        self.path = path
        self._records: dict[tuple[str, str], Record] = {}
        self.extra: dict[str, Any] = {}
        self._descriptor: int | None = None
        if path is not None:
            self._open(path, key)

    def record(self, slot: str, subject: str) -> Record:
        """Return what is known about a subject on a slot (an empty record at first)."""
        return self._records.setdefault((slot, subject), Record())

    def add_samples(self, slot: str, samples: Mapping[str, Sequence[int]]) -> None:
        """Add one visit per subject."""
        self._apply_and_write({"slot": slot, "samples": {k: list(v) for k, v in samples.items() if v}})

    def disturb(self, slot: str, subjects: Sequence[str], why: str) -> None:
        """Note that the machine was not calm during the last visit of some subjects."""
        if subjects:
            self._apply_and_write({"slot": slot, "disturbed": list(subjects), "why": why})

    def refuse(self, slot: str, subject: str, reason: str) -> None:
        """Note that a slot can not run a subject."""
        self._apply_and_write({"slot": slot, "refused": {subject: reason}})

    def finish(self, slot: str, subjects: Sequence[str], precision: float) -> None:
        """Note that no more is to be measured for this precision."""
        if subjects:
            self._apply_and_write({"slot": slot, "finished": list(subjects), "precision": precision})

    def note(self, name: str, value: Any) -> None:
        """Keep something else (links, memory, conditions); the last value of a name wins."""
        self._apply_and_write({"note": name, "value": value})

    @property
    def n_visits(self) -> tuple[int, int]:
        """Number of visits in all, and of those during which the machine was not calm."""
        flags = [calm for record in self._records.values() for calm in record.calm]
        return len(flags), flags.count(False)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, path: Path, key: CacheKey | None) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_bytes() if path.exists() else b""
            for line in text.split(b"\n"):
                self._read_line(line)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(
                f"{path}: the measurement cache can not be used ({error.strerror});"
                " set TFLITE_DSE_CACHE to a writable folder"
            ) from error
        if text and not text.endswith(b"\n"):
            os.write(self._descriptor, b"\n")  # end a torn line, so that the next one stands alone
        if not text and key is not None:
            header = {"format": FORMAT, "version": VERSION, "model_sha256": key.model_sha256}
            self._write({**header, "device": key.device, "runtime": key.runtime, "options": key.options})

    def _read_line(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if isinstance(entry, dict):
                self._apply(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # torn by a kill, or damaged: the measurement is simply made again

    def _apply_and_write(self, entry: dict[str, Any]) -> None:
        self._apply(entry)
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def _apply(self, entry: dict[str, Any]) -> None:
        if "note" in entry:
            self.extra[str(entry["note"])] = entry["value"]
            return
        if "slot" not in entry:
            return
        slot = str(entry["slot"])
        for subject, samples in entry.get("samples", {}).items():
            if samples and all(isinstance(sample, int) and sample >= 0 for sample in samples):
                record = self.record(slot, subject)
                record.visits.append(tuple(samples))
                record.calm.append(True)
        for subject in entry.get("disturbed", []):
            if self.record(slot, subject).calm:
                self.record(slot, subject).calm[-1] = False
        for subject, reason in entry.get("refused", {}).items():
            self.record(slot, subject).refused = str(reason)
        for subject in entry.get("finished", []):
            self.record(slot, subject).finished_precision = float(entry["precision"])


@dataclass(frozen=True, slots=True)
class ProfileCache:
    """A folder of journals.

    Parameters
    ----------
    folder
        Created when the first journal is opened.
    """

    folder: Path

    @classmethod
    def default(cls) -> ProfileCache:
        """Return the cache in the default folder."""
        return cls(default_cache_folder())

    def path(self, key: CacheKey) -> Path:
        """Return where the journal of a key is."""
        return self.folder / key.file_name

    def open(self, key: CacheKey, *, refresh: bool = False) -> Journal:
        """Open the journal of a key, with what it already holds.

        Parameters
        ----------
        key
            Which model, device, runtime and options.
        refresh
            Start anew.

        Raises
        ------
        InputError
            The folder can not be written.
        """
        path = self.path(key)
        if refresh:
            path.unlink(missing_ok=True)
        return Journal(path, key)
