"""``dse split``: cut a model where a person says, write the stages, and prove that they fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dse.errors import CutError, InputError
from dse.files import write_json
from dse.flatbuffer.cut import stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.mapping_file import read_mapping
from dse.measuring import N_FRAMES
from dse.placement import PlacedLane, PlacedStage
from dse.problems import find_layers
from dse.staging import Stager
from dse.validation import OutputCheck, check_outputs, moving_frames


@dataclass(frozen=True)
class SplitOutcome:
    """What ``split`` wrote.

    Parameters
    ----------
    files
        Stage files, in order.
    manifest
        How the stages connect; also written as ``manifest.json``.
    check
        Comparison with the whole model, None when it was not asked for.
    """

    files: tuple[Path, ...]
    manifest: dict[str, Any]
    check: OutputCheck | None


def split_model(
    model: Path, at: Sequence[str], out: Path, *, mapping: Path | None = None, verify: bool = False
) -> SplitOutcome:
    """Cut a model into stage files.

    Parameters
    ----------
    model
        The .tflite file.
    at
        Layer indices, layer names or tensor names; each cut comes right after that layer (for a
        tensor: after the layer that makes it).
    out
        Folder for the stages and ``manifest.json``; must be new or empty.
    mapping
        Take the stages of the first lane of this ``mapping.yaml`` instead of ``at``.
    verify
        Run whole and stages on the same inputs and compare.

    Raises
    ------
    CutError
        The model can not be cut there; says why, and where it could be.
    InputError
        Unknown layer, both or neither of ``at`` and ``mapping``, or the folder holds files.
    MismatchError
        The stages do not give the whole model's outputs.
    """
    if bool(at) == (mapping is not None):
        raise InputError("expected either places to cut at (--at) or a mapping (--mapping), and not both")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output folder {out}: expected a new or empty folder, it holds files")
    file = read_model(model)
    graph = build_graph(file)
    lane = _lane_of_mapping(mapping, file) if mapping is not None else _lane_of_cuts(graph, at)
    stager = Stager(file, graph, out)
    pipeline = stager.lane_pipeline("split", lane)
    manifest = stager.manifest(lane)
    write_json(out / "manifest.json", manifest)
    check = None
    if verify:
        frames, _ = moving_frames(file.path, graph, pipeline, N_FRAMES, seed=0)
        check = check_outputs(file.path, pipeline, frames)
    return SplitOutcome(tuple(stager.stage_path(stage) for stage in lane.stages), manifest, check)


def _lane_of_cuts(graph: LayerGraph, at: Sequence[str]) -> PlacedLane:
    n_layers = len(graph.layers)
    cuts: set[int] = set()
    for place in at:
        found = find_layers(graph, place)
        if len(found) != 1:
            raise InputError(f"--at {place!r} means {len(found)} layers; expected one")
        if found[0] == n_layers - 1:
            raise CutError(
                f"--at {place!r} is the last layer (of {n_layers}); nothing would come after the cut"
            )
        cuts.add(found[0] + 1)
    borders = [0, *sorted(cuts), n_layers]
    stages = stages_at(graph, sorted(cuts))
    if any(border - 1 not in stage for border, stage in zip(borders[1:], stages, strict=True)):
        # A named layer would have to move behind its own cut: let the plain cut say why.
        stages = tuple(tuple(range(first, last)) for first, last in pairwise(borders))
    core = min(os.sched_getaffinity(0))
    return PlacedLane(
        tuple(
            PlacedStage(f"stage{number}", layers, "cpu", 1, (core,)) for number, layers in enumerate(stages)
        )
    )


def _lane_of_mapping(path: Path, file: ModelFile) -> PlacedLane:
    content = read_mapping(path)
    if content.model_hash != file.sha256:
        raise InputError(
            f"mapping {path} is for model {content.model_name} (sha256 {content.model_hash[:12]}...), "
            f"{file.path} has {file.sha256[:12]}..."
        )
    return content.mapping.lanes[0]
