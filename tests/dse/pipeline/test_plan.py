from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dse.errors import InputError
from dse.pipeline.plan import LanePlan, PipelinePlan


def test_json_form_keeps_everything(tiny):
    plan = tiny.plan([tiny.stage(n, (n % 2,)) for n in range(3)], [tiny.whole((2, 3))], name="mixed")
    assert PipelinePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("fault", [{}, {"name": "x", "lanes": 3, "inputs": [], "outputs": []}, None, []])
def test_damaged_json_is_an_input_error(fault):
    with pytest.raises(InputError, match="damaged plan"):
        PipelinePlan.from_json(fault)


def test_sources_and_units_of_a_diamond(tiny):
    lane = LanePlan(tuple(tiny.stage(n, ((0,), (1,), (0,))[n]) for n in range(3)))
    assert [lane.sources(n) for n in range(3)] == [(None,), (0,), (0, 1)]
    assert lane.units == ((0, 2), (1,))
    assert lane.cores == {0, 1}


def test_where_a_stage_runs_is_told_for_people(tiny):
    stage = tiny.whole((2, 3))
    assert stage.place == "cpu cores 2,3"
    assert replace(stage, cluster="gpu", device="gpu").place == "gpu, driven by cores 2,3"
    assert replace(stage, cluster="gpu", device="gpu", cores=()).place == "gpu"


def test_stages_share_all_their_cores_or_none(tiny):
    with pytest.raises(InputError, match=r"share cores \[1\]"):
        LanePlan((tiny.stage(0, (0, 1)), tiny.stage(1, (1,))))


def test_lanes_are_on_disjoint_cores(tiny):
    with pytest.raises(InputError, match="core 0 is in lane 0 and in lane 1"):
        tiny.plan([tiny.whole((0,))], [tiny.whole((0,))])


def test_a_tensor_must_be_made_before_it_is_used(tiny):
    with pytest.raises(InputError, match="stage 1: input 1 'a' comes neither"):
        tiny.plan([tiny.stage(n, (0,)) for n in (1, 0, 2)])


def test_a_tensor_has_one_maker(tiny):
    with pytest.raises(InputError, match="already made by whole"):
        tiny.plan([tiny.whole((0,)), replace(tiny.whole((0,)), name="again")])


def test_an_output_that_nobody_makes(tiny):
    with pytest.raises(InputError, match="no stage makes the model's output 4 'y'"):
        tiny.plan([tiny.stage(0, (0,)), tiny.stage(1, (0,))])


@pytest.mark.parametrize("change", [{"dtype": "int8"}, {"shape": (8,)}, {"n_bytes": 8}])
def test_maker_and_user_must_agree(tiny, change):
    """A float output once was handed on as bytes: 400 elements for a tensor of 100."""
    last = tiny.stage(2, (0,))
    wrong = replace(last, inputs=(last.inputs[0], replace(last.inputs[1], **change)))
    with pytest.raises(InputError, match=rf"tensor 3 'c' has {next(iter(change))}"):
        tiny.plan([tiny.stage(0, (0,)), tiny.stage(1, (0,)), wrong])


@pytest.mark.parametrize(("cores", "threads"), [((), 1), ((0, 0), 1), ((0,), 0)])
def test_impossible_stages(tiny, cores, threads):
    with pytest.raises(InputError):
        replace(tiny.whole((0,)), cores=cores, threads=threads)
