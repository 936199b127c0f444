"""Frames through a running pipeline: dealt to the lanes, delivered in order.

Inputs and outputs lie in memory shared with the lanes' processes; one byte through a named pipe
tells that a frame is there.  At most ``n_slots`` frames are inside a lane.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dse.errors import DeviceError, DseError, InputError
from dse.pipeline.engine import Array
from dse.pipeline.plan import LanePlan, PipelinePlan, levels
from dse.pipeline.shared import make_shared_file, map_slots
from dse.pipeline.watch import StallWatch

Frame = tuple[Array, ...]
FRAME, END = b"\x01", b"\x00"
_POLL_S = 0.2


class FrameSink(Protocol):
    """Takes the outputs of a stream, for example to draw or to store them."""

    def __call__(self, number: int, outputs: Frame) -> None:
        """Take the outputs of a frame; numbers count from 0 and come in order."""


class Host(Protocol):
    """What a stream needs of the pipeline that it runs in (see ``processes.LaneProcesses``)."""

    plan: PipelinePlan

    @property
    def running(self) -> bool:
        """Whether the lanes are there."""

    def enter_stream(self) -> None:
        """Say that a stream is under way; raises when one is already, or when the lanes are not there."""

    def leave_stream(self) -> None:
        """Say that the stream is over."""

    def close(self) -> None:
        """End all lanes."""

    def begin_stream(self, requests: Sequence[dict[str, object]]) -> None:
        """Send each lane its request, without waiting."""

    def filenos(self) -> Sequence[int]:
        """Descriptors that become readable when a lane answers or dies."""

    def lane_answer(self, lane: int) -> None:
        """Read the answer that ends a lane's stream; raises when the lane failed."""

    def new_watch(self) -> StallWatch:
        """Return a watch for lanes that stand still."""

    def counters(self, lane: int) -> tuple[int, ...]:
        """Return numbers that change whenever something moves in a lane."""

    def stuck_error(self, lane: int, limit_s: float) -> DseError:
        """Return the error for a lane that stands still."""

    def give_up(self, error: DseError, n_delivered: int) -> DseError:
        """End all lanes; return the error with how many outputs had been handed over."""

    def path(self, name: str = "") -> Path:
        """Return a path in the folder for temporary files."""


def slots_of(lane: LanePlan, queue_depth: int) -> int:
    """Frames that may be inside a lane so that no stage lacks work."""
    return (max(levels(lane)) + 1) * (queue_depth + 1) + 2


class _LaneStream:
    """One lane's end of the stream, in the parent."""

    def __init__(self, host: Host, number: int, n_slots: int, record: int) -> None:
        plan = host.plan
        self._record, self._stamps = record, host.path(f"stamps-{number}.npy")
        folder = host.path()
        self.n_slots = n_slots
        self.fed = self.done = 0
        self.ended = self.finished = False
        # First what there may be no room for: then nothing is left behind.
        self.shared = make_shared_file(plan.inputs, plan.outputs, n_slots, folder)
        self._inputs, self._outputs = map_slots(self.shared, plan.inputs, plan.outputs, n_slots)
        self._pipes = [folder / f"{kind}-{number}" for kind in ("feed", "done")]
        for pipe in self._pipes:
            os.mkfifo(pipe, 0o600)
        # Opened for both directions, a named pipe never blocks and never reports an end by itself.
        self._feed, self.done_fd = (os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in self._pipes)

    @property
    def in_flight(self) -> int:
        return self.fed - self.done

    def request(self) -> dict[str, object]:
        feed, done = (str(pipe) for pipe in self._pipes)
        return {
            "command": "stream",
            "feed": feed,
            "done": done,
            "shared": str(self.shared),
            "n_slots": self.n_slots,
            "record": self._record,
            "path": str(self._stamps),
        }

    def put(self, frame: Sequence[Array]) -> None:
        for slot, values in zip(self._inputs[self.fed % self.n_slots], frame):
            slot[...] = values
        self.fed += 1
        os.write(self._feed, FRAME)

    def take(self) -> list[Frame]:
        """Copy out the frames that have become ready."""
        ready = b""
        with contextlib.suppress(BlockingIOError):
            ready = os.read(self.done_fd, self.n_slots + 1)
        found = []
        for _ in ready:
            found.append(tuple(slot.copy() for slot in self._outputs[self.done % self.n_slots]))
            self.done += 1
        return found

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            os.write(self._feed, END)

    def close(self) -> None:
        for descriptor in (self._feed, self.done_fd):
            os.close(descriptor)
        for path in (*self._pipes, self.shared):
            path.unlink(missing_ok=True)


Pull = Callable[[], "Sequence[Array] | None"]
Check = Callable[[Sequence[Array], int], None]


class NotYet(Exception):  # noqa: N818 - a signal, not a fault
    """A source has no frame at the moment."""


