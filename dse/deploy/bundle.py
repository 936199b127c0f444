"""Making a bundle: the common files, the target's own, checksums, and a name when all is there."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from dse.deploy.checksums import SUMS, sha256_of, write_sums
from dse.deploy.plan_text import plan_text
from dse.deploy.readme import readme_text
from dse.deploy.reference import make_reference
from dse.deploy.target import Deployment, Order, Target
from dse.errors import InputError
from dse.files import write_bytes, write_json, write_text
from dse.flatbuffer.operators import clean
from dse.mapping_file import MappingFile, write_mapping
from dse.mapping_schema import mapping_schema
from dse.pipeline.plan import LanePlan, PipelinePlan
from dse.staging import Stager
from dse.validation.outputs import check_outputs

# The earliest time that archives can hold: archives of equal bundles are equal, too.
_TIME_S = 315_532_800
_OWN_FILES = (SUMS, "mapping.yaml", "plan.txt")


def write_bundle(target: Target, order: Order, output: Path, *, force: bool = False) -> Deployment:
    """Make a bundle.

    Parameters
    ----------
    target
        What it is for.
    order
        What is deployed.
    output
        Its folder.
    force
        Replace a bundle that is there.

    Raises
    ------
    InputError
        ``output`` is there (or is something else than a bundle), or the target refuses.
    MismatchError, DeviceError
        The stages do not give the whole model's outputs, or do not run.  Nothing is left behind.
    """
    output = output.absolute()
    _check_output(output, force)
    target.check(order)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.parent / f".{output.name}.partial-{os.getpid()}"
        partial.mkdir()
    except OSError as error:
        raise InputError(f"{output}: can not be written: {error.strerror}") from None
    try:
        deployment = _fill(target, order, partial)
        _publish(partial, output, force)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return replace(deployment, folder=output, plan=_moved(deployment.plan, partial, output))


def _fill(target: Target, order: Order, folder: Path) -> Deployment:
    plan = _write_stages(target, order, folder)
    reference = make_reference(order.file.path, order.graph, plan, order.seed)
    check_outputs(order.file.path, plan, reference.frames)
    reference.write(folder / "reference")
    files = {
        stage.name: stage.model_path.relative_to(folder).as_posix()
        for lane in plan.lanes
        for stage in lane.stages
    }
    content = MappingFile.of(order.graph, order.file.sha256, order.platform.name, order.mapping, files)
    write_mapping(folder / "mapping.yaml", content)
    write_json(folder / "mapping.schema.json", mapping_schema())
    write_json(folder / "signatures.json", _signatures(order))
    text = plan_text(
        plan,
        files,
        mapping_sha256=sha256_of(folder / "mapping.yaml"),
        model=order.graph.name,
        queue_depth=order.queue_depth,
        tolerances=reference.tolerances,
    )
    write_text(folder / "plan.txt", text)
    deployment = Deployment(order, folder, content, plan, reference)
    manual = target.write(deployment)
    write_text(folder / "README.md", readme_text(deployment, target.name, manual))
    write_sums(folder)
    _settle(folder, {folder / name for name in manual.executables})
    return deployment


def _write_stages(target: Target, order: Order, folder: Path) -> PipelinePlan:
    """Write each stage once, as the target wants it, and return the plan of these files."""
    stages = folder / "stages"
    plan = Stager(order.file, order.graph, stages).mapping_pipeline(order.name, order.mapping)
    kept: dict[Path, Path] = {}
    for source in dict.fromkeys(stage.model_path for lane in plan.lanes for stage in lane.stages):
        kept[source] = stages / source.name
        data = source.read_bytes()
        wanted = target.stage_bytes(source.name, data)
        if wanted != data or source != kept[source]:
            write_bytes(kept[source], wanted)
    lanes = [
        LanePlan(tuple(replace(stage, model_path=kept[stage.model_path]) for stage in lane.stages))
        for lane in plan.lanes
    ]
    return replace(plan, lanes=tuple(lanes))


def _signatures(order: Order) -> dict[str, Any]:
    """Tell how the uncut model is called: what users of it know its tensors by."""
    graph = order.graph
    main = order.file.model.subgraphs[0]

    def tensor(index: int) -> dict[str, Any]:
        found = graph.tensors[index]
        return {"name": found.name, "dtype": found.dtype, "shape": list(found.shape), "bytes": found.n_bytes}

    signatures = [
        {
            "key": clean(signature.signature_key),
            "inputs": {
                clean(entry.name): main.inputs.index(entry.tensor_index) for entry in signature.inputs
            },
            "outputs": {
                clean(entry.name): main.outputs.index(entry.tensor_index) for entry in signature.outputs
            },
        }
        for signature in order.file.model.signature_defs
        if signature.subgraph_index == 0
    ]
    return {
        "format": "tflite-dse signatures",
        "version": 1,
        "inputs": [tensor(index) for index in graph.inputs],
        "outputs": [tensor(index) for index in graph.outputs],
        "signatures": signatures,
    }


def _check_output(output: Path, force: bool) -> None:
    if not (output.exists() or output.is_symlink()):
        return
    if not force:
        raise InputError(
            f"{output} is already there: choose another with --output, or replace it with --force"
        )
    if not output.is_dir() or output.is_symlink() or not all((output / n).is_file() for n in _OWN_FILES):
        raise InputError(f"{output} is not a bundle of dse export, so --force does not replace it")


def _publish(partial: Path, output: Path, force: bool) -> None:
    old = output.parent / f".{output.name}.old-{os.getpid()}"
    if force and output.exists():
        output.rename(old)
    try:
        partial.rename(output)
    except OSError as error:
        if old.exists():
            old.rename(output)
        raise InputError(f"{output}: can not be written: {error.strerror}") from None
    shutil.rmtree(old, ignore_errors=True)


def _settle(folder: Path, executables: set[Path]) -> None:
    """Give files and folders modes and times that do not depend on who made them, and when."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(0o755 if path.is_dir() or path in executables else 0o644)
        os.utime(path, (_TIME_S, _TIME_S))
    folder.chmod(0o755)
    os.utime(folder, (_TIME_S, _TIME_S))


def _moved(plan: PipelinePlan, old: Path, new: Path) -> PipelinePlan:
    lanes = [
        LanePlan(
            tuple(replace(stage, model_path=new / stage.model_path.relative_to(old)) for stage in lane.stages)
        )
        for lane in plan.lanes
    ]
    return replace(plan, lanes=tuple(lanes))
