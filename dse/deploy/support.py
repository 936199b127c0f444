"""Which layers a runtime other than LiteRT can run: for targets, and for ``search: supported_by``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dse.deploy.arm_compute import translate
from dse.deploy.armnn import operators
from dse.errors import InputError
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.platforms import Platform

_UNSUPPORTED: Mapping[str, Callable[[ModelFile, LayerGraph], dict[int, str]]] = {
    "armnn": operators.unsupported_layers,
    "arm-compute": translate.unsupported_layers,
}


def unsupported_layers(runtime: str, file: ModelFile, graph: LayerGraph) -> dict[int, str]:
    """Return why layers can not run in a runtime: layer index -> reason."""
    return _UNSUPPORTED[runtime](file, graph)


def supported_clusters(platform: Platform, wanted: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return the runtime that the stages of a cluster have to be fit for, by cluster.

    Parameters
    ----------
    wanted
        ``search: supported_by``: a runtime for all CPU clusters, one for each cluster named, or None.

    Raises
    ------
    InputError
        A cluster is not there or is no CPU.
    """
    cpus = [cluster.name for cluster in platform.clusters if cluster.kind == "cpu"]
    if wanted is None:
        return {}
    if isinstance(wanted, str):
        return dict.fromkeys(cpus, wanted)
    for name in wanted:
        if name not in cpus:
            raise InputError(
                f"search.supported_by: {name!r} is no CPU cluster of platform {platform.name} "
                f"(it has {', '.join(cpus)})"
            )
    return dict(wanted)


def describe(graph: LayerGraph, reasons: Mapping[int, str]) -> str:
    """List layers with the reasons, a line each."""
    return "\n".join(
        f"layer {index} ({graph.layers[index].name}): {graph.layers[index].op}: {reason}"
        for index, reason in sorted(reasons.items())
    )
