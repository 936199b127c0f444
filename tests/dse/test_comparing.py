"""What one run gained over another: layers aligned, figures side by side, broken folders refused."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse import explore
from dse.cli import main
from dse.comparing import align, compare
from dse.config import experiment_for_model, experiment_for_models
from dse.errors import InputError
from dse.past_run import PastLayer, read_run
from dse.reports.comparison import comparison_html, comparison_json, comparison_text
from dse.zoo.registry import build_file


def layer(name, op="CONV_2D", key="k", time_ns=10, network=""):
    return PastLayer(name, op, key, network, 1, 1, 1, time_ns, ("1 big",))


def pairs(before, after):
    """Pair layers given as 'name:op'."""
    made = [[layer(*text.split(":")) for text in side.split()] for side in (before, after)]
    return [(made[0][a].name, made[1][b].name) for a, b in align(*made)]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        # names first, wherever they are
        ("a:X b:X c:X", "c:X a:X b:X", "c-c a-a b-b"),
        # then order and kind between what is known
        ("a:X p:CONV q:RELU b:X", "a:X r:CONV s:RELU b:X", "a-a p-r q-s b-b"),
        # an inserted layer shifts nothing
        ("a:X p:CONV b:X", "a:X new:RELU r:CONV b:X", "a-a p-r b-b"),
        # a removed one neither
        ("a:X p:CONV q:CONV b:X", "a:X q:CONV b:X", "a-a q-q b-b"),
        # the same name with another operator is another layer
        ("a:CONV", "a:DEPTHWISE", ""),
        # renamed altogether
        ("a:CONV b:RELU c:CONV", "x:CONV y:RELU z:CONV", "a-x b-y c-z"),
        # the same name twice: in order
        ("a:X a:X b:X", "a:X a:X", "a-a a-a"),
        ("a:X", "", ""),
    ],
)
def test_layers_are_paired_by_name_then_by_order_and_kind(before, after, wanted):
    assert [f"{a}-{b}" for a, b in pairs(before, after)] == wanted.split()


def test_a_model_is_found_again_in_a_workload():
    alone = [layer("conv"), layer("relu", "RELU")]
    merged = [layer("face/conv", network="face"), layer("face/relu", "RELU", network="face")]
    merged += [layer("hand/conv2", network="hand")]
    assert align(alone, merged) == ((0, 0), (1, 1))
    assert align(merged, alone) == ((0, 0), (1, 1))


LAYERS = st.lists(
    st.builds(
        layer, st.sampled_from("abcdef"), st.sampled_from(["X", "Y"]), network=st.sampled_from(["", "n"])
    ),
    max_size=12,
)


@given(before=LAYERS, after=LAYERS)
def test_no_layer_is_paired_twice_or_with_another_kind(before, after):
    found = align(before, after)
    assert len({a for a, _ in found}) == len({b for _, b in found}) == len(found)
    assert all(before[a].op == after[b].op for a, b in found)
    assert align(before, before) == tuple((n, n) for n in range(len(before)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_board):
    """Folders of two runs of a U-Net with another number of channels, predicted for a board."""
    folder = tmp_path_factory.mktemp("runs")
    for base in (16, 8):
        model = folder / f"unet{base}.tflite"
        build_file("unet", model, {"size": 32, "depth": 2, "base": base})
        settings = [f"platform={small_board}", f"output={folder}", "search.time_s=3", "search.candidates=1"]
        explore.run(experiment_for_model(model, [*settings, f"name=base{base}"]))
    return folder


def test_a_smaller_model_against_a_larger_one(runs):
    found = compare(read_run(runs / "base16"), read_run(runs / "base8"))
    assert {change.kind for change in found.layers} <= {"same", "changed"}
    assert sum(change.kind == "changed" for change in found.layers) > 10
    results = [json.loads((runs / name / "results.json").read_text()) for name in ("base16", "base8")]
    totals = {total.name: total for total in found.totals}
    for place, result in enumerate(results):
        side = "after" if place else "before"
        winner = next(plan for plan in result["plans"] if plan["name"] == result["winner"])
        assert getattr(totals["throughput"], side) == winner["predicted"]["throughput_hz"]
        assert getattr(totals["weights"], side) == result["model"]["weight_bytes"]
        assert getattr(totals["multiply-accumulates"], side) == result["model"]["macs"]
    assert totals["throughput"].change > 0
    assert totals["bytes moved by layers"].change < 0
    # What the layers gain is what all of them together gain.
    time = totals["layers' time, summed"]
    assert sum(change.time_ns for change in found.layers) == time.after - time.before
    # The time of the layers is the time that the stages compute.
    for run, result in ((found.before, results[0]), (found.after, results[1])):
        winner = next(plan for plan in result["plans"] if plan["name"] == result["winner"])
        if len(winner["mapping"]) == 1:
            computed = sum(stage["predicted_compute_ns"] for stage in winner["stages"])
            assert sum(layer.time_ns for layer in run.layers) == pytest.approx(computed, abs=len(run.layers))


def test_one_model_with_two_mappings(runs):
    whole = read_run(runs / "base16", "whole, 2 big")
    pipeline = read_run(runs / "base16", "best pipeline")
    found = compare(whole, pipeline)
    assert {change.kind for change in found.layers} == {"same"}
    assert any(change.moved for change in found.layers)
    assert whole.figures["cut_bytes"] == 0
    assert pipeline.figures["cut_bytes"] > 0
    assert all(change.moved_bytes == 0 for change in found.layers)
    table = json.loads((runs / "base16" / "costs.json").read_text())
    total = sum(layer.time_ns for layer in whole.layers)
    column = table["slots"].index({"cluster": "big", "threads": 2})
    assert total == pytest.approx(
        sum(row[column]["median_ns"] for row in table["layers"]) + table["overhead_ns"][column], rel=0.01
    )


def test_what_is_written(runs, tmp_path, capsys):
    page = tmp_path / "c.html"
    arguments = ["compare", str(runs / "base16"), str(runs / "base8"), "--html", str(page)]
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "tflite-dse comparison"
    found = compare(read_run(runs / "base16"), read_run(runs / "base8"))
    assert data == json.loads(json.dumps(comparison_json(found)))
    assert page.read_text() == comparison_html(found)
    assert main([*arguments, "--layers"]) == 0
    out = capsys.readouterr().out
    assert "~ up_0/conv1" in out
    assert "better" in out
    few = comparison_text(found)
    assert "layers that changed less" in few
    assert len(few.splitlines()) < len(out.splitlines())


def test_names_from_files_are_escaped(runs):
    before = read_run(runs / "base16")
    layers = (PastLayer("<script>\x1b[2J", "X", "k", "", 1, 1, 1, 10**9, ("1 big",)), *before.layers)
    other = type(before)(**{**before.__dict__, "layers": layers})
    found = compare(before, other)
    assert "<script>" not in comparison_html(found)
    assert "\x1b" not in comparison_html(found) + comparison_text(found)
    assert "+ <script>?[2J" in comparison_text(found)


def test_networks_are_compared(runs, tmp_path, small_board):
    settings = [f"platform={small_board}", f"output={tmp_path}", "search.time_s=3", "search.candidates=1"]
    both = [f"old={runs / 'unet16.tflite'}", f"new={runs / 'unet8.tflite'}"]
    explore.run(experiment_for_models(both, settings=[*settings, "name=both"]))
    found = compare(read_run(runs / "base16"), read_run(tmp_path / "both"))
    assert {change.kind for change in found.layers} == {"same", "new"}
    assert "network new" in comparison_text(found)
    assert set(comparison_json(found)["networks"]) == {"old", "new"}


def change_json(name, change):
    def apply(folder):
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return apply


def remove(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("harm", "wanted"),
    [
        (remove("results.json"), r"results.json is missing\); run it again"),
        (remove("layers.json"), r"layers.json is missing\); run it again"),
        (remove("costs.json"), r"costs.json is missing\); run it again"),
        (lambda f: (f / "results.json").write_text("{"), "results.json: damaged: not JSON"),
        (lambda f: (f / "results.json").write_text("[" * 100_000), "results.json: damaged: not JSON"),
        (lambda f: (f / "results.json").write_bytes(b"\xff\xfe"), "results.json: damaged: not JSON"),
        (lambda f: (f / "layers.json").write_text("[]"), "layers.json: expected a 'tflite-dse layers' file"),
        (change_json("results.json", lambda d: d.update(version=9)), "results.json: version 9, expected 1"),
        (change_json("results.json", lambda d: d.update(status="failed", error="no")), "status 'failed': no"),
        (change_json("results.json", lambda d: d.pop("plans")), r"results.json: damaged \(KeyError: 'plans'\)"),
        (change_json("results.json", lambda d: d.update(winner="x")), "there is no plan 'x'; it has"),
        (change_json("layers.json", lambda d: d["layers"].pop()), "do not belong together: layers.json has"),
        (change_json("layers.json", lambda d: d["layers"][0].pop("op")), r"damaged \(KeyError: 'op'\)"),
        (change_json("layers.json", lambda d: d.update(layers=3)), r"damaged \(TypeError"),
        (
            change_json("results.json", lambda d: [p["mapping"][0].pop() for p in d["plans"]]),
            "does not hold each of the",
        ),
        (
            change_json("results.json", lambda d: [p["mapping"].clear() for p in d["plans"]]),
            "damaged .*the plan has no lane",
        ),
        (
            change_json(
                "results.json",
                lambda d: [s.update(cluster="q") for p in d["plans"] for lane in p["mapping"] for s in lane],
            ),
            "costs.json has no slot '. q'",
        ),
        (
            change_json(
                "results.json",
                lambda d: [s.update(layers="9-1") for p in d["plans"] for lane in p["mapping"] for s in lane],
            ),
            "damaged .*layers '9-1'",
        ),
    ],
)  # fmt: skip
def test_broken_folders(runs, tmp_path, harm, wanted):
    folder = tmp_path / "broken"
    shutil.copytree(runs / "base8", folder)
    harm(folder)
    with pytest.raises(InputError, match=wanted):
        read_run(folder)


def test_no_folder(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "a"), str(tmp_path)]) == 2
    assert "there is no such folder" in capsys.readouterr().err