def run_stream(
    host: Host,
    pull: Pull,
    queue_depth: int,
    check: Check,
    wake_fd: int | None = None,
    record: int = 0,
) -> Iterator[Frame]:
    """Feed the lanes and yield the outputs in the order of the frames.

    Parameters
    ----------
    host
        The running pipeline.
    pull
        Gives the next frame, None at the end; raises ``NotYet`` when ``wake_fd`` will tell.
    queue_depth
        Frames that may wait in front of a stage.
    check
        Given a frame and its number, raises when it does not fit the model.
    wake_fd
        Readable when ``pull`` is worth another try.
    record
        Keep the time stamps of so many frames of each lane.

    Raises
    ------
    ChildDiedError, ChildTimeoutError, DeviceError
        A lane died, stalled or failed.
    """
    with _lane_streams(host, queue_depth, record) as lanes:
        for _, outputs in _guarded(_Dealer(host, lanes, pull, check, wake_fd)):
            yield outputs


def run_streams(
    host: Host,
    pulls: Sequence[Pull],
    queue_depth: int,
    check: Check,
    record: int = 0,
) -> Iterator[tuple[int, Frame]]:
    """Feed each lane from a source of its own; yield (source, outputs), in order for each source.

    Parameters
    ----------
    host, queue_depth, check, record
        As ``run_stream``.
    pulls
        One per lane.
    """
    with _lane_streams(host, queue_depth, record) as lanes:
        yield from _guarded(_OwnLanes(host, lanes, pulls, check))


@contextlib.contextmanager
def _lane_streams(host: Host, queue_depth: int, record: int) -> Iterator[list[_LaneStream]]:
    host.enter_stream()
    lanes: list[_LaneStream] = []
    begun = False
    try:
        for number, plan in enumerate(host.plan.lanes):
            lanes.append(_LaneStream(host, number, slots_of(plan, queue_depth), record))
        begun = True
        host.begin_stream([lane.request() for lane in lanes])
        yield lanes
    finally:
        for lane in lanes:
            lane.close()
        # Who is interrupted does not wait until lanes have finished what is inside, so they end.
        if begun and not all(lane.finished for lane in lanes):
            host.close()
        host.leave_stream()


def _guarded(dealer: _Dealer) -> Iterator[tuple[int, Frame]]:
    try:
        yield from dealer.outputs()
    except (Exception, GeneratorExit):
        # The source failed, a frame did not fit, or nobody wants more: the lanes are well.
        if not dealer.broken:
            dealer.abandon()
        raise


class _Dealer:
    """Deals frames to lanes as they have room, and puts the outputs back in order."""

    def __init__(
        self,
        host: Host,
        lanes: Sequence[_LaneStream],
        pull: Pull,
        check: Check,
        wake_fd: int | None = None,
    ) -> None:
        self._host = host
        self._lanes = lanes
        self._pull = pull
        self._check = check
        self._wake_fd = wake_fd
        self._order: deque[int] = deque()  # the lane of each frame that is not yet delivered
        self._ready: list[deque[Frame]] = [deque() for _ in lanes]
        # A quick lane may run ahead of a slow one by this many frames before it has to wait.
        self._window = 2 * sum(lane.n_slots for lane in lanes)
        self._watch = host.new_watch()
        self._ended = self._starved = False
        self._n_delivered = 0
        self.broken = False

    def outputs(self) -> Iterator[tuple[int, Frame]]:
        """Yield (lane, outputs)."""
        with selectors.DefaultSelector() as selector:
            for number, lane in enumerate(self._lanes):
                selector.register(lane.done_fd, selectors.EVENT_READ, ("done", number))
            for number, descriptor in enumerate(self._host.filenos()):
                selector.register(descriptor, selectors.EVENT_READ, ("answer", number))
            if self._wake_fd is not None:
                selector.register(self._wake_fd, selectors.EVENT_READ, ("wake", 0))
            while not all(lane.finished for lane in self._lanes):
                if not self._host.running:
                    raise DeviceError(
                        f"plan {self._host.plan.name!r}: the pipeline was closed in the middle of a stream"
                    )
                self._feed()
                block = self._starved or self._ended or not self._has_room()
                self._look(selector, _POLL_S if block else 0)
                while (found := self._next_ready()) is not None:
                    self._n_delivered += 1
                    yield found
                    self._watch.forget()

    def _next_ready(self) -> tuple[int, Frame] | None:
        """Outputs that are next in order, if they are there."""
        if self._order and self._ready[self._order[0]]:
            lane = self._order.popleft()
            return lane, self._ready[lane].popleft()
        return None

    def abandon(self) -> None:
        """Let the lanes finish what is inside, and forget it."""
        if not self._host.running:  # closed meanwhile: an iterator may outlive its pipeline
            return
        self._end()
        with selectors.DefaultSelector() as selector:
            for number, lane in enumerate(self._lanes):
                selector.register(lane.done_fd, selectors.EVENT_READ, ("done", number))
            for number, descriptor in enumerate(self._host.filenos()):
                selector.register(descriptor, selectors.EVENT_READ, ("answer", number))
            self._watch.forget()
            while not all(lane.finished for lane in self._lanes):
                self._look(selector, _POLL_S)

    def _look(self, selector: selectors.BaseSelector, timeout_s: float) -> None:
        try:
            for key, _ in selector.select(timeout_s):
                self._handle(*key.data)
            self._look_for_stalls()
        except DseError as error:
            self.broken = True
            raise self._host.give_up(error, self._n_delivered) from None

    def _end(self) -> None:
        self._ended = True
        for lane in self._lanes:
            lane.end()

    def _has_room(self) -> bool:
        return len(self._order) < self._window and any(lane.in_flight < lane.n_slots for lane in self._lanes)

    def _feed(self) -> None:
        """Give one frame to the lane with the most room, relative to its size."""
        if self._ended or self._starved or not self._has_room():
            return
        try:
            frame = self._pull()
        except NotYet:
            self._starved = True
            return
        if frame is None:
            self._end()
            return
        number = min(range(len(self._lanes)), key=lambda n: self._lanes[n].in_flight / self._lanes[n].n_slots)
        self._put(number, frame, self._n_delivered + len(self._order))
        self._order.append(number)

    def _put(self, number: int, frame: Sequence[Array], place: int) -> None:
        self._check(frame, place)
        self._lanes[number].put(frame)
        if self._lanes[number].in_flight == 1:
            self._watch.forget(number)

    def _handle(self, kind: str, number: int) -> None:
        if kind == "done":
            self._ready[number].extend(self._lanes[number].take())
        elif kind == "wake":
            assert self._wake_fd is not None  # noqa: S101 - registered only then
            os.read(self._wake_fd, 4096)
            self._starved = False
        else:
            self._host.lane_answer(number)
            self._ready[number].extend(self._lanes[number].take())
            if not self._lanes[number].ended or self._lanes[number].in_flight:
                raise DeviceError(
                    f"lane {number} of plan {self._host.plan.name!r} ended its stream "
                    f"with {self._lanes[number].in_flight} frames inside"
                )
            self._lanes[number].finished = True

    def _look_for_stalls(self) -> None:
        for number, lane in enumerate(self._lanes):
            waiting = lane.in_flight or (lane.ended and not lane.finished)
            if waiting and self._watch.stuck(number, self._host.counters(number)):
                raise self._host.stuck_error(number, self._watch.limit_s)


