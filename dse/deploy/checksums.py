"""``SHA256SUMS`` of a bundle: written as ``sha256sum`` does, checked before anything is run."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from dse.errors import InputError
from dse.files import write_text

SUMS = "SHA256SUMS"
_LINE = re.compile(r"(?P<sum>[0-9a-f]{64})  (?P<name>[^\n\\]+)")


def write_sums(folder: Path) -> None:
    """Write the sums of all files below a folder, sorted by name."""
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SUMS
    ]
    write_text(folder / SUMS, "".join(lines))


def check_sums(folder: Path) -> tuple[str, ...]:
    """Check all files of a bundle; return their names.

    Raises
    ------
    InputError
        No bundle, a damaged list, or files that are missing or were changed; names them all.
    """
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder}: not a bundle of dse export: {SUMS} can not be read ({error})") from None
    faults, names = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        found = _LINE.fullmatch(line)
        if found is None or Path(found["name"]).is_absolute() or ".." in Path(found["name"]).parts:
            raise InputError(
                f"{folder / SUMS}:{number}: expected a sum and a file of the bundle, got {line!r}"
            )
        names.append(found["name"])
        path = folder / found["name"]
        if not path.is_file():
            faults.append(f"{found['name']} is missing")
        elif sha256_of(path) != found["sum"]:
            faults.append(f"{found['name']} was changed")
    if faults:
        raise InputError(
            f"{folder}: {'; '.join(faults)}. Copy the bundle again, or export it again if it was edited"
        )
    return tuple(names)


def sha256_of(path: Path) -> str:
    """Return the sum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
