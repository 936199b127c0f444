"""A running pipeline, seen from outside: starts the lanes, watches them, ends them.

A lane that dies, hangs or fails ends the whole pipeline with an error that says which lane and
stage, how, and what had been delivered; nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dse.errors import ChildDiedError, DeviceError, InputError, PlatformError
from dse.pipeline.affinity import ThreadRecord
from dse.pipeline.counters import Counters
from dse.pipeline.engine import ENGINES, Array, make_slot
from dse.pipeline.frames import check_frame, check_frames
from dse.pipeline.lane import load_frames, save_frames
from dse.pipeline.plan import LanePlan, PipelinePlan, entering_stages, final_stages
from dse.pipeline.processes import STALL_S, LaneProcesses
from dse.pipeline.stream import (
    FrameSink,
    ThreadedSource,
    frames_of,
    refuse_shared_state,
    run_stream,
    run_streams,
)
from dse.pipeline.timeline import LaneTimes, Stamps, lane_times

_SHORT_S = 10.0
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Resident memory of a lane's process: at its peak, and before the model."""

    peak_rss_bytes: int
    empty_rss_bytes: int


@dataclass(frozen=True, slots=True)
class LaneRun:
    """One lane in one run: raw time stamps, masks read back afterwards, what it cost the machine.

    ``yardstick_ns`` is how long a fixed piece of arithmetic took on each set of cores right afterwards.
    """

    stamps: Stamps
    threads: tuple[ThreadRecord, ...]
    memory: LaneMemory
    counters: Counters
    yardstick_ns: tuple[int, ...] = ()

    @property
    def n_frames(self) -> int:
        """Frames made, warm-up included."""
        return len(self.stamps)


