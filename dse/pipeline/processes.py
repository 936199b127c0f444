"""The processes of a pipeline's lanes: started, asked, watched and ended together.

Whatever happens to one of them ends all, with an error that says which lane and stage, how, and
what had been delivered; no process and no file is left behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dse.devices.child import Child
from dse.errors import ChildTimeoutError, DeviceError, DseError
from dse.pipeline.plan import PipelinePlan, final_stages
from dse.pipeline.shared import remove_shared_files
from dse.pipeline.stage_process import MEMORY, StageProcess, read_answer, start_stage
from dse.pipeline.watch import StallWatch

BUILD_TIMEOUT_S = 180.0
STALL_S = 4.0
BUILDING = "building the stages"
_POLL_S = 0.2


class LaneProcesses:
    """One process per lane; also what ``stream.Host`` asks for.

    Parameters
    ----------
    plan
        What they run.
    stall_s
        A lane in which nothing moves for this long (and for ten times its slowest stage) is stuck.
    """

    def __init__(self, plan: PipelinePlan, stall_s: float) -> None:
        self.plan = plan
        self.slowest_ns = 0
        self._stall_s = stall_s
        self._folder = tempfile.TemporaryDirectory(prefix="dse-pipeline-")
        self._closed = self._streaming = False
        self._children: list[Child] = []  # of the lanes, then of stages that have one of their own
        self._apart: list[StageProcess] = []
        self._status: list[memoryview] = []
        self.stream_answers: dict[int, dict[str, Any]] = {}
        try:
            # At once, so that somebody cleans up should this process be killed.
            for lane in range(len(plan.lanes)):
                self._start(lane)
        except BaseException:
            self.close()
            raise

    def _start(self, lane: int) -> None:
        log, name = self.path(f"lane-{lane}.log"), f"lane {lane} of plan {self.plan.name!r}"
        arguments = [self._folder.name, str(os.getpid())]
        self._children.append(Child("dse.pipeline.lane", arguments, log_path=log, name=name))

    def build(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Build the stages of one lane after another; their processes start at the same time.

        A stage on an accelerator gets a process of its own, before its lane is built.

        Parameters
        ----------
        request
            For all lanes; the lane's number and status file are added.

        Returns
        -------
        list of dict
            Each lane's answer.
        """
        for lane, stages in enumerate(self.plan.lanes):
            status = self.path(f"status-{lane}")
            status.write_bytes(bytes(16 * len(stages.stages)))
            with status.open("r+b") as stream:
                self._status.append(memoryview(mmap.mmap(stream.fileno(), 0)).cast("q"))
        answers = []
        for lane in range(len(self.plan.lanes)):
            apart = self._start_apart(lane, int(request["queue_depth"]))
            own = {
                **request,
                "lane": lane,
                "status": str(self.path(f"status-{lane}")),
                "apart": {one.stage: one.meeting.to_json() for one in apart},
            }
            answer = self.ask({lane: own}, BUILD_TIMEOUT_S, BUILDING)[lane]
            for one in apart:
                # Both sides have mapped it now: without a name it can not be left behind.
                one.meeting.shared.unlink(missing_ok=True)
                answer["threads"] += one.answer["threads"]
                answer["before"]["rss_bytes"] += one.answer["before"]["rss_bytes"]
            self.slowest_ns = max(self.slowest_ns, *answer["first_invoke_ns"])
            answers.append(answer)
        return answers

    def _start_apart(self, lane: int, queue_depth: int) -> list[StageProcess]:
        found = []
        for number, stage in enumerate(self.plan.lanes[lane].stages):
            if stage.is_apart:
                try:
                    one = start_stage(self.plan, lane, number, self.path(), queue_depth, BUILD_TIMEOUT_S)
                except DseError as error:
                    raise self._ended(error, BUILDING) from None
                self._children.append(one.child)
                self._apart.append(one)
                found.append(one)
        return found

    @property
    def pids(self) -> tuple[int, ...]:
        """Process of each lane, then of each stage that has one of its own."""
        return tuple(child.pid for child in self._children)

    @property
    def running(self) -> bool:
        """Whether the lanes are there."""
        return not self._closed

    @property
    def delivered(self) -> tuple[int, ...]:
        """Frames that each lane has finished in the current (or last) run."""
        return tuple(
            min(status[2 * final + 1] for final in final_stages(lane, self.plan.outputs))
            for lane, status in zip(self.plan.lanes, self._status)
        )

    def path(self, name: str = "") -> Path:
        """Return a path in the folder for temporary files."""
        self._check_open()
        return Path(self._folder.name) / name

    def close(self) -> None:
        """End the lanes and remove the temporary folder; safe to call twice."""
        # First the files: should this process be killed meanwhile, the lanes go on with it.
        remove_shared_files(Path(self._folder.name))
        shutil.rmtree(self._folder.name, ignore_errors=True)
        # A lane holds nothing that would have to be finished.
        for child in self._children:
            child.kill()
        for child in self._children:
            child.close()
        self._children = []
        self._closed = True
        # What a lane wrote at the last moment.
        remove_shared_files(Path(self._folder.name))
        self._folder.cleanup()

    def ask(
        self, requests: Mapping[int, Mapping[str, Any]], timeout_s: float | None, doing: str
    ) -> dict[int, dict[str, Any]]:
        """Send lanes their requests and wait for all answers; they come by lane, in order.

        On any failure all lanes are ended before the error is raised; a stream that is under way is none.
        """
        self._check_free()
        try:
            self._clear_status()
            for lane, request in requests.items():
                self._children[lane].send(request)
            return dict(sorted(self._gather(tuple(requests), timeout_s, doing).items()))
        except DseError as error:
            raise self._ended(error, doing) from None
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Make lanes of a model with state forget the frames before."""
        if self.plan.stateful:
            lanes = range(len(self.plan.lanes))
            self.ask({lane: {"command": "renew"} for lane in lanes}, BUILD_TIMEOUT_S, BUILDING)

    def enter_stream(self) -> None:
        """Say that a stream is under way, from a fresh state (see ``stream.Host``)."""
        self._check_free()
        self.renew()
        self._streaming = True

    def leave_stream(self) -> None:
        """Say that the stream is over."""
        self._streaming = False

    def begin_stream(self, requests: Sequence[dict[str, object]]) -> None:
        """Send each lane its request (see ``stream.Host``)."""
        self._check_open()
        self._clear_status()
        self.stream_answers = {}
        for child, request in zip(self._children, requests):
            child.send(request)

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when a lane answers or dies."""
        return tuple(child.fileno() for child in self._children)

    def lane_answer(self, lane: int) -> None:
        """Read the answer that ends a lane's stream, and keep it."""
        self.stream_answers[lane] = self._receive(lane, "streaming")

    def new_watch(self) -> StallWatch:
        """Return a watch with this pipeline's patience."""
        return StallWatch(max(self._stall_s, 10 * self.slowest_ns / 1e9))

    def counters(self, lane: int) -> tuple[int, ...]:
        """Frames begun and done of each stage of a lane, as its process counts them."""
        return tuple(self._status[lane])

    def stuck_error(self, lane: int, limit_s: float) -> DseError:
        """Return the error for a lane that stands still."""
        return ChildTimeoutError(self._stuck_text(lane, limit_s, "streaming"))

    def give_up(self, error: DseError, n_delivered: int) -> DseError:
        """End all lanes; return the error with how many outputs had been handed over."""
        return self._ended(error, "streaming", n_delivered)

    def _gather(self, lanes: Sequence[int], timeout_s: float | None, doing: str) -> dict[int, dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        building = doing == BUILDING
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

    def _receive(self, child: int, doing: str) -> dict[str, Any]:
        """Read the answer of a lane, or the failure of any process."""
        answer = read_answer(self._children[child], self._children[child].receive(STALL_S, doing))
        # The memory of a lane is that of all its processes.
        for one in (one for one in self._apart if one.lane == child):
            for name in MEMORY:
                if name in answer:
                    answer[name] += one.answer[name]
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

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"plan {self.plan.name!r}: the pipeline is not running")

    def _check_free(self) -> None:
        self._check_open()
        if self._streaming:
            raise DeviceError(
                f"plan {self.plan.name!r}: a stream is under way; take its outputs to the end, or close() "
                f"the iterator that gives them"
            )

    def _ended(self, error: DseError, doing: str, n_delivered: int | None = None) -> DseError:
        """End all lanes; return the error with what that costs."""
        lost = "\n  Nothing had been delivered yet."
        if doing != BUILDING:
            counts = ", ".join(f"lane {lane}: {n}" for lane, n in enumerate(self.delivered))
            told = counts if n_delivered is None else f"{n_delivered} (finished in {counts})"
            lost = (
                f"\n  Frames delivered before that: {told}.  All lanes were ended; "
                f"this run's figures are lost."
            )
        self.close()
        error.args = (f"{error}{lost}",)
        return error


def process_stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; none when the process is gone."""
    with contextlib.suppress(OSError):
        # The command's name may hold spaces; fields are counted after its closing bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
