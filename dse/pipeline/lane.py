"""The process of one lane (``python -m dse.pipeline.lane FOLDER PARENT``); the parent is ``processes``.

``FOLDER`` is the parent's folder for temporary files, ``PARENT`` its process number: should it be
killed at any time, its lanes clean up.

Requests, all answered with one object; a failure that has a name of its own in the parent comes as
``{"failed": {"kind", "message"}}``:

``build``    ``plan`` (JSON form), ``lane``, ``frames`` (.npz), ``status`` (shared file), ``queue_depth``,
             ``engine``, ``loop``, ``spin_ns``, ``annotate`` (Streamline's socket, or empty),
             ``apart`` (by stage: where its own process is met)
``renew``    forget the frames before, where stages keep state
``collect``  ``n_frames``, ``path``: outputs of the first frames as .npz
``run``      ``n_frames`` and/or ``seconds``, ``in_flight``, ``start_ns``, ``path``: time stamps as .npy
``stream``   ``feed`` and ``done`` (named pipes), ``shared`` (slots), ``n_slots``: frames from the parent;
             ``record``, ``path``: time stamps of the first frames as .npy
``affinity`` read all masks back
``memory``   resident size now and at its peak
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dse.devices.serving import serve
from dse.errors import DeviceError
from dse.pipeline.affinity import ThreadRecord, thread_ids
from dse.pipeline.answering import memory_now, named_faults, remove_when_orphaned
from dse.pipeline.apart import Meeting
from dse.pipeline.counters import Counting
from dse.pipeline.engine import ENGINES, Array
from dse.pipeline.nodes import N_TIMES
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.runner import WATCHED_FRAMES, LaneRunner, Watch
from dse.pipeline.shared import map_slots
from dse.pipeline.stream import END, FRAME
from dse.pipeline.streamline import Emitter, LaneShape


class _Lane:
    """State of the process: the lane once it is built."""

    def __init__(self, folder: Path, parent: int) -> None:
        self._runner: LaneRunner | None = None
        self._folder = folder
        self._parent = parent
        self._annotated = False
        self._peak_bytes = self._seen_peak_bytes = 0

    @property
    def runner(self) -> LaneRunner:
        if self._runner is None:
            raise DeviceError("the lane is not built yet")
        return self._runner

    def clean(self) -> None:
        """Remove the parent's temporary folder when the parent was killed and can not."""
        remove_when_orphaned(self._folder, self._parent)

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        plan = PipelinePlan.from_json(request["plan"])
        self._plan = plan
        self._number = int(request["lane"])
        self._annotate = str(request["annotate"])
        lane = plan.lanes[self._number]
        before = memory_now()
        self._runner = LaneRunner(
            lane,
            plan.inputs,
            plan.outputs,
            load_frames(Path(request["frames"])),
            queue_depth=int(request["queue_depth"]),
            stateful=plan.stateful,
            spin_ns=int(request["spin_ns"]),
            engine=ENGINES[request["engine"]],
            loop=str(request["loop"]),
            status=_status(Path(request["status"]), len(lane.stages)),
            apart={int(stage): Meeting.from_json(one) for stage, one in request["apart"].items()},
        )
        after = memory_now()
        self._peak_bytes = self._seen_peak_bytes = after["peak_rss_bytes"]
        return {
            "fallbacks": list(self._runner.fallbacks),
            "engines": list(self._runner.engines),
            "loop": self._runner.loop,
            "first_invoke_ns": list(self._runner.first_invoke_ns),
            "threads": _threads(self._runner.affinity),
            "before": before,
            **after,
        }

    def _annotations(self) -> Watch | None:
        if not self._annotate:
            return None
        plan, number = self._plan.lanes[self._number], self._number
        shape = LaneShape(
            number,
            self._plan.name,
            tuple(stage.label for stage in plan.stages),
            tuple(
                tuple(dict.fromkeys(s for s in plan.sources(n) if s is not None))
                for n in range(len(plan.stages))
            ),
            plan.units,
            tuple(plan.stages[members[0]].place for members in plan.units),
        )
        # A capture may end before the pipeline does; that there is none at all is a mistake.
        required, self._annotated = not self._annotated, True
        return lambda done, times: Emitter(
            shape, done, times, self._annotate, WATCHED_FRAMES, required=required
        )

    def renew(self, request: dict[str, Any]) -> dict[str, Any]:
        self.runner.renew()
        return {}

    def collect(self, request: dict[str, Any]) -> dict[str, Any]:
        frames = self.runner.collect(int(request["n_frames"]))
        save_frames(Path(request["path"]), frames)
        return {"n_frames": len(frames)}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        with Counting(thread_ids()) as counting:
            times, n_frames = self.runner.run(
                n_frames=request.get("n_frames"),
                seconds=request.get("seconds"),
                in_flight=request.get("in_flight"),
                start_ns=request.get("start_ns"),
                watch=self._annotations(),
            )
        self._save_stamps(request["path"], times, n_frames)
        # At once, while the clocks are still those of the work.
        return {"yardstick_ns": list(self.runner.yardsticks()), **self._ran(counting, n_frames, n_frames)}

    def _save_stamps(self, path: str, times: memoryview, n_frames: int) -> None:
        n_stages = self.runner.n_stages
        stamps = np.frombuffer(times, np.int64, n_frames * n_stages * N_TIMES)
        np.save(Path(path), stamps.reshape(n_frames, n_stages, N_TIMES), allow_pickle=False)

    def _ran(self, counting: Counting, n_frames: int, n_recorded: int) -> dict[str, Any]:
        """Tell what a run cost, without its time stamps: of tiny models they would be most of it."""
        stamps_bytes = 8 * N_TIMES * self.runner.n_stages * n_recorded
        memory = memory_now()
        peak_bytes = memory["peak_rss_bytes"]
        if peak_bytes > self._seen_peak_bytes:  # reached in this run
            self._seen_peak_bytes = peak_bytes
            self._peak_bytes = max(self._peak_bytes, peak_bytes - stamps_bytes)
        memory["peak_rss_bytes"] = self._peak_bytes
        return {
            "n_frames": n_frames,
            "counters": asdict(counting.result(n_frames, stamps_bytes)),
            "threads": _threads(self.runner.check_affinity()),
            **memory,
        }

    def stream(self, request: dict[str, Any]) -> dict[str, Any]:
        plan = self._plan
        n_slots = int(request["n_slots"])
        inputs, outputs = map_slots(Path(request["shared"]), plan.inputs, plan.outputs, n_slots)
        # Both sides have mapped it now: without a name it can not be left behind.
        Path(request["shared"]).unlink(missing_ok=True)
        feed, done = (os.open(request[name], os.O_RDWR) for name in ("feed", "done"))

        def more() -> int | None:
            told = os.read(feed, n_slots + 1)
            # The end comes alone or after the last frames; those are counted first.
            if told.endswith(END) and len(told) > 1:
                os.write(feed, END)
            return None if told == END else told.count(FRAME)

        def tell() -> None:
            os.write(done, FRAME)

        record = int(request["record"])
        try:
            with Counting(thread_ids()) as counting:
                times, n_frames = self.runner.stream(inputs, outputs, more, tell, record, self._annotations())
        finally:
            for descriptor in (feed, done):
                os.close(descriptor)
        if record:
            self._save_stamps(request["path"], times, min(n_frames, record))
        return self._ran(counting, n_frames, min(n_frames, WATCHED_FRAMES if self._annotate else record))

    def affinity(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"threads": _threads(self.runner.check_affinity())}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return memory_now()


def save_frames(path: Path, frames: list[tuple[Array, ...]]) -> None:
    """Write frames as one stacked array per tensor."""
    columns = {f"tensor_{at}": np.stack(values) for at, values in enumerate(zip(*frames))}
    np.savez(path, **columns)  # type: ignore[arg-type]


def load_frames(path: Path) -> list[tuple[Array, ...]]:
    """Read what ``save_frames`` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        columns = [stored[f"tensor_{at}"] for at in range(len(stored.files))]
    return list(zip(*columns))


def _status(path: Path, n_stages: int) -> memoryview:
    with path.open("r+b") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 16 * n_stages)).cast("q")


def _threads(records: tuple[ThreadRecord, ...]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]


def main() -> None:
    """Answer requests until standard input closes."""
    # While the other lanes start as well: the runtime's libraries take longest to load.
    importlib.import_module("ai_edge_litert.interpreter")
    folder, parent = sys.argv[1:]
    lane = _Lane(Path(folder), int(parent))
    handlers = (lane.build, lane.renew, lane.collect, lane.run, lane.stream, lane.affinity, lane.memory)
    serve({handler.__name__: named_faults(handler) for handler in handlers}, lane.clean)


if __name__ == "__main__":
    main()
