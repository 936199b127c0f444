"""Which jobs a sweep has, what makes two the same, and every fault with its place."""

from __future__ import annotations

import itertools
import json

import pytest

from dse.config import load_sweep_section, sweep_json_schema
from dse.errors import ConfigError
from dse.sweeps.definition import read_sweep
from dse.sweeps.expansion import Expander

GRID = """
grid:
  search.goal: [throughput, latency]
  seed: [0, 1, 2]
list:
  - {label: one, search.max_stages: 1}
  - {search.max_stages: 2, search.max_lanes: 2}
"""


def jobs(path):
    return list(Expander(read_sweep(path)).jobs())


def test_every_combination_is_a_job(lab):
    found = jobs(lab.write(GRID))
    cases = [{"search.max_stages": 1}, {"search.max_stages": 2, "search.max_lanes": 2}]
    wanted = [
        {"search.goal": goal, "seed": seed, **case}
        for goal, seed, case in itertools.product(["throughput", "latency"], [0, 1, 2], cases)
    ]
    assert [job.settings for job in found] == wanted
    assert [job.label for job in found] == ["one", ""] * 6
    for job in found:
        config = json.loads(job.config)
        assert config["search"]["goal"] == job.settings["search.goal"]
        assert config["search"]["max_stages"] == job.settings["search.max_stages"]
        assert config["seed"] == job.settings["seed"]


def test_excluded_jobs_are_left_out_included_ones_come_last(lab):
    more = "exclude: [{seed: 1}, {search.goal: latency, label: one}]\ninclude: [{seed: 9, label: more}]"
    found = [(job.settings, job.label) for job in jobs(lab.write(GRID + more))]
    every = [(job.settings, job.label) for job in jobs(lab.write(GRID))]
    kept = [
        (settings, label)
        for settings, label in every
        if settings["seed"] != 1 and not (settings["search.goal"] == "latency" and label == "one")
    ]
    assert found == [*kept, ({"seed": 9}, "more")]


def test_a_job_that_comes_up_twice_is_one(lab):
    assert len(jobs(lab.write("grid: {seed: [0, 1]}\ninclude: [{seed: 1}, {search.goal: throughput}]"))) == 2


def keys(path):
    return [job.key for job in jobs(path)]


def test_the_key_is_the_content(lab, tmp_path_factory):
    first = keys(lab.write("grid: {seed: [0, 1]}"))
    assert (
        keys(lab.write("grid: {seed: [0, 1]}", "other.yaml", cluster="cluster: tcp://127.0.0.1:9")) == first
    )
    moved = type(lab)(tmp_path_factory.mktemp("elsewhere"))  # same content in another folder
    assert keys(moved.write("grid: {seed: [0, 1]}")) == first
    (lab.folder / "tiny.tflite").write_bytes((moved.folder / "tiny.tflite").read_bytes() + b"\0")
    assert not set(keys(lab.write("grid: {seed: [0, 1]}"))) & set(first)
    for change in ("code: exact", "mode: run"):
        assert not set(keys(moved.write(f"grid: {{seed: [0, 1]}}\n{change}"))) & set(first)


