"""Arm Streamline annotations: what a pipeline does, shown in the profiler while it runs.

Each stage is a channel of its lane's group, and a job in a custom activity map whose arrows are
the hand-overs; the throughput is a counter.

References
----------
The annotation protocol of gator 9.7 (streamline_annotate.c): messages of a type byte, a
little-endian length, and signed LEB128 integers; times are CLOCK_MONOTONIC_RAW nanoseconds.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from dse.errors import DeviceError

ADDRESS = "streamline-annotate"
"""Abstract socket of the profiler's daemon."""

_VERSION = 5
_COLOURED, _CHANNEL, _GROUP, _COUNTER, _VALUE = 0x02, 0x03, 0x04, 0x08, 0x09
_TRACK, _JOB, _VIEW = 0x0B, 0x0C, 0x0D
_NO_PARENT = -1
_POLL_S = 0.05
_PATIENCE_S = 2.0
"""A daemon that takes nothing for so long is given up."""
_ABSOLUTE, _AVERAGE_DISPLAY = 1, 3  # counter class, and how the timeline sums it up
PALETTE = (0x4477AA, 0xEE6677, 0x228833, 0xCCBB44, 0x66CCEE, 0xAA3377, 0x997700)


def leb128(value: int) -> bytes:
    """Write a signed integer in as few groups of seven bits as it needs."""
    out = bytearray()
    while True:
        group = value & 0x7F
        value >>= 7
        if value == (-1 if group & 0x40 else 0):
            out.append(group)
            return bytes(out)
        out.append(group | 0x80)


def colour(rgb: int) -> bytes:
    """Write a colour; the escape byte behind it is part of the form."""
    return bytes(((rgb >> 16) & 0xFF, (rgb >> 8) & 0xFF, rgb & 0xFF, 0x1B))


def message(kind: int, *parts: int | bytes | str) -> bytes:
    """Write a message of integers, raw bytes and (last) text."""
    payload = b"".join(
        leb128(part) if isinstance(part, int) else part.encode() if isinstance(part, str) else part
        for part in parts
    )
    return struct.pack("<BI", kind, len(payload)) + payload


def counter(number: int, title: str, name: str, units: str, rgb: int) -> bytes:
    """Declare a counter that is not per core."""
    flags = (0, _ABSOLUTE, _AVERAGE_DISPLAY, 1, 1, 1, 0, 0, 0, 0, 0)
    texts = b"".join(text.encode() + b"\0" for text in (title, name, units))
    return message(_COUNTER, number, *flags, colour(rgb), texts, f"{title}: {name}")


def check_daemon(address: str = ADDRESS) -> None:
    """Raise ``DeviceError`` when nobody listens."""
    Annotations(address).close()


class Annotations:
    """A connection to the profiler's daemon.

    Raises
    ------
    DeviceError
        Nobody listens.
    """

    def __init__(self, address: str = ADDRESS) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_PATIENCE_S)
        # The daemon wants to know the thread; the flag says that no clock is handed over.
        ids = struct.pack("<IIB", threading.get_native_id(), os.getpid(), 0)
        try:
            self._socket.connect(f"\0{address}")
            self.send(f"ANNOTATE {_VERSION}\n".encode() + ids)
        except OSError as error:
            self._socket.close()
            raise DeviceError(
                f"Streamline annotations: nobody listens on the abstract socket {address!r} ({error}); "
                f"start gatord on this machine first"
            ) from None

    def send(self, data: bytes) -> None:
        """Send messages; raises ``OSError`` when the daemon does not take them."""
        self._socket.sendall(data)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class LaneShape:
    """What annotations need to know of a lane: its number in which plan, stages, their sources, cores."""

    number: int
    plan: str
    stages: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    units: tuple[tuple[int, ...], ...]
    unit_names: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"lane {self.number} of {self.plan}"


