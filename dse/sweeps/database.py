"""A database in SQLite or PostgreSQL: transactions that are begun anew while it is locked, full or gone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from dse.errors import DseError, InputError
from dse.sweeps.address import StoreAddress

T = TypeVar("T")
Say = Callable[[str], None]

PATIENCE_S = 600.0
LOCK_WAIT_MS = 60_000


class StoreError(DseError):
    """The database can not be reached, or can not keep what it is given."""


class Database:
    """A database.

    Parameters
    ----------
    address
        Where it is.
    say
        Told when the database has to be waited for.
    patience_s
        How long to try again when it is locked, full or not there.
    shared_memory
        Whether SQLite may use its write-ahead log (not on network file systems).
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        say: Say | None = None,
        patience_s: float = PATIENCE_S,
        shared_memory: bool = True,
    ) -> None:
        self.address = address
        self._say = say or (lambda message: None)
        self._patience_s = patience_s
        self.is_sqlite = address.path is not None
        arguments: dict[str, Any] = {} if self.is_sqlite else {"pool_pre_ping": True}
        if self.is_sqlite:
            arguments["connect_args"] = {"timeout": LOCK_WAIT_MS / 1000, "check_same_thread": False}
        # Values of rows never become part of an error's text.
        self._engine = create_engine(address.url, hide_parameters=True, **arguments)
        if self.is_sqlite:
            _set_up_sqlite(self._engine, shared_memory=shared_memory)
        self._insert = sqlite.insert if self.is_sqlite else postgresql.insert

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[Connection]:
        with self._engine.connect().execution_options(reading=reading) as connection, connection.begin():
            yield connection

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._patiently(work, reading=False)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._patiently(work, reading=True)

    def _patiently(self, work: Callable[[Connection], T], *, reading: bool) -> T:
        """Run a transaction; begin it anew while the database is locked, full or gone."""
        start, pause_s, told = time.monotonic(), 0.05, False
        while True:
            try:
                with self._transaction(reading=reading) as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                passing = isinstance(error, OperationalError) or (
                    isinstance(error, DBAPIError) and error.connection_invalidated
                )
                waited_s = time.monotonic() - start
                if not passing or not _may_pass(error) or waited_s > self._patience_s:
                    raise self._explained(error) from None
                if not told and waited_s > 1.0:
                    told = True
                    self._say(f"waiting for the store {self.address.text}: {_reason(error)}")
                time.sleep(pause_s)
                pause_s = min(2.0, pause_s * 1.6)

    def _explained(self, error: SQLAlchemyError) -> DseError:
        what = f"the store {self.address.text}: {_reason(error)}"
        if _may_pass(error):
            return StoreError(
                f"{what}. Finished jobs are kept in their run folders: "
                "'dse sweep resume' writes them down when the store works again"
            )
        return InputError(f"{what}. Expected a database that this user may read and write")

    @property
    def now_s(self) -> float:
        """The clock of the store: that of the server for PostgreSQL, so that hosts may differ."""
        if self.is_sqlite:
            return time.time()
        clock = text("SELECT extract(epoch FROM clock_timestamp())")
        return self._read(lambda connection: float(connection.execute(clock).scalar_one()))

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Keep other processes out of something of that name (PostgreSQL only).

        The server takes the lock back when the connection ends, however that comes about.
        """
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SELECT pg_advisory_lock(:number)"), {"number": number})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": number})


def _set_up_sqlite(engine: Any, *, shared_memory: bool) -> None:
    """Take the write lock at the start of a transaction, so that none fails half-way for want of it."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={LOCK_WAIT_MS}")
        cursor.execute(f"PRAGMA journal_mode={'WAL' if shared_memory else 'DELETE'}")
        cursor.execute("PRAGMA synchronous=NORMAL" if shared_memory else "PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


_PASSING = (
    "locked",
    "busy",
    "disk is full",
    "disk full",
    "no space left",
    "disk i/o error",
    "connection",
    "server closed",
    "starting up",
    "shutting down",
    "recovery mode",
    "terminating",
    "timeout",
    "too many clients",
    "could not extend file",
    "deadlock",
    "ssl syscall",
)
_FINAL = ("password authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


def _may_pass(error: SQLAlchemyError) -> bool:
    """Whether the cause can go away by itself."""
    reason = str(getattr(error, "orig", None) or error).lower()
    return not any(word in reason for word in _FINAL) and any(word in reason for word in _PASSING)


def _reason(error: SQLAlchemyError) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())
