"""The runner in C: sources that bundles carry; the stage loop is a library of its own (``pipeline.h``)."""

from __future__ import annotations

from pathlib import Path

from dse.files import write_text

SOURCES = Path(__file__).parent
"""Folder of the sources and their ``CMakeLists.txt``."""

_ENDINGS = frozenset((".c", ".h", ".txt"))


def write_sources(folder: Path) -> None:
    """Write the sources into ``native/`` of a bundle."""
    target = folder / "native"
    target.mkdir()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in _ENDINGS:
            write_text(target / source.name, source.read_text(encoding="utf-8"))