def opening_messages(shape: LaneShape) -> bytes:
    """Name groups, channels, tracks and the counter of a lane; sent once."""
    title = shape.title
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    out = message(_GROUP, now, shape.number, title) + message(_VIEW, shape.number, f"pipeline, {title}")
    for stage, name in enumerate(shape.stages):
        out += message(_CHANNEL, now, _channel(shape, stage), shape.number, name)
    for unit, name in enumerate(shape.unit_names):
        out += message(_TRACK, shape.number, unit, _NO_PARENT, name)
    return out + counter(shape.number, "pipeline", f"throughput of {title}", "frames/s", PALETTE[0])


def frame_messages(shape: LaneShape, frame: int, times: Sequence[Sequence[int]], offset_ns: int) -> bytes:
    """Annotate one frame.

    Parameters
    ----------
    shape
        The lane.
    frame
        Its number.
    times
        Per stage: receive starts, compute starts, compute ends, send ends (CLOCK_MONOTONIC).
    offset_ns
        CLOCK_MONOTONIC_RAW minus CLOCK_MONOTONIC.
    """
    n_stages = len(shape.stages)
    unit_of = {stage: unit for unit, members in enumerate(shape.units) for stage in members}
    out = bytearray()
    for stage, stamps in enumerate(times):
        begin, end = stamps[0] + offset_ns, stamps[3] + offset_ns
        rgb = PALETTE[stage % len(PALETTE)]
        channel = _channel(shape, stage)
        out += message(_COLOURED, begin, channel, colour(rgb), f"frame {frame}")
        out += message(0x01, end, channel, "")
        needed = [frame * n_stages + source for source in shape.sources[stage]]
        job = (shape.number, frame * n_stages + stage, unit_of[stage], begin, end - begin)
        primary = needed[-1] if needed else _NO_PARENT
        out += message(
            _JOB, *job, colour(rgb), primary, len(needed), *needed, f"{shape.stages[stage]}, frame {frame}"
        )
    return bytes(out)


class Emitter:
    """Annotates the frames of a run from a thread of its own, a little after they happen.

    Parameters
    ----------
    shape
        The lane.
    done
        Returns how many frames have left the lane.
    times
        Returns the time stamps of a finished frame, per stage.
    address
        See ``Annotations``.
    n_kept
        How many of the last finished frames ``times`` knows; those that it missed are left out.
    required
        Whether to raise ``DeviceError`` when nobody listens; else nothing is annotated.
    """

    def __init__(
        self,
        shape: LaneShape,
        done: Callable[[], int],
        times: Callable[[int], Sequence[Sequence[int]]],
        address: str,
        n_kept: int,
        *,
        required: bool = True,
    ) -> None:
        self._required = required
        self._shape = shape
        self._done = done
        self._times = times
        self._address = address
        self._n_kept = n_kept
        self._stop = threading.Event()
        self._annotations: Annotations | None = None
        self._thread = threading.Thread(target=self._run, name="annotations", daemon=True)

    def __enter__(self) -> Emitter:
        try:
            self._annotations = Annotations(self._address)
        except DeviceError:
            if self._required:
                raise
            return self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._annotations is not None:
            self._stop.set()
            self._thread.join()
            self._annotations.close()

    def _run(self) -> None:
        assert self._annotations is not None  # noqa: S101 - else nobody starts the thread
        sent, then = 0, time.monotonic_ns()
        out = bytearray(opening_messages(self._shape))
        while True:
            last = self._stop.wait(_POLL_S)
            done, now = self._done(), time.monotonic_ns()
            offset = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - time.monotonic_ns()
            # Those being made overwrite the oldest: half of what is kept is surely whole.
            for frame in range(max(sent, done - self._n_kept // 2), done):
                out += frame_messages(self._shape, frame, self._times(frame), offset)
            rate = round((done - sent) * 1e9 / max(1, now - then))
            out += message(_VALUE, now + offset, 0, self._shape.number, rate)
            sent, then = done, now
            try:
                self._annotations.send(bytes(out))
            except OSError:  # the daemon has gone or stands still; the run goes on without it
                return
            out.clear()
            if last:
                return


def _channel(shape: LaneShape, stage: int) -> int:
    return (shape.number << 16) + stage
