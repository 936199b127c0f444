"""The published cost graphs: known contiguous optima are found and proved."""

from __future__ import annotations

import json

import pytest

from benchmarks.cost_graphs import main, read, run

OPTIMA = {
    "Layer_bert24_inference": 17.790,
    "Layer_gnmt_inference": 32.911,
    "Layer_resnet50_inference": 33.775,
    "Layer_inceptionv3_inference": 51.552,
    "Operator_bert_l-3_inference": 27.919,
    "Operator_bert_l-6_inference": 29.580,
    "Operator_bert_l-12_inference": 147.478,
    "Operator_resnet50_inference": 124.349,
}


@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_contiguous_optimum_is_proved(corpus, name):
    row = run(corpus / "cost-graphs" / "dnn-partitioning" / f"{name}.json", 60.0, "ideal_dp")
    assert row.status == "optimal, contiguous"
    assert row.objective == pytest.approx(OPTIMA[name], abs=6e-4)
    assert row.bound == row.objective


def test_reader_keeps_classes_and_costs(corpus):
    graph = read(corpus / "cost-graphs" / "dnn-partitioning" / "Operator_bert_l-3_inference.json")
    assert graph.problem.n_layers == 235
    assert len(set(graph.colour)) == 128
    assert graph.problem.cluster_sizes == (3, 1)


def test_json_lines(corpus, capsys):
    path = corpus / "cost-graphs" / "dnn-partitioning" / "Layer_bert24_inference.json"
    assert main(["--contiguous", "--json", str(path)]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["layers"] == 32
    assert line["peak_mib"] > 0


def test_other_files_are_refused(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("[]")
    assert main([str(path)]) == 1
    assert "expected an object" in capsys.readouterr().err


def test_phone_table(corpus):
    row = run(corpus / "cost-graphs" / "bettertogether_pixel.csv", 10.0, "ideal_dp")
    assert row.objective == pytest.approx(11.5445, abs=1e-4)
    assert row.status.startswith("optimal")
