"""The result on a terminal: at most 80 columns, and nothing that matters is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.placement import PlacedStage
from dse.reports.console import (
    MAX_OTHERS,
    MAX_ROWS,
    WIDTH,
    bold,
    format_cores,
    plain,
    printable,
    result_text,
    shorten,
    stage_cores,
)
from dse.reports.costs import costs_text, shown_slots
from dse.reports.html import report_html
from dse.results import Round


def lines(result, style=plain):
    return result_text(result, style).splitlines()


@pytest.mark.parametrize("measured", [True, False])
def test_table_fits_and_marks_winner_and_best_baseline(result_of, measured):
    result = result_of(measured=measured)
    text = lines(result)
    assert max(map(len, text)) <= WIDTH
    assert sum(line.startswith("> ") for line in text) == 1
    (winner,) = [line for line in text if line.startswith("> ")]
    assert "best single pipeline" in winner
    assert "1x3" in winner
    (baseline,) = [line for line in text if line.startswith(" * ")]
    assert "whole, 3 big" in baseline
    assert "+0.0 %" in baseline
    assert ("meas." in text[1]) is measured


def test_measured_numbers_are_shown(result_of):
    (row,) = [line for line in lines(result_of()) if line.startswith("> ")]
    cells = row.split()
    assert "118" in cells
    assert "112" in cells
    assert cells[-2:] == ["+28", "%"]
    assert "+6.0" in cells


def test_winning_mapping_with_bottleneck(result_of):
    text = "\n".join(lines(result_of()))
    assert "0-11    2 big     4-5    8.46 ms    8.88 ms   <- slowest" in text
    assert "18-23   4 LITTLE  0-3" in text
    assert (
        "measured" not in "\n".join(lines(result_of(measured=False))).split("The winner")[1].split("Mind")[0]
    )


def test_what_matters_is_said(result_of):
    text = " ".join(" ".join(lines(result_of())).split())
    for part in (
        "no mapping can be predicted above 125 frames/s; gap 3.6 %",
        "Why: Layers 18-23 lose least",
        "Outputs: 3 stages give the outputs of the whole model",
        "Warning: the machine was disturbed",
        "Mind: described platform.",
    ):
        assert part in text
    unmeasured = " ".join(" ".join(lines(result_of(measured=False))).split())
    assert "Mind: described platform, predicted costs (analytic), no plan was run." in unmeasured
    emulated = result_of()
    emulated = replace(emulated, platform=replace(emulated.platform, emulated=True))
    assert "emulated cores" in result_text(emulated)


def test_plans_of_earlier_rounds_are_not_passed_off_as_measured_side_by_side(result_of):
    result = result_of()
    rounds = tuple(Round(number, 4, 4, 0.1, 0.2, 100.0) for number in (1, 2))
    plans = (replace(result.plans[0], round=2), result.plans[1], replace(result.plans[3], round=2))
    text = " ".join(result_text(replace(result, plans=plans, rounds=rounds)).split())
    assert "but in an earlier round: best mix of lanes." in text
    page = report_html(replace(result, plans=plans, rounds=rounds))
    assert "best mix of lanes: measured in an earlier round" in page
    assert "earlier round" not in result_text(result) + report_html(result)


def test_refused_plans_and_the_price_of_wishes(result_of):
    result = result_of()
    faults = ("pin: x", "memory: too much (5 B, limit 3 B)", "pin: y", "latency: too long")
    faster = replace(
        result.plans[1],
        predicted=replace(result.plans[1].predicted, violations=faults),
        measured=replace(result.plans[1].measured, throughput_hz=200.0),
    )
    text = result_text(replace(result, plans=(result.plans[0], faster, *result.plans[2:])))
    flat = " ".join(text.split())
    assert "refused" in text
    assert "1 plan breaks a limit or a pin, for example best mix of lanes: does not keep to the pins;" in flat
    assert "pins; memory: too much (5 B, limit 3 B); 1 more." in flat
    assert "without them best mix of lanes reaches 200 frames/s, +79 % better than the winner" in flat


def test_many_plans_are_cut_but_not_what_matters(result_of):
    result = result_of(measured=False)
    many = tuple(replace(result.plans[4], name=f"plan {n}") for n in range(40))
    slots = tuple(replace(result.plans[4], name=f"whole, {n} cpu") for n in range(30))
    result = replace(result, plans=(*many, *slots, *result.plans), winner=70)
    text = lines(result)
    assert max(map(len, text)) <= WIDTH
    table = text[: text.index("", 4)]
    assert any(line.startswith("> ") for line in table)
    assert any(line.startswith(" * whole, 3 big") for line in table)
    assert len(table) < 2 * MAX_ROWS + 6
    assert table[-1].strip() == f"... and {77 - MAX_ROWS} more in the report"
    few = lines(replace(result, plans=(*many, *result.plans[70:]), winner=40))
    assert sum(line.startswith("   plan ") for line in few) == 1 + MAX_OTHERS  # one is in the head line
    assert sum(" whole, " in line for line in few) == 3


def test_nasty_names_can_not_steer_the_terminal(nasty):
    text = result_text(nasty)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


@given(
    name=st.text(min_size=1, max_size=200),
    hz=st.floats(1e-6, 1e9),
    latency_ns=st.integers(1, 10**13),
    memory=st.integers(0, 10**13),
)
def test_any_numbers_fit(name, hz, latency_ns, memory):
    from synthetic_result import make_result

    result = make_result()
    plan = result.plans[0]
    predicted = replace(plan.predicted, throughput_hz=hz, latency_ns=latency_ns, memory_bytes=memory)
    measured = replace(plan.measured, throughput_hz=hz * 3, latency_ns=latency_ns, memory_bytes=memory)
    plan = replace(plan, name=name, predicted=predicted, measured=measured)
    text = result_text(replace(result, plans=(plan, *result.plans[1:])))
    assert max(map(len, text.splitlines())) <= WIDTH


def test_bold_marks_only_the_winner(result_of):
    text = lines(result_of(), bold)
    (marked,) = [line for line in text if "\033" in line]
    assert marked.startswith("\033[1m> ")
    assert marked.endswith("\033[0m")


@given(st.text(max_size=60), st.integers(1, 40))
def test_shorten(text, width):
    short = shorten(text, width)
    assert len(short) <= width
    assert short.isprintable()
    if len(text) <= width:
        assert short == printable(text)


def test_format_cores():
    assert format_cores((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert format_cores((3,)) == "3"


def test_cost_table(result_of):
    result = result_of()
    text = costs_text(result.graph, result.costs)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "1 layers" in text.split("4 LITTLE")[1].splitlines()[0]
    assert len(costs_text(result.graph, result.costs, every=True).splitlines()) > len(text.splitlines())
    columns = [str(result.costs.slots[n]) for n in shown_slots(result.costs.slots)]
    assert {"1 big", "3 big", "1 LITTLE", "4 LITTLE"} <= set(columns)


def test_a_stage_on_an_accelerator_tells_its_host() -> None:
    gpu = PlacedStage("s", (0,), "gpu", 1, (16,), device="gpu", host_cores=(2, 3))
    assert stage_cores(gpu) == "host 2-3"
    assert stage_cores(replace(gpu, host_cores=())) == "any"
    assert stage_cores(PlacedStage("s", (0,), "big", 2, (0, 1))) == "0-1"
