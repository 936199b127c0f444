"""Measuring several plans side by side, with real processes and tiny models."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from dse.conditions import Drift
from dse.errors import ChildDiedError, DeviceError, RuntimeRefusedError
from dse.pipeline import clocks, measure
from dse.pipeline.measure import MeasureOptions, measure_plans

QUICK = MeasureOptions(repeats=3, seconds=0.1, warmup_s=0.05, empty_frames=3, seed=1)


@pytest.fixture
def plans(tiny, cores):
    one = tiny.plan([tiny.whole(cores)], name="whole on two cores")
    two = tiny.plan([tiny.whole((cores[0],))], [tiny.whole((cores[1],))], name="two copies")
    return [one, two, tiny.chain(cores[0], cores[1], cores[0], name="pipeline")]


@pytest.mark.parametrize("resident", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_21_plans_are_measured_interleaved_with_or_without_room_for_all(plans, tiny, monkeypatch, resident):
    if not resident:
        monkeypatch.setattr(measure, "_RESIDENT_SHARE", 0.0)
    seen: list[str] = []
    found = measure_plans(plans, tiny.frames(3), QUICK, keep=lambda m: seen.append(m.plan))
    assert [m.plan for m in found] == [plan.name for plan in plans]
    assert len(seen) == 9
    for begin in (0, 3, 6):
        assert sorted(seen[begin : begin + 3]) == sorted(plan.name for plan in plans), (
            "every plan in every round"
        )
    assert seen[:3] != seen[3:6] or seen[3:6] != seen[6:], "the order changes"
    for plan, one in zip(plans, found):
        assert len(one.samples_hz) == 3
        assert one.throughput_hz > 0
        assert one.throughput_hz == statistics.median(repeat.throughput_hz for repeat in one.counted)
        assert one.spread_hz[0] <= one.throughput_hz <= one.spread_hz[1]
        assert one.latency_ns.median <= one.latency_ns.p90 <= one.latency_ns.p99
        assert one.empty_latency_ns.median > 0
        assert 0 < one.memory_bytes < one.process_bytes
        assert [(s.lane, s.name) for s in one.stages] == [
            (number, stage.name) for number, lane in enumerate(plan.lanes) for stage in lane.stages
        ]
        assert all(record.got == record.wanted for lane in one.threads for record in lane)
        for lane, run in zip(plan.lanes, one.repeats[0].runs, strict=True):
            assert len(run.yardstick_ns) == len(lane.units)
            assert all(0 < ns < 1e9 for ns in run.yardstick_ns)
        assert [[s.name for s in lane.stages] for lane in one.empty] == [
            [stage.name for stage in lane.stages] for lane in plan.lanes
        ]


def test_plans_that_are_undecided_are_repeated(plans, tiny):
    asked: list[list[int]] = []

    def undecided(found):
        asked.append([len(one.repeats) for one in found])
        return [found[0].plan, found[2].plan][: 3 - len(asked)]

    found = measure_plans(plans, tiny.frames(3), QUICK, undecided=undecided)
    assert asked == [[3, 3, 3], [4, 3, 4], [5, 3, 4]]
    assert [len(one.samples_hz) for one in found] == [5, 3, 4]


def test_a_plan_that_can_not_be_built_is_named_and_the_rest_is_ended(plans, tiny, cores):
    broken = tiny.folder / "broken.tflite"
    broken.write_bytes(b"TFL3 but not really")
    stage = replace(tiny.whole((cores[0],)), model_path=broken)
    with pytest.raises(RuntimeRefusedError, match="plan 'broken'"):
        measure_plans([*plans, tiny.plan([stage], name="broken")], tiny.frames(1), QUICK)


def test_what_was_measured_before_a_kill_is_kept(plans, tiny, monkeypatch):
    kept = {}
    real = measure.Pipeline.run
    n_runs = 0

    def run(pipeline, **options):
        nonlocal n_runs
        if "seconds" in options:
            n_runs += 1
            if n_runs == 5:
                os.kill(pipeline.pids[0], signal.SIGKILL)
        return real(pipeline, **options)

    monkeypatch.setattr(measure.Pipeline, "run", run)
    with pytest.raises(ChildDiedError, match="SIGKILL"):
        measure_plans(plans, tiny.frames(1), QUICK, keep=lambda m: kept.update({m.plan: m}))
    assert sum(len(m.repeats) for m in kept.values()) == 4


def test_disturbed_repeats_are_marked_repeated_and_do_not_decide(plans, tiny, monkeypatch):
    changes = iter([Drift(0.5, 1.0, ("the hypervisor gave 50 % of the time to others",))] * 2)
    monkeypatch.setattr(measure, "drift", lambda *_, **__: next(changes, Drift(0.0, 1.0, ())))
    (found,) = measure_plans(plans[:1], tiny.frames(1), replace(QUICK, repeats=2, extra_repeats=5))
    # One of three would be too few; two of four decide.
    assert [repeat.disturbed for repeat in found.repeats] == [True, True, False, False]
    assert found.counted == found.repeats[2:]
    assert not found.disturbed
    assert found.notes == tuple(f"repeat {n}: the hypervisor gave 50 % of the time to others" for n in (0, 1))


def test_a_busy_loop_on_a_core_is_noticed_and_the_plan_measured_again(tiny, cores):
    """The real thing: another process has the plan's core for the first two repeats."""
    plan = tiny.plan([tiny.whole((cores[0],))], name="whole")
    code = f"import os; os.sched_setaffinity(0, {{{cores[0]}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as burner:
        assert burner.stdout
        burner.stdout.readline()

        def keep(found):
            if len(found.repeats) == 2:
                burner.kill()

        options = replace(QUICK, repeats=3, seconds=0.4, extra_repeats=2)
        (emulated,) = measure_plans([plan], tiny.frames(1), replace(options, repeats=1, alone=False))
        (found,) = measure_plans([plan], tiny.frames(1), options, keep=keep)
    assert not any("other programs" in text for text in emulated.repeats[0].drift.warnings)
    for repeat in found.repeats[:2]:
        assert any("other programs kept the cores busy" in text for text in repeat.drift.warnings)
    assert len(found.notes) >= 2
    assert len(found.repeats) >= 4, "measured again"
    # Whatever else happens on this machine: where the plan does not stay marked, calm repeats decided.
    calm = [repeat for repeat in found.repeats if not repeat.disturbed]
    assert found.disturbed or list(found.counted) == calm


