"""What a measured plan tells besides its speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dse.conditions import Drift, snapshot
from dse.pipeline.counters import Counters
from dse.pipeline.measurement import PlanMeasurement, Repeat
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan
from dse.pipeline.timeline import LaneTimes, Percentiles, StageTimes
from dse.placement import PlacedMapping
from dse.results import PlanResult, Predicted, StageNumbers
from dse.validation import core_utilisation, diagnose

X = Port(0, "x", "float32", (2,), 8)
COUNTED = Counters(100, 900_000, 100_000, 300, 50, 20, 5, 5000, 7000, 6400, "")


def stage(name: str, *cores: int) -> StagePlan:
    return StagePlan(name, Path("-"), "cpu", cores, len(cores), (X,), ())


def times(name: str, busy: int, wait: int) -> StageTimes:
    return StageTimes(name, 0, busy, 0, wait, 0, 10 * busy, 0, 10 * wait, 10, 10 * (busy + wait))


def measurement(*counters: Counters) -> PlanMeasurement:
    """Lane 0: s0 and s1 take turns on core 2, s2 has cores 0 and 1."""
    layout = PipelinePlan("p", (LanePlan((stage("s0", 2), stage("s1", 2), stage("s2", 0, 1))),), (X,), (X,))
    stages = (times("s0", 300, 50), times("s1", 600, 50), times("s2", 500, 500))
    lane = LaneTimes(1e6, 10, Percentiles(900, 950, 990), stages)
    runs = tuple(SimpleNamespace(counters=one, yardstick_ns=()) for one in counters)
    repeat = Repeat((lane,), snapshot(()), Drift(0, 0, ()), (0, 1), runs)
    return PlanMeasurement("p", layout, (repeat, repeat), (lane,), 1, 1, (), (), ())


PLAN = PlanResult(
    "p",
    "candidate",
    PlacedMapping(()),
    Predicted(1e6, 990, 0, None),
    tuple(StageNumbers(f"s{n}", busy, busy, 0) for n, busy in enumerate((300, 600, 500))),
)


def graph():
    tensors = [SimpleNamespace(n_bytes=100), SimpleNamespace(n_bytes=40)]
    layer = SimpleNamespace(weight_bytes=1000, inputs=(0,), outputs=(1,))
    return SimpleNamespace(tensors=tensors, layers=(layer, layer))


def test_stages_that_share_cores_share_their_utilisation():
    assert core_utilisation(measurement()) == ((0, 0.5), (1, 0.5), (2, 0.9))


def test_frames_in_bursts_do_not_hide_that_cores_wait():
    """The median wait is nothing where nine frames of ten follow the one before at once."""
    found = measurement()
    lane = found.repeats[0].lanes[0]
    burst = replace(lane.stages[2], wait_ns=0, wait_sum_ns=15_000)
    bursts = replace(lane, stages=(*lane.stages[:2], burst))
    found = replace(found, repeats=tuple(replace(one, lanes=(bursts,)) for one in found.repeats))
    assert core_utilisation(found)[:2] == ((0, 0.25), (1, 0.25))


def test_figures_are_per_frame_over_all_lanes_and_repeats():
    found = diagnose(PLAN, measurement(COUNTED, replace(COUNTED, n_frames=300)), graph())
    assert found.cpu_ns == 5000
    assert found.switches == pytest.approx(1.5)
    assert found.involuntary_switches == pytest.approx(0.25)
    assert found.page_faults == pytest.approx(0.125)
    assert (found.cycles, found.instructions, found.memory_bytes) == (25, 35, 32)
    assert found.traffic_bytes == 2 * 1140
    assert found.latency_error == pytest.approx(0.1)
    assert found.error_interval == (pytest.approx(0.0), pytest.approx(0.0))
    assert found.counters_note == ""


def test_one_lane_without_hardware_counts_leaves_none():
    found = diagnose(PLAN, measurement(COUNTED, replace(COUNTED, cycles=None, unavailable="no")), graph())
    assert found.cycles is None
    assert found.instructions == 70
    assert found.counters_note == "no"
