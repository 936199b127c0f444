"""Handing out the jobs of a sweep and writing down how they ended."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dse.config.sweep import LimitsSection
from dse.errors import DseError
from dse.progress import Progress, Task
from dse.sweeps.clusters import ClusterError, Workers
from dse.sweeps.presence import BEAT_S, Driver
from dse.sweeps.sources import Source
from dse.sweeps.store import Claim, Counts, Store
from dse.sweeps.tables import FAILED
from dse.sweeps.task import DIED, run_job

LOOK_S = 0.2
"""Longest wait for an ended job before anything else is looked at."""
ANSWER_S = 60.0
"""A scheduler that does not answer for so long is gone."""
RATE_OVER_S = 60.0
SHOWN_WORKERS = 4


class SweepFailedError(DseError):
    """A job failed and the sweep was to end then."""


class SweepCancelledError(DseError):
    """Somebody asked the sweep to stop."""


class SweepRun:
    """One driver's part of a sweep.

    Parameters
    ----------
    store, sweep, driver
        Where the results go, the sweep's name, and who this is.
    source
        Gives the jobs.
    workers
        Run them.
    limits
        Of one job.
    code
        Version of the code that workers must have; empty for any.
    fail_fast
        End at the first job that fails.
    patience_s
        How long to go on without any worker, or without one that has the board that a job wants.
    """

    def __init__(
        self,
        store: Store,
        sweep: str,
        driver: Driver,
        source: Source,
        workers: Workers,
        *,
        limits: LimitsSection,
        code: str,
        fail_fast: bool = False,
        patience_s: float = 600.0,
    ) -> None:
        self._store, self._sweep, self._driver = store, sweep, driver
        self._source, self._workers, self._limits = source, workers, limits
        self._code, self._fail_fast, self._patience_s = code, fail_fast, patience_s
        self._flying: dict[Any, Claim] = {}
        self._landed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._deaths: Counter[str] = Counter()
        self._shown = _Shown()
        self._next_look = 0.0
        self._last_life = time.monotonic()

    def run(self, progress: Progress) -> Counts:
        """Run until every job has ended.

        Raises
        ------
        SweepFailedError
            A job failed and ``fail_fast`` is set.
        SweepCancelledError
            Somebody cancelled the sweep.
        ClusterError, StoreError
            The scheduler is gone, no worker came, or the store can not be reached.
        """
        counts = self._source.counts()
        try:
            with progress.task(f"sweep {self._sweep}", max(1, counts.total)) as task:
                self._shown.begin(task, counts)
                while True:
                    self._look_around()
                    worked = self._refill()
                    worked |= self._collect()
                    if worked or self._flying:
                        continue
                    if self._source.is_finished:
                        break
                    # Others hold what is left: wait for them, or take over from those that are gone.
                    time.sleep(LOOK_S)
        finally:
            self._let_go()
        return self._source.counts()

    def _look_around(self) -> None:
        """Now and then: a sign of life, the wishes of others, the state of the workers."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._store.beat(self._driver, self._sweep)
        if self._store.is_cancelled(self._sweep):
            raise SweepCancelledError(
                f"the sweep {self._sweep} was cancelled; 'dse sweep resume' goes on from here"
            )
        self._source.look_again(self._store.reconcile())
        counts = self._source.counts()
        threads = self._workers.look()
        self._shown.update(counts, len(threads))
        self._check_life(now)
        self._workers.keep_up(len(self._flying) + counts.waiting)
        self._next_look = now + (BEAT_S if threads else LOOK_S)

    def _check_life(self, now: float) -> None:
        """Do not wait for ever for workers, or for boards that no worker has."""
        missing: set[str] = set()
        if self._workers.n_slots:
            wanted = {claim.board for claim in self._flying.values()}
            if wanted and None not in wanted:
                missing = {f"board:{board}" for board in wanted} - self._workers.boards()
            if not missing:
                self._last_life = now
        if now - self._last_life <= self._patience_s:
            return
        if missing:
            name = min(missing)
            raise ClusterError(
                f"no worker has the resource {name!r} that the jobs left over need: start one on that board "
                f"with: dask worker SCHEDULER --nthreads 1 --resources '{name}=1'"
            )
        raise ClusterError(
            f"no worker for {self._patience_s:g} s: look into the queue of the batch system, or give "
            "cluster.patience_s more time. Finished jobs are kept"
        )

    def _refill(self) -> bool:
        """Claim and submit jobs when few are under way; say whether there were any."""
        low, high = self._source.window(max(1, self._workers.n_slots))
        if len(self._flying) > low:
            return False
        claims = self._source.take(high - len(self._flying))
        for claim in claims:
            self._submit(claim)
        return bool(claims)

    def _submit(self, claim: Claim) -> None:
        request = {
            "key": claim.key,
            "config": claim.config,
            "mode": claim.mode,
            "board": claim.board,
            "model_sha256": claim.model_sha256,
            "run_dir": claim.run_dir,
            "code": self._code,
            "time_s": self._limits.time_s,
            "memory_bytes": self._limits.memory,
        }
        future = self._workers.client.submit(
            run_job,
            json.dumps(request),
            key=f"job-{claim.key}-{self._driver.id[:8]}-{self._deaths[claim.key]}",
            pure=False,
            resources=None if claim.board is None else {f"board:{claim.board}": 1},
        )
        self._flying[future] = claim
        future.add_done_callback(self._landed.put)

    def _collect(self) -> bool:
        """Take the jobs that have ended and write them down; say whether there were any."""
        if not self._flying:
            return False
        futures = []
        try:
            futures.append(self._landed.get(timeout=LOOK_S))
            while True:
                futures.append(self._landed.get_nowait())
        except queue.Empty:
            pass
        ended = [future for future in futures if future in self._flying]
        with self._workers.talking():  # gathering all at once would wait for a lost scheduler for ever
            texts = {
                future: future.result(timeout=ANSWER_S) for future in ended if future.status == "finished"
            }
        outcomes = []
        for future in ended:
            outcome = self._outcome(future, texts.get(future))
            if outcome is not None:
                outcomes.append(outcome)
        self._store.finish(outcomes)
        for future in ended:
            self._flying.pop(future)
            future.release()
        self._source.ended(outcomes)
        self._shown.ended(outcomes)
        failed = [outcome for outcome in outcomes if outcome["status"] == FAILED]
        if failed and self._fail_fast:
            raise SweepFailedError(
                f"job {failed[0]['key'][:12]} failed: {failed[0]['error']}. The sweep ends here "
                "(--fail-fast); 'dse sweep resume' runs the rest"
            )
        return bool(ended)

    def _outcome(self, future: Any, text: str | None) -> dict[str, Any] | None:
        """Return how a job ended; None when it begins again."""
        from distributed.scheduler import KilledWorker

        claim = self._flying[future]
        failure: dict[str, Any] = {"key": claim.key, "status": FAILED, "finished_s": time.time()}
        if text is not None:
            outcome: dict[str, Any] = json.loads(text)
            if outcome["status"] != DIED:
                return outcome
            self._deaths[claim.key] += 1
            if self._deaths[claim.key] < self._limits.attempts:
                self._submit(claim)
                return None
            return {**outcome, "status": FAILED, "error": f"{outcome['error']} (the last of all attempts)"}
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                return failure | {
                    "error": f"its workers were killed {self._limits.attempts + 1} times: by a time limit of "
                    "the batch system that is shorter than the job, for lack of memory, or by a person"
                }
            return failure | {"error": f"the worker could not run it: {type(error).__name__}: {error}"}
        raise ClusterError(self._workers.lost())

    def _let_go(self) -> None:
        """Give back what was not run to its end."""
        left: Sequence[Claim] = tuple(self._flying.values())
        if left and self._workers.client.status == "running":
            with suppress(ClusterError), self._workers.talking():
                self._workers.client.cancel(list(self._flying), reason="sweep-ends", msg="the sweep ends")
        self._flying.clear()
        self._store.give_back([claim.key for claim in left], self._driver)


