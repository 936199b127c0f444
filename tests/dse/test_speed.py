"""The machine's speed since an earlier run, judged by plans that are not under test."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.speed import drifted, earlier_rates, key_of, speed_since


def mapping(*cores: int, name: str = "lane0.stage0") -> PlacedMapping:
    return PlacedMapping((PlacedLane((PlacedStage(name, (0, 1, 2), "cpu", len(cores), cores),)),))


def plan(name: str, cores: tuple[int, ...], hz: float | None) -> SimpleNamespace:
    measured = None if hz is None else SimpleNamespace(throughput_hz=hz)
    return SimpleNamespace(name=name, mapping=mapping(*cores), measured=measured)


def test_the_fastest_plan_that_is_not_tested_judges():
    before = {key_of(mapping(0)): 100.0, key_of(mapping(1)): 50.0, key_of(mapping(0, 1)): 400.0}
    plans = [plan("tested", (0, 1), 200.0), plan("one", (0,), 90.0), plan("other", (1,), 80.0)]
    speed = speed_since(before, plans, mapping(0, 1))
    assert speed is not None
    assert speed.judge == "one"
    assert speed.change == pytest.approx(-0.1)
    assert drifted(speed)
    assert not drifted(replace(speed, change=0.04))
    assert not drifted(None)


def test_nobody_judges_who_was_not_measured_both_times():
    before = {key_of(mapping(0)): 100.0}
    assert speed_since(before, [plan("a", (0,), None), plan("b", (1,), 5.0)], mapping(0, 1)) is None
    assert speed_since(before, [plan("a", (0,), 100.0)], mapping(0)) is None


def test_names_of_stages_do_not_matter():
    assert key_of(mapping(0, name="a")) == key_of(mapping(0, name="b")) != key_of(mapping(1))


@pytest.mark.parametrize("content", ["", "{}", '{"plans": 3}', '{"plans": [{"mapping": []}]}'])
def test_results_that_tell_nothing_judge_nothing(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    assert earlier_rates(tmp_path) == {}
    assert earlier_rates(tmp_path / "nowhere") == {}


def test_rates_are_read_back(tmp_path):
    stages = [[{"name": "x", "layers": "0-2", "cluster": "cpu", "threads": 1, "cores": [0]}]]
    plans = [
        {"mapping": stages, "measured": {"throughput_hz": 7.5}},
        {"mapping": [[*stages[0], *stages[0]]], "measured": None},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"plans": plans}))
    assert earlier_rates(tmp_path) == {key_of(mapping(0)): 7.5}
