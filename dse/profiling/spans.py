"""Measuring whole stages: any set of layers as one model, on any slots of this machine.

The sum of layer costs is an approximation (fusion, caches); a measured stage is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dse import conditions
from dse.costs import StageCost
from dse.errors import InputError
from dse.graph import LayerGraph
from dse.platforms import Platform, Slot
from dse.problems import stage_memory
from dse.profiling.cache import Journal, ProfileCache
from dse.profiling.campaign import GROWN, Campaign
from dse.profiling.layer_models import capture_numbers, span_name, span_subject
from dse.profiling.measured import MEMORY_SHARE, cache_key, check_measurable, slot_worker
from dse.profiling.options import ProfileOptions
from dse.profiling.stats import visit_interval
from dse.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile

Span = tuple[int, ...]


def measure_spans(
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    wanted: Mapping[Span, Sequence[Slot]],
    options: ProfileOptions | None = None,
    cache: ProfileCache | None = None,
    progress: Progress | None = None,
) -> dict[tuple[Span, Slot], StageCost]:
    """Measure sets of layers as stages, interleaved in random order.

    Parameters
    ----------
    file, graph
        The model.
    platform
        This machine.
    wanted
        Layer indices of each stage, and the slots to measure it on.
    options, cache, progress
        As for ``dse.profiling.measured.profile``; stages have a journal of their own.

    Returns
    -------
    dict
        By stage (indices ascending) and slot.

    Raises
    ------
    InputError
        A slot is not of this platform, or a stage has no layers.
    PlatformError
        The platform is only described.
    DeviceError
        A thread lost its affinity mask.
    """
    options = options or ProfileOptions()
    check_measurable(platform)
    pairs = [(tuple(sorted(set(span))), slot) for span, slots in wanted.items() for slot in slots]
    for span, slot in pairs:
        if not span or slot not in platform.slots:
            raise InputError(
                f"expected stages with layers on slots of {platform.name}"
                f" ({', '.join(map(str, platform.slots))}), got {span} on {slot}"
            )
    key = cache_key(file.sha256, platform, options, subject="stages")
    with Journal() if cache is None else cache.open(key, refresh=options.refresh) as journal:
        missing = [
            p for p in pairs if not journal.record(str(p[1]), span_name(p[0])).satisfies(options.precision)
        ]
        if missing:
            _measure(file, graph, platform, missing, options, journal, progress or SilentProgress())
        return {
            (span, slot): _cost(graph, journal, span, slot, options.typical(slot)) for span, slot in pairs
        }


def _measure(
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    pairs: Sequence[tuple[Span, Slot]],
    options: ProfileOptions,
    journal: Journal,
    progress: Progress,
) -> None:
    slots = tuple(dict.fromkeys(slot for _, slot in pairs))
    available = conditions.snapshot().available_bytes or (1 << 30)
    with tempfile.TemporaryDirectory(prefix="tflite-dse-stages-") as name, ExitStack() as stack:
        folder = Path(name)
        numbers = capture_numbers(file, graph, folder, options.seed)
        task = stack.enter_context(progress.task("stages", len(pairs)))
        share = options.budget_s / len(slots)
        # Slots may have different stages, so each is a campaign of its own.
        for slot in slots:
            worker = stack.enter_context(
                slot_worker(platform, slot, folder / f"slot{slots.index(slot)}.log", options)
            )
            worker.settle(folder)
            subjects = [span_subject(file, graph, span, numbers) for span, on in pairs if on == slot]
            batch = round(available * MEMORY_SHARE)
            campaign = Campaign({slot: worker}, journal, options, folder, task, batch, budget_s=share)
            campaign.run(subjects)


def _cost(
    graph: LayerGraph, journal: Journal, span: Span, slot: Slot, typical: Callable[[Sequence[int]], int]
) -> StageCost:
    record = journal.record(str(slot), span_name(span))
    weights, arena = stage_memory(graph, span)
    if record.refused or not record.visits:
        reason = record.refused or "not measured"
        return StageCost(span, slot, None, reason=reason, weight_bytes=weights, arena_bytes=arena)
    return StageCost(
        span,
        slot,
        typical(record.samples_ns),
        record.samples_ns,
        visit_interval(record.used_visits),
        weight_bytes=weights,
        arena_bytes=arena,
        peak_rss_bytes=journal.extra.get(f"{GROWN} {slot}", {}).get(span_name(span)),
    )
