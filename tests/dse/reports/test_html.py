"""The report: self-contained, escaped, and its drawings say what the numbers say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.reports.cost_table import cost_view
from dse.reports.drawing import nice_ticks, stage_numbers
from dse.reports.html import flatten, report_html, write_report
from dse.reports.plan_chart import plan_chart
from dse.reports.strip import strips
from dse.reports.timeline import timeline
from dse.reports.wording import answer, format_share, shape

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text += data


@pytest.mark.parametrize("measured", [True, False])
def test_page_is_well_formed_and_self_contained(result_of, measured):
    text = report_html(result_of(measured=measured))
    page = Page(text)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "a", "base", "form"}
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "data", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    policies = [a for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0]["content"].startswith("default-src 'none'")


def test_nasty_names_are_escaped(nasty):
    text = report_html(nasty)
    page = Page(text)
    assert page.open == []
    assert "<img" not in text
    assert "<b>big" not in text
    assert "\x1b" not in text
    assert not {"img", "script"} & {tag for tag, _ in page.tags}
    assert "{{7*7}}" in page.text
    assert "49</h1>" not in text
    assert page.text.count("onerror=alert(1)") > 20


def test_everything_is_on_the_page(result_of):
    result = result_of()
    text = " ".join(Page(report_html(result, "today")).text.split())
    for part in (
        answer(result),
        result.reason,
        result.warnings[0],
        result.output_check,
        "described platform",
        "whole, 4 LITTLE",
        "also: best found",
        "A · 8.88 ms · bottleneck",
        "net/block_24/out",
        "24 layers on 7 slots",
        "schedutil",
        result.costs.model_hash,
        "2.40 GHz",
        "40 us",
        "gap 3.6 %",
        "today",
    ):
        assert part in text, part


def test_report_without_measurements_has_no_measured_column(result_of):
    text = Page(report_html(result_of(measured=False))).text
    assert "no plan was run" in text
    assert "measured: median" not in text


def test_write_report(tmp_path, result_of):
    write_report(tmp_path / "report.html", result_of())
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_plan_chart_positions(result_of):
    result = result_of()
    chart = plan_chart(result)
    assert chart.ticks[0].at == 0
    assert chart.ticks[-1].at == 100
    end = float(chart.ticks[-1].text)
    for row, plan in zip(chart.rows, result.plans):
        assert row.predicted_at == pytest.approx(100 * plan.predicted.throughput_hz / end, abs=0.01)
        assert row.measured_at == pytest.approx(100 * plan.measured.throughput_hz / end, abs=0.01)
        assert row.low == min(row.dots) <= row.measured_at <= max(row.dots) == row.high <= 100
    assert chart.bound_at == pytest.approx(100 * 125.4 / end, abs=0.01)
    assert sum(row.winner for row in chart.rows) == 1
    assert [row.name for row in chart.rows if row.best_baseline] == ["whole, 3 big"]


def test_a_far_bound_does_not_squeeze_the_chart(result_of):
    result = result_of()
    chart = plan_chart(replace(result, proof=replace(result.proof, bound_hz=1e6)))
    assert chart.bound_at is None
    assert chart.rows[0].predicted_at > 50


def test_timeline_of_a_pipeline(result_of):
    result = result_of()
    drawn = timeline(result)
    assert drawn.measured
    assert [(row.cluster, row.core) for row in drawn.rows] == [("big", n) for n in (4, 5, 6)] + [
        ("LITTLE", n) for n in range(4)
    ]
    by_core = {row.core: row for row in drawn.rows}
    assert by_core[4].bars == by_core[5].bars
    assert by_core[4].bars[0].bottleneck
    assert by_core[4].busy == 100
    longest = max(stage.measured_busy_ns for stage in result.best.stages)
    third = result.best.stages[2].measured_busy_ns
    assert by_core[0].bars[0].width == pytest.approx(100 * third / longest, abs=0.01)
    assert not by_core[0].bars[0].bottleneck


@given(
    times=st.lists(st.integers(1, 10**9), min_size=1, max_size=6),
    share=st.booleans(),
)
def test_bars_of_a_core_never_overlap(times, share):
    from synthetic_result import make_plan, make_result

    result = make_result()
    n = len(times)
    cores = [((4,) if share and k % 2 else (5, 6)) for k in range(n)]
    lanes = [[((k,), "big", core) for k, core in enumerate(cores)], [(tuple(range(n)), "LITTLE", (0,))]]
    plan = make_plan("x", "candidate", lanes, 10.0)
    stages = tuple(
        replace(stage, predicted_busy_ns=time, predicted_receive_ns=time // 3)
        for stage, time in zip(plan.stages, [*times, sum(times)])
    )
    drawn = timeline(replace(result, plans=(replace(plan, stages=stages),), winner=0))
    for row in drawn.rows:
        end = 0.0
        for bar in sorted(row.bars, key=lambda bar: (bar.left, bar.width)):
            assert bar.left >= end - 0.01
            assert 0 <= bar.receive <= 100
            end = bar.left + bar.width
        assert end <= 100.01
    assert {row.core for row in drawn.rows if not row.bars} >= {1, 2, 3}
    assert any(bar.bottleneck for row in drawn.rows for bar in row.bars) is (n > 1)


def test_strip_covers_every_layer_once(result_of):
    result = result_of()
    (strip,) = strips(result)
    assert [len(run.layers) for run in strip.runs] == [12, 6, 6]
    assert sum(run.share for run in strip.runs) == pytest.approx(100, abs=0.1)
    assert sum(layer.share for run in strip.runs for layer in run.layers) == pytest.approx(100, abs=0.1)
    assert [run.cut for run in strip.runs] == ["", "49 KiB", "49 KiB"]
    both = strips(replace(result, winner=1))
    assert [strip.title for strip in both] == ["one lane of 3 big", "one lane of 4 LITTLE"]


def test_stages_in_pieces_have_one_colour(result_of):
    from synthetic_result import make_plan

    result = result_of()
    pieces = (tuple(range(4)) + tuple(range(8, 24)), tuple(range(4, 8)))
    plan = make_plan("x", "candidate", [[(pieces[0], "big", (4,)), (pieces[1], "big", (5,))]], 10.0)
    result = replace(result, plans=(plan,), winner=0)
    (strip,) = strips(result)
    assert [run.colour for run in strip.runs] == [0, 1, 0]
    assert stage_numbers(plan.mapping) == {"lane0.stage0": 0, "lane0.stage1": 1}
    assert report_html(result)


def test_cost_view(result_of):
    result = result_of()
    view = cost_view(result)
    assert len(view.rows) == 24
    assert view.rows[5].cells[-1].text == "–"
    assert "operator refused" in view.rows[5].cells[-1].title
    used = [[n for n, cell in enumerate(row.cells) if cell.used] for row in view.rows]
    slots = list(view.slots)
    assert used[0] == [slots.index("2 big")]
    assert used[23] == [slots.index("4 LITTLE")]
    assert view.rows[0].stages == (("A", 0),)
    for column in range(len(slots)):
        assert max(row.cells[column].heat for row in view.rows) == 1
    assert view.totals[1].whole == "–"


@given(st.floats(1e-6, 1e12))
def test_ticks_are_round_and_reach_the_end(largest):
    ticks = nice_ticks(largest)
    assert ticks[0] == 0
    assert ticks[-1] >= largest * (1 - 1e-9)
    assert 2 <= len(ticks) <= 8
    step = f"{ticks[1]:.2e}".split("e", maxsplit=1)[0]
    assert step in {"1.00", "2.00", "2.50", "5.00"}


def test_words(result_of):
    result = result_of()
    assert answer(result) == (
        "tiny_net runs at 112 frames/s on board as 2 big > 1 big > 4 LITTLE, latency 25.4 ms: "
        "28.3 % faster than the best plan without search (whole, 3 big)."
    )
    assert "slower" in answer(replace(result, winner=4))
    assert "no search is needed" in answer(replace(result, winner=3))
    assert "is predicted to run" in answer(result_of(measured=False))
    alone = replace(result, plans=result.plans[:2])
    assert answer(alone).endswith("latency 25.4 ms.")
    assert shape(result.plans[4].mapping) == "3 x 1 big | 4 x 1 LITTLE"
    assert shape(result.plans[0].mapping, result.graph) == "2 big (0-11) > 1 big (12-17) > 4 LITTLE (18-23)"
    assert [format_share(v) for v in (0.123, -0.056, 0.0, None, 25.0)] == [
        "+12 %",
        "-5.6 %",
        "+0.0 %",
        "-",
        "26x",
    ]


def test_conditions_are_flattened():
    data = {"a": 1, "b": {"c": [1, 2], "d_e": None}, "many": {str(n): n for n in range(20)}, "none": []}
    assert flatten(data) == [
        ("a", "1"), ("b: c", "1, 2"), ("b: d e", "unknown"), ("many", "20 entries"), ("none", "none"),
    ]  # fmt: skip
