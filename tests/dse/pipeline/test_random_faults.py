"""Processes killed or stopped and stages failing or stalling, at random moments of all that a pipeline does."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
from fallible import FAILS, STALLS, Fallible, frame

from dse.errors import ChildDiedError, ChildTimeoutError, DeviceError
from dse.pipeline.shared import _FAST
from dse.pipeline.supervise import Pipeline

pytestmark = pytest.mark.slow
N_TRIALS = int(os.environ.get("TFLITE_DSE_FAULTS", "4"))


class Saboteur:
    """Sends a signal to a random lane after a random time, if the pipeline still has one."""

    def __init__(self, pipeline: Pipeline, number: int, delay_s: float, which: random.Random) -> None:
        self._pipeline = pipeline
        self._signal = number
        self._which = which
        self.struck = False
        self._timer = threading.Timer(delay_s, self._strike)

    def __enter__(self) -> Saboteur:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def _strike(self) -> None:
        pids = self._pipeline.pids
        if pids:
            os.kill(self._which.choice(pids), self._signal)
            self.struck = True


def use(pipeline: Pipeline, tiny, stop_s: float) -> int:
    """Stream, collect and run in turns; check every output; return how many were right."""
    n_right = 0
    end = time.monotonic() + stop_s
    frames = tiny.frames(3)
    while time.monotonic() < end:
        for number, (got,) in enumerate(pipeline.map(frames * 30)):
            np.testing.assert_array_equal(got, tiny.expected(frames[number % 3]))
            n_right += 1
        for lane in pipeline.collect(30):
            for number, (got,) in enumerate(lane):
                np.testing.assert_array_equal(got, tiny.expected(frames[number % 3]))
        pipeline.run(seconds=0.05)
    return n_right


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_whatever_happens_to_a_lane_ends_the_pipeline_with_an_error_and_no_wrong_output(tiny, cores, kind):
    choice = random.Random(kind)
    plan = tiny.plan(
        [tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)], name="two unlike lanes"
    )
    n_struck = 0
    for _ in range(N_TRIALS):
        pipeline = Pipeline(plan, tiny.frames(3), stall_s=0.5)
        with Saboteur(pipeline, kind, choice.uniform(0.05, 1.5), choice) as saboteur:
            begin = time.monotonic()
            try:
                with pipeline:
                    use(pipeline, tiny, 3.0)
            except (ChildDiedError, ChildTimeoutError) as error:
                assert "of plan 'two unlike lanes'" in str(error)
                assert saboteur.struck
                n_struck += 1
            else:
                assert not saboteur.struck
            assert time.monotonic() - begin < 60
        assert pipeline.pids == ()
    assert n_struck > 0


@pytest.mark.parametrize("kind", [FAILS, STALLS], ids=["failing", "stalling"])
def test_any_stage_that_fails_or_stalls_on_any_frame_ends_the_run_and_is_named(tmp_path, cores, kind):
    """Real stages: GATHER refuses an index, WHILE counts to 2^31."""
    choice = random.Random(kind)
    for _ in range(N_TRIALS):
        which, at = choice.randrange(3), choice.randrange(1, 400)
        plan = Fallible(tmp_path).plan(*choice.choice([(0, 1, 0), (0, 0, 0), (0, 1, 1)]))
        numbers = [number % 50 for number in range(500)]
        numbers[at] = kind + which
        frames = [frame(number) for number in numbers]
        work = choice.choice(["map", "run", "collect"])
        engine = choice.choice(["compiled", "interpreter"])
        where = f"{work}, {engine}, stage {which}, frame {at}"
        wanted = (
            rf"stage {which} failed on frame {at}: "
            if kind == FAILS
            else rf"nothing moved(.|\n)*stage {which} is inside frame {at}\b"
        )
        begin, n_right = time.monotonic(), 0
        with Pipeline(plan, frames, engine=engine, stall_s=0.5) as pipeline:
            with pytest.raises((DeviceError, ChildTimeoutError)) as caught:
                if work == "map":
                    for number, (got,) in zip(numbers, pipeline.map(frames)):
                        assert got.tolist() == [number], where
                        n_right += 1
                elif work == "run":
                    pipeline.run(n_frames=100_000)
                else:
                    pipeline.collect(500)
            assert pipeline.pids == (), where
        assert re.search(wanted, str(caught.value)), f"{where}: {caught.value}"
        if work == "map":
            assert n_right <= at, where
            assert f"Frames delivered before that: {n_right} " in str(caught.value), where
        assert time.monotonic() - begin < 30, where


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Tiny
from dse.pipeline.supervise import Pipeline

tiny = Tiny(Path(sys.argv[2]))
a, b = map(int, sys.argv[3:])
plan = tiny.plan([tiny.whole((a,))], [tiny.stage(n, (b,)) for n in range(3)])
frames = tiny.frames(3)
print(flush=True)
while True:
    for _ in range(3):
        with Pipeline(plan, frames) as pipeline:
            pipeline.collect(2)
    with Pipeline(plan, frames) as pipeline:
        for number, (got,) in enumerate(pipeline.map(frames * 300)):
            assert (got == tiny.expected(frames[number % 3])).all()
        pipeline.collect(30)
        pipeline.run(seconds=0.1)
"""


def test_killing_the_pipelines_own_process_at_any_time_leaves_nothing(tmp_path, cores):
    choice = random.Random(5)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for _ in range(N_TRIALS):
        token = uuid.uuid4().hex
        others = set(_FAST.glob("dse-slots-*"))
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(Path(__file__).parent), str(tmp_path), *map(str, cores)],
            stdout=subprocess.PIPE,
            env={**os.environ, "FAULTS_TOKEN": token, "TMPDIR": str(temporary)},
        )
        with parent:
            assert parent.stdout is not None
            parent.stdout.readline()
            time.sleep(choice.uniform(0.0, 2.0))
            assert parent.poll() is None, "it runs for ever"
            parent.kill()
        end = time.monotonic() + 20
        while left := [*_with_token(token), *temporary.iterdir(), *(set(_FAST.glob("dse-slots-*")) - others)]:
            assert time.monotonic() < end, f"left behind: {left}"
            time.sleep(0.05)


def _with_token(token: str) -> list[object]:
    """Processes that were started by a parent with this environment."""
    found: list[object] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("FAULTS_TOKEN") == token:
                found.append(process)
    return found
