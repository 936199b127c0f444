"""A sweep from its file to its results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dse
from dse.errors import DseError, InputError
from dse.progress import Progress, SilentProgress
from dse.sweeps.address import store_address
from dse.sweeps.clusters import open_workers
from dse.sweeps.database import Say
from dse.sweeps.definition import SweepFile
from dse.sweeps.driver import SweepRun
from dse.sweeps.expansion import Expander
from dse.sweeps.identity import code_version
from dse.sweeps.presence import Driver
from dse.sweeps.sources import ListSource, Source
from dse.sweeps.storage import probe
from dse.sweeps.store import Counts, Store
from dse.sweeps.trials import StudySource

QUICK_S = 20.0
"""How long commands that only look wait for the store."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a sweep came to.

    Parameters
    ----------
    name
        Of the sweep.
    counts
        Its jobs.
    n_before
        Jobs that had ended before.
    notes
        What else is to be said, one line each.
    """

    name: str
    counts: Counts
    n_before: int
    notes: tuple[str, ...] = ()


@contextmanager
def open_store(sweep: SweepFile, say: Say | None = None, *, quick: bool = False) -> Iterator[Store]:
    """Open the store of a sweep for the time of a ``with`` block.

    Raises
    ------
    InputError
        Its address, its file system or its tables can not be used.
    """
    address = store_address(sweep)
    local = True
    if address.path is not None and not quick:
        local = not probe(address.path.parent).is_network
    store = Store(address, say=say, shared_memory=local, **({"patience_s": QUICK_S} if quick else {}))
    try:
        if quick and address.path is not None and not address.path.exists():
            raise InputError(f"{address.path}: no such store: start the sweep with 'dse sweep FILE'")
        store.create()
        yield store
    finally:
        store.close()


def run_sweep(
    sweep: SweepFile,
    *,
    resume: bool = False,
    retry_failed: bool = False,
    fail_fast: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Run the jobs of a sweep that have not ended.

    Parameters
    ----------
    resume
        Take the jobs from the store instead of expanding the file again.
    retry_failed
        Run the failed ones again.
    fail_fast
        End at the first job that fails.

    Raises
    ------
    DseError
        See ``Expander.jobs``, ``Store``, ``open_workers`` and ``SweepRun.run``.
    """
    progress = progress or SilentProgress()
    path = store_address(sweep).path
    if path is None or path.parent != sweep.output:
        probe(sweep.output)
    with open_store(sweep, progress.log) as store:
        store.reconcile()
        _write_down(sweep, store, resume=resume or retry_failed)
        if retry_failed:
            store.retry_failed(sweep.name)
        driver = Driver.this()
        section = sweep.section
        store.beat(driver, sweep.name)
        try:
            source: Source = ListSource(store, sweep.name, driver)
            boards = store.boards(sweep.name)
            notes: tuple[str, ...] = ()
            if section.optuna is not None:
                trials = StudySource(store, sweep, driver)
                source, boards, notes = trials, trials.boards, trials.notes
            before = source.counts()
            if source.is_finished:
                return Summary(sweep.name, before, before.total, notes)
            declared = frozenset(f"board:{board}" for board in boards)
            with open_workers(section.cluster, declared, section.limits.attempts) as workers:
                if workers.dashboard is not None:
                    progress.log(f"dashboard: {workers.dashboard}")
                run = SweepRun(
                    store,
                    sweep.name,
                    driver,
                    source,
                    workers,
                    limits=section.limits,
                    code={"version": dse.__version__, "exact": code_version(), "any": ""}[section.code],
                    fail_fast=fail_fast,
                    patience_s=section.cluster.patience_s,
                )
                counts = run.run(progress)
        finally:
            with suppress(DseError):  # what ended the sweep is the error to tell
                store.leave(driver)
        return Summary(sweep.name, counts, before.done + before.failed, notes)


def _write_down(sweep: SweepFile, store: Store, *, resume: bool) -> None:
    """Expand the sweep into the store, or check that it is there."""
    definition = _definition(sweep)
    if resume:
        if not store.has_sweep(sweep.name):
            raise InputError(
                f"the store {store.address.text} has no sweep {sweep.name!r}: start it with 'dse sweep FILE'"
            )
        if store.definition(sweep.name) != definition:
            raise InputError(
                f"{sweep.document.name} describes other jobs than the sweep {sweep.name!r} in the store has: "
                "'dse sweep FILE' takes the change in; jobs that are done stay done"
            )
        store.cancel(sweep.name, cancelled=False)
        return
    found = None if sweep.section.optuna is not None else Expander(sweep).jobs()
    store.put_sweep(sweep.name, definition, _fields(sweep), found, str(sweep.output / "jobs"))


def _definition(sweep: SweepFile) -> str:
    """Return what decides which jobs there are, as JSON text; where they run does not count."""
    data: dict[str, Any] = {
        key: value
        for key, value in sweep.document.data.items()
        if key in ("grid", "list", "include", "exclude", "optuna", "mode", "code", "boards")
    }
    return json.dumps({**data, "base": sweep.base}, sort_keys=True, ensure_ascii=False)


def _fields(sweep: SweepFile) -> tuple[str, ...]:
    """Return the fields that vary, in the order of the file."""
    section = sweep.section
    cases = (name for entry in (*section.list, *section.include) for name in entry if name != "label")
    searched = () if section.optuna is None else section.optuna.fields
    return tuple(dict.fromkeys((*section.grid, *cases, *searched)))