def tell_clocks(monkeypatch, *hertz):
    """A kernel that tells the clock of core 0: these, one after another, the last one for ever."""
    told = list(hertz)

    def read(cores, **_):
        return {0: told.pop(0) if len(told) > 1 else told[0]}

    monkeypatch.setattr(clocks, "read_clocks", read)


def test_only_clocks_of_working_cores_count(tiny, cores, monkeypatch):
    """The governor had slowed the idle core down; at work it keeps its clock."""
    idle, work = 600_000_000, 2_000_000_000
    tell_clocks(monkeypatch, idle, work)
    plan = tiny.plan([tiny.whole((cores[0],))], name="whole")
    (found,) = measure_plans([plan], tiny.frames(1), replace(QUICK, repeats=1))
    assert found.repeats[0].conditions.clock_hz == {0: work}
    assert "clock" not in " ".join(found.notes)


def test_a_clock_that_moves_within_a_repeat_or_between_repeats_is_told(tiny, cores, monkeypatch):
    plan = tiny.plan([tiny.whole((cores[0],))], name="whole")
    fast, slow = 2_000_000_000, 1_500_000_000
    # Per repeat: whether there are clocks, and three looks.
    tell_clocks(monkeypatch, *[fast] * 3, slow)
    (found,) = measure_plans([plan], tiny.frames(1), replace(QUICK, repeats=1))
    assert "the clock of core 0 moved from 2000 to 1500 MHz" in found.notes[0]
    tell_clocks(monkeypatch, *[fast] * 4, slow)
    monkeypatch.setattr(measure, "drift", lambda *_, **__: Drift(0.0, 1.0, ()))
    (found,) = measure_plans([plan], tiny.frames(1), replace(QUICK, repeats=2))
    assert found.notes == ("between repeats the clock of core 0 was from 1500 to 2000 MHz",)
    assert found.disturbed


def test_one_calm_repeat_of_two_decides(plans, tiny, monkeypatch):
    changes = iter([Drift(0.5, 1.0, ("steal",))])
    monkeypatch.setattr(measure, "drift", lambda *_, **__: next(changes, Drift(0.0, 1.0, ())))
    (found,) = measure_plans(plans[:1], tiny.frames(1), replace(QUICK, repeats=1, extra_repeats=2))
    assert [repeat.disturbed for repeat in found.repeats] == [True, False]
    assert found.counted == found.repeats[1:]
    assert not found.disturbed


def test_equal_names_are_refused(plans, tiny):
    with pytest.raises(DeviceError, match="different names"):
        measure_plans([plans[0], plans[0]], tiny.frames(1), QUICK)
