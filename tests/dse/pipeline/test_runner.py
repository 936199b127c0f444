"""The threads of a lane with stages that compute by themselves: any graph, any shape of failure."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.errors import AffinityError
from dse.pipeline.nodes import StageFailedError
from dse.pipeline.plan import LanePlan, Port, StagePlan
from dse.pipeline.runner import LaneRunner

CORES = sorted(os.sched_getaffinity(0))


def scalar(tensor: int) -> Port:
    return Port(tensor, f"t{tensor}", "int64", (1,), 8)


class Arithmetic:
    """Output k of a stage is 1 + k + sum of (position + 2) * input: every mistake shows."""

    def __init__(self, plan: StagePlan, holds: bool = False, fail_on: int = 0, jitter: float = 0.0) -> None:
        self.kind = "arithmetic"
        self.fallback = ""
        self.holds_inputs = holds
        self._plan = plan
        self._fail_on = fail_on
        self._jitter = jitter
        self._calls = 0
        self._inputs: list[np.ndarray] = []
        self._result = 0

    def receive(self, inputs) -> None:
        # An engine that holds its inputs reads them late, one that does not copies them.
        self._inputs = list(inputs) if self.holds_inputs else [values.copy() for values in inputs]

    def compute(self, outputs) -> None:
        self._calls += 1
        if self._calls == self._fail_on:
            raise RuntimeError("out of luck")
        if self._jitter:
            time.sleep(random.random() * self._jitter)
        self._result = sum((at + 2) * int(values[0]) for at, values in enumerate(self._inputs))

    def send(self, outputs) -> None:
        for number, slot in enumerate(outputs):
            slot[0] = 1 + number + self._result

    def forget(self, slots) -> None:
        pass

    def close(self) -> None:
        pass


def reference(lane: LanePlan, outputs: list[Port], value: int) -> list[int]:
    known = {0: value}
    for stage in lane.stages:
        total = sum((at + 2) * known[port.tensor] for at, port in enumerate(stage.inputs))
        for number, port in enumerate(stage.outputs):
            known[port.tensor] = 1 + number + total
    return [known[port.tensor] for port in outputs]


@st.composite
def lanes(draw) -> tuple[LanePlan, list[Port]]:
    """A random graph of stages; several may share a core."""
    n_stages = draw(st.integers(1, 5))
    made = [0]
    stages = []
    for number in range(n_stages):
        used = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
        n_outputs = draw(st.integers(1, 2))
        new = list(range(made[-1] + 1, made[-1] + 1 + n_outputs))
        core = CORES[draw(st.integers(0, min(1, len(CORES) - 1)))]
        stages.append(
            StagePlan(
                f"s{number}", Path("-"), "cpu", (core,), 1, tuple(map(scalar, used)), tuple(map(scalar, new))
            )
        )
        made += new
    wanted = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    if made[-1] not in wanted:
        wanted.append(made[-1])
    return LanePlan(tuple(stages)), [scalar(tensor) for tensor in wanted]


@settings(max_examples=40, deadline=None)
@given(
    lane=lanes(),
    depth=st.integers(0, 3),
    holds=st.booleans(),
    jitter=st.sampled_from([0.0, 0.0, 1e-3]),
    spin_ns=st.sampled_from([0, 0, 100_000]),
)
def test_any_graph_of_stages_gives_every_frame_its_own_outputs(lane, depth, holds, jitter, spin_ns):
    plan, outputs = lane
    frames = [(np.array([7 * number], np.int64),) for number in range(60)]
    runner = LaneRunner(
        plan,
        [scalar(0)],
        outputs,
        frames,
        queue_depth=depth,
        spin_ns=spin_ns,
        engine=lambda stage: Arithmetic(stage, holds, jitter=jitter),
    )
    try:
        for _ in range(2):
            got = runner.collect(60)
            assert [[int(v[0]) for v in frame] for frame in got] == [
                reference(plan, outputs, int(frame[0][0])) for frame in frames
            ]
    finally:
        runner.close()


@settings(max_examples=20, deadline=None)
@given(lane=lanes(), which=st.integers(0, 4), frame=st.integers(0, 30), collecting=st.booleans())
def test_a_stage_that_raises_ends_the_run_with_its_name_and_frame(lane, which, frame, collecting):
    plan, outputs = lane
    victim = plan.stages[which % len(plan.stages)].name
    runner = LaneRunner(
        plan,
        [scalar(0)],
        outputs,
        [(np.zeros(1, np.int64),)],
        # The first call is the first invocation of the build.
        engine=lambda stage: Arithmetic(stage, fail_on=frame + 2 if stage.name == victim else 0),
    )
    try:
        with pytest.raises(
            StageFailedError, match=f"^{victim} failed on frame {frame}: RuntimeError: out of luck"
        ):
            if collecting:
                runner.collect(40)
            else:
                runner.run(seconds=30)
    finally:
        runner.close()


def chain(n_stages: int) -> LanePlan:
    return LanePlan(
        tuple(
            StagePlan(f"s{n}", Path("-"), "cpu", (CORES[n % len(CORES)],), 1, (scalar(n),), (scalar(n + 1),))
            for n in range(n_stages)
        )
    )


def test_stopping_by_time_loses_no_frame_that_has_entered():
    runner = LaneRunner(chain(4), [scalar(0)], [scalar(4)], [(np.ones(1, np.int64),)], engine=Arithmetic)
    try:
        for _ in range(30):
            times, n_frames = runner.run(seconds=0.01)
            stamps = np.frombuffer(times, np.int64, n_frames * 16).reshape(n_frames, 4, 4)
            assert (stamps > 0).all()
    finally:
        runner.close()


def test_stop_after_a_number_of_frames_whichever_comes_first():
    runner = LaneRunner(chain(2), [scalar(0)], [scalar(2)], [(np.ones(1, np.int64),)], engine=Arithmetic)
    try:
        assert runner.run(n_frames=17, seconds=30)[1] == 17
        assert runner.run(n_frames=1)[1] == 1
    finally:
        runner.close()


def test_watchers_see_the_counters_move():
    status = memoryview(bytearray(32)).cast("q")
    runner = LaneRunner(
        chain(2),
        [scalar(0)],
        [scalar(2)],
        [(np.ones(1, np.int64),)],
        status=status,
        engine=Arithmetic,
    )
    try:
        runner.run(n_frames=23)
        assert status.tolist() == [23, 23, 23, 23]
    finally:
        runner.close()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_18_a_worker_built_before_pinning_is_found():
    """Workers keep the mask of the thread that makes them: built on core 1, moved to core 0."""

    class BuildsElsewhere(Arithmetic):
        def __init__(self, plan: StagePlan) -> None:
            import threading

            super().__init__(plan)
            os.sched_setaffinity(threading.get_native_id(), {CORES[1]})
            self._stop = threading.Event()
            threading.Thread(target=self._stop.wait, daemon=True).start()
            os.sched_setaffinity(threading.get_native_id(), {CORES[0]})

    engines: list[BuildsElsewhere] = []

    def make(stage: StagePlan) -> BuildsElsewhere:
        engines.append(BuildsElsewhere(stage))
        return engines[-1]

    with pytest.raises(AffinityError, match=rf"s0: runtime thread \d+ may run on cores {CORES[1]}, wanted"):
        LaneRunner(chain(1), [scalar(0)], [scalar(1)], [(np.ones(1, np.int64),)], engine=make)
    for engine in engines:
        engine._stop.set()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_worker_that_starts_late_on_the_wrong_core_is_found():
    class StartsLate(Arithmetic):
        stop = None

        def compute(self, outputs) -> None:
            import threading

            super().compute(outputs)
            if self._calls == 5:
                StartsLate.stop = threading.Event()
                mine = threading.get_native_id()
                os.sched_setaffinity(mine, set(CORES))
                threading.Thread(target=StartsLate.stop.wait, daemon=True).start()
                os.sched_setaffinity(mine, {CORES[0]})

    runner = LaneRunner(chain(1), [scalar(0)], [scalar(1)], [(np.ones(1, np.int64),)], engine=StartsLate)
    try:
        runner.run(n_frames=10)
        with pytest.raises(AffinityError, match="started late"):
            runner.check_affinity()
    finally:
        assert StartsLate.stop is not None
        StartsLate.stop.set()
        runner.close()
