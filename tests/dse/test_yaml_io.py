"""Reading and writing YAML: positions, limits, and no value with two meanings."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dse import yaml_io
from dse.errors import ConfigError


def load(text: str):
    return yaml_io.load(text, "f.yaml").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: -3\nb: +4", {"a": -3, "b": 4}),
        ("a: 0x1F", {"a": 31}),
        ("a: 1.5", {"a": 1.5}),
        ("a: 1e9", {"a": 1e9}),
        ("a: .5", {"a": 0.5}),
        ("a: true\nb: False", {"a": True, "b": False}),
        ("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}),
        ("a: '012'\nb: \"no\"", {"a": "012", "b": "no"}),
        ("a: 3 big", {"a": "3 big"}),
        ("a: 0-3", {"a": "0-3"}),
        ("a: 2.18.0", {"a": "2.18.0"}),
        ("on: 3\nyes: 4\n1: 5", {"on": 3, "yes": 4, "1": 5}),
        ("- 1\n- [x, {y: z}]", [1, ["x", {"y": "z"}]]),
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
        ("a: |\n  yes\n", {"a": "yes\n"}),
    ],
)
def test_plain_values(text, value):
    assert load(text) == value


@pytest.mark.parametrize(
    "value",
    ["yes", "No", "ON", "off", "y", "N", "012", "0o14", "08", "00", "0b11", "1:30", "190:20:30.15", "1_000", "1_0.5",
     "2024-01-31", "2024-1-1 10:00:00", "0x_1F", "-0x1F", "="],
)  # fmt: skip
def test_values_with_two_meanings_are_errors(value):
    with pytest.raises(ConfigError) as caught:
        load(f"first: 1\nkey:\n  - {value}\n")
    (fault,) = caught.value.faults
    assert fault.startswith("f.yaml:3:5: ")
    assert f'"{value}" in quotes' in fault


@pytest.mark.parametrize("value", ["yes", "012", "1:30", "2024-01-31", "1_000", "0b11", "0o14"])
def test_quotes_make_them_text(value):
    assert load(f'key: "{value}"') == {"key": value}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "'a' appears twice (first in line 1)"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3:3", "'b' appears twice"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:", "not valid YAML"),
        ("a: b: c\n", "f.yaml:1:5", "not valid YAML"),
        ("\ta: 1\n", "f.yaml:1:1", "not valid YAML"),
        ("a: !!python/object:os.system x\n", "f.yaml:1:4", "tag"),
        ("a: !!int '3'\n", "f.yaml:1:4", "tag"),
        ("a: !own [1]\n", "f.yaml:1:4", "tag"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", "f.yaml:3:3", "merge keys"),
        ("? [1, 2]\n: x\n", "f.yaml:1:3", "expected a text as key"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1", "not valid YAML"),
        ("a: *missing\n", "f.yaml:1:4", "undefined alias"),
        ("a: &a [*a]\n", "f.yaml:1:4", "alias inside itself"),
        ("", "f.yaml", "empty"),
        ("# only a comment\n", "f.yaml", "empty"),
        ("a: \x00\n", "f.yaml:1", "does not allow"),
    ],
)
def test_faults_have_a_place(text, place, words):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value).startswith(place)
    assert words in str(caught.value)


def test_all_faults_come_at_once():
    with pytest.raises(ConfigError) as caught:
        load("a: yes\nb: 012\nc: !x 1\na: 2\n")
    assert [fault.split(":")[1] for fault in caught.value.faults] == ["1", "2", "3", "4"]


def test_bombs_are_refused_quickly():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="more than"):
        load("\n".join(lines))
    with pytest.raises(ConfigError, match="nested deeper"):
        load("[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError, match="characters"):
        load("a" * (yaml_io.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="digits"):
        load("a: " + "9" * 10000)


def test_files(tmp_path):
    path = tmp_path / "x.yaml"
    with pytest.raises(ConfigError, match="can not be read"):
        yaml_io.load(path)
    path.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"x\.yaml:2: not UTF-8"):
        yaml_io.load(path)
    path.write_bytes(b"\0" * (yaml_io.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="more than"):
        yaml_io.load(path)
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_io.load(path).data == {"a": 1}


def test_positions():
    document = yaml_io.load("a:\n  b:\n    - c: 1\n    - c: 2\n", "f.yaml")
    assert document.where(("a", "b", 1, "c")) == "f.yaml:4"
    assert document.where(("a",)) == "f.yaml:2"
    assert document.where(("a",), key=True) == "f.yaml:1"
    assert document.where(("a", "b", 1, "missing", "deeper")) == "f.yaml:4"


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30)
    | st.from_regex(r"[-+]?[0-9_:.eE-]{1,8}", fullmatch=True)
    | st.sampled_from(
        ["yes", "n", "~", "", "null", "1e3", ".inf", "0o7", "2001-01-01", "a: b", "- x", "#", "x #y"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_dump_and_load_are_inverse(data):
    assert load(yaml_io.dump(data)) == data


@given(PLAIN)
def test_other_readers_read_the_same(data):
    """What we write has one meaning: a YAML 1.1 reader agrees (it only lacks '1e9' as a number)."""
    text = yaml_io.dump(data)
    assert yaml.safe_load(text) == data


def test_nan_and_tuples():
    assert math.isnan(load(yaml_io.dump({"x": float("nan")}))["x"])
    assert load(yaml_io.dump({"x": (1, 2)})) == {"x": [1, 2]}
    assert yaml_io.dump({"cores": [0, 1], "name": "no"}) == 'cores: [0, 1]\nname: "no"\n'
    with pytest.raises(TypeError, match="plain"):
        yaml_io.dump({"x": object()})


def test_shared_parts_are_written_out():
    part = [1]
    assert "*" not in yaml_io.dump({"a": part, "b": part})