class _OwnLanes(_Dealer):
    """Every lane has a source of its own, so there is nothing to deal and nothing to put in order."""

    def __init__(
        self,
        host: Host,
        lanes: Sequence[_LaneStream],
        pulls: Sequence[Pull],
        check: Check,
    ) -> None:
        super().__init__(host, lanes, lambda: None, check)
        self._pulls = tuple(pulls)

    def _has_room(self) -> bool:
        return any(not lane.ended and lane.in_flight < lane.n_slots for lane in self._lanes)

    def _feed(self) -> None:
        for number, lane in enumerate(self._lanes):
            if lane.ended or lane.in_flight >= lane.n_slots:
                continue
            frame = self._pulls[number]()
            if frame is None:
                lane.end()
            else:
                self._put(number, frame, lane.fed)
        self._ended = all(lane.ended for lane in self._lanes)

    def _next_ready(self) -> tuple[int, Frame] | None:
        for number, ready in enumerate(self._ready):
            if ready:
                return number, ready.popleft()
        return None


def frames_of(source: Iterable[Sequence[Array]]) -> Iterator[Sequence[Array]]:
    """Yield the frames of a source.

    Raises
    ------
    InputError
        The source gives None, which would be taken for its end.
    """
    for number, frame in enumerate(source):
        if frame is None:
            raise InputError(f"the source gave None as frame {number}, expected a tuple of arrays")
        yield frame


class ThreadedSource:
    """Pulls a user's source in a thread of its own, so that a slow one holds back no outputs."""

    def __init__(self, source: Iterable[Sequence[Array]], ahead: int = 2) -> None:
        self._source = source
        self._frames: queue.Queue[Sequence[Array] | BaseException | None] = queue.Queue(ahead)
        self.wake_fd, self._tell = os.pipe()
        self._open = [self.wake_fd, self._tell]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)
        self._thread.start()

    def pull(self) -> Sequence[Array] | None:
        """Return the next frame, None at the end; raises what the source raised."""
        try:
            item = self._frames.get_nowait()
        except queue.Empty:
            raise NotYet from None
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop pulling.  A source that blocks keeps its (daemon) thread until it goes on."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._frames.get_nowait()
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._release()

    def _release(self) -> None:
        """Close the pipe, once."""
        with contextlib.suppress(IndexError):
            while True:
                os.close(self._open.pop())

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            for frame in frames_of(self._source):
                if not self._put(frame):
                    break
        except BaseException as error:
            last = error
        self._put(last)
        if self._stopped.is_set():  # whoever closed may not have waited so long
            self._release()

    def _put(self, item: Sequence[Array] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._frames.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            os.write(self._tell, FRAME)
            return True
        return False


def refuse_shared_state(plan: PipelinePlan) -> None:
    """Frames of a model with state can not be dealt out to several copies.

    Raises
    ------
    InputError
        The model has state and the plan several lanes.
    """
    if plan.stateful and len(plan.lanes) > 1:
        raise InputError(
            f"plan {plan.name!r}: the model keeps state from frame to frame, so one stream needs one lane; "
            f"the plan has {len(plan.lanes)} lanes (for as many streams: map_streams)"
        )
