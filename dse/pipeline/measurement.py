"""What was measured of a plan: its repeats, and the figures that follow from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dse.conditions import CLOCK_MOVED, Conditions, Drift
from dse.pipeline.affinity import ThreadRecord
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.supervise import LaneRun
from dse.pipeline.timeline import LaneTimes, Percentiles


@dataclass(frozen=True)
class Repeat:
    """One run of one plan: figures and raw time stamps per lane, and what the machine did besides."""

    lanes: tuple[LaneTimes, ...]
    conditions: Conditions
    drift: Drift
    window_ns: tuple[int, int]
    runs: tuple[LaneRun, ...]

    @property
    def disturbed(self) -> bool:
        """Whether the machine did something else besides, or changed."""
        return bool(self.drift.warnings)

    @property
    def throughput_hz(self) -> float:
        """Sum over the lanes."""
        return sum(lane.throughput_hz for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """A stage over all repeats: medians over the repeats of the medians per frame.

    ``busy_interval_ns`` is the lowest and the highest of the repeats; for ``utilisation`` and ``tightness``
    see ``timeline.StageTimes``.
    """

    lane: int
    name: str
    receive_ns: int
    compute_ns: int
    send_ns: int
    wait_ns: int
    utilisation: float
    busy_interval_ns: tuple[int, int]
    tightness: float

    @property
    def busy_ns(self) -> int:
        """Time per frame that the stage's cores are taken."""
        return self.receive_ns + self.compute_ns + self.send_ns


@dataclass(frozen=True, slots=True)
class StageRate:
    """What a stage takes of the time between two frames: means over the frames of a repeat.

    Parameters
    ----------
    lane
        It is in.
    input_ns
        To get its inputs, where all of them are the model's; otherwise 0.
    compute_ns
        In the runtime.
    excess_ns
        Its share of the time between two frames in which its cores were not busy, where they are the
        busiest of the lane (waking, handing over, uneven neighbours); otherwise 0.
    """

    lane: int
    input_ns: float
    compute_ns: float
    excess_ns: float

    @property
    def work_ns(self) -> float:
        """What the stage itself takes, in whatever plan."""
        return self.input_ns + self.compute_ns

    @property
    def own_ns(self) -> float:
        """All but the hand-overs between stages, for which links stand in a prediction."""
        return self.work_ns + self.excess_ns


