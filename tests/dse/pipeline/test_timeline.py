"""Figures from time stamps, against schedules that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import DeviceError
from dse.pipeline.network import ring_length
from dse.pipeline.timeline import Percentiles, idle_gaps, lane_times


def schedule(n_frames: int, computes: list[int], receive: int = 2, send: int = 1) -> np.ndarray:
    """A chain of stages on cores of their own with room for any number of frames between them."""
    stamps = np.zeros((n_frames, len(computes), 4), np.int64)
    free = [0] * len(computes)
    for frame in range(n_frames):
        there = 0
        for stage, compute in enumerate(computes):
            begin = max(there, free[stage])
            stamps[frame, stage] = (
                begin,
                begin + receive,
                begin + receive + compute,
                begin + receive + compute + send,
            )
            there = free[stage] = begin + receive + compute + send
    return stamps


def figures(stamps, window=None, units=None):
    n_stages = stamps.shape[1]
    return lane_times(
        stamps,
        names=[f"s{n}" for n in range(n_stages)],
        entering=[0],
        finals=[n_stages - 1],
        units=units or [[n] for n in range(n_stages)],
        window_ns=window,
    )


def test_a_chain_runs_at_the_pace_of_its_slowest_stage():
    times = figures(schedule(200, [100, 300, 50]))
    assert times.throughput_hz == pytest.approx(1e9 / 303)
    assert [(s.receive_ns, s.compute_ns, s.send_ns) for s in times.stages] == [
        (2, 100, 1),
        (2, 300, 1),
        (2, 50, 1),
    ]
    assert times.stages[1].busy_ns == 303
    assert times.stages[1].wait_ns == 0
    assert times.stages[2].wait_ns == 303 - 53
    assert times.stages[2].utilisation == pytest.approx(53 / 303, rel=0.01)
    assert (times.stages[1].compute_sum_ns, times.stages[1].n_frames) == (300 * 200, 200)


def test_latency_is_from_source_to_sink():
    stamps = schedule(1, [100, 300, 50])
    both = np.concatenate([stamps, stamps + 10_000])
    assert figures(both).latency_ns == Percentiles(459, 459, 459)


def test_only_frames_that_leave_in_the_window_count():
    stamps = schedule(100, [100])
    stamps[50:] += 7_000  # a pause in the middle
    whole, after = figures(stamps), figures(stamps, (int(stamps[50, 0, 3]), 10**9))
    assert after.n_frames == 50
    assert after.throughput_hz == pytest.approx(1e9 / 103)
    assert whole.throughput_hz < after.throughput_hz


def test_cores_shared_by_stages_wait_together():
    # s0 and s2 take turns on one set of cores: nothing is idle between them.
    stamps = np.array([[[0, 0, 10, 10], [10, 10, 20, 20], [20, 20, 30, 30]]] * 3, np.int64)
    stamps += (np.arange(3) * 30)[:, None, None]
    times = figures(stamps, units=[[0, 2], [1]])
    assert times.stages[0].wait_ns == 0
    assert times.stages[2].wait_ns == 10
    assert times.stages[1].wait_ns == 20
    # Each works for a third of the time, though only one of them finds its cores idle.
    assert [times.stages[n].utilisation for n in (0, 2)] == pytest.approx([1 / 3, 1 / 3])
    assert [times.stages[n].tightness for n in (0, 2)] == [1.0, 0.5]
    assert times.stages[1].utilisation == times.stages[1].tightness == pytest.approx(30 / 70)


def test_too_short_a_window_is_an_error():
    with pytest.raises(DeviceError, match="1 of 5 frames"):
        figures(schedule(5, [100]), (0, 150))


def test_rings_grow_with_the_stages_that_a_tensor_skips(tiny):
    plan = tiny.chain(0, 0, 0)
    lane = plan.lanes[0]
    # Stage 0 feeds stage 1 (one hop) and stage 2 (two hops); stage 2 feeds the sink.
    assert [ring_length(lane, plan.outputs, n, 3) for n in range(3)] == [3 * 2 + 2, 3 + 2, 3 + 2]


@given(
    n_frames=st.integers(1, 6),
    pieces=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=2, max_size=4),
    data=st.data(),
)
def test_gaps_and_work_fill_the_window(n_frames, pieces, data):
    """Stages that take turns on one set of cores: what is not work is a gap before the next piece."""
    stamps = np.zeros((n_frames, len(pieces), 4), np.int64)
    now, gaps = 1000, {}
    last = None
    for frame in range(n_frames):
        for stage, (work, most) in enumerate(pieces):
            idle = data.draw(st.integers(0, most))
            if last is not None and idle:
                gaps.setdefault((last, stage), []).append(idle)
            now += idle if last is not None else 0
            stamps[frame, stage] = (now, now + work // 3, now + work // 2, now + work)
            now, last = now + work, stage
    window = now - 1000
    found = {(gap.after, gap.before): gap for gap in idle_gaps(stamps, [tuple(range(len(pieces)))])}
    assert found.keys() == gaps.keys()
    for pair, values in gaps.items():
        assert found[pair].share == pytest.approx(sum(values) / window)
        assert found[pair].n_per_frame == pytest.approx(len(values) / n_frames)
        assert found[pair].median_ns == pytest.approx(np.median(values), abs=1)


def test_gaps_are_those_of_each_set_of_cores():
    stamps = np.array([[[0, 0, 5, 5], [5, 5, 30, 30]], [[20, 20, 25, 25], [30, 30, 55, 55]]])
    (gap,) = idle_gaps(stamps, [(0,), (1,)])
    assert (gap.after, gap.before, gap.median_ns, gap.n_per_frame) == (0, 0, 15, 0.5)
    assert gap.share == pytest.approx(15 / 25)