def test_the_base_may_be_a_file_of_its_own(lab):
    (lab.folder / "sub").mkdir()
    inline = lab.write("grid: {seed: [0, 1]}")
    text = inline.read_text().partition("base:\n")[2].partition("grid:")[0]
    experiment = "\n".join(line[2:] for line in text.splitlines()).replace("tiny.tflite", "../tiny.tflite")
    (lab.folder / "sub" / "experiment.yaml").write_text(experiment)
    named = lab.write("grid: {seed: [0, 1]}", "named.yaml", base="base: sub/experiment.yaml\n")
    assert keys(named) == keys(inline)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("grid: {search.gaol: [latency]}", [":13: search.gaol: unknown key; did you mean 'goal'?"]),
        ("grid: {search.goal: [latency, fast]}", [":13: search.goal: expected 'throughput'"]),
        (
            "grid: {seed: [0, x], search.time_s: [-1]}",
            [":13: seed: expected a whole", "search.time_s: expected more"],
        ),
        ("grid: {seed: []}", [":13: grid.seed: expected at least 1 entry"]),
        ("gird: {seed: [0]}", [":13: gird: unknown key; did you mean 'grid'?"]),
        ("grid: {model: [gone.tflite]}", [":13: model: expected a file, got the text 'gone.tflite'"]),
        ("grid: {model: [{zoo: nonet}]}", [":13: no architecture named 'nonet'"]),
        ("grid: {search.solver: [magic]}", [":13: unknown solver 'magic'"]),
        ("grid: {search.slots: [[9 big]]}", [":13: search.slots: platform board has no slot '9 big'"]),
        ("grid: {platform: [nowhere.yaml]}", [":13: platform:", "nowhere.yaml: can not be read"]),
        (
            "list: [{seed: 0}]\ngrid: {seed: [1]}",
            [":14: grid: expected seed in grid or in list, got it in both"],
        ),
        (
            "exclude: [{seed: 7}]",
            [":13: exclude[0]: expected values of a job of this sweep, got none that match"],
        ),
        ("grid: {seed: [3]}\nexclude: [{seed: 3}]", [":14: exclude: every job is left out"]),
        ("grid: {a..b: [1]}", [":13: expected a field such as search.goal"]),
        ("cluster: {kind: cray}", [":13: cluster.kind: expected"]),
        ("cluster: {kind: scheduler}", [":13: cluster.address: expected an address such as tcp://host:8786"]),
        ("cluster: tls://h:1", ["cluster.security: expected ca_file, cert and key"]),
        ("cluster: {kind: ssh, hosts: [one]}", [":13: cluster.hosts: expected the scheduler's host and"]),
        (
            "cluster: {kind: ssh, hosts: [a, b], options: {connect_options: {password: abc}}}",
            ["cluster.options.connect_options.password: expected {env: NAME} or {file: PATH} for a secret"],
        ),
        ("store: {url: 'sqlite:///a.db', url_env: X}", [":13: store: expected either url or url_env"]),
        (
            "optuna: {budget: 0, fields: {seed: {low: 1}}}",
            ["optuna.budget: expected at least 1", "low and high"],
        ),
        (
            "optuna: {budget: 5, fields: {seed: {low: 3, high: 1}}}",
            ["optuna.fields.seed.high: expected at least low"],
        ),
        (
            "optuna: {budget: 5, fields: {seed: {low: 0, high: 1}}, objectives: {speed: maximize}}",
            ["optuna.objectives.speed: expected one of throughput_hz"],
        ),
    ],
)
def test_faults_are_told_with_their_places(lab, text, messages):
    cluster = "limits: {attempts: 3}" if "cluster" in text else ""
    path = lab.write(text, cluster=cluster)
    with pytest.raises(ConfigError) as caught:
        jobs(path)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("store: postgresql://me:abc@host/db", "expected an address without a password"),
        ("store: mysql://host/db", "got the database 'mysql'"),
        ("store: not an address", "expected sqlite:///file.db or postgresql://"),
        ("store: {url_env: NOT_SET_ANYWHERE}", "expected an environment variable that is set"),
        ("store: {url: 'postgresql://h/d', password_file: gone}", "can not be read"),
        ("store: 'sqlite://'", "expected a file"),
    ],
)
def test_addresses_of_stores_are_checked_before_anything_runs(lab, line, message):
    path = lab.write(line)
    assert message in lab.dse(path, code=2)[1]
    assert "abc" not in lab.dse(path, code=2)[1]


def test_the_schema_knows_the_parts_of_a_sweep(lab):
    schema = sweep_json_schema()
    section, _ = load_sweep_section(lab.write(GRID))
    assert set(schema["properties"]) == set(type(section).model_fields)
    assert schema["$defs"]["ExperimentSection"]["properties"]["search"]
    assert json.dumps(schema)