@dataclass(frozen=True)
class PlanMeasurement:
    """A plan, measured.

    Parameters
    ----------
    plan
        Its name.
    layout
        What was run.
    repeats
        In the order taken; undisturbed ones decide where there are at least two, or half of all.
    empty
        Single frames in an otherwise idle pipeline, per lane.
    memory_bytes
        Sum over the lanes of the peak of what the model added to an empty process.
    process_bytes
        Sum over the lanes of the whole process's peak.
    engines
        How each stage of each lane ran: ``compiled`` or ``interpreter``.
    fallbacks
        Which stages run in the interpreter, and why.
    threads
        Masks read back from every thread after the last repeat, per lane.
    """

    plan: str
    layout: PipelinePlan
    repeats: tuple[Repeat, ...]
    empty: tuple[LaneTimes, ...]
    memory_bytes: int
    process_bytes: int
    engines: tuple[tuple[str, ...], ...]
    fallbacks: tuple[str, ...]
    threads: tuple[tuple[ThreadRecord, ...], ...]

    @property
    def counted(self) -> tuple[Repeat, ...]:
        """The repeats that decide."""
        calm = tuple(repeat for repeat in self.repeats if not repeat.disturbed)
        return calm if len(calm) >= 2 or 2 * len(calm) >= len(self.repeats) else self.repeats

    @property
    def disturbed(self) -> bool:
        """Whether too few repeats were calm, so that disturbed ones count, or those that count differ."""
        return any(repeat.disturbed for repeat in self.counted) or bool(self.drifted)

    @property
    def drifted(self) -> str:
        """The first core whose clock differed between the repeats that count, in words; empty for none."""
        found: dict[int, list[int]] = {}
        for repeat in self.counted:
            for core, hz in repeat.conditions.clock_hz.items():
                found.setdefault(core, []).append(hz)
        for core, hertz in found.items():
            low, high = min(hertz), max(hertz)
            if low < (1 - CLOCK_MOVED) * high:
                return (
                    f"between repeats the clock of core {core} was from {low / 1e6:.0f} to "
                    f"{high / 1e6:.0f} MHz"
                )
        return ""

    @property
    def samples_hz(self) -> tuple[float, ...]:
        """Throughput of every repeat, in the order taken."""
        return tuple(repeat.throughput_hz for repeat in self.repeats)

    @property
    def throughput_hz(self) -> float:
        """Median over the repeats that count."""
        return statistics.median(repeat.throughput_hz for repeat in self.counted)

    @property
    def spread_hz(self) -> tuple[float, float]:
        """Lowest and highest of the repeats that count."""
        values = [repeat.throughput_hz for repeat in self.counted]
        return min(values), max(values)

    @property
    def empty_latency_ns(self) -> Percentiles:
        """One frame in an empty lane: the worst lane."""
        return max((lane.latency_ns for lane in self.empty), key=lambda latency: latency.median)

    @property
    def latency_ns(self) -> Percentiles:
        """From source to sink in the running pipeline: the worst lane, medians over the repeats."""

        def worst(kind: str) -> int:
            slowest = [max(int(getattr(lane.latency_ns, kind)) for lane in r.lanes) for r in self.counted]
            return round(statistics.median(slowest))

        return Percentiles(worst("median"), worst("p90"), worst("p99"))

    @property
    def stages(self) -> tuple[StageMeasurement, ...]:
        """All stages of all lanes."""
        found = []
        for lane, times in enumerate(self.counted[0].lanes):
            for number, stage in enumerate(times.stages):
                same = [repeat.lanes[lane].stages[number] for repeat in self.counted]
                receive, compute, send, wait = (
                    round(statistics.median(getattr(one, f"{part}_ns") for one in same))
                    for part in ("receive", "compute", "send", "wait")
                )
                utilisation = statistics.median(one.utilisation for one in same)
                tightness = statistics.median(one.tightness for one in same)
                busy = [one.busy_ns for one in same]
                times_ns = receive, compute, send, wait
                found.append(
                    StageMeasurement(
                        lane, stage.name, *times_ns, utilisation, (min(busy), max(busy)), tightness
                    )
                )
        return tuple(found)

    @property
    def rates(self) -> tuple[StageRate, ...]:
        """What the stages of all lanes take of the time between two frames.

        Unlike the medians of ``stages`` these add up to the measured throughput.
        """
        return tuple(
            StageRate(
                same[0].lane,
                statistics.median(one.input_ns for one in same),
                statistics.median(one.compute_ns for one in same),
                statistics.median(one.excess_ns for one in same),
            )
            for same in zip(*self.rates_by_repeat, strict=True)
        )

    @property
    def rates_by_repeat(self) -> tuple[tuple[StageRate, ...], ...]:
        """As ``rates``, of every repeat that counts."""
        return tuple(self._rates_of(repeat) for repeat in self.counted)

    def _rates_of(self, repeat: Repeat) -> tuple[StageRate, ...]:
        found = []
        for number, lane in enumerate(self.layout.lanes):
            for stage, shares in enumerate(_shares(repeat.lanes[number], lane.units)):
                receive, compute, excess = shares
                fed = any(source is not None for source in lane.sources(stage))
                found.append(StageRate(number, 0.0 if fed else receive, compute, excess))
        return tuple(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """What disturbed which repeat."""
        found = [
            f"repeat {number}: {'; '.join(repeat.drift.warnings)}"
            for number, repeat in enumerate(self.repeats)
            if repeat.disturbed
        ]
        return (*found, self.drifted) if self.drifted else tuple(found)


def _shares(times: LaneTimes, units: Sequence[Sequence[int]]) -> list[tuple[float, float, float]]:
    """Mean times of each stage to receive and compute, and its share of what the busiest cores wait."""
    busy = [stage.mean_ns(stage.busy_sum_ns) for stage in times.stages]
    busiest = max(units, key=lambda members: sum(busy[n] for n in members))
    longest = sum(busy[n] for n in busiest)
    rest = max(0.0, 1e9 / times.throughput_hz - longest)
    return [
        (
            stage.mean_ns(stage.receive_sum_ns),
            stage.mean_ns(stage.compute_sum_ns),
            rest * busy[n] / longest if n in busiest and longest else 0.0,
        )
        for n, stage in enumerate(times.stages)
    ]