class Pipeline:
    """A plan's lanes, built and ready; use as a context manager.

    Parameters
    ----------
    plan
        What to run.
    frames
        Prepared frames: per frame one array per input of the model.  Only ``run`` and ``collect``
        use them, and the first invocation of each stage; default: one frame of zeros.
    queue_depth
        Frames that may wait in front of a stage.
    engine
        How stages run: ``compiled`` (the runtime's C API, no copies), ``interpreter``, or ``auto``
        (compiled, and the interpreter for stages that the C API refuses).
    stall_s
        A lane in which nothing moves for this long (and for ten times its slowest stage) is stuck.
    spin_us
        How long a stage with nothing to do keeps looking before it sleeps: 0 for never.  A value
        near the time between two frames saves the 20 to 40 us of being woken, and costs the core.
    loop
        What runs between two frames: ``native`` (C: no interpreter lock, for stages far below a
        millisecond; needs a C compiler and compiled stages), ``python``, or ``auto`` (native where
        it can be).
    record
        Frames of each lane whose time stamps are kept while frames of your own run, for ``recorded``.
    annotate
        Abstract socket of a Streamline daemon (``streamline.ADDRESS``) that is told what every stage
        does with which frame, while it happens; not together with ``record``.

    Raises
    ------
    PlatformError
        The plan wants cores that this process may not use.
    InputError
        A parameter is out of its range.
    InputError, RuntimeRefusedError, AffinityError, ChildDiedError, ChildTimeoutError
        On entering: a lane can not be built; the message names plan, lane and stage.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        frames: Sequence[Sequence[Array]] | None = None,
        *,
        queue_depth: int = 2,
        engine: str = "auto",
        stall_s: float = STALL_S,
        spin_us: int = 0,
        loop: str = "auto",
        record: int = 0,
        annotate: str = "",
    ) -> None:
        self.plan = plan
        if annotate and record:
            raise InputError(f"plan {plan.name!r}: expected record or annotate, got both")
        if engine not in ENGINES:
            raise InputError(
                f"plan {plan.name!r}: expected an engine of {', '.join(ENGINES)}, got {engine!r}"
            )
        least = {"queue_depth": (queue_depth, 1), "record": (record, 0), "spin_us": (spin_us, 0)}
        for name, (value, limit) in least.items():
            if value < limit:
                raise InputError(f"plan {plan.name!r}: expected {name} of at least {limit}, got {value}")
        if frames is None:
            frames = [tuple(make_slot(port) for port in plan.inputs)]
        self._frames = [tuple(frame) for frame in frames]
        self._queue_depth = queue_depth
        self._engine = engine
        self._stall_s = stall_s
        self._annotate = annotate
        self._loop = loop
        self._record = record
        self._spin_us = spin_us
        self._lanes: LaneProcesses | None = None
        self._memory_before: list[int] = []
        self.threads: tuple[tuple[ThreadRecord, ...], ...] = ()
        self.memory: tuple[LaneMemory, ...] = ()
        self.engines: tuple[tuple[str, ...], ...] = ()
        self.loops: tuple[str, ...] = ()
        self.fallbacks: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        mapping: Path | str,
        *,
        model: Path | str | None = None,
        queue_depth: int = 2,
        engine: str = "auto",
        stall_s: float = STALL_S,
        spin_us: int = 0,
        loop: str = "auto",
        record: int = 0,
        annotate: str = "",
    ) -> Pipeline:
        """Prepare the pipeline of a ``mapping.yaml``, for example of a run folder.

        Parameters
        ----------
        mapping
            The file; its stage files lie where it says.
        model
            The whole model, where it can not be found through the run's configuration.
        queue_depth, engine, stall_s, spin_us, loop, record, annotate
            See the class.

        Examples
        --------
        >>> with Pipeline.open("runs/face/mapping.yaml") as pipeline:  # doctest: +SKIP
        ...     for (scores,) in pipeline.map(frames):
        ...         show(scores)

        Raises
        ------
        InputError
            See ``opening.open_mapping``.
        """
        from dse.pipeline.opening import open_mapping

        plan = open_mapping(Path(mapping), None if model is None else Path(model))
        return cls(
            plan,
            queue_depth=queue_depth,
            engine=engine,
            stall_s=stall_s,
            spin_us=spin_us,
            loop=loop,
            record=record,
            annotate=annotate,
        )

    def __enter__(self) -> Pipeline:
        if self._lanes is not None and self._lanes.running:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is running already")
        available = os.sched_getaffinity(0)
        missing = [core for core in self.plan.cores if core not in available]
        if missing:
            raise PlatformError(
                f"plan {self.plan.name!r} wants cores {missing}, but this process may only use "
                f"{sorted(available)} (affinity mask)"
            )
        check_frames(self.plan, self._frames)
        first_try = ""
        try:
            answers = self._start(self._engine)
        except DeviceError as error:
            if self._engine != "auto" or not _engine_may_be_at_fault(error):
                raise
            first_try = f"all stages run in the interpreter: {str(error).splitlines()[0]}"
            answers = self._start("interpreter")
        self._memory_before = [int(answer["before"]["rss_bytes"]) for answer in answers]
        self.threads = tuple(read_threads(answer["threads"]) for answer in answers)
        self.engines = tuple(tuple(str(kind) for kind in answer["engines"]) for answer in answers)
        self.loops = tuple(str(answer["loop"]) for answer in answers)
        told = tuple(str(text) for answer in answers for text in answer["fallbacks"])
        self.fallbacks = (first_try, *told) if first_try else told
        self.memory = tuple(self._read_memory(lane, answer) for lane, answer in enumerate(answers))
        return self

    def _start(self, engine: str) -> list[dict[str, Any]]:
        lanes = self._lanes = LaneProcesses(self.plan, self._stall_s)
        try:
            frames = lanes.path("frames.npz")
            save_frames(frames, self._frames)
            return lanes.build(
                {
                    "command": "build",
                    "plan": self.plan.to_json(),
                    "frames": str(frames),
                    "queue_depth": self._queue_depth,
                    "engine": engine,
                    "loop": self._loop,
                    "spin_ns": 1000 * self._spin_us,
                    "annotate": self._annotate,
                }
            )
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each lane."""
        return self._lanes.pids if self._lanes is not None else ()

    @property
    def delivered(self) -> tuple[int, ...]:
        """Frames that each lane has finished in the current (or last) run."""
        return self._running.delivered

    def close(self) -> None:
        """End the lanes and remove the temporary folder; safe to call twice."""
        if self._lanes is not None:
            self._lanes.close()

    def collect(self, n_frames: int) -> tuple[list[tuple[Array, ...]], ...]:
        """Run the first frames through every lane, from a fresh state; return the outputs, in order."""
        self._running.renew()
        paths = [self._running.path(f"outputs-{lane}.npz") for lane in range(len(self.plan.lanes))]
        requests = [{"command": "collect", "n_frames": n_frames, "path": str(path)} for path in paths]
        self._running.ask(dict(enumerate(requests)), None, "running frames")
        found = tuple(load_frames(path) for path in paths)
        for path in paths:
            path.unlink()
        return found

    def run(
        self,
        *,
        n_frames: int | None = None,
        seconds: float | None = None,
        in_flight: int | None = None,
        one_lane: int | None = None,
    ) -> tuple[LaneRun, ...]:
        """Run all lanes at full speed, starting together.

        Parameters
        ----------
        n_frames, seconds
            Per lane: stop at whichever comes first.
        in_flight
            Most frames inside a lane: 1 measures the latency of an empty lane.
        one_lane
            Run only this lane.

        Raises
        ------
        InputError
            Neither frames nor a time, or less than one.
        ChildDiedError, ChildTimeoutError, DeviceError
            A lane died, stalled or failed.  All lanes are ended.
        """
        asked = {"n_frames": n_frames, "seconds": seconds, "in_flight": in_flight}
        if any(value is not None and value <= 0 for value in asked.values()) or (
            n_frames is None and seconds is None
        ):
            told = ", ".join(f"{name}={value}" for name, value in asked.items() if value is not None)
            raise InputError(
                f"plan {self.plan.name!r}: expected n_frames or seconds, above 0, got {told or 'neither'}"
            )
        start_ns = time.monotonic_ns() + 50_000_000
        lanes = range(len(self.plan.lanes)) if one_lane is None else (one_lane,)
        requests: dict[int, dict[str, Any]] = {
            lane: {
                "command": "run",
                "n_frames": n_frames,
                "seconds": seconds,
                "in_flight": in_flight,
                "start_ns": start_ns,
                "path": str(self._running.path(f"stamps-{lane}.npy")),
            }
            for lane in lanes
        }
        answers = self._running.ask(requests, None, "measuring")
        return tuple(self._lane_run(lane, answer) for lane, answer in answers.items())

    def recorded(self) -> tuple[LaneRun, ...]:
        """Return the first ``record`` frames of each lane of the stream that ended last.

        ``trace.build_trace`` draws them; call it once, before the pipeline is closed.

        Raises
        ------
        InputError
            Nothing was recorded.
        """
        answers = dict(sorted(self._running.stream_answers.items()))
        if not self._record or len(answers) < len(self.plan.lanes):
            raise InputError(
                f"plan {self.plan.name!r}: nothing was recorded; expected Pipeline(..., record=N) and a "
                f"stream that has ended"
            )
        self._running.stream_answers = {}
        return tuple(self._lane_run(lane, answer) for lane, answer in answers.items())

    def _lane_run(self, lane: int, answer: Mapping[str, Any]) -> LaneRun:
        path = self._running.path(f"stamps-{lane}.npy")
        stamps = np.load(path, allow_pickle=False)
        path.unlink()
        return LaneRun(
            stamps,
            read_threads(answer["threads"]),
            self._read_memory(lane, answer),
            Counters.from_json(answer["counters"]),
            tuple(int(value) for value in answer.get("yardstick_ns", ())),
        )

    def times(
        self, runs: Sequence[LaneRun], window_ns: tuple[int, int] | None = None
    ) -> tuple[LaneTimes, ...]:
        """Turn the time stamps of a run of all lanes into figures.

        Raises
        ------
        DeviceError
            Too few frames in the window; names the plan.
        """
        return tuple(self.lane_figures(lane, run, window_ns) for lane, run in enumerate(runs))

    def lane_figures(self, lane: int, run: LaneRun, window_ns: tuple[int, int] | None = None) -> LaneTimes:
        """Turn the time stamps of one lane into figures; raises as ``times`` does."""
        try:
            return figures(self.plan.lanes[lane], self.plan, run.stamps, window_ns)
        except DeviceError as error:
            raise DeviceError(f"plan {self.plan.name!r}, lane {lane}: {error}") from None

    def map(self, frames: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Run frames of your own, from a fresh state; yield their outputs in order.

        Parameters
        ----------
        frames
            Any iterable, for example a generator; pulled as lanes have room, in the calling
            thread (see ``stream`` for sources that block).

        Raises
        ------
        InputError
            A frame does not fit the model, or a model with state has several lanes.
        ChildDiedError, ChildTimeoutError, DeviceError
            A lane died, stalled or failed.  All lanes are ended.
        """
        return self._stream(partial(next, frames_of(frames), None), None)

    def map_streams(
        self, sources: Sequence[Iterable[Sequence[Array]]]
    ) -> Iterator[tuple[int, tuple[Array, ...]]]:
        """Run one stream of frames in each lane: the way to keep state apart.

        Parameters
        ----------
        sources
            As many as the plan has lanes; they may end at different times.

        Yields
        ------
        stream, outputs
            As they come; those of one stream in the order of its frames.

        Raises
        ------
        InputError
            The number of streams differs from the number of lanes, or as ``map``.
        """
        if len(sources) != len(self.plan.lanes):
            raise InputError(
                f"plan {self.plan.name!r}: {len(sources)} streams for {len(self.plan.lanes)} lanes; "
                f"each stream needs a lane of its own"
            )
        pulls = [partial(next, frames_of(source), None) for source in sources]
        return run_streams(
            self._running, pulls, self._queue_depth, partial(check_frame, self.plan), self._record
        )

    def stream(self, source: Iterable[Sequence[Array]], sink: FrameSink) -> int:
        """Run frames from a source to a sink; the source may block, it has a thread of its own.

        Returns
        -------
        int
            Number of frames.

        Raises
        ------
        Exception
            What the source or the sink raised, or as ``map``.
        """
        pulled = ThreadedSource(source)
        number = 0
        try:
            for outputs in self._stream(pulled.pull, pulled.wake_fd):
                sink(number, outputs)
                number += 1
        finally:
            pulled.close()
        return number

    def _stream(
        self, pull: Callable[[], Sequence[Array] | None], wake_fd: int | None
    ) -> Iterator[tuple[Array, ...]]:
        refuse_shared_state(self.plan)
        return run_stream(
            self._running, pull, self._queue_depth, partial(check_frame, self.plan), wake_fd, self._record
        )

    def folder(self) -> Path:
        """Folder for temporary files."""
        return self._running.path()

    def check_affinity(self) -> tuple[tuple[ThreadRecord, ...], ...]:
        """Read the mask of every thread of every lane back again."""
        answers = self._ask_all("affinity", "reading masks back")
        return tuple(read_threads(answer["threads"]) for answer in answers)

    def resident_bytes(self) -> tuple[int, ...]:
        """Resident memory of each lane's process at the moment."""
        return tuple(int(answer["rss_bytes"]) for answer in self._ask_all("memory", "reading memory"))

    def _ask_all(self, command: str, doing: str) -> list[dict[str, Any]]:
        requests = {lane: {"command": command} for lane in range(len(self.plan.lanes))}
        return list(self._running.ask(requests, _SHORT_S, doing).values())

    def _read_memory(self, lane: int, answer: Mapping[str, Any]) -> LaneMemory:
        return LaneMemory(int(answer["peak_rss_bytes"]), self._memory_before[lane])

    @property
    def _running(self) -> LaneProcesses:
        if self._lanes is None:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is not running")
        return self._lanes


def _engine_may_be_at_fault(error: DeviceError) -> bool:
    """Whether the compiled engine crashed or failed on its first frame: the interpreter may do better."""
    if isinstance(error, ChildDiedError):
        return error.signal in _CRASHES
    return type(error) is DeviceError


def figures(
    lane: LanePlan, plan: PipelinePlan, stamps: Stamps, window_ns: tuple[int, int] | None = None
) -> LaneTimes:
    """Turn one lane's time stamps into figures (see ``timeline.lane_times``)."""
    names = [stage.name for stage in lane.stages]
    return lane_times(
        stamps,
        names=names,
        entering=entering_stages(lane),
        finals=final_stages(lane, plan.outputs),
        units=lane.units,
        window_ns=window_ns,
    )


def read_threads(records: Sequence[Mapping[str, Any]]) -> tuple[ThreadRecord, ...]:
    """Read thread records from their JSON form."""
    return tuple(
        ThreadRecord(str(r["stage"]), int(r["tid"]), str(r["role"]), _cores(r["wanted"]), _cores(r["got"]))
        for r in records
    )


def _cores(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
