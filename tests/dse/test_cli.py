"""The command line: help, exit codes, machine output, messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dse import cli
from dse.errors import ConfigError, DeviceError

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = [
    "run",
    "inspect",
    "profile",
    "costs",
    "search",
    "sweep",
    "split",
    "extract",
    "merge",
    "validate",
    "compare",
    "export",
    "verify",
    "platform",
    "doctor",
    "schema",
    "zoo",
]
TINY_BERT = "{hidden: 16, sequence: 8, layers: 2, heads: 2, intermediate: 32, vocab: 50}"
EXPERIMENT = f"""\
model: {{zoo: bert_encoder, parameters: {TINY_BERT}}}
platform:
  name: board
  clusters:
    - {{name: big, cores: 0-1, macs_per_s: 8e9, bytes_per_s: 8e9}}
    - {{name: LITTLE, cores: 2-3, macs_per_s: 3e9, bytes_per_s: 4e9}}
search: {{time_s: 3, candidates: 2}}
"""


@pytest.fixture
def dse(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err or "--debug" in arguments
        return code, out, err

    return run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("zoo") / "tiny.tflite"
    numbers = ["hidden=16", "sequence=8", "layers=2", "heads=2", "intermediate=32", "vocab=50"]
    settings = [word for number in numbers for word in ("--set", number)]
    assert cli.main(["zoo", "build", "bert_encoder", str(path), "--quiet", *settings]) == 0
    return path


@pytest.fixture
def experiment(tmp_path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT)
    return path


def test_help_lists_exactly_the_commands_that_exist(dse):
    code, out, _ = dse("--help")
    assert code == 0
    listed = [line.split()[0] for line in out.split("Commands:")[1].split("\n\n")[0].strip().splitlines()]
    assert listed == COMMANDS
    assert max(map(len, out.splitlines())) <= 90


@pytest.mark.parametrize(
    "command",
    [[name] for name in COMMANDS if name not in ("zoo", "platform", "costs", "sweep")]
    + [
        ["zoo", "list"],
        ["zoo", "build"],
        ["platform", "detect"],
        ["costs", "import"],
        ["costs", "merge"],
        ["costs", "learn"],
        *(["sweep", name] for name in ("run", "resume", "retry", "cancel", "status", "results")),
    ],
)
def test_every_command_has_help_with_an_example_and_json(dse, command):
    code, out, _ = dse(*command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"dse {' '.join(command)}" in out.split("Example")[1]
    assert "--json" in out


def test_help_does_not_load_heavy_modules():
    code = (
        "import sys, dse.cli; dse.cli.main(['run', '--help']); "
        "heavy = {'numpy', 'pydantic', 'yaml', 'jinja2', 'rich', 'ortools', 'ai_edge_litert', 'flatbuffers'}; "
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "dse", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("dse, version ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command"),
        (["run"], "expected either CONFIG (a YAML file) or --model FILE.tflite, got neither"),
        (["run", "a.yaml", "--model", "b.tflite"], "got both"),
        (["run", "face.tflite"], "write --model face.tflite"),
        (["run", "--frobnicate"], "No such option"),
        (["run", "missing.yaml"], "missing.yaml: can not be read"),
        (["run", "--model", "missing.tflite"], "no such file"),
        (["inspect"], "Missing argument 'MODEL'"),
        (["inspect", "missing.tflite"], "there is no such file"),
        (["split", "missing.tflite", "--at", "1", "--out", "x"], "there is no such file"),
        (["validate", "missing"], "not the folder of a finished run"),
        (["zoo", "build", "nonsense", "x.tflite"], "no architecture named 'nonsense'"),
        (["zoo", "build", "mobilenet_v2", "x.tflite", "--set", "size=big"], "expected key=whole number"),
        (["zoo", "build", "mobilenet_v2", "x.tflite", "--set", "size=1"], "must be between"),
    ],
)  # fmt: skip
def test_usage_and_input_errors(dse, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = dse(*arguments)
    assert code == 2
    assert words in " ".join(err.split())
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_all_faults_of_a_file_are_told(dse, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("modle: {zoo: a}\nsearch: {goal: fast}\n")
    code, out, err = dse("run", path, "--set", "seed=-1", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("dse: 3 faults:\n")
    assert "did you mean 'model'?" in err
    assert "--set seed: seed: expected at least 0" in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DeviceError("lane 0 died"), 1, "dse: lane 0 died\n"),
        (ConfigError(["a: b"]), 2, "dse: a: b\n"),
        (KeyboardInterrupt(), 130, "What was measured is kept"),
        (OSError(28, "No space left on device", "/x/y"), 1, "dse: /x/y: No space left on device"),
        (RuntimeError("oops"), 1, "internal error: RuntimeError: oops"),
    ],
)
def test_errors_become_exit_codes(dse, monkeypatch, experiment, error, code, words):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("dse.explore.run", fail)
    got, out, err = dse("run", experiment)
    assert (got, out) == (code, "")
    assert words in err


def test_debug_shows_the_trace(dse, monkeypatch, experiment):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("dse.explore.run", fail)
    code, _, err = dse("run", experiment, "--debug")
    assert code == 1
    assert "Traceback" in err
    assert "RuntimeError: oops" in err


def test_solver_errors_are_failures_of_the_work(dse, monkeypatch, experiment):
    from solvers.errors import SolverError

    def fail(*_: object, **__: object) -> None:
        raise SolverError("no")

    monkeypatch.setattr("dse.explore.search", fail)
    assert dse("search", experiment)[0] == 1


def test_a_closed_pipe_is_no_error(tiny):
    command = f"{sys.executable} -m dse inspect {tiny} --layers | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("tiny.tflite")
    assert done.stderr == ""


def test_run_leaves_a_folder_and_prints_the_table(dse, experiment, tmp_path):
    code, out, err = dse("run", experiment, "--output", tmp_path / "runs", "--name", "a b/c")
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80 or len(str(tmp_path)) > 60
    assert "The winner: " in out
    (folder,) = (tmp_path / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {
        "config.yaml",
        "platform.yaml",
        "costs.json",
        "mapping.yaml",
        "report.html",
        "results.json",
        "log.txt",
    } <= names


def test_json_is_the_only_thing_on_stdout(dse, experiment, tmp_path):
    code, out, err = dse("run", experiment, "--output", tmp_path / "runs", "--no-measure", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["status"] == "done"
    assert Path(data["run_dir"]).is_dir()
    assert any(plan["name"] == data["winner"] for plan in data["plans"])
    assert "searching" in err


def test_wishes_are_checked_before_anything_is_measured(dse, tiny, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("dse.explore.find_costs", fail)
    path = tmp_path / "x.yaml"
    path.write_text(f"model: {tiny}\nsearch:\n  pins:\n    - {{layers: nonsense, on: 1 cpu}}\n")
    code, _, err = dse("run", path, "-o", tmp_path / "runs")
    assert code == 2
    assert "x.yaml:4: search.pins[0]: layers 'nonsense'" in err
    code, _, err = dse("run", "--model", tiny, "-o", tmp_path / "runs", "--set", "search.solver=magic")
    assert code == 2
    assert "unknown solver 'magic': expected auto or one of" in err
    code, _, err = dse("run", "--model", tiny, "-o", tmp_path / "runs", "--set", "search.goal=energy")
    assert code == 2
    assert "gives no active_power_mw for" in err
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_what_it_has_and_leaves_no_process(tiny, tmp_path, number):
    command = [sys.executable, "-m", "dse", "run", "--model", tiny, "-o", tmp_path / "runs"]
    command += [
        "--set",
        "profile.budget_s=1",
        "--set",
        "measure.seconds=20",
        "--set",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("measuring plans ..."):
                break
        deadline = time.monotonic() + 60
        children: list[psutil.Process] = []
        while not children and time.monotonic() < deadline:
            time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted. What was measured is kept" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(children, timeout=10)[1] == []
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "results.json").read_text())["status"] == "interrupted"
    assert list((tmp_path / "cache").iterdir())


def test_quiet_says_only_the_result(dse, experiment):
    code, out, err = dse("search", experiment, "--quiet")
    assert (code, err) == (0, "")
    assert "The winner: " in out


def test_search_with_a_platform_file_and_settings(dse, tiny):
    platform = ROOT / "configs" / "platforms" / "hikey970.yaml"
    settings = ("--set", "search.max_lanes=1", "--set", "search.time_s=1")
    code, out, err = dse("search", "--model", tiny, "--platform", platform, *settings, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["platform"]["name"] == "HiKey970"
    best = next(plan for plan in data["plans"] if plan["name"] == data["winner"])
    assert len(best["mapping"]) == 1


def test_profile_writes_a_cost_table_that_search_reads(dse, experiment, tiny, tmp_path):
    costs = tmp_path / "costs.json"
    platform = tmp_path / "board.yaml"
    platform.write_text(
        "name: board\nclusters: [{name: big, cores: 0-1, macs_per_s: 8e9, bytes_per_s: 8e9}]\n"
    )
    code, out, _ = dse("profile", "--model", tiny, "--platform", platform, "-o", costs)
    assert code == 0
    assert "predicted" in out
    assert json.loads(costs.read_text())["format"] == "tflite-dse cost table"
    code, out, err = dse(
        "search", "--model", tiny, "-p", platform, "--set", f"profile.costs={costs}", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["winner"]


def test_inspect_tells_everything_about_a_layer(dse, corpus):
    code, out, _ = dse("inspect", corpus / "models" / "y_lstm_fused.tflite", "--layers", "--json")
    assert code == 0
    lstm, dense = json.loads(out)["layers"]
    assert lstm["op"] == "UNIDIRECTIONAL_SEQUENCE_LSTM"
    assert [tensor["shape"] for tensor in lstm["inputs"]] == [[1, 16, 8]]
    assert lstm["outputs"][0]["index"] == dense["inputs"][0]["index"]
    assert lstm["weight_bytes"] == sum(tensor["n_bytes"] for tensor in lstm["constants"]) > 0
    assert dense["activation_bytes"] == dense["inputs"][0]["n_bytes"] + dense["outputs"][0]["n_bytes"]
    assert (lstm["group"] is None) == (lstm["shares"] is None)


def test_inspect(dse, tiny):
    code, out, _ = dse("inspect", tiny)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for word in ("layers", "multiply-accumulates", "input_ids", "FULLY_CONNECTED", "unusual"):
        assert word in out
    code, out, _ = dse("inspect", tiny, "--layers", "--json")
    data = json.loads(out)
    assert data["n_layers"] == len(data["layers"])
    assert data["macs"] == sum(layer["macs"] for layer in data["layers"])


def test_inspect_of_real_models_fits_one_screen(dse, corpus):
    for path in sorted((corpus / "models").glob("*.tflite")):
        code, out, err = dse("inspect", path)
        assert code == 0, err
        assert max(map(len, out.splitlines())) <= 80
        assert len(out.splitlines()) <= 40
        assert json.loads(dse("inspect", path, "--json")[1])["n_layers"] > 0


def test_split(dse, tiny, tmp_path):
    code, out, err = dse("split", tiny, "--at", "10", "--out", tmp_path / "stages", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert len(data["files"]) == 2
    assert all(Path(path).is_file() for path in data["files"])
    code, _, err = dse("split", tiny, "--out", tmp_path / "other")
    assert code == 2
    assert "--at" in err


def test_schema_and_zoo_are_json(dse):
    assert json.loads(dse("schema")[1])["title"] == "tflite-dse experiment"
    assert "mobilenet_v2" in {entry["name"] for entry in json.loads(dse("zoo", "list", "--json")[1])}
    assert "mobilenet_v2: " in dse("zoo", "list")[1]


def test_zoo_build_does_not_overwrite(dse, tiny):
    before = tiny.read_bytes()
    code, _, err = dse("zoo", "build", "bert_encoder", tiny)
    assert code == 2
    assert "--force" in err
    assert tiny.read_bytes() == before


# Studies (``sweep*.yaml``) are of another form.
EXPERIMENTS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if not path.stem.startswith("sweep"))


@pytest.mark.parametrize("config", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_experiments_are_valid(config):
    from dse.config import load_experiment

    load_experiment(config)


def test_doctor_answers_with_an_exit_code(dse, monkeypatch):
    from dse.doctor import Check

    monkeypatch.setattr(
        "dse.doctor.examine", lambda: (Check("a", "ok", "fine"), Check("b", "warn", "x", "do y"))
    )
    code, out, _ = dse("doctor")
    assert code == 0
    assert "-> do y" in out
    monkeypatch.setattr("dse.doctor.examine", lambda: (Check("a", "fail", "broken"),))
    code, out, _ = dse("doctor", "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False
