"""The results in SQLite or PostgreSQL: every change is one transaction, every result is written once.

Several drivers may work on one store, on the same sweep or on different ones.  Whoever wants to
run jobs claims them; a job that another living driver holds is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, and_, delete, func, select, text, update
from sqlalchemy.engine import Row

from dse.errors import InputError
from dse.sweeps.database import Database
from dse.sweeps.expansion import Job
from dse.sweeps.presence import Driver
from dse.sweeps.tables import (
    DONE,
    FAILED,
    RUNNING,
    VERSION,
    WAITING,
    about,
    drivers,
    jobs,
    members,
    metadata,
    sweeps,
)

T = TypeVar("T")

BATCH = 500
_CREATION_LOCK = 7_316_105  # any number, the same for every process


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this driver may run."""

    key: str
    position: int
    config: str
    mode: str
    board: str | None
    model_sha256: str
    run_dir: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs of a sweep by status."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All jobs."""
        return self.waiting + self.running + self.done + self.failed


class Store(Database):
    """A database of jobs and results."""

    def create(self) -> None:
        """Make the tables, unless they are there.

        Raises
        ------
        InputError
            They are of another version, or the store can not be opened.
        """
        if self.address.path is not None:
            self.address.path.parent.mkdir(parents=True, exist_ok=True)

        def make(connection: Connection) -> int:
            if not self.is_sqlite:  # two processes that create at once would collide
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
            metadata.create_all(connection)
            connection.execute(self._insert(about).values(version=VERSION).on_conflict_do_nothing())
            return int(connection.execute(select(func.max(about.c.version))).scalar_one())

        found = self._write(make)
        if found != VERSION:
            raise InputError(
                f"the store {self.address.text} has version {found}, this dse writes version {VERSION}: "
                "use the dse that made it, or another store"
            )

    # Sweeps and their jobs.

    def put_sweep(
        self, name: str, definition: str, fields: Sequence[str], found: Iterable[Job] | None, folder: str
    ) -> int:
        """Write a sweep and its jobs down; jobs that are there stay as they are.

        Parameters
        ----------
        name
            Of the sweep.
        definition, fields
            The file as JSON text, and the fields that vary.
        found
            The jobs; None for a sweep whose jobs are added one by one.
        folder
            Folder of the run folders of new jobs.

        Returns
        -------
        int
            Number of jobs.

        Raises
        ------
        InputError
            Another driver runs a sweep of this name with other jobs.
        """
        now_s = self.now_s
        # The faults of all jobs come before the first write.
        collected = list(_in_batches(found or (), BATCH))
        wanted = [job.key for batch in collected for job in batch]

        def put(connection: Connection) -> int:
            query = select(members.c.key).where(members.c.sweep == name).order_by(members.c.position)
            there = connection.execute(query).scalars().all()
            before = connection.execute(select(sweeps.c.definition).where(sweeps.c.name == name)).scalar()
            same = before == definition if found is None else list(there) == wanted
            if before is not None and not same:
                self._refuse_while_running(connection, name, now_s)
            row = {"definition": definition, "fields": json.dumps(list(fields)), "cancelled": 0}
            connection.execute(
                self._insert(sweeps)
                .values(name=name, created_s=now_s, **row)
                .on_conflict_do_update(index_elements=["name"], set_=row)
            )
            if not same:
                connection.execute(delete(members).where(members.c.sweep == name))
                for number, batch in enumerate(collected):
                    self._put_jobs(connection, name, batch, number * BATCH, folder)
            return len(wanted)

        return self._write(put)

    def _put_jobs(
        self, connection: Connection, name: str, batch: Sequence[Job], first: int, folder: str
    ) -> None:
        connection.execute(
            self._insert(jobs).on_conflict_do_nothing(),
            [
                {
                    "key": job.key,
                    "status": WAITING,
                    "config": job.config,
                    "mode": job.mode,
                    "board": job.board,
                    "model": job.model,
                    "model_sha256": job.model_sha256,
                    "platform": job.platform,
                    "run_dir": f"{folder}/{job.key}",
                    "attempts": 0,
                }
                for job in batch
            ],
        )
        connection.execute(
            self._insert(members).on_conflict_do_nothing(),
            [
                {
                    "sweep": name,
                    "position": first + place,
                    "key": job.key,
                    "label": job.label,
                    "settings": json.dumps(dict(job.settings), ensure_ascii=False),
                }
                for place, job in enumerate(batch)
            ],
        )

    def _refuse_while_running(self, connection: Connection, name: str, now_s: float) -> None:
        for row in connection.execute(select(drivers).where(drivers.c.sweep == name)):
            driver = _driver(row)
            if driver.is_alive(now_s):
                raise InputError(
                    f"the sweep {name!r} is being run with other jobs by process {driver.pid} on "
                    f"{driver.host} (store {self.address.text}): give this one another name, or cancel it"
                )

    def add_member(self, name: str, position: int, job: Job, folder: str) -> None:
        """Add one job to a sweep, at a place of its own; nothing happens when it is there."""
        self._write(lambda connection: self._put_jobs(connection, name, [job], position, folder))

    def has_sweep(self, name: str) -> bool:
        """Whether a sweep of that name was written down."""
        query = select(func.count()).select_from(sweeps).where(sweeps.c.name == name)
        return self._read(lambda connection: bool(connection.execute(query).scalar_one()))

    def definition(self, name: str) -> str | None:
        """Return the definition of a sweep."""
        query = select(sweeps.c.definition).where(sweeps.c.name == name)
        return self._read(lambda connection: connection.execute(query).scalar())

    def boards(self, name: str) -> frozenset[str]:
        """Return the boards that the jobs of a sweep measure on."""
        query = (
            select(jobs.c.board)
            .join(members, members.c.key == jobs.c.key)
            .where(members.c.sweep == name, jobs.c.board.is_not(None))
            .distinct()
        )
        return frozenset(self._read(lambda connection: connection.execute(query).scalars().all()))

    def cancel(self, name: str, *, cancelled: bool = True) -> None:
        """Ask every driver of a sweep to stop (or take that back)."""
        change = update(sweeps).where(sweeps.c.name == name).values(cancelled=int(cancelled))
        self._write(lambda connection: connection.execute(change))

    def is_cancelled(self, name: str) -> bool:
        """Whether a sweep was asked to stop."""
        query = select(sweeps.c.cancelled).where(sweeps.c.name == name)
        return self._read(lambda connection: bool(connection.execute(query).scalar()))

    # Drivers.

    def beat(self, driver: Driver, sweep: str) -> None:
        """Write down that a driver is alive."""
        values = {**asdict(driver), "sweep": sweep, "seen_s": self.now_s}
        statement = self._insert(drivers).values(values)
        statement = statement.on_conflict_do_update(index_elements=["id"], set_={"seen_s": values["seen_s"]})
        self._write(lambda connection: connection.execute(statement))

    def leave(self, driver: Driver) -> None:
        """Give back what a driver holds, and forget it."""

        def go(connection: Connection) -> None:
            _give_back(connection, driver.id)
            connection.execute(delete(drivers).where(drivers.c.id == driver.id))

        self._write(go)

    def reconcile(self) -> int:
        """Give back what drivers that are gone held; return how many jobs that were."""
        now_s = self.now_s

        def go(connection: Connection) -> int:
            n_jobs = 0
            known = [_driver(row) for row in connection.execute(select(drivers))]
            living = {driver.id for driver in known if driver.is_alive(now_s)}
            holding = connection.execute(
                select(jobs.c.driver).where(jobs.c.status == RUNNING).distinct()
            ).scalars()
            for holder in [*holding]:
                if holder not in living:
                    n_jobs += _give_back(connection, holder)
            gone = [driver.id for driver in known if driver.id not in living]
            if gone:
                connection.execute(delete(drivers).where(drivers.c.id.in_(gone)))
            return n_jobs

        return self._write(go)

    def drivers(self, sweep: str) -> tuple[tuple[Driver, bool], ...]:
        """Return the drivers of a sweep and whether each is alive."""
        now_s = self.now_s
        rows = self._read(
            lambda connection: connection.execute(select(drivers).where(drivers.c.sweep == sweep)).all()
        )
        found = [_driver(row) for row in rows]
        return tuple((driver, driver.is_alive(now_s)) for driver in found)

    def living(self) -> frozenset[str]:
        """Return the drivers that are alive, of any sweep."""
        now_s = self.now_s
        rows = self._read(lambda connection: connection.execute(select(drivers)).all())
        return frozenset(driver.id for driver in map(_driver, rows) if driver.is_alive(now_s))

    # Jobs.

    def claim(self, sweep: str, driver: Driver, n_most: int, after: int = -1) -> tuple[Claim, ...]:
        """Take waiting jobs, in the order of the sweep.

        Parameters
        ----------
        n_most
            How many at most.
        after
            Only those after this place; -1 for all.
        """
        wanted = (
            select(jobs.c.key, members.c.position)
            .join(members, members.c.key == jobs.c.key)
            .where(members.c.sweep == sweep, members.c.position > after, jobs.c.status == WAITING)
            .order_by(members.c.position)
            .limit(n_most)
            .with_for_update(skip_locked=True, of=jobs)
        )
        return self._write(lambda connection: _take(connection, connection.execute(wanted).all(), driver))

    def claim_key(self, key: str, position: int, driver: Driver) -> Claim | None:
        """Take one job, or return None when it does not wait."""
        wanted = (
            select(jobs.c.key)
            .where(jobs.c.key == key, jobs.c.status == WAITING)
            .with_for_update(skip_locked=True)
        )

        def go(connection: Connection) -> Claim | None:
            found = [(row.key, position) for row in connection.execute(wanted)]
            return next(iter(_take(connection, found, driver)), None)

        return self._write(go)

    def finish(self, outcomes: Sequence[Mapping[str, Any]]) -> int:
        """Write down how jobs ended: each has ``key``, ``status`` and further columns.

        A job that is done stays as it is.  Returns how many were written.
        """

        def go(connection: Connection) -> int:
            written = 0
            for outcome in outcomes:
                values = {name: value for name, value in outcome.items() if name in jobs.c and name != "key"}
                change = update(jobs).where(jobs.c.key == outcome["key"], jobs.c.status != DONE)
                written += connection.execute(change.values(**values, driver=None)).rowcount
            return written

        return self._write(go) if outcomes else 0

    def give_back(self, keys: Sequence[str], driver: Driver) -> None:
        """Let jobs wait again that this driver holds."""

        def go(connection: Connection) -> None:
            for batch in _in_batches(keys, BATCH):
                connection.execute(
                    update(jobs)
                    .where(jobs.c.key.in_(batch), jobs.c.status == RUNNING, jobs.c.driver == driver.id)
                    .values(status=WAITING, driver=None)
                )

        if keys:
            self._write(go)

    def retry_failed(self, sweep: str) -> int:
        """Let the failed jobs of a sweep wait again; return how many."""
        own = select(members.c.key).where(members.c.sweep == sweep)
        change = (
            update(jobs)
            .where(jobs.c.key.in_(own), jobs.c.status == FAILED)
            .values(status=WAITING, error=None, log_tail=None)
        )
        return self._write(lambda connection: connection.execute(change).rowcount)

    def counts(self, sweep: str) -> Counts:
        """Count the jobs of a sweep."""
        query = (
            select(jobs.c.status, func.count())
            .join(members, members.c.key == jobs.c.key)
            .where(members.c.sweep == sweep)
            .group_by(jobs.c.status)
        )
        rows = self._read(lambda connection: connection.execute(query).all())
        return Counts(**{str(status): int(number) for status, number in rows})

    def status_of(self, key: str) -> str | None:
        """Return the status of a job, or None when there is no such job."""
        query = select(jobs.c.status).where(jobs.c.key == key)
        return self._read(lambda connection: connection.execute(query).scalar())

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a job."""
        query = select(jobs).where(jobs.c.key == key)
        found = self._read(lambda connection: connection.execute(query).first())
        return None if found is None else dict(found._mapping)

    def rows(self, sweep: str, *, status: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the jobs of a sweep with all columns, in its order.

        ``settings`` is a mapping.
        """
        after = -1
        while True:
            query = (
                select(members.c.position, members.c.label, members.c.settings, jobs)
                .join(jobs, members.c.key == jobs.c.key)
                .where(members.c.sweep == sweep, members.c.position > after)
                .order_by(members.c.position)
                .limit(BATCH)
            )
            if status is not None:
                query = query.where(jobs.c.status == status)
            batch = self._read(lambda connection, q=query: connection.execute(q).all())  # type: ignore[misc]
            for row in batch:
                yield {**row._mapping, "settings": json.loads(row.settings)}
            if len(batch) < BATCH:
                return
            after = batch[-1].position

    def fields(self, sweep: str) -> tuple[str, ...]:
        """Return the names of the fields that vary in a sweep."""
        query = select(sweeps.c.fields).where(sweeps.c.name == sweep)
        found = self._read(lambda connection: connection.execute(query).scalar())
        return tuple(json.loads(found)) if found else ()

    def workers(self, sweep: str) -> tuple[tuple[str, str, int, float, float], ...]:
        """Return per worker: host, name, jobs ended, seconds spent, and when the last one ended."""
        query = (
            select(
                jobs.c.host,
                jobs.c.worker,
                func.count(),
                func.sum(jobs.c.wall_s),
                func.max(jobs.c.finished_s),
            )
            .join(members, and_(members.c.key == jobs.c.key, members.c.sweep == sweep))
            .where(jobs.c.finished_s.is_not(None))
            .group_by(jobs.c.host, jobs.c.worker)
            .order_by(jobs.c.host, jobs.c.worker)
        )
        rows = self._read(lambda connection: connection.execute(query).all())
        return tuple((str(r[0]), str(r[1]), int(r[2]), float(r[3] or 0), float(r[4])) for r in rows)


def _take(connection: Connection, found: Iterable[Any], driver: Driver) -> tuple[Claim, ...]:
    place: dict[str, int] = dict(found)
    if not place:
        return ()
    connection.execute(
        update(jobs)
        .where(jobs.c.key.in_(place))
        .values(status=RUNNING, driver=driver.id, attempts=jobs.c.attempts + 1)
    )
    rows = connection.execute(select(jobs).where(jobs.c.key.in_(place))).all()
    claims = [Claim(r.key, place[r.key], r.config, r.mode, r.board, r.model_sha256, r.run_dir) for r in rows]
    return tuple(sorted(claims, key=lambda claim: claim.position))


def _give_back(connection: Connection, driver: str | None) -> int:
    change = update(jobs).where(jobs.c.status == RUNNING, jobs.c.driver.is_not_distinct_from(driver))
    return connection.execute(change.values(status=WAITING, driver=None)).rowcount


def _driver(row: Row[Any]) -> Driver:
    return Driver(row.id, row.host, row.boot, row.pid, row.pid_started_s, row.seen_s)


def _in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
