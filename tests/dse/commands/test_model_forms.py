"""``--shape``, ``--signature``, bundles and drawings on the command line."""

from __future__ import annotations

import json
import xml.etree.ElementTree
import zipfile

import pytest

from dse import cli
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model


@pytest.fixture
def dse(capsys):
    def run(*arguments):
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def bundle(corpus, tmp_path):
    path = tmp_path / "all.task"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_if_while.tflite", "x_train_vars.tflite"):
            archive.write(corpus / "models" / name, name)
    return path


def test_a_bundle_asks_which(dse, bundle):
    code, out, err = dse("inspect", bundle)
    assert (code, out) == (2, "")
    assert "all.task!x_if_while.tflite\n" in err


def test_a_member_of_a_bundle_is_shown_and_cut(dse, bundle, tmp_path):
    member = f"{bundle}!x_if_while.tflite"
    code, out, _ = dse("inspect", member, "--layers", "--json")
    assert code == 0
    assert json.loads(out)["layers"]
    out_folder = tmp_path / "stages"
    code, _, err = dse("split", member, "--at", "1", "--out", out_folder)
    assert code == 0, err
    stages = sorted(out_folder.glob("*.tflite"))
    assert sum(len(build_graph(read_model(path)).layers) for path in stages) == 5


def test_another_signature(dse, corpus):
    path = corpus / "models" / "x_train_vars.tflite"
    texts = {}
    for key in ("infer", "train"):
        code, texts[key], _ = dse("inspect", path, "--signature", key, "--layers")
        assert code == 0
    assert "ASSIGN_VARIABLE" in texts["train"]
    assert "ASSIGN_VARIABLE" not in texts["infer"]
    code, _, err = dse("inspect", path, "--signature", "run")
    assert code == 2
    assert "it has 'infer', 'train'" in err


def test_a_shape_that_contradicts_the_model(dse, corpus):
    path = corpus / "models" / "x_if_while.tflite"
    code, _, err = dse("inspect", path, "--shape", "0=2x9")
    assert code == 2
    assert "takes 1x8 (? is open), got 2x9" in err


def test_drawings_are_written(dse, corpus, tmp_path):
    path = corpus / "models" / "x_if_while.tflite"
    svg, dot = tmp_path / "x.svg", tmp_path / "x.dot"
    code, out, _ = dse("inspect", path, "--svg", svg, "--dot", dot)
    assert code == 0
    assert str(svg) in out
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")  # noqa: S314 - our own file
    assert dot.read_text().startswith("digraph")
