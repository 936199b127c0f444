"""Lanes killed or stopped at random moments of everything that a pipeline does."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from dse.errors import ChildDiedError, ChildTimeoutError
from dse.pipeline.supervise import Pipeline

pytestmark = pytest.mark.slow
N_TRIALS = int(os.environ.get("TFLITE_DSE_FAULTS", "8"))


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
