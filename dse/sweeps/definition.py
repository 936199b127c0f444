"""A sweep file, read: the study, its base experiment, and where each part of it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse import yaml_io
from dse.config import load_sweep_section
from dse.config.sweep import SweepSection
from dse.errors import ConfigError
from dse.yaml_io import Document


@dataclass(frozen=True)
class SweepFile:
    """A sweep file and the experiment that it starts from.

    Parameters
    ----------
    section
        What the file says.
    document
        The file, for places in messages.
    base
        The experiment that every job starts from, as plain data.
    base_document
        The experiment's own file, or None when it stands in the sweep file.
    folder
        From where paths in the experiment count.
    name
        Of the sweep.
    """

    section: SweepSection
    document: Document
    base: Mapping[str, Any]
    base_document: Document | None
    folder: Path
    name: str

    @property
    def output(self) -> Path:
        """The sweep's folder: run folders, journals and, by default, the store."""
        return self.section.output.absolute() / self.name


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep file and the experiment file that it names.

    Raises
    ------
    ConfigError
        All faults of the form; the jobs are checked when they are expanded.
    """
    section, document = load_sweep_section(path)
    base_document: Document | None = None
    base: Any = document.data["base"]
    folder = path.parent
    if isinstance(base, str):
        named = path.parent / base
        if not named.is_file():
            place = document.where(("base",))
            raise ConfigError([f"{place}: base: expected an experiment file, got {base!r}: no such file"])
        base_document = yaml_io.load(named)
        base, folder = base_document.data, named.parent
        if not isinstance(base, dict):
            raise ConfigError([f"{named}: expected an experiment (a mapping)"])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", section.name or path.stem).strip(".-") or "sweep"
    return SweepFile(section, document, base, base_document, folder.absolute(), name)
