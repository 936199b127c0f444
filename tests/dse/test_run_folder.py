"""Run folders are complete under their name or not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dse.errors import InputError
from dse.files import write_text
from dse.progress import SilentProgress
from dse.run_folder import JOURNAL_NAME, LOG_NAME, LoggedProgress, RunFolder

HOLD = """
import fcntl, sys
log = open(sys.argv[1], "a")
fcntl.flock(log, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_its_name_only_when_it_is_finished(tmp_path):
    folder = RunFolder(tmp_path, "net")
    write_text(folder.path / "a.txt", "a")
    write_text(folder.work / "scratch.bin", "x")
    assert not (tmp_path / "net").exists()
    final = folder.finish()
    assert final == tmp_path / "net"
    assert sorted(path.name for path in final.iterdir()) == ["a.txt", "log.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_a_taken_name_gets_a_number(tmp_path):
    names = []
    for _ in range(3):
        names.append(RunFolder(tmp_path, "net").finish().name)
    assert names == ["net", "net-2", "net-3"]


def test_names_can_not_leave_the_output_folder(tmp_path):
    final = RunFolder(tmp_path / "out", "../../evil\n").finish()
    assert final.parent == tmp_path / "out"


def test_what_a_killed_run_left_is_removed_and_a_living_one_is_not(tmp_path):
    dead = tmp_path / ".net.partial-999999999"
    dead.mkdir()
    (dead / "half.json").write_text("{")
    (dead / LOG_NAME).write_text("")
    alive = tmp_path / f".other.partial-{os.getppid()}"
    alive.mkdir()
    RunFolder(tmp_path, "net").discard()
    assert not dead.exists()
    assert alive.exists()


def test_a_run_of_another_machine_that_shares_the_folder_is_left_alone(tmp_path):
    """Its process number says nothing here: its log is locked as long as it lives."""
    elsewhere = tmp_path / ".net.partial-999999999"
    RunFolder(tmp_path, "net").path.rename(elsewhere)
    command = [sys.executable, "-c", HOLD, str(elsewhere / LOG_NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        RunFolder(tmp_path, "net").discard()
        assert elsewhere.exists()
        process.communicate()
    RunFolder(tmp_path, "net").discard()
    assert not elsewhere.exists()
    just_made = tmp_path / ".other.partial-999999999"
    just_made.mkdir()
    RunFolder(tmp_path, "net").discard()
    assert just_made.exists(), "its log may be about to be locked"


def test_what_a_killed_run_had_measured_is_kept(tmp_path):
    for number in range(2):
        dead = tmp_path / f".net.partial-{999999998 + number}"
        (dead / "work").mkdir(parents=True)
        (dead / JOURNAL_NAME).write_text("{}\n")
        (dead / LOG_NAME).write_text("")
    RunFolder(tmp_path, "net").discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-killed", "net-killed-2"]
    assert sorted(path.name for path in (tmp_path / "net-killed").iterdir()) == [LOG_NAME, JOURNAL_NAME]


def test_a_file_in_the_way_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="output folder"):
        RunFolder(tmp_path / "file", "net")


def test_progress_is_logged(tmp_path):
    folder = RunFolder(tmp_path, "net")
    progress = LoggedProgress(SilentProgress(), folder)
    with progress.task("measuring", 2) as task:
        task.advance()
    progress.log("something odd")
    text = (folder.finish() / "log.txt").read_text()
    assert "measuring: start" in text
    assert "measuring: done" in text
    assert "something odd" in text


def test_atomic_write_keeps_the_old_file_on_failure(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
