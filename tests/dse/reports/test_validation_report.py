"""``dse validate`` tells the mapping stage by stage: errors with intervals, latencies, waits, costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_result import make_result

from dse.graph import Network
from dse.reports.validation import LEAST_GAP, validation_lines
from dse.results import Diagnosis, Gap

TOLD = Diagnosis(
    error_interval=(-0.12, 0.034),
    latency_error=0.5,
    causes=(),
    core_utilisation=((4, 0.98), (5, 0.98), (6, 0.5)),
    traffic_bytes=3 << 20,
    cpu_ns=4_500_000,
    switches=2.5,
    involuntary_switches=0.01,
    page_faults=0.0,
    counters_note="the processor's counters are not there (a virtual machine?)",
    confidence=0.9375,
    n_counted=5,
)


@pytest.fixture
def result():
    """The pipeline of three stages; its second one waits for the first."""
    result = make_result()
    gaps = (
        Gap("lane0.stage1", "lane0.stage1", 1.0, 1_200_000, 0.13),
        Gap("lane0.stage2", "lane0.stage2", 0.1, 1_000, LEAST_GAP / 2),
    )
    measured = replace(result.best.measured, diagnosis=TOLD, gaps=gaps)
    stages = tuple(
        replace(stage, measured_interval_ns=(stage.measured_busy_ns // 2, stage.measured_busy_ns * 2))
        for stage in result.best.stages
    )
    best = replace(result.best, measured=measured, stages=stages)
    return replace(result, plans=(best, *result.plans[1:]))


def test_every_stage_and_figure_is_told_within_80_columns(result):
    lines = validation_lines(result, result.best)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    rows = [line for line in lines if line.strip().startswith("lane0.stage")]
    assert len(rows) == 3
    # Predicted 8.46 ms, measured 8.88 ms: -4.8 %, against half and twice that +90 and -52 %.
    assert all(word in rows[0] for word in ("8.46 ms", "8.88 ms", "-4.8 %", "-52..+90", "20 us"))
    assert "112 frames/s (107 to 115 in 5 repeats)" in text
    assert "by -12 % to +3.4 % at 94% confidence" in text
    assert "Cores busy: 4-5: 98 %, 6: 50 %" in text
    assert "90 % within" in text
    assert "99 % within" in text
    assert "core 6: 13% of the time, median 1.2 ms, between frames of lane0.stage1" in text
    assert "stage2, before" not in text, "too short to matter"
    assert "weights and activations touched by a frame: 3 MiB" in text
    assert "(a virtual machine?)" in " ".join(text.split()), "wrapped, not cut"


def test_it_is_told_when_not_all_repeats_count(result):
    diagnosis = replace(TOLD, n_counted=3)
    best = replace(result.best, measured=replace(result.best.measured, diagnosis=diagnosis))
    text = " ".join(" ".join(validation_lines(result, best)).split())
    assert "112 frames/s (107 to 115 in 5 repeats, of which the 3 calm ones count)" in text


def test_gaps_of_a_workload_are_between_networks(result):
    n_layers = len(result.graph.layers)
    networks = (Network("hand", tuple(range(20))), Network("face", tuple(range(20, n_layers))))
    gaps = (Gap("lane0.stage1", "lane0.stage2", 1.0, 1_200_000, 0.13),)
    best = replace(result.best, measured=replace(result.best.measured, gaps=gaps))
    told = "\n".join(validation_lines(replace(result, graph=replace(result.graph, networks=networks)), best))
    assert "after hand (lane0.stage1), before hand+face" in " ".join(told.split())


def test_what_was_not_measured_says_nothing():
    result = make_result(measured=False)
    assert validation_lines(result, result.best) == []


def test_names_can_not_steer_the_terminal(nasty):
    assert "\x1b" not in "".join(validation_lines(nasty, nasty.plans[0]))
