from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.errors import InputError
from dse.files import default_cache_folder
from dse.profiling.cache import CacheKey, Journal, ProfileCache

KEY = CacheKey("ab" * 32, "two cores", "litert 2.3.0", "{}")


def filled(cache: ProfileCache) -> None:
    with cache.open(KEY) as journal:
        journal.add_samples("1 cpu", {"a": [5, 6], "b": [7], "c": []})
        journal.add_samples("1 cpu", {"a": [4]})
        journal.refuse("2 cpu", "a", "no kernel")
        journal.finish("1 cpu", ["a"], 0.03)
        journal.note("links", [1, 2])
        journal.note("links", [3])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path / "new")
    filled(cache)
    with cache.open(KEY) as journal:
        a = journal.record("1 cpu", "a")
        assert a.visits == [(5, 6), (4,)]
        assert a.samples_ns == (5, 6, 4)
        assert (a.satisfies(0.03), a.satisfies(0.05), a.satisfies(0.01)) == (True, True, False)
        assert not journal.record("1 cpu", "b").satisfies(0.5)
        assert journal.record("1 cpu", "c").visits == []
        assert journal.record("2 cpu", "a").refused == "no kernel"
        assert journal.record("2 cpu", "a").satisfies(0.001)
        assert journal.extra == {"links": [3]}


def test_disturbed_visits_only_count_when_too_few_are_calm() -> None:
    with Journal() as journal:
        for i in range(4):
            journal.add_samples("s", {"x": [i], "y": [i]})
            if i in (0, 2):
                journal.disturb("s", ["x"], "others")
        x, y = journal.record("s", "x"), journal.record("s", "y")
        assert x.calm == [False, True, False, True]
        assert x.used_visits == ((0,), (1,), (2,), (3,))
        assert y.samples_ns == (0, 1, 2, 3)
        journal.add_samples("s", {"x": [4]})
        assert x.samples_ns == (1, 3, 4)
        journal.disturb("s", ["never seen"], "others")


def test_the_fastest_visits_count_where_none_was_calm() -> None:
    with Journal() as journal:
        times = [50, 10, 90, 20, 80, 30, 70, 40, 60, 100] * 3
        for time in times:
            journal.add_samples("s", {"x": [time, time + 1, 10_000]})
            journal.disturb("s", ["x"], "others")
        used = journal.record("s", "x").used_visits
        assert len(used) == 10
        assert [visit[0] for visit in used] == [10, 20, 30, 40, 10, 20, 30, 10, 20, 30]


def test_every_cut_of_the_file_can_be_read_and_continued(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    filled(cache)
    whole = cache.path(KEY).read_bytes()
    lines = whole.splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(1, len(lines) + 1)]
    for end in range(0, len(whole) + 1, 3):
        cache.path(KEY).write_bytes(whole[:end])
        with cache.open(KEY) as journal:
            complete = sum(start <= end + 1 for start in starts)
            expected = [[], [], [(5, 6)], [(5, 6), (4,)]][min(complete, 3)]
            assert journal.record("1 cpu", "a").visits == expected
            journal.add_samples("1 cpu", {"z": [9]})
        with cache.open(KEY) as journal:
            assert journal.record("1 cpu", "z").visits == [(9,)]
            assert journal.record("1 cpu", "a").visits == expected


@settings(max_examples=60, deadline=None)
@given(garbage=st.binary(max_size=200))
def test_garbage_never_breaks_reading(garbage: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    path.write_bytes(garbage)
    with Journal(path, KEY) as journal:
        journal.add_samples("s", {"x": [1]})
    with Journal(path, KEY) as journal:
        assert journal.record("s", "x").visits == [(1,)]


@pytest.mark.parametrize(
    "line",
    [
        '{"slot":"s","samples":{"x":[-1]}}',
        '{"slot":"s","samples":{"x":["1"]}}',
        '{"slot":"s","samples":[1]}',
        '{"slot":"s","finished":["x"]}',
        "[]",
        "7",
    ],
)
def test_impossible_lines_are_skipped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(line + "\n")
    with Journal(path) as journal:
        record = journal.record("s", "x")
        assert record.visits == []
        assert record.finished_precision is None


def test_refresh_starts_anew(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    filled(cache)
    with cache.open(KEY, refresh=True) as journal:
        assert journal.record("1 cpu", "a").visits == []
    assert len(cache.path(KEY).read_text().splitlines()) == 1


def test_every_field_of_the_key_counts() -> None:
    others = [
        CacheKey("cd" * 32, KEY.device, KEY.runtime, KEY.options),
        CacheKey(KEY.model_sha256, "x", KEY.runtime, KEY.options),
        CacheKey(KEY.model_sha256, KEY.device, "x", KEY.options),
        CacheKey(KEY.model_sha256, KEY.device, KEY.runtime, "x"),
    ]
    assert len({key.file_name for key in (KEY, *others)}) == 5


def test_kill_9_keeps_what_was_measured(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import sys\n"
        "from dse.profiling.cache import Journal\n"
        "journal, i = Journal(Path(sys.argv[1])), 0\n"
        "while True:\n"
        "    journal.add_samples('s', {'x': [i] * 500}); i += 1\n"
    )
    path = tmp_path / "j.jsonl"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 20
    while (not path.exists() or path.stat().st_size < 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with Journal(path) as journal:
        visits = journal.record("s", "x").visits
    assert len(visits) > 10
    assert visits == [(i,) * 500 for i in range(len(visits))]


def test_unusable_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="TFLITE_DSE_CACHE"):
        ProfileCache(tmp_path / "file").open(KEY)


def test_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path / "a"))
    assert default_cache_folder() == tmp_path / "a"
    monkeypatch.delenv("TFLITE_DSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_cache_folder() == tmp_path / "b" / "tflite-dse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_folder() == Path.home() / ".cache" / "tflite-dse"


def test_in_memory() -> None:
    with Journal() as journal:
        journal.add_samples("s", {"x": [1]})
        assert journal.record("s", "x").samples_ns == (1,)


def test_header_says_what_it_is(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    filled(cache)
    header = json.loads(cache.path(KEY).read_text().splitlines()[0])
    assert header["format"] == "tflite-dse measurements"
    assert header["runtime"] == "litert 2.3.0"
