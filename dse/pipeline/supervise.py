"""A running pipeline, seen from outside: starts the lanes, watches them, ends them.

A lane that dies, hangs or fails ends the whole pipeline with an error that says which lane and
stage, how, and what had been delivered; nothing is left behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dse.devices.child import Child
from dse.errors import (
    ChildTimeoutError,
    DeviceError,
    DseError,
    InputError,
    PlatformError,
)
from dse.pipeline.affinity import ThreadRecord
from dse.pipeline.engine import Array, make_slot, numpy_type
from dse.pipeline.lane import KINDS, load_frames, save_frames
from dse.pipeline.plan import LanePlan, PipelinePlan, entering_stages, final_stages
from dse.pipeline.stream import FrameSink, ThreadedSource, refuse_shared_state, run_stream
from dse.pipeline.timeline import LaneTimes, Stamps, lane_times
from dse.pipeline.watch import StallWatch

BUILD_TIMEOUT_S = 180.0
STALL_S = 4.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Resident memory of a lane's process: at its peak, its fair share now, and before the model."""

    peak_rss_bytes: int
    pss_bytes: int
    empty_rss_bytes: int


@dataclass(frozen=True, slots=True)
class LaneRun:
    """One lane in one run: raw time stamps, and masks read back afterwards."""

    stamps: Stamps
    threads: tuple[ThreadRecord, ...]
    memory: LaneMemory

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
    annotate
        Abstract socket of a Streamline daemon (``streamline.ADDRESS``) that is told what ``run`` does.

    Raises
    ------
    PlatformError
        The plan wants cores that this process may not use.
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
        annotate: str = "",
    ) -> None:
        self.plan = plan
        if frames is None:
            frames = [tuple(make_slot(port) for port in plan.inputs)]
        self._frames = [tuple(frame) for frame in frames]
        self._queue_depth = queue_depth
        self._engine = engine
        self._stall_s = stall_s
        self._annotate = annotate
        self._children: list[Child] = []
        self._status: list[memoryview] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._memory_before: list[int] = []
        self.slowest_ns = 0
        self.threads: tuple[tuple[ThreadRecord, ...], ...] = ()
        self.memory: tuple[LaneMemory, ...] = ()
        self.engines: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def open(
        cls,
        mapping: Path | str,
        *,
        model: Path | str | None = None,
        queue_depth: int = 2,
        engine: str = "auto",
    ) -> Pipeline:
        """Prepare the pipeline of a ``mapping.yaml``, for example of a run folder.

        Parameters
        ----------
        mapping
            The file; its stage files lie where it says.
        model
            The whole model, where it can not be found through the run's configuration.
        queue_depth, engine
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
        return cls(plan, queue_depth=queue_depth, engine=engine)

    def __enter__(self) -> Pipeline:
        available = os.sched_getaffinity(0)
        missing = [core for core in self.plan.cores if core not in available]
        if missing:
            raise PlatformError(
                f"plan {self.plan.name!r} wants cores {missing}, but this process may only use "
                f"{sorted(available)} (affinity mask)"
            )
        check_frames(self.plan, self._frames)
        self._folder = tempfile.TemporaryDirectory(prefix="dse-pipeline-")
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each lane."""
        return tuple(child.pid for child in self._children)

    @property
    def delivered(self) -> tuple[int, ...]:
        """Frames that each lane has finished in the current (or last) run."""
        return tuple(
            min(status[2 * final + 1] for final in final_stages(lane, self.plan.outputs))
            for lane, status in zip(self.plan.lanes, self._status)
        )

    def close(self) -> None:
        """End the lanes and remove the temporary folder; safe to call twice."""
        # A lane holds nothing that would have to be finished.
        for child in self._children:
            child.kill()
        for child in self._children:
            child.close()
        self._children = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def collect(self, n_frames: int) -> tuple[list[tuple[Array, ...]], ...]:
        """Run the first frames through every lane; return each lane's outputs, in order."""
        paths = [self._path(f"outputs-{lane}.npz") for lane in range(len(self.plan.lanes))]
        requests = [{"command": "collect", "n_frames": n_frames, "path": str(path)} for path in paths]
        self._ask(requests, BUILD_TIMEOUT_S, "running frames")
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
            A lane died, stalled or failed.  All lanes are ended.
        """
        start_ns = time.monotonic_ns() + 50_000_000
        lanes = range(len(self.plan.lanes)) if one_lane is None else (one_lane,)
        requests: dict[int, dict[str, Any]] = {
            lane: {
                "command": "run",
                "n_frames": n_frames,
                "seconds": seconds,
                "in_flight": in_flight,
                "start_ns": start_ns,
                "path": str(self._path(f"stamps-{lane}.npy")),
            }
            for lane in lanes
        }
        limit = None if seconds is None else seconds + BUILD_TIMEOUT_S
        answers = self._ask([requests.get(lane) for lane in range(len(self.plan.lanes))], limit, "measuring")
        runs = []
        for lane, answer in sorted(answers.items()):
            path = Path(requests[lane]["path"])
            stamps = np.load(path, allow_pickle=False)
            path.unlink()
            runs.append(LaneRun(stamps, read_threads(answer["threads"]), self._lane_memory(lane, answer)))
        return tuple(runs)

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
        """Run frames of your own; yield their outputs in order.

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
        source = iter(frames)
        return self._stream(lambda: next(source, None), None)

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
            self, pull, self._queue_depth, lambda frame: check_frames(self.plan, [frame]), wake_fd
        )

    def begin_stream(self, requests: Sequence[dict[str, object]]) -> None:
        """Send each lane its request (see ``stream.Host``)."""
        if not self._children:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is not running")
        self._clear_status()
        for child, request in zip(self._children, requests):
            child.send(request)

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when a lane answers or dies."""
        return tuple(child.fileno() for child in self._children)

    def lane_answer(self, lane: int) -> None:
        """Read the answer that ends a lane's stream."""
        self._receive(lane, "streaming")

    def new_watch(self) -> StallWatch:
        """Return a watch with this pipeline's patience."""
        return StallWatch(max(self._stall_s, 10 * self.slowest_ns / 1e9))

    def counters(self, lane: int) -> tuple[int, ...]:
        """Frames begun and done of each stage of a lane, as its process counts them."""
        return tuple(self._status[lane])

    def stuck_error(self, lane: int, limit_s: float) -> DseError:
        """Return the error for a lane that stands still."""
        return ChildTimeoutError(self._stuck_text(lane, limit_s, "streaming"))

    def give_up(self, error: DseError) -> DseError:
        """End all lanes; return the error with what had been delivered."""
        lost = self._lost("streaming")
        self.close()
        return type(error)(f"{error}{lost}")

    def folder(self) -> Path:
        """Folder for temporary files."""
        return self._path("")

    def check_affinity(self) -> tuple[tuple[ThreadRecord, ...], ...]:
        """Read the mask of every thread of every lane back again."""
        answers = self._ask([{"command": "affinity"}] * len(self.plan.lanes), 10.0, "reading masks back")
        return tuple(read_threads(answer["threads"]) for _, answer in sorted(answers.items()))

    def resident_bytes(self) -> tuple[int, ...]:
        """Resident memory of each lane's process at the moment."""
        answers = self._ask([{"command": "memory"}] * len(self.plan.lanes), 10.0, "reading memory")
        return tuple(int(answer["rss_bytes"]) for _, answer in sorted(answers.items()))

    def _build(self) -> None:
        frames = self._path("frames.npz")
        save_frames(frames, self._frames)
        threads, memory, engines = [], [], []
        # All processes start at once; the stages are built one lane after another.
        for lane in range(len(self.plan.lanes)):
            name = f"lane {lane} of plan {self.plan.name!r}"
            log = self._path(f"lane-{lane}.log")
            self._children.append(Child("dse.pipeline.lane", log_path=log, name=name))
        for lane, stages in enumerate(self.plan.lanes):
            status = self._path(f"status-{lane}")
            status.write_bytes(bytes(16 * len(stages.stages)))
            with status.open("r+b") as stream:
                self._status.append(memoryview(mmap.mmap(stream.fileno(), 0)).cast("q"))
            request = {
                "command": "build",
                "plan": self.plan.to_json(),
                "lane": lane,
                "frames": str(frames),
                "status": str(status),
                "queue_depth": self._queue_depth,
                "engine": self._engine,
                "annotate": self._annotate,
            }
            answer = self._ask([None] * lane + [request], BUILD_TIMEOUT_S, "building the stages")[lane]
            self.slowest_ns = max(self.slowest_ns, *answer["first_invoke_ns"])
            self._memory_before.append(int(answer["before"]["rss_bytes"]))
            threads.append(read_threads(answer["threads"]))
            engines.append(tuple(str(kind) for kind in answer["engines"]))
            memory.append(self._lane_memory(lane, answer))
        self.threads, self.memory, self.engines = tuple(threads), tuple(memory), tuple(engines)

    def _lane_memory(self, lane: int, answer: Mapping[str, Any]) -> LaneMemory:
        return LaneMemory(int(answer["peak_rss_bytes"]), int(answer["pss_bytes"]), self._memory_before[lane])

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is not running")
        return Path(self._folder.name) / name

    def _ask(
        self, requests: Sequence[Mapping[str, Any] | None], timeout_s: float | None, doing: str
    ) -> dict[int, dict[str, Any]]:
        """Send each lane its request (None: leave it alone) and wait for all answers.

        On any failure all lanes are ended before the error is raised.
        """
        if not self._children:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is not running")
        try:
            self._clear_status()
            for child, request in zip(self._children, requests):
                if request is not None:
                    child.send(request)
            return self._gather([n for n, r in enumerate(requests) if r is not None], timeout_s, doing)
        except DseError as error:
            lost = self._lost(doing)
            self.close()
            raise type(error)(f"{error}{lost}") from None
        except BaseException:
            self.close()
            raise

    def _gather(self, lanes: Sequence[int], timeout_s: float | None, doing: str) -> dict[int, dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        building = doing == "building the stages"
        stall = StallWatch(max(STALL_S, self._stall_s)) if building else self.new_watch()
        with selectors.DefaultSelector() as selector:
            # Idle lanes are watched too: their death is noticed at once.
            for lane, child in enumerate(self._children):
                selector.register(child.fileno(), selectors.EVENT_READ, lane)
            while len(answers) < len(lanes):
                for key, _ in selector.select(_POLL_S):
                    lane = key.data
                    answers[lane] = self._receive(lane, doing)
                for lane in lanes:
                    if lane in answers:
                        continue
                    if not building and stall.stuck(lane, self.counters(lane)):
                        raise ChildTimeoutError(self._stuck_text(lane, stall.limit_s, doing))
                    if building and self._build_is_stuck(lane, stall):
                        raise ChildTimeoutError(
                            f"{self._children[lane].name}: the process did nothing for {stall.limit_s:.1f} s "
                            f"while {doing}{self._children[lane].log_tail()}"
                        )
                    if deadline is not None and time.monotonic() > deadline:
                        raise ChildTimeoutError(
                            f"{self._children[lane].name}: no answer within {timeout_s:.0f} s while {doing}"
                            f"{self._children[lane].log_tail()}"
                        )
        return answers

    def _build_is_stuck(self, lane: int, stall: StallWatch) -> bool:
        """Whether a process that builds uses no time and does not wait for a disk either."""
        fields = process_stat(self._children[lane].pid)
        if fields and fields[0] == "D":
            stall.forget(lane)
        return bool(fields) and stall.stuck(lane, (int(fields[11]), int(fields[12])))

    def _receive(self, lane: int, doing: str) -> dict[str, Any]:
        answer = self._children[lane].receive(STALL_S, doing)
        if "failed" in answer:
            kind = KINDS.get(answer["failed"]["kind"], DeviceError)
            raise kind(f"{self._children[lane].name}: {answer['failed']['message']}")
        return answer

    def _clear_status(self) -> None:
        for status in self._status:
            status[:] = memoryview(bytes(8 * len(status))).cast("q")

    def _stuck_text(self, lane: int, limit_s: float, doing: str) -> str:
        status = self._status[lane]
        stages = self.plan.lanes[lane].stages
        inside = [
            f"{stage.name} is inside frame {status[2 * n + 1]}"
            for n, stage in enumerate(stages)
            if status[2 * n] > status[2 * n + 1]
        ]
        what = "; ".join(inside) or "no stage is inside a frame"
        tail = self._children[lane].log_tail()
        return f"{self._children[lane].name}: nothing moved for {limit_s:.1f} s while {doing}: {what}.{tail}"

    def _lost(self, doing: str) -> str:
        if doing == "building the stages":
            return ""
        counts = ", ".join(f"lane {lane}: {n}" for lane, n in enumerate(self.delivered))
        return (
            f"\n  Frames delivered before that: {counts}.  All lanes were ended; this run's figures are lost."
        )


def process_stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; none when the process is gone."""
    with contextlib.suppress(OSError):
        # The command's name may hold spaces; fields are counted after its closing bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def check_frames(plan: PipelinePlan, frames: Sequence[Sequence[Array]]) -> None:
    """Check prepared frames against the inputs of a plan.

    Raises
    ------
    InputError
        There is none, or one has another number, type or shape of arrays.
    """
    if not frames:
        raise InputError(f"plan {plan.name!r}: expected at least one frame to run")
    for number, frame in enumerate(frames):
        if len(frame) != len(plan.inputs):
            raise InputError(
                f"plan {plan.name!r}: frame {number} has {len(frame)} arrays, "
                f"the model {len(plan.inputs)} inputs"
            )
        for port, values in zip(plan.inputs, frame):
            wanted, got = (numpy_type(port), port.shape), (values.dtype, values.shape)
            if wanted != got:
                raise InputError(
                    f"plan {plan.name!r}: frame {number} has {got[0]}{got[1]} for input {port.name!r}, "
                    f"expected {wanted[0]}{wanted[1]}"
                )


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
