"""Idle gaps slow the next run: measured, and taken out where it would be mistaken for contention."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dse.costs import Cost, CostTable
from dse.devices.worker import time_invocations
from dse.learning import learn
from dse.pipeline.measurement import StageRate
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.planning import Planner
from dse.platforms import Cluster, Platform, Slot
from dse.profiling.idle import SHORTEST_PAUSE_NS, measure_idle
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.tiny import tiny_model
from solvers.problem import Flow, Problem
from solvers.problem import Slot as SolverSlot

WARM_NS, COLD_NS = 25_000, 95_000


class Cooling:
    """A core that takes 25 microseconds in a tight loop and 95 after a pause, as one user saw."""

    def time(self, visits: Sequence[tuple[str, int, int]], *, pause_ns: int) -> Any:
        ((name, _, n),) = visits
        return {name: [COLD_NS if pause_ns else WARM_NS] * n}, {}


def cooled_table() -> CostTable:
    effect = measure_idle(Cooling(), "m", WARM_NS)  # type: ignore[arg-type]
    assert effect is not None
    assert effect.factor == pytest.approx(3.8)
    assert effect.pause_ns == SHORTEST_PAUSE_NS
    slots = (Slot("cpu", 1),)
    row = (Cost(100_000, (100_000,)),)
    conditions = {"idle": {"1 cpu": effect.to_json()}}
    return CostTable("", "m", "p", slots, (row, row), (0,), (None,), conditions=conditions)


def test_waiting_counts_by_how_long() -> None:
    table = cooled_table()
    assert table.slowdown_by_waiting(0, 1.0) == 1.0
    assert table.slowdown_by_waiting(0, 0.01) == pytest.approx(3.8, rel=1e-3)
    shares = [table.slowdown_by_waiting(0, u / 10) for u in range(11)]
    assert shares == sorted(shares, reverse=True)
    silent = CostTable("", "m", "p", table.slots, table.costs, (0,), (None,))
    assert silent.slowdown_by_waiting(0, 0.1) == 1.0


def test_20_a_cold_stage_is_not_mistaken_for_contention() -> None:
    table = cooled_table()
    problem = Problem(
        np.full((2, 1), 100_000), np.ones((2, 1), bool), (SolverSlot(0, 1),), (2,),
        flows=(Flow(None, (0,), 4), Flow(0, (1,), 4), Flow(1, (), 4, is_output=True)),
    )  # fmt: skip
    platform = Platform("two", (Cluster("cpu", (0, 1), threads=(1,)),))
    stages = tuple(PlacedStage(f"s{n}", (n,), "cpu", 1, (n,)) for n in range(2))
    mapping = PlacedMapping((PlacedLane(stages),))
    # Both stages wait most of the time and so take 3.8 times as long as in a tight loop.
    rates = [StageRate(0, 0.0, 380_000, 0.0)] * 2
    seen = SimpleNamespace(
        plan="p",
        stages=[SimpleNamespace(compute_ns=380_000, receive_ns=0, tightness=0.02)] * 2,
        rates=rates,
        rates_by_repeat=[rates],
        throughput_hz=1000.0,
    )
    without = learn(Planner(problem, platform, platform.slots), [(mapping, seen)])  # type: ignore[list-item]
    corrected = learn(Planner(problem, platform, platform.slots, costs=table), [(mapping, seen)])  # type: ignore[list-item]
    assert without.problem.cost_ns[0, 0] == pytest.approx(380_000, rel=0.01)
    assert corrected.problem.cost_ns[0, 0] == pytest.approx(100_000, rel=0.01)
    assert {time.compute_ns for time in corrected.problem.stage_times} == {380_000}, "as that plan saw it"


def test_runs_after_pauses_are_real(tmp_path: Path) -> None:
    calls: list[int] = []
    assert len(time_invocations(lambda: calls.append(1), 1, 3, 1000)) == 3
    path = tmp_path / "m.tflite"
    path.write_bytes(tiny_model())
    core = min(os.sched_getaffinity(0))
    with SlotWorker(Slot("cpu", 1), [core], tmp_path / "log", ProfileOptions()) as worker:
        worker.load("m", path)
        effect = measure_idle(worker, "m", 1_000)
        assert effect is not None
        assert len(effect.tight_ns) == len(effect.paused_ns) > 10
        assert 0 < effect.utilisation < 0.5
        assert measure_idle(worker, "nothing", 1_000) is None
