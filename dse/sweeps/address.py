"""Where the store is: the address from the sweep file, the secrets from the environment or a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse.config.sweep import StoreSection
from dse.errors import ConfigError, MissingExtraError
from dse.sweeps.definition import SweepFile

EXTRA = "pip install 'tflite-dse[sweep]'"


@dataclass(frozen=True)
class StoreAddress:
    """Address of a store.

    Parameters
    ----------
    url
        For SQLAlchemy; may hold a password, so only ``text`` is for people.
    path
        The file, for SQLite.
    """

    url: Any
    path: Path | None

    @property
    def text(self) -> str:
        """The address without its password."""
        return str(self.url.render_as_string(hide_password=True))


def sqlalchemy_url(text: str, where: str) -> Any:
    """Parse an address.

    Raises
    ------
    ConfigError
        It is not one, or of a database that is not supported.
    """
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtraError(f"sweeps need the package sqlalchemy: {EXTRA}") from None
    form = "sqlite:///file.db or postgresql://user@host/database"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError([f"{where}: expected {form}, got something that is not an address"]) from None
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise ConfigError([f"{where}: expected {form}, got the database {backend!r}"])
    return url


def store_address(sweep: SweepFile) -> StoreAddress:
    """Return where a sweep's results are kept.

    Raises
    ------
    ConfigError
        The address is no address, holds a password, or names a variable or file that is not there.
    """
    section = sweep.section.store
    where = sweep.document.where(("store",))
    if section is None:
        return _sqlite(sweep.output / "results.db")
    if section.url is not None:
        url = sqlalchemy_url(section.url, f"{where}: store.url")
        if url.password is not None:
            raise ConfigError(
                [
                    f"{where}: store.url: expected an address without a password, got one with it: "
                    "set PGPASSWORD, or give store.password_env or store.password_file"
                ]
            )
    else:
        url = sqlalchemy_url(
            _variable(str(section.url_env), f"{where}: store.url_env"), f"{where}: store.url_env"
        )
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigError([f"{where}: store: expected a file (sqlite:///results.db), got none"])
        return _sqlite(Path(url.database).absolute())
    password = _password(section, where)
    if password is not None:
        url = url.set(password=password)
    return StoreAddress(url.set(drivername="postgresql+psycopg"), None)


def _sqlite(path: Path) -> StoreAddress:
    return StoreAddress(sqlalchemy_url(f"sqlite:///{path}", str(path)), path)


def _password(section: StoreSection, where: str) -> str | None:
    if section.password_env is not None:
        return _variable(section.password_env, f"{where}: store.password_env")
    if section.password_file is not None:
        return read_secret_file(section.password_file, f"{where}: store.password_file")
    return None


def _variable(name: str, where: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError([f"{where}: expected an environment variable that is set, got {name!r}"])
    return value


def read_secret_file(path: Path, where: str) -> str:
    """Return the first line of a file.

    Raises
    ------
    ConfigError
        It can not be read.
    """
    try:
        return path.expanduser().read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{where}: the file {str(path)!r} can not be read: {error}"]) from None


def filled_in(options: Any, where: str) -> Any:
    """Return options of a cluster with every ``{env: NAME}`` and ``{file: PATH}`` replaced by its secret.

    Raises
    ------
    ConfigError
        A variable is not set, or a file can not be read.
    """
    if isinstance(options, dict):
        if set(options) == {"env"} and isinstance(options["env"], str):
            return _variable(options["env"], where)
        if set(options) == {"file"} and isinstance(options["file"], str):
            return read_secret_file(Path(options["file"]), where)
        return {key: filled_in(value, f"{where}.{key}") for key, value in options.items()}
    if isinstance(options, list | tuple):
        return [filled_in(value, where) for value in options]
    return options
