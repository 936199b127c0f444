"""From a run to bundles through the command line, and back through a hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from linux_bundles import Runner

from dse import cli, yaml_io
from dse.mapping_file import read_mapping

EXPERIMENT = """\
model: {{zoo: mobilenet_v2, parameters: {{size: 32, width: 25, classes: 10}}}}
platform:
  name: board
  clusters:
    - {{name: big, cores: [{one}], macs_per_s: 8e9, bytes_per_s: 8e9}}
    - {{name: LITTLE, cores: [{two}], macs_per_s: 3e9, bytes_per_s: 4e9}}
search: {{solver: lanes, time_s: 3, candidates: 1, max_stages: 2, pins: [{{layers: 0-20, on: 1 big}}, {{layers: "21", on: 1 LITTLE}}]}}
name: board
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, two_cores) -> Path:
    """A finished run of a described board whose two cores are here."""
    folder = tmp_path_factory.mktemp("run")
    path = folder / "board.yaml"
    path.write_text(EXPERIMENT.format(one=two_cores[0], two=two_cores[1]))
    assert cli.main(["run", str(path), "-q", "--set", f"output={folder / 'runs'}"]) == 0
    return folder / "runs" / "board"


def dse(capsys, *arguments: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == code, capsys.readouterr().err
    return capsys.readouterr()


def edited(run: Path, folder: Path, change) -> Path:
    data = yaml_io.load(run / "mapping.yaml").data
    change(data["lanes"][0]["stages"], data)
    path = folder / "edited.yaml"
    path.write_text(yaml_io.dump(data))
    return path


def test_a_run_becomes_a_bundle_that_runs(run, tmp_path, capsys):
    out, _ = dse(capsys, "export", run, "--to", "linux", "-o", tmp_path / "bundle", "--json", "-q")
    data = json.loads(out)
    assert "run.py" in data["files"]
    Runner("python").run(tmp_path / "bundle", "--verify")
    text = (tmp_path / "bundle" / "README.md").read_text()
    assert "predicted, not measured" in text
    assert "| frames per second |" in text
    out, _ = dse(capsys, "verify", tmp_path / "bundle")
    assert "every lane gives the reference outputs" in out
    _, err = dse(capsys, "export", run, "--to", "linux", "-o", tmp_path / "bundle", "-q", code=2)
    assert "--force" in err
    dse(capsys, "export", run, "--to", "android", "-o", tmp_path / "bundle", "-q", "--force")
    assert (tmp_path / "bundle" / "bench.py").is_file()


def test_a_border_and_a_core_moved_by_hand(run, tmp_path, capsys, two_cores):
    before = read_mapping(run / "mapping.yaml").mapping.stages
    assert before[0].span == "0-20"

    def change(stages, data):
        n_layers = read_mapping(run / "mapping.yaml").mapping.stages[-1].layers[-1]
        stages[0]["layers"], stages[1]["layers"] = "0-25", f"26-{n_layers}"
        stages[0]["cores"], stages[1]["cores"] = stages[1]["cores"], stages[0]["cores"]
        stages[0]["cluster"], stages[1]["cluster"] = stages[1]["cluster"], stages[0]["cluster"]

    path = edited(run, tmp_path, change)
    dse(capsys, "export", run, "--to", "linux", "--mapping", path, "-o", tmp_path / "bundle", "-q")
    content = read_mapping(tmp_path / "bundle" / "mapping.yaml")
    assert content.mapping.stages[0].span == "0-25"
    assert content.mapping.stages[0].cores == (two_cores[1],)
    assert set(content.files.values()) == {
        "stages/layers-0-25.tflite",
        f"stages/layers-{content.mapping.stages[1].span}.tflite",
    }
    Runner("python").run(tmp_path / "bundle", "--verify")


def test_the_mapping_of_a_bundle_can_be_exported_again(run, tmp_path, capsys):
    dse(capsys, "export", run, "--to", "linux", "-o", tmp_path / "one", "-q")
    again = tmp_path / "one" / "mapping.yaml"
    dse(capsys, "export", run, "--to", "linux", "--mapping", again, "-o", tmp_path / "two", "-q")
    for name in ("mapping.yaml", "plan.txt", "SHA256SUMS"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def twice(stages, data):
    stages[1]["layers"] = f"0,{stages[1]['layers']}"


def missing(stages, data):
    del stages[1]


def same_core(stages, data):
    stages[1]["cores"] = stages[0]["cores"]
    stages[1]["cluster"] = stages[0]["cluster"]
    data["lanes"].append({"stages": [dict(stage, name=f"{stage['name']}x") for stage in stages]})


def unknown_cluster(stages, data):
    stages[0]["cluster"] = "medium"


def other_model(stages, data):
    data["model"]["sha256"] = "0" * 64


@pytest.mark.parametrize("command", ["export", "validate"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, "layer 0"),
        (missing, "in no stage"),
        (same_core, "is used by"),
        (unknown_cluster, "no cluster 'medium'"),
        (other_model, "is for model"),
    ],
)
def test_impossible_edits_are_told(run, tmp_path, capsys, command, change, message):
    path = edited(run, tmp_path, change)
    more = ("--to", "linux", "-o", tmp_path / "bundle") if command == "export" else ()
    _, err = dse(capsys, command, run, "--mapping", path, "-q", *more, code=2)
    assert message in err
    assert not (tmp_path / "bundle").exists()


def test_what_is_not_a_run_or_a_target(run, tmp_path, capsys):
    _, err = dse(capsys, "export", tmp_path, "--to", "linux", code=2)
    assert "not the folder of a finished run" in err
    _, err = dse(capsys, "export", run, "--to", "toaster", code=2)
    assert "linux, android" in err
    _, err = dse(capsys, "verify", tmp_path, code=2)
    assert "not a bundle" in err
