"""From plans to files and pipelines: cut the model, write each stage once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dse.files import write_bytes
from dse.flatbuffer.cut import SplitModel, manifest, split
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan, model_ports, planned_stage, stage_ports
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.results import PlanResult


class Stager:
    """Writes stage files; equal stages of different plans and lanes share one file.

    Parameters
    ----------
    file, graph
        The model.
    folder
        Where the stage files go; made when missing.

    Notes
    -----
    A lane of one stage runs the user's own file: that is what "the whole model" means.
    """

    def __init__(self, file: ModelFile, graph: LayerGraph, folder: Path) -> None:
        self._file = file
        self._graph = graph
        self._folder = folder
        self._splits: dict[tuple[tuple[int, ...], ...], SplitModel] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def split(self, lane: PlacedLane) -> SplitModel:
        """Cut the model at the borders of a lane's stages (remembered)."""
        layers = tuple(stage.layers for stage in lane.stages)
        if layers not in self._splits:
            self._splits[layers] = split(self._file, self._graph, layers)
        return self._splits[layers]

    def stage_path(self, stage: PlacedStage) -> Path:
        """Return the file of a stage; its name tells the layers."""
        if len(stage.layers) == len(self._graph.layers):
            return self._file.path
        span = stage.span
        if len(span) > 40:
            span = f"{span[:24]}-{hashlib.sha256(span.encode()).hexdigest()[:8]}"
        return self._folder / f"layers-{span.replace(',', '+')}.tflite"

    def pipeline(self, plan: PlanResult) -> PipelinePlan:
        """Write what is missing and return the plan for the runtime."""
        return self.mapping_pipeline(plan.name, plan.mapping)

    def mapping_pipeline(self, name: str, mapping: PlacedMapping) -> PipelinePlan:
        """Write what is missing and return a plan of a mapping."""
        return self._pipeline(name, mapping.lanes)

    def lane_pipeline(self, name: str, lane: PlacedLane) -> PipelinePlan:
        """Write what is missing and return a plan of one lane."""
        return self._pipeline(name, (lane,))

    def _pipeline(self, name: str, lanes: Sequence[PlacedLane]) -> PipelinePlan:
        stages = tuple(self._lane(lane) for lane in lanes)
        return PipelinePlan(name, stages, *model_ports(self._graph), self._graph.stateful)

    def _lane(self, lane: PlacedLane) -> LanePlan:
        if len(lane.stages) == 1:
            return LanePlan((self._stage(lane.stages[0], *model_ports(self._graph)),))
        stages = []
        for stage, model in zip(lane.stages, self.split(lane).stages, strict=True):
            path = self.stage_path(stage)
            if not path.exists():
                write_bytes(path, model.data)
            stages.append(self._stage(stage, *stage_ports(model)))
        return LanePlan(tuple(stages))

    def _stage(self, stage: PlacedStage, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> StagePlan:
        networks = self._graph.networks_of(stage.layers)
        return planned_stage(stage, self.stage_path(stage), inputs, outputs, networks)

    def write(self, lane: PlacedLane) -> None:
        """Write the stage files of a lane that are not there yet."""
        self._lane(lane)

    def manifest(self, lane: PlacedLane) -> dict[str, Any]:
        """Return how the stages of a lane connect (see ``dse.flatbuffer.cut.manifest``)."""
        return manifest(self.split(lane), [self.stage_path(stage).name for stage in lane.stages])

    def files(self, mapping: PlacedMapping) -> dict[str, Path]:
        """Return the file of each stage by the stage's name."""
        return {stage.name: self.stage_path(stage) for stage in mapping.stages}
