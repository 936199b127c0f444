"""What a target is asked to deploy, and what it has to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dse.deploy.reference import Reference
from dse.errors import InputError
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.mapping_file import MappingFile
from dse.pipeline.plan import PipelinePlan
from dse.placement import PlacedMapping
from dse.platforms import Platform
from dse.results import PlanResult


@dataclass(frozen=True)
class Order:
    """What is to be deployed; nothing is written yet.

    Parameters
    ----------
    name
        Of the bundle, for people and for names of services.
    file, graph
        The whole model.
    platform
        Where it is to run.
    mapping
        Checked against both.
    figures
        The mapping's plan with predicted and, when it was measured, measured figures; None when
        nothing is known.
    measured_on
        How the figures came about, for people.
    queue_depth
        Frames that may wait in front of a stage.
    seed
        For the reference frames.
    supported_by
        Which runtime the stages of a cluster were kept fit for, by cluster; empty: nothing was asked.
    """

    name: str
    file: ModelFile = field(repr=False)
    graph: LayerGraph = field(repr=False)
    platform: Platform
    mapping: PlacedMapping
    figures: PlanResult | None = None
    measured_on: str = ""
    queue_depth: int = 2
    seed: int = 0
    supported_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Deployment:
    """A bundle in the making, as a target's ``write`` sees it.

    Parameters
    ----------
    order
        What is to be deployed.
    folder
        Where the bundle is built; holds the common files already, but ``README.md`` and ``SHA256SUMS``.
    content
        The bundle's ``mapping.yaml``.
    plan
        How the stages connect; the model paths are files below ``folder``.
    reference
        Frames and the outputs that belong to them.
    """

    order: Order
    folder: Path
    content: MappingFile
    plan: PipelinePlan
    reference: Reference

    def relative(self, path: Path) -> str:
        """Return a path below the folder as the bundle names it."""
        return path.relative_to(self.folder).as_posix()


@dataclass(frozen=True, slots=True)
class Manual:
    """What a target tells about its files.

    Parameters
    ----------
    usage
        Markdown for the bundle's README: how to run, verify and install it there.  Headings of level 2.
    executables
        Files that can be called, relative to the bundle.
    """

    usage: str
    executables: tuple[str, ...] = ()


def check_cpu_only(order: Order) -> None:
    """Refuse stages on accelerators.

    Raises
    ------
    InputError
        Names them.
    """
    elsewhere = [f"{stage.name} ({stage.slot})" for stage in order.mapping.stages if stage.device != "cpu"]
    if elsewhere:
        raise InputError(
            f"this target runs stages on CPU cores only, but {', '.join(elsewhere)} use accelerators: "
            f"give a mapping without them (--mapping)"
        )


class Target(Protocol):
    """A place or a runtime that bundles are made for.

    Subclass it: all methods but ``write`` have a default.
    """

    name: str
    """As in ``dse export --to``."""

    summary: str
    """One line for people."""

    def check(self, order: Order) -> None:
        """Refuse what can not work on this target; all reasons in one error.

        By default stages on accelerators, which no target runs.

        Raises
        ------
        InputError
            The message names operators, types or cores, and what to do.
        """
        check_cpu_only(order)

    def stage_bytes(self, name: str, data: bytes) -> bytes:
        """Return the file of a stage as this target wants it."""
        return data

    def write(self, deployment: Deployment) -> Manual:
        """Write the target's own files."""
        ...
