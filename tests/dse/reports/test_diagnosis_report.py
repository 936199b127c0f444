"""Why a prediction was off, and what a plan cost the machine, in words."""

from __future__ import annotations

from dataclasses import replace

from synthetic_result import make_result

from dse.reports.console import result_text
from dse.reports.diagnosis import cores_busy, diagnosis_rows, machine_facts
from dse.reports.html import report_html
from dse.results import Diagnosis

TOLD = Diagnosis(
    error_interval=(-0.12, 0.034),
    latency_error=0.5,
    causes=("s0 (bottleneck of lane 0): contention: 1.51 times <its> time alone",),
    core_utilisation=((0, 0.981), (1, 0.979), (2, 0.5), (4, 0.5)),
    traffic_bytes=3 << 20,
    cpu_ns=4_500_000,
    switches=2.5,
    involuntary_switches=0.01,
    page_faults=0.0,
    counters_note="the processor's counters are not there (a virtual machine?)",
)


def told(diagnosis=TOLD):
    result = make_result()
    measured = replace(result.best.measured, diagnosis=diagnosis)
    plans = list(result.plans)
    plans[result.winner] = replace(result.best, measured=measured)
    return replace(result, plans=tuple(plans))


def test_equal_neighbours_are_told_together():
    assert cores_busy(TOLD) == "0-1: 98 %, 2: 50 %, 4: 50 %"


def test_rows_are_of_measured_plans_with_a_diagnosis():
    (row,) = diagnosis_rows(told())
    assert (row.interval, row.latency_error) == ("-12 % to +3.4 %", "+50 %")
    assert row.causes == TOLD.causes


def test_the_page_shows_it_escaped():
    page = report_html(told())
    assert "contention: 1.51 times &lt;its&gt; time alone" in page
    assert "0-1: 98 %" in page
    assert "not counted: the processor" in page


def test_the_terminal_tells_cores_and_causes_where_the_error_is_large():
    text = " ".join(result_text(told()).split())
    assert "Cores busy: 0-1: 98 %, 2: 50 %, 4: 50 %." in text
    off = told()
    predicted = replace(off.best.predicted, throughput_hz=2 * off.best.measured.throughput_hz)
    plans = tuple(replace(p, predicted=predicted) if p is off.best else p for p in off.plans)
    text = " ".join(result_text(replace(off, plans=plans)).split())
    assert "Prediction off by +100 %: s0 (bottleneck of lane 0): contention" in text
    assert "Prediction off" not in " ".join(result_text(told(replace(TOLD, causes=()))).split())


def test_hardware_counts_are_told_where_they_are():
    counted = told(
        replace(TOLD, cycles=9_000_000, instructions=18_000_000, memory_bytes=1 << 20, counters_note="")
    )
    facts = dict(machine_facts(counted.best))
    assert "2.00 per cycle" in facts["cycles; instructions of a frame"]
    assert facts["traffic to memory of a frame (last-level misses)"].startswith("1 MiB, ")
    assert not any("not counted" in text for text in facts.values())
