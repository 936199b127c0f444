"""Where the costs of an experiment come from: files, this machine, or a prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from dse.config import Experiment
from dse.costs import CostTable, StageCost, read_cost_table
from dse.errors import InputError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.platforms import Platform
from dse.problems import find_layers, problem_slots
from dse.profiling.analytic import predict
from dse.profiling.cache import ProfileCache
from dse.profiling.learned import Predictor, examples_of
from dse.profiling.measured import profile
from dse.profiling.options import Method, ProfileOptions
from dse.profiling.spans import measure_spans
from dse.progress import Progress

EXTRACTED_BUDGET_S = 40.0  # a model per layer takes longer than one model with a profiler inside


def find_costs(
    experiment: Experiment,
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    *,
    here: bool,
    progress: Progress,
) -> CostTable:
    """Read, measure or predict what each layer costs on each slot.

    Parameters
    ----------
    experiment
        Its ``profile`` says how.
    file, graph, platform
        What it is about.
    here
        Whether the platform is this machine.
    progress
        Where to tell how far it is.

    Raises
    ------
    DseError
        See ``read_costs``, ``learned_costs``, ``analytic.predict`` and ``measured.profile``.
    """
    section = experiment.profile
    if section.costs is not None:
        return read_costs(section.costs, file)
    if section.method == "learned":
        table = learned_costs(file, graph, [(pair.model, pair.costs) for pair in section.examples])
        problem_slots(platform, table)  # a platform without any of the learned slots is a mistake
        return table
    if section.method == "analytic" or (section.method == "auto" and not here):
        return dataclasses.replace(predict(graph, platform), model_hash=file.sha256)
    known = [read_costs(path, file) for path in section.reuse]
    if here:
        platform = dataclasses.replace(platform, origin="detected")
    options, cache = options_of(experiment, platform), cache_of(experiment)
    table = profile(file, graph, platform, options, cache, progress, known)
    if section.load != "both":
        return table
    busy = dataclasses.replace(options, load="loaded", links=False)
    known = [other.loaded for other in known if other.loaded is not None]
    loaded = profile(file, graph, platform, busy, cache, progress, known)
    return dataclasses.replace(table, loaded=loaded)


def options_of(experiment: Experiment, platform: Platform) -> ProfileOptions:
    """Return how an experiment wants to be measured; isolated first where it wants both loads."""
    section, usual = experiment.profile, ProfileOptions()
    known = section.method in get_args(Method)  # a prediction says nothing of how stages are measured
    return ProfileOptions(
        precision=section.precision,
        budget_s=section.budget_s
        or (EXTRACTED_BUDGET_S if section.method == "extracted" else usual.budget_s),
        min_rounds=section.min_samples,
        max_rounds=max(usual.max_rounds, section.min_samples),
        seed=experiment.seed,
        method=cast(Method, section.method) if known else "auto",
        load="isolated" if section.load == "both" else section.load,
        refresh=section.refresh,
        time_shared=time_shared(platform),
    )


def time_shared(platform: Platform) -> frozenset[str]:
    """Return the clusters of an emulated platform that are slower than its fastest."""
    rated = {cluster.name: cluster.capacity for cluster in platform.clusters if cluster.capacity is not None}
    return frozenset(
        name for name, capacity in rated.items() if platform.emulated and capacity < max(rated.values())
    )


def cache_of(experiment: Experiment) -> ProfileCache:
    """Return where an experiment keeps what it measures."""
    folder = experiment.cache_dir
    return ProfileCache.default() if folder is None else ProfileCache(folder)


def read_costs(path: Path, file: ModelFile) -> CostTable:
    """Read a saved cost table and check that it is for this model.

    Raises
    ------
    InputError
        It is not.
    """
    table = read_cost_table(path)
    if table.model_hash != file.sha256:
        raise InputError(
            f"cost table {path} is for model {table.model_name} (sha256 {table.model_hash[:12]}...), "
            f"not for {file.path} ({file.sha256[:12]}...): "
            "measure this one with 'dse profile'"
        )
    return table


def learned_costs(file: ModelFile, graph: LayerGraph, examples: Sequence[tuple[Path, Path]]) -> CostTable:
    """Predict a model from models (paths) and their measured cost tables (paths).

    Raises
    ------
    InputError
        There is no example, a table does not belong to its model or is itself a prediction, or the
        tables have no slot in common.
    MissingExtraError
        scikit-learn is not installed.
    """
    if not examples:
        raise InputError("a learned prediction needs examples: models and their measured cost tables")
    pairs = [_example(model, costs) for model, costs in examples]
    first = pairs[0][1]
    slots = [slot for slot in first.slots if all(slot in table.slots for _, table in pairs)]
    if not slots:
        raise InputError("the cost tables of the examples have no slot in common")
    lessons = {slot: [e for pair in pairs for e in examples_of(*pair, slot)] for slot in slots}
    predictor = Predictor(lessons, links=first.links, platform_name=first.platform_name)
    return dataclasses.replace(predictor.predict(graph), model_hash=file.sha256)


def measure_stages(
    experiment: Experiment,
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    spans: Sequence[str],
    progress: Progress,
) -> tuple[StageCost, ...]:
    """Measure spans of layers, each ``FROM:TO``, as stages on every slot of this machine.

    Raises
    ------
    InputError
        A span has another form, or its layers are not there or in the wrong order.
    """
    chosen = [span_layers(graph, span) for span in spans]
    found = measure_spans(
        file,
        graph,
        platform,
        dict.fromkeys(chosen, platform.slots),
        options_of(experiment, platform),
        cache_of(experiment),
        progress,
    )
    return tuple(found[span, slot] for span in dict.fromkeys(chosen) for slot in platform.slots)


def span_layers(graph: LayerGraph, text: str) -> tuple[int, ...]:
    """Return the layers from one to another, both included.

    Parameters
    ----------
    graph
        The model.
    text
        ``FROM:TO``, each the number or the name of a layer.

    Raises
    ------
    InputError
        The text has another form, or the layers are not there or in the wrong order.
    """
    # Names may contain colons: the parting at which both sides are layers is the one.
    for at in (index for index, sign in enumerate(text) if sign == ":"):
        try:
            first, last = find_layers(graph, text[:at])[0], find_layers(graph, text[at + 1 :])[-1]
        except InputError:
            continue
        if first > last:
            raise InputError(f"span {text!r}: layer {first} comes after layer {last}; write {last}:{first}")
        return tuple(range(first, last + 1))
    raise InputError(
        f"span {text!r}: expected FROM:TO, two layers (numbers from 0 to {len(graph.layers) - 1}, or names)"
    )


def _example(model: Path, costs: Path) -> tuple[LayerGraph, CostTable]:
    """Read a model and its cost table, and check that they belong together."""
    file, table = read_model(model), read_cost_table(costs)
    graph = build_graph(file)
    if len(graph.layers) != len(table.costs) or table.model_hash not in ("", file.sha256):
        raise InputError(f"{costs}: this cost table is of {table.model_name}, not of {model}")
    if not table.measured:
        raise InputError(f"{costs}: expected measured costs to learn from, these are predicted")
    return graph, table
