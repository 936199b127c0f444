"""The parent's side of the device worker: one process per slot, restarted when a model kills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dse.devices.accelerators import child_environment
from dse.devices.child import Child
from dse.errors import AffinityError, ChildDiedError, ChildTimeoutError, RuntimeRefusedError
from dse.files import write_bytes
from dse.platforms import ClusterKind, Slot
from dse.profiling.options import ProfileOptions
from dse.profiling.tiny import tiny_model

Visit = tuple[str, int, int]
SETTLING = "settling"
_DEATHS = (ChildDiedError, ChildTimeoutError)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a model did when it was loaded.

    Parameters
    ----------
    second_ns
        Time of the second invocation: a first estimate.
    grown_bytes
        By how much the process grew at its peak.
    fallback
        What an accelerator leaves to the CPU, with reasons.
    """

    second_ns: int
    grown_bytes: int
    fallback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that the runtime's profiler times.

    Parameters
    ----------
    kind
        2: an operator of the main graph; 8: a kernel of a delegate.
    tag
        Name of the operator or kernel.
    index
        Number of the operator in the file, or of the kernel in its delegate.
    """

    kind: int
    tag: str
    index: int


@dataclass(frozen=True, slots=True)
class InsideTimes:
    """Times of some profiled runs: per piece, in microseconds, one per run."""

    pieces: tuple[Piece, ...]
    times_us: tuple[tuple[int, ...], ...]


class SlotWorker:
    """A worker process pinned to the cores of one slot.

    Parameters
    ----------
    slot
        Its threads are the thread count of every model.
    cores
        As many as the slot has threads.
    log_path
        Collects what the runtime prints.
    options
        Seed, time-out.
    device
        What kind of thing the slot's cluster is; the cores of an accelerator are those that drive it.
    """

    def __init__(
        self,
        slot: Slot,
        cores: Sequence[int],
        log_path: Path,
        options: ProfileOptions,
        device: ClusterKind = "cpu",
    ) -> None:
        self.slot = slot
        self.cores = tuple(cores)
        self.device = device
        self._log_path = log_path
        self._options = options
        self._resident: dict[str, tuple[Path, Mapping[int, Path]]] = {}
        self._inside: Path | None = None
        self.versions: dict[str, Any] = {}
        self._child = self._start()

    @property
    def _kernels(self) -> str:
        return self.slot.kernels if self.device == "cpu" else self.device

    @property
    def pid(self) -> int:
        """Number of the process at present."""
        return self._child.pid

    def load(self, name: str, path: Path, values: Mapping[int, Path] | None = None) -> Loaded | str:
        """Load a model; return what it did, or the reason why this slot can not run it.

        A process that dies is started again, once more for the same model: only a model that kills
        it twice is refused.  ``values`` are files of numbers for some inputs, by position.
        """
        try:
            return self._load(name, path, values or {})
        except RuntimeRefusedError as error:
            return str(error)
        except _DEATHS:
            self._restart()
        try:
            return self._load(name, path, values or {})
        except RuntimeRefusedError as error:
            return str(error)
        except _DEATHS as error:
            self._restart()
            return f"the runtime's process died twice: {error}"

    def settle(self, folder: Path) -> None:
        """Run a model that does nothing: what the runtime loads once is no model's memory."""
        path = folder / f"{SETTLING}.tflite"
        write_bytes(path, tiny_model())
        self.load(SETTLING, path)
        self.unload([SETTLING])

    def time(
        self, visits: Sequence[Visit], *, pause_ns: int = 0
    ) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Time models in the order given.

        Parameters
        ----------
        visits
            Name, warm-up runs and timed runs.
        pause_ns
            How long to sleep before every timed run.

        Returns
        -------
        samples
            Nanoseconds by name.
        refused
            Reasons by name, for models that failed or killed the process (found by timing each
            of them alone).
        """
        try:
            return self._time(visits, pause_ns), {}
        except RuntimeRefusedError:
            pass
        except _DEATHS:
            self._restart()
        samples: dict[str, list[int]] = {}
        refused: dict[str, str] = {}
        for visit in visits:
            try:
                samples.update(self._time([visit], pause_ns))
            except RuntimeRefusedError as error:
                refused[visit[0]] = str(error)
                self._resident.pop(visit[0], None)
            except _DEATHS as error:
                refused[visit[0]] = f"the runtime's process died while it ran: {error}"
                self._resident.pop(visit[0], None)
                self._restart()
        return samples, refused

    def load_inside(self, path: Path) -> Loaded | str:
        """Load a model for the runtime's own profiler; return what it did, or why that is not possible."""
        try:
            return self._load_inside(path)
        except RuntimeRefusedError as error:
            return str(error)
        except _DEATHS as error:
            self._restart()
            return f"the runtime's process died with its profiler: {error}"

    def time_inside(self, n_warmup: int, n_runs: int) -> InsideTimes | str:
        """Run the model of ``load_inside`` under the profiler; return times, or why there are none."""
        request = {"command": "time_inside", "n_warmup": n_warmup, "n_runs": n_runs}
        try:
            answer = self._child.request(request, timeout_s=self._options.timeout_s, doing="profiling")
        except RuntimeRefusedError as error:
            return str(error)
        except _DEATHS as error:
            self._inside = None
            self._restart()
            return f"the runtime's process died with its profiler: {error}"
        pieces = tuple(Piece(int(kind), str(tag), int(index)) for kind, tag, index in answer["pieces"])
        return InsideTimes(pieces, tuple(tuple(times) for times in answer["times_us"]))

    def yardstick_ns(self) -> int:
        """Time a fixed piece of arithmetic, see ``dse.devices.worker.yardstick_ns``."""
        answer = self._child.request({"command": "yardstick"}, timeout_s=self._options.timeout_s)
        return int(answer["yardstick_ns"])

    def busy(self, name: str) -> None:
        """Keep the cores busy with a loaded model, until ``calm``."""
        self._child.request({"command": "busy", "id": name}, timeout_s=self._options.timeout_s)

    def calm(self) -> None:
        """End ``busy``; returns when the cores are free."""
        self._child.request({"command": "calm"}, timeout_s=self._options.timeout_s)

    def unload(self, names: Sequence[str]) -> None:
        """Forget models."""
        for name in names:
            self._resident.pop(name, None)
        self._child.request({"command": "unload", "ids": list(names)}, timeout_s=self._options.timeout_s)

    def check_affinity(self) -> None:
        """Read back the mask of every thread of the process.

        Raises
        ------
        AffinityError
            A thread may run elsewhere than on the slot's cores.  The threads of an accelerator's driver
            are its own affair.
        """
        if self.device != "cpu":
            return
        answer = self._child.request({"command": "affinity"}, timeout_s=self._options.timeout_s)
        for thread, mask in answer["threads"].items():
            if tuple(mask) != tuple(sorted(self.cores)):
                raise AffinityError(
                    f"slot {self.slot}: thread {thread} of process {self._child.pid} may run on cores {mask},"
                    f" expected {sorted(self.cores)}: the machine does not keep affinity masks"
                )

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def kill(self) -> None:
        """End the process at once."""
        self._child.kill()

    def __enter__(self) -> SlotWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def _start(self) -> Child:
        child = Child(
            "dse.devices.worker",
            ["--cores", ",".join(map(str, self.cores))],
            log_path=self._log_path,
            name=f"the profiling worker of slot {self.slot!s}",
            env={} if self.device == "cpu" else child_environment(),
        )
        try:
            self.versions = child.request({"command": "hello"}, timeout_s=self._options.timeout_s)
        except BaseException:
            child.kill()
            raise
        if tuple(self.versions["cores"]) != tuple(sorted(self.cores)):
            child.kill()
            raise AffinityError(
                f"slot {self.slot}: asked for cores {sorted(self.cores)}, got {self.versions['cores']};"
                " another program or a control group changes affinity masks"
            )
        return child

    def _restart(self) -> None:
        self._child.kill()
        with suppress(*_DEATHS):
            self._child.close()
        self._child = self._start()
        for name, (path, values) in list(self._resident.items()):
            self._load(name, path, values)
        if self._inside is not None:
            path, self._inside = self._inside, None  # a model that kills the process is not tried again
            self._load_inside(path)

    def _load(self, name: str, path: Path, values: Mapping[int, Path]) -> Loaded:
        answer = self._child.request(
            {
                "command": "load",
                "id": name,
                "path": str(path),
                "threads": self.slot.threads,
                "seed": self._options.seed,
                "kernels": self._kernels,
                "values": {str(position): str(file) for position, file in values.items()},
            },
            timeout_s=self._options.timeout_s,
            doing=f"loading {name}",
        )
        self._resident[name] = (path, values)
        fallback = tuple(str(text) for text in answer["fallback"])
        return Loaded(int(answer["second_ns"]), int(answer["grown_bytes"]), fallback)

    def _load_inside(self, path: Path) -> Loaded:
        request = {
            "command": "load_inside",
            "path": str(path),
            "threads": self.slot.threads,
            "seed": self._options.seed,
            "kernels": self._kernels,
        }
        answer = self._child.request(
            request, timeout_s=self._options.timeout_s, doing="loading the model for profiling"
        )
        self._inside = path
        return Loaded(int(answer["second_ns"]), 0)

    def _time(self, visits: Sequence[Visit], pause_ns: int) -> dict[str, list[int]]:
        answer = self._child.request(
            {"command": "time", "visits": [list(visit) for visit in visits], "pause_ns": pause_ns},
            timeout_s=self._options.timeout_s,
            doing=f"timing {visits[0][0] if len(visits) == 1 else f'{len(visits)} models'}",
        )
        return {name: [int(v) for v in values] for name, values in answer["samples"].items()}
