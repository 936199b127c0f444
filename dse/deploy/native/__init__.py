"""The runner in C: sources that bundles carry.

``main.c`` reads a bundle, ``pipeline.c`` builds its lanes; the loop of their threads is the one of
``dse.pipeline.native``.
"""

from __future__ import annotations

from pathlib import Path

from dse.files import write_text
from dse.pipeline import native

_FOLDERS = (Path(__file__).parent, Path(native.__file__ or "").parent)
_ENDINGS = frozenset((".c", ".h", ".txt"))


def write_sources(folder: Path) -> None:
    """Write the sources and their ``CMakeLists.txt`` into a folder; makes it."""
    folder.mkdir()
    for source in sorted(path for home in _FOLDERS for path in home.iterdir()):
        if source.suffix in _ENDINGS:
            write_text(folder / source.name, source.read_text(encoding="utf-8"))
