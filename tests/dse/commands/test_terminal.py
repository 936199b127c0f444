"""Where words go: results on stdout, progress on stderr, bars only on a terminal."""

from __future__ import annotations

import io
import json

import pytest

from dse.commands import terminal as terminal_module
from dse.commands.terminal import PlainProgress, RichProgress, Terminal, printable
from dse.progress import SilentProgress


def test_results_go_to_stdout(capsys):
    Terminal().result("text", {"a": 1})
    assert capsys.readouterr() == ("text\n", "")
    Terminal(as_json=True).result("text", {"a": "ä"})
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"a": "ä"}, "")


def test_remarks_go_to_stderr_unless_quiet(capsys):
    Terminal().say("hello")
    Terminal(quiet=True).say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_control_characters_are_replaced_but_not_our_bold():
    assert printable("a\x1b[2Jb\nc\x00\u202e") == "a?[2Jb\nc??"
    assert printable("\033[1m> x\033[0m") == "\033[1m> x\033[0m"


def test_kinds_of_progress(monkeypatch, capsys):
    with Terminal(quiet=True).progress() as progress:
        assert isinstance(progress, SilentProgress)
    with Terminal().progress() as progress:  # stderr is not a terminal here
        assert isinstance(progress, PlainProgress)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Terminal(as_json=True).progress() as progress:
        assert isinstance(progress, PlainProgress)
    with Terminal().progress() as progress:
        assert isinstance(progress, RichProgress)


def test_plain_progress_tells_start_share_and_end(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(terminal_module.time, "monotonic", lambda: now[0])
    progress = PlainProgress()
    with progress.task("profile", 4) as task:
        task.advance()
        now[0] += 20
        task.advance(1, "layer 2")
        task.advance()
    progress.log("done\x1b")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "profile ...",
        "profile: 50%, about 20 s left layer 2",
        "profile: done in 20 s",
        "done?",
    ]


def test_bars_show_share_and_note_and_leave_one_line():
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with Progress(
        TextColumn("{task.description} {task.fields[note]}"), console=console, transient=True
    ) as bars:
        progress = RichProgress(bars)
        with progress.task("measure [bold]", 2) as task:
            task.advance(1, "[red]x\x1b[2J")
            assert bars.tasks[0].completed == 1
            assert bars.tasks[0].fields["note"] == "[red]x?[2J"
        assert bars.tasks == []
    assert "measure [bold]: done in" in stream.getvalue()


def test_a_failed_task_is_not_called_done(capsys):
    with pytest.raises(ValueError, match="x"), PlainProgress().task("search", 1):
        raise ValueError("x")
    assert capsys.readouterr().err == "search ...\n"
