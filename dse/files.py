"""Writing files so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write a file under a temporary name in the same folder, then rename it.

    Raises
    ------
    OSError
        The folder is not writable or the disk is full; the temporary file is removed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Write a value as JSON atomically, indented unless it is for machines alone."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str | None:
    """Read a small text file of the kernel (sysfs, procfs); None where there is none or it is empty."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Read a whole number from a small text file; None where there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def default_cache_folder() -> Path:
    """Return ``$TFLITE_DSE_CACHE``, else the user's cache folder followed by ``tflite-dse``."""
    wanted = os.environ.get("TFLITE_DSE_CACHE")
    if wanted:
        return Path(wanted)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tflite-dse"
