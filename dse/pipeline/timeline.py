"""What happened when: the time stamps of a run, and the figures that follow from them.

Pure functions of an array (frames, stages, 4) of monotonic nanoseconds: receive starts, compute
starts, compute ends, send ends (formulation: busy = compute + receive; a stage that copies its
outputs spends ``send`` besides).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dse.errors import DeviceError

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a sample of times in nanoseconds."""

    median: int
    p90: int
    p99: int

    @classmethod
    def of(cls, values_ns: npt.NDArray[np.int64]) -> Percentiles:
        """Take the percentiles of a sample that is not empty."""
        middle, high, top = np.percentile(values_ns, [50, 90, 99])
        return cls(round(float(middle)), round(float(high)), round(float(top)))


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where a stage's time went: medians per frame, and sums over the window.

    ``wait_ns`` is the time between the end of its cores' last frame and the start of this one;
    ``cores_sum_ns`` the time of its cores, at work for whichever stage or idle.
    """

    name: str
    receive_ns: int
    compute_ns: int
    send_ns: int
    wait_ns: int
    receive_sum_ns: int
    compute_sum_ns: int
    send_sum_ns: int
    wait_sum_ns: int
    n_frames: int
    cores_sum_ns: int

    @property
    def busy_ns(self) -> int:
        """Median time per frame that the cores are taken."""
        return self.receive_ns + self.compute_ns + self.send_ns

    @property
    def busy_sum_ns(self) -> int:
        """Time in the window that the cores are taken."""
        return self.receive_sum_ns + self.compute_sum_ns + self.send_sum_ns

    def mean_ns(self, sum_ns: int) -> float:
        """Return one of the sums per frame; unlike the median it counts slow frames, which set the rate."""
        return sum_ns / max(1, self.n_frames)

    @property
    def utilisation(self) -> float:
        """Share of the window in which the stage was busy."""
        return self.busy_sum_ns / max(1, self.cores_sum_ns)

    @property
    def tightness(self) -> float:
        """How little its cores idle before it: 1 where its frames follow other work at once.

        The same as ``utilisation`` where the stage has its cores for itself.
        """
        return self.busy_sum_ns / max(1, self.busy_sum_ns + self.wait_sum_ns)


@dataclass(frozen=True, slots=True)
class IdleGap:
    """Time in which a set of cores waits between one piece of work and the next.

    Parameters
    ----------
    after, before
        Stages by number: whose work ends before the gap, and whose begins after it.
    n_per_frame
        How often it occurs.
    median_ns
        Of one gap.
    share
        Of the window that all of these gaps take.
    """

    after: int
    before: int
    n_per_frame: float
    median_ns: int
    share: float


def idle_gaps(stamps: Stamps, units: Sequence[Sequence[int]]) -> tuple[IdleGap, ...]:
    """Return the gaps in the work of each set of cores, the longest in sum first.

    Parameters
    ----------
    stamps
        Array (frames, stages, 4).
    units
        Stages of each set of cores.
    """
    found: list[IdleGap] = []
    for members in units:
        work = stamps[:, members, :].reshape(-1, 4)
        stage = np.tile(np.array(members), len(stamps))
        order = np.argsort(work[:, 0], kind="stable")
        idle = np.maximum(0, work[order[1:], 0] - work[order[:-1], 3])
        pairs = np.stack([stage[order[:-1]], stage[order[1:]]], axis=1)
        window = int(work[:, 3].max() - work[:, 0].min()) or 1
        for after, before in sorted({(int(a), int(b)) for a, b in pairs[idle > 0]}):
            own = idle[(pairs == (after, before)).all(axis=1) & (idle > 0)]
            share = float(own.sum()) / window
            found.append(IdleGap(after, before, len(own) / len(stamps), _median(own), share))
    return tuple(sorted(found, key=lambda gap: -gap.share))


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """A lane over a window of time.

    ``throughput_hz`` is sustained: intervals between completions, not frames over time.
    """

    throughput_hz: float
    n_frames: int
    latency_ns: Percentiles
    stages: tuple[StageTimes, ...]


def lane_times(
    stamps: Stamps,
    *,
    names: Sequence[str],
    entering: Sequence[int],
    finals: Sequence[int],
    units: Sequence[Sequence[int]],
    window_ns: tuple[int, int] | None = None,
) -> LaneTimes:
    """Turn time stamps into figures.

    Parameters
    ----------
    stamps
        Array (frames, stages, 4).
    names
        Of the stages.
    entering, finals
        Stages that read the model's inputs, and that make its outputs.
    units
        Stages of each set of cores.
    window_ns
        Only frames that leave the lane within it count; None for all.

    Raises
    ------
    DeviceError
        Fewer than two frames left the lane in the window.
    """
    left = stamps[:, finals, 3].max(axis=1)
    entered = stamps[:, entering, 0].min(axis=1)
    inside = np.ones(len(left), bool)
    if window_ns is not None:
        inside = (left >= window_ns[0]) & (left <= window_ns[1])
    if int(inside.sum()) < 2:
        raise DeviceError(
            f"{int(inside.sum())} of {len(left)} frames left the lane within the measuring window, "
            f"expected at least 2: measure for a longer time"
        )
    exits = np.sort(left[inside])
    latency = (left - entered)[inside]
    waits = _waits(stamps, units)
    taken = stamps[inside, :, 3] - stamps[inside, :, 0] + waits[inside]
    cores_sum_ns = {member: int(taken[:, members].sum()) for members in units for member in members}
    stages = []
    for number, name in enumerate(names):
        own = stamps[inside, number, :]
        receive, compute, send = (own[:, k + 1] - own[:, k] for k in range(3))
        wait = waits[inside, number]
        stages.append(
            StageTimes(
                name=name,
                receive_ns=_median(receive),
                compute_ns=_median(compute),
                send_ns=_median(send),
                wait_ns=_median(wait),
                receive_sum_ns=int(receive.sum()),
                compute_sum_ns=int(compute.sum()),
                send_sum_ns=int(send.sum()),
                wait_sum_ns=int(wait.sum()),
                n_frames=len(compute),
                cores_sum_ns=cores_sum_ns[number],
            )
        )
    return LaneTimes(
        (len(exits) - 1) * 1e9 / max(1, int(exits[-1] - exits[0])),
        len(exits),
        Percentiles.of(latency),
        tuple(stages),
    )


def _median(values_ns: npt.NDArray[np.int64]) -> int:
    return round(float(np.median(values_ns)))


def _waits(stamps: Stamps, units: Sequence[Sequence[int]]) -> Stamps:
    """Idle time of the cores before each piece of work, as (frames, stages)."""
    waits = np.zeros(stamps.shape[:2], np.int64)
    for members in units:
        begins = stamps[:, members, 0].ravel()
        ends = stamps[:, members, 3].ravel()
        order = np.argsort(begins, kind="stable")
        idle = np.zeros(len(order), np.int64)
        idle[order[1:]] = np.maximum(0, begins[order[1:]] - ends[order[:-1]])
        waits[:, members] = idle.reshape(len(stamps), len(members))
    return waits
