"""Whether a mapping, perhaps edited by hand, fits a model and a platform."""

from __future__ import annotations

from dse.errors import ConfigError, CutError, InputError
from dse.flatbuffer.cut import check_cut
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.mapping_file import MappingFile
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Platform


def check_mapping(mapping: PlacedMapping, graph: LayerGraph, platform: Platform) -> None:
    """Refuse what a hand may have broken.

    Raises
    ------
    ConfigError
        All faults at once: layers missing, twice or unknown; state parted; stages that wait for
        each other or for a later one; clusters or cores that the platform does not have; cores
        used twice.
    """
    faults: list[str] = []
    used: dict[int, tuple[int, PlacedStage]] = {}
    for number, lane in enumerate(mapping.lanes):
        try:
            check_cut(graph, [stage.layers for stage in lane.stages])
        except CutError as error:
            names = ", ".join(stage.name for stage in lane.stages)
            faults.append(f"lane {number} ({names}): {error}")
        else:
            faults += _order_faults(lane, graph)
        for stage in lane.stages:
            faults += _core_faults(number, stage, platform, used)
    if faults:
        raise ConfigError([f"mapping: {fault}" for fault in dict.fromkeys(faults)])


def check_model(content: MappingFile, file: ModelFile) -> None:
    """Refuse a mapping of another model.

    Raises
    ------
    InputError
        Quotes both hashes.
    """
    if content.model_hash != file.sha256:
        raise InputError(
            f"the mapping is for model {content.model_name} (sha256 {content.model_hash[:12]}...), "
            f"{file.path} has {file.sha256[:12]}..."
        )


def _core_faults(
    number: int, stage: PlacedStage, platform: Platform, used: dict[int, tuple[int, PlacedStage]]
) -> list[str]:
    found = []
    known = {cluster.name: cluster for cluster in platform.clusters}
    cluster = known.get(stage.cluster)
    if cluster is None:
        clusters = ", ".join(known)
        found.append(
            f"{stage.name}: platform {platform.name} has no cluster {stage.cluster!r}, only {clusters}"
        )
    elif cluster.kind != stage.device:
        found.append(f"{stage.name}: cluster {stage.cluster} is a {cluster.kind}, not a {stage.device}")
    elif strange := sorted(set(stage.cores) - set(cluster.core_ids)):
        found.append(
            f"{stage.name}: cluster {stage.cluster} of platform {platform.name} has cores "
            f"{_list(cluster.core_ids)}, not {_list(strange)}"
        )
    if repeated := sorted({core for core in stage.cores if stage.cores.count(core) > 1}):
        found.append(f"{stage.name}: core {_list(repeated)} is listed twice")
    for core in dict.fromkeys((*stage.cores, *stage.host_cores)):
        other_lane, other = used.setdefault(core, (number, stage))
        # Stages of one lane may take turns on the same cores, if on all of them.
        same = (set(other.cores), set(other.host_cores)) == (set(stage.cores), set(stage.host_cores))
        if other_lane != number or not same:
            found.append(f"core {core} is used by {other.name} and by {stage.name}; give each its own cores")
    return found


def _order_faults(lane: PlacedLane, graph: LayerGraph) -> list[str]:
    home = {layer: at for at, stage in enumerate(lane.stages) for layer in stage.layers}
    for maker, user in graph.edges:
        if home[maker] > home[user]:
            return [
                f"{lane.stages[home[user]].name} uses layer {maker} of {lane.stages[home[maker]].name}, "
                f"which is listed after it: list the stages in the order in which frames pass them"
            ]
    return []


def _list(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