class _Shown:
    """What a person sees of the progress."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._n_ended = self._n_failed = self._n_total = self._n_workers = 0
        self._by_worker: Counter[str] = Counter()
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self, task: Task, counts: Counts) -> None:
        self._task = task
        self._n_total, self._n_failed = counts.total, counts.failed
        self._move_to(counts.done + counts.failed)

    def update(self, counts: Counts, n_workers: int) -> None:
        """Take the store's word: other drivers work too."""
        self._n_workers = n_workers
        self._n_failed = counts.failed
        self._move_to(max(self._n_ended, counts.done + counts.failed))

    def ended(self, outcomes: Sequence[dict[str, Any]]) -> None:
        """Count own jobs until the store is asked again."""
        self._by_worker.update(str(outcome.get("worker", "?")) for outcome in outcomes)
        self._n_failed += sum(outcome["status"] == FAILED for outcome in outcomes)
        self._move_to(self._n_ended + len(outcomes))

    def _move_to(self, n_ended: int) -> None:
        steps, self._n_ended = n_ended - self._n_ended, n_ended
        now = time.monotonic()
        self._marks.append((now, n_ended))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_OVER_S:
            self._marks.popleft()
        if self._task is not None:
            self._task.advance(steps, self._note(now))

    def _note(self, now: float) -> str:
        then, before = self._marks[0]
        rate = (self._n_ended - before) / (now - then) if now > then else 0.0
        parts = [f"{self._n_ended}/{self._n_total}", f"{self._n_failed} failed", f"{rate:.3g} jobs/s"]
        busiest = self._by_worker.most_common(SHOWN_WORKERS)
        listed = ", ".join(f"{name}: {number}" for name, number in sorted(busiest))
        more = ", ..." if len(self._by_worker) > SHOWN_WORKERS else ""
        parts.append(f"{self._n_workers} workers" + (f" ({listed}{more})" if listed else ""))
        return ", ".join(parts)
