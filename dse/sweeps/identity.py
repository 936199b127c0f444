"""What makes two jobs the same job: a hash over everything that decides the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import dse
from dse.config import ModelPath, ZooModel

BLOCK_BYTES = 1 << 20


class Fingerprints:
    """Hashes of files, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def file(self, path: Path | None) -> str:
        """Return the SHA-256 of a file; empty without one.

        Raises
        ------
        OSError
            It can not be read.
        """
        if path is None:
            return ""
        if path not in self._known:
            self._known[path] = file_sha256(path)
        return self._known[path]

    def model(self, model: ModelPath | ZooModel) -> str:
        """Return the SHA-256 of a model's file (of the bundle, for a member of one); empty for the zoo."""
        if isinstance(model, ZooModel):
            return ""
        return self.file(bundle_file(model.path))


def bundle_file(path: Path) -> Path:
    """Return the file that holds a model: ``all.task`` of ``all.task!one.tflite``."""
    return Path(str(path).partition("!")[0])


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@cache
def source_sha256() -> str:
    """Return the SHA-256 over the source code of ``dse`` and ``solvers`` that is running."""
    import solvers

    digest = hashlib.sha256()
    for package in (dse, solvers):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def code_version() -> str:
    """Return version and start of the hash of the source code, as it stands in every row."""
    return f"{dse.__version__}+{source_sha256()[:12]}"


def job_key(
    resolved: Mapping[str, Any],
    mode: str,
    board: str | None,
    model_sha256: str,
    costs_sha256: str,
    code: str,
) -> str:
    """Return the key of a job: 40 hexadecimal digits.

    Parameters
    ----------
    resolved
        The experiment with every default written out, without where its results are put.
    mode, board
        How and where it runs.
    model_sha256, costs_sha256
        Of the files that it reads; paths do not count.
    code
        ``version``, ``exact`` or ``any``.
    """
    content = {key: value for key, value in resolved.items() if key != "cache_dir"}
    if model_sha256:
        content["model"] = model_sha256
    if costs_sha256:
        content["profile"] = {**content["profile"], "costs": costs_sha256}
    versions = {"version": dse.__version__, "exact": code_version(), "any": ""}
    text = json.dumps(
        {"experiment": content, "mode": mode, "board": board, "code": versions[code]},
        sort_keys=True,
        ensure_ascii=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:40]
