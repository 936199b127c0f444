"""What makes two jobs the same job: a hash over everything that decides the result."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import dse
from dse.config import Experiment, ModelPath, Workload, ZooModel

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

    def model(self, model: ModelPath | ZooModel | Workload) -> str:
        """Return one SHA-256 over the files of a model (of the bundle, for a member of one).

        Empty when there are none: the zoo's models and packages are told by the experiment itself.
        """
        hashes = [self.file(bundle_file(path)) for path in model_files(model)]
        if len(hashes) <= 1:
            return "".join(hashes)
        return hashlib.sha256("".join(hashes).encode()).hexdigest()


def model_files(model: ModelPath | ZooModel | Workload) -> tuple[Path, ...]:
    """Return the files that a model is read from, members of bundles as such."""
    if isinstance(model, Workload):
        return tuple(source.path for source in model.networks.values() if isinstance(source, ModelPath))
    return (model.path,) if isinstance(model, ModelPath) else ()


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
    experiment: Experiment, mode: str, board: str | None, fingerprints: Fingerprints, code: str
) -> str:
    """Return the key of a job: 40 hexadecimal digits.

    Parameters
    ----------
    experiment
        What is run.  Where its results are put, and the paths of its files, do not count; what is in
        the files does.
    mode, board
        How and where it runs.
    fingerprints
        Of the files.
    code
        ``version``, ``exact`` or ``any``: what of the code counts.

    Raises
    ------
    OSError
        A file can not be read.
    """
    content = experiment.resolved()
    for place in ("name", "output", "cache_dir"):
        content.pop(place, None)
    files = [_named(path, fingerprints) for path in model_files(experiment.model)]
    if isinstance(experiment.model, ModelPath):
        content["model"] = files[0]
    elif isinstance(experiment.model, Workload):
        own = [network for network in content["models"] if "file" in network and "package" not in network]
        for network, name in zip(own, files, strict=True):
            network["file"] = name
    costs = experiment.profile.costs
    if costs is not None:
        content["profile"] = {**content["profile"], "costs": fingerprints.file(costs)}
    if experiment.profile.examples:
        pairs = [
            (fingerprints.file(e.model), fingerprints.file(e.costs)) for e in experiment.profile.examples
        ]
        content["profile"] = {**content["profile"], "examples": pairs}
    versions = {"version": dse.__version__, "exact": code_version(), "any": ""}
    text = json.dumps(
        {"experiment": content, "mode": mode, "board": board, "code": versions[code]},
        sort_keys=True,
        ensure_ascii=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _named(path: Path, fingerprints: Fingerprints) -> str:
    """Name a model by its content, and by its place in a bundle."""
    _, mark, member = str(path).partition("!")
    return fingerprints.file(bundle_file(path)) + mark + member
