"""What-if from an experiment to the terminal."""

from __future__ import annotations

import json

import pytest

from dse import cli
from dse.config import load_experiment
from dse.sensitivity import search_what_if
from solvers.what_if import Known

TINY_BERT = "{hidden: 16, sequence: 8, layers: 1, heads: 2, intermediate: 32, vocab: 50}"
EXPERIMENT = f"""\
model: {{zoo: bert_encoder, parameters: {TINY_BERT}}}
platform:
  name: board
  clusters:
    - {{name: big, cores: 0-1, threads: 1, macs_per_s: 8e9, bytes_per_s: 8e9}}
    - {{name: LITTLE, cores: 2-3, threads: 1, macs_per_s: 3e9, bytes_per_s: 4e9}}
search:
  time_s: 60
  candidates: 2
  pins:
    - {{layers: "embeddings/*", on: 1 LITTLE}}
    - {{layers: "encoder/layer_0/*", on: 1 big}}
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT)
    return path


def test_gains_are_over_the_answer_that_is_shown(experiment):
    result, sensitivity = search_what_if(load_experiment(experiment, []))
    found = sensitivity.found
    assert found.complete
    assert found.base.evaluation.throughput_hz == pytest.approx(result.best.predicted.throughput_hz)
    assert len(found.layers) == len(result.graph.layers)
    homes = {}
    for stage in result.best.mapping.stages:
        for layer in stage.layers:
            homes.setdefault(layer, set()).add(stage.slot)
    for gain in found.layers:
        assert {str(sensitivity.slots[slot]) for slot in gain.slots} == homes[gain.layer]
    # One lane is pinned to two cores: only layers of its slower stage can matter, and some do.
    busy = {stage.name: stage.predicted_busy_ns for stage in result.best.stages}
    worth = {gain.layer for gain in found.layers if gain.gain > 1e-6}
    assert worth
    for stage in result.best.mapping.stages:
        if set(stage.layers) & worth:
            assert busy[stage.name] >= 0.5 * max(busy.values())
    proved = [step for gain in found.layers for step in gain.steps if step.known is Known.PROVED]
    assert all(step.gain == pytest.approx(step.at_most, abs=1e-6) for step in proved)


def test_the_command_prints_the_tables(experiment, capsys):
    assert cli.main(["search", str(experiment), "--what-if", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    before, after = out.split("What if: gain in throughput")
    assert "The winner: " in before
    assert "more of a resource" in after
    assert "more core of big" in after
    assert "-100 %" in after


def test_the_command_prints_json(experiment, capsys):
    assert cli.main(["search", str(experiment), "--what-if", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["winner"]
    assert "asking what if" in err
    asked = data["what_if"]
    assert asked["complete"]
    assert len(asked["layers"]) == data["model"]["n_layers"]
    gains = [layer["steps"][-1]["gain"] for layer in asked["layers"]]
    assert gains == sorted(gains, reverse=True)
    assert cli.main(["search", str(experiment), "--json", "--quiet"]) == 0
    assert "what_if" not in json.loads(capsys.readouterr().out)
