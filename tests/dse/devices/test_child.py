from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dse.devices.child import Child
from dse.errors import ChildDiedError, ChildTimeoutError, RuntimeRefusedError

PROGRAM = """
import os, signal, sys, time
from dse.devices.serving import serve

def die(request): os.kill(os.getpid(), request["signal"])
def leave(request): print("last words", file=sys.stderr, flush=True); os._exit(7)
def noise(request): os.write(1, b"native noise\\n"); return {"ok": True}
def fail(request): raise ValueError("no such operator")
def wait(request): time.sleep(request["s"]); return {}

serve({"die": die, "leave": leave, "noise": noise, "fail": fail, "wait": wait,
       "echo": lambda r: {"value": r["value"]}})
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "program_under_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "program_under_test"


def start(program: str, tmp_path: Path) -> Child:
    return Child(program, log_path=tmp_path / "log", name="the child")


def test_answers_in_order(program: str, tmp_path: Path) -> None:
    with start(program, tmp_path) as child:
        for value in (1, "two", [3], None, "ü"):
            assert child.request({"command": "echo", "value": value}) == {"value": value}


def test_native_noise_does_not_disturb(program: str, tmp_path: Path) -> None:
    with start(program, tmp_path) as child:
        assert child.request({"command": "noise"}) == {"ok": True}
    assert "native noise" in (tmp_path / "log").read_text()


def test_failure_in_the_child_keeps_it_alive(program: str, tmp_path: Path) -> None:
    with start(program, tmp_path) as child:
        with pytest.raises(RuntimeRefusedError, match="no such operator"):
            child.request({"command": "fail"})
        with pytest.raises(RuntimeRefusedError):
            child.request({"command": "never heard of"})
        assert child.request({"command": "echo", "value": 1}) == {"value": 1}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_death_by_signal_is_named(program: str, tmp_path: Path, number: int) -> None:
    with start(program, tmp_path) as child:
        with pytest.raises(ChildDiedError, match=f"{signal.Signals(number).name}.*while loading layer 3"):
            child.request({"command": "die", "signal": number}, doing="loading layer 3")
        with pytest.raises(ChildDiedError):
            child.request({"command": "echo", "value": 1})


def test_exit_code_and_last_words(program: str, tmp_path: Path) -> None:
    with (
        start(program, tmp_path) as child,
        pytest.raises(ChildDiedError, match=r"exit code 7(.|\n)*last words"),
    ):
        child.request({"command": "leave"})


def test_silence_ends_the_child(program: str, tmp_path: Path) -> None:
    with start(program, tmp_path) as child:
        with pytest.raises(ChildTimeoutError, match="the child: no answer within 1 s while waiting"):
            child.request({"command": "wait", "s": 60}, timeout_s=1, doing="waiting")
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)


def test_child_does_not_outlive_a_killed_parent(program: str, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from dse.devices.child import Child\n"
        "child = Child(sys.argv[1], log_path=Path(sys.argv[2]), name='x')\n"
        "child.request({'command': 'echo', 'value': 1}); child.send({'command': 'wait', 's': 60})\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if " Z " in Path(f"/proc/{pid}/stat").read_text():
            break  # dead, and waiting for init to notice
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()
