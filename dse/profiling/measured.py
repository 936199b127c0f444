"""Measuring what every layer costs on every slot of this machine."""

from __future__ import annotations

import json
import resource
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse import conditions
from dse.costs import Cost, CostTable, WholeCost
from dse.errors import DeviceError, PlatformError
from dse.graph import LayerGraph
from dse.platforms import Platform, Slot
from dse.profiling.cache import CacheKey, Journal, ProfileCache, Record
from dse.profiling.campaign import Campaign, Subject, reached_precision, visit_interval
from dse.profiling.layer_models import capture_numbers, counts_for_group, layer_subjects, subject_of
from dse.profiling.links import links_from_json, measure_links
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import median
from dse.profiling.tiny import tiny_model
from dse.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile

RUNTIME = "ai-edge-litert"
WHOLE = "whole model"
OVERHEAD = "invocation"
MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Study:
    """What one profile is about."""

    file: ModelFile
    graph: LayerGraph
    platform: Platform
    options: ProfileOptions
    progress: Progress


def profile(
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    options: ProfileOptions | None = None,
    cache: ProfileCache | None = None,
    progress: Progress | None = None,
) -> CostTable:
    """Measure a model, layer by layer and as a whole, on every slot of this machine.

    Every distinct layer becomes a model of its own and is timed in a process per slot that was
    pinned before it built anything.  Layers, the whole model and an empty model take turns in
    random order, slot after slot, until the wanted precision or the budget is reached.

    Parameters
    ----------
    file, graph
        The model.
    platform
        As ``dse.detection.detect_platform`` found it.
    options
        Precision, budget and so on.
    cache
        Where measurements are kept; None keeps none.
    progress
        Where to tell how far it is.

    Returns
    -------
    CostTable
        ``samples_ns`` are raw times of single invocations; ``median_ns`` is their median less what
        an invocation costs by itself (``overhead_ns``).  A layer that the runtime refuses on a slot
        has no median, and the reason.

    Raises
    ------
    PlatformError
        The platform is only described, or has accelerators.
    DeviceError
        The runtime can run the model on no slot, or a thread lost its affinity mask.
    InputError
        The cache can not be written.
    """
    options = options or ProfileOptions()
    study = _Study(file, graph, platform, options, progress or SilentProgress())
    check_measurable(platform)
    key = cache_key(file.sha256, platform, options)
    with Journal() if cache is None else cache.open(key, refresh=options.refresh) as journal:
        _measure(study, journal)
        return _table(study, journal)


def check_measurable(platform: Platform) -> None:
    """Refuse a platform that is not this machine.

    Raises
    ------
    PlatformError
        With the ways out.
    """
    if platform.origin != "detected":
        raise PlatformError(
            f"platform {platform.name!r} is described, not detected, so nothing can be measured on it here;"
            " use '--platform auto' to measure this machine, give a cost file with '--costs FILE',"
            " or predict analytically with '--predict'"
        )
    others = [cluster.name for cluster in platform.clusters if cluster.kind != "cpu"]
    if others:
        raise PlatformError(
            f"platform {platform.name!r}: only CPU clusters can be measured, not {', '.join(others)}"
        )


def cache_key(sha256: str, platform: Platform, options: ProfileOptions) -> CacheKey:
    """Return what the measurements of a model on this machine depend on."""
    device = f"{platform.fingerprint} {conditions.cpu_model()}"
    method = {"method": "extracted", "kernels": options.kernels}
    return CacheKey(sha256, device, f"{RUNTIME} {runtime_version()}", json.dumps(method, sort_keys=True))


def runtime_version() -> str:
    """Return the version of the installed runtime without loading it.

    Raises
    ------
    DeviceError
        It is not installed.
    """
    try:
        return metadata.version(RUNTIME)
    except metadata.PackageNotFoundError:
        raise DeviceError(f"the runtime is not installed: pip install {RUNTIME}") from None


def _measure(study: _Study, journal: Journal) -> None:
    if _complete(study, journal):
        return
    cores = [core for cluster in study.platform.clusters for core in cluster.core_ids]
    before = conditions.snapshot(cores)
    busy_before = _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="tflite-dse-profile-") as name:
        folder = Path(name)
        if study.options.links and "links" not in journal.extra:
            fits = measure_links(study.platform, folder / "links.log", study.options.timeout_s)
            journal.note("links", [fit.to_json() for fit in fits])
        _run_campaign(study, journal, folder)
    after = conditions.snapshot(cores)
    change = conditions.drift(before, after, own_busy_s=_cpu_seconds() - busy_before)
    journal.note(
        "conditions",
        {
            **conditions.machine(),
            "before": before.to_json(),
            "after": after.to_json(),
            "steal_share": round(change.steal_share, 4),
            "busy_share": round(change.busy_share, 4),
            "warnings": [*study.platform.notes, *change.warnings],
        },
    )


def _run_campaign(study: _Study, journal: Journal, folder: Path) -> None:
    numbers = capture_numbers(study.file, study.graph, folder, study.options.seed)
    subjects = layer_subjects(study.file, study.graph, numbers)
    slots = study.platform.slots
    always = (
        Subject(WHOLE, study.file.n_bytes, path=study.file.path),
        Subject(OVERHEAD, 0, build=tiny_model),
    )
    available = conditions.snapshot().available_bytes or (1 << 30)
    with ExitStack() as stack, study.progress.task("profile", (len(subjects) + 2) * len(slots)) as task:
        workers = {
            slot: stack.enter_context(
                SlotWorker(slot, slot_cores(study.platform, slot), folder / f"slot{i}.log", study.options)
            )
            for i, slot in enumerate(slots)
        }
        campaign = Campaign(
            workers,
            journal,
            study.options,
            folder,
            task,
            batch_bytes=round(available * MEMORY_SHARE / len(slots)),
        )
        _load_whole(study, journal, workers)
        campaign.run(subjects, always)


def _load_whole(study: _Study, journal: Journal, workers: Mapping[Slot, SlotWorker]) -> None:
    """Load the whole model first, into fresh processes: it tells the memory, and whether it runs at all."""
    memory: dict[str, int] = {}
    reasons: list[str] = []
    for slot, worker in workers.items():
        loaded = worker.load(WHOLE, study.file.path)
        if isinstance(loaded, str):
            reasons.append(loaded)
        else:
            memory[str(slot)] = loaded.grown_bytes
    if not memory:
        raise DeviceError(f"{study.file.path}: the runtime can not run this model on any slot: {reasons[0]}")
    journal.note("memory", memory)


def slot_cores(platform: Platform, slot: Slot) -> tuple[int, ...]:
    """Return the cores on which a slot is measured: the first ones of its cluster."""
    return platform.cluster(slot.cluster).core_ids[: slot.threads]


def _complete(study: _Study, journal: Journal) -> bool:
    return (not study.options.links or "links" in journal.extra) and all(
        journal.record(str(slot), name).satisfies(study.options.precision)
        for slot in study.platform.slots
        for name in _names(study.graph)
    )


def _table(study: _Study, journal: Journal) -> CostTable:
    slots = study.platform.slots
    whole = tuple(_whole(journal, slot) for slot in slots)
    empty = [journal.record(str(slot), OVERHEAD).samples_ns for slot in slots]
    overheads = tuple(median(samples) if samples else 0 for samples in empty)
    rows = []
    for layer in study.graph.layers:
        name, counts = subject_of(study.graph, layer), counts_for_group(study.graph, layer)
        rows.append(
            tuple(
                _cost(journal.record(str(slot), name), overhead, counts=counts)
                for slot, overhead in zip(slots, overheads, strict=True)
            )
        )
    measured_links = journal.extra.get("links") if study.options.links else None
    return CostTable(
        model_hash=study.file.sha256,
        model_name=study.graph.name,
        platform_name=study.platform.name,
        slots=slots,
        costs=tuple(rows),
        overhead_ns=overheads,
        whole=whole,
        links=study.platform.links or links_from_json(measured_links or ()),
        conditions={
            "method": "extracted",
            "runtime": RUNTIME,
            "runtime_version": runtime_version(),
            "kernels": study.options.kernels,
            "platform_fingerprint": study.platform.fingerprint,
            "slot_cores": {str(slot): list(slot_cores(study.platform, slot)) for slot in slots},
            "precision": _precision(study, journal),
            "links": measured_links,
            "machine": journal.extra.get("conditions"),
        },
    )


def _cost(record: Record, overhead_ns: int, *, counts: bool) -> Cost:
    if record.refused or not record.visits:
        return Cost(None, reason=record.refused or "not measured")
    if not counts:
        return Cost(0, reason="measured together with the layers that share its state")
    interval = visit_interval(record.visits)
    return Cost(
        max(0, median(record.samples_ns) - overhead_ns),
        record.samples_ns,
        interval_ns=None
        if interval is None
        else (max(0, interval[0] - overhead_ns), max(0, interval[1] - overhead_ns)),
    )


def _whole(journal: Journal, slot: Slot) -> WholeCost | None:
    samples = journal.record(str(slot), WHOLE).samples_ns
    if not samples:
        return None
    return WholeCost(median(samples), samples, journal.extra.get("memory", {}).get(str(slot)))


def _precision(study: _Study, journal: Journal) -> dict[str, Any]:
    reached: list[float | None] = []
    for name in _names(study.graph):
        for slot in study.platform.slots:
            record = journal.record(str(slot), name)
            if record.visits:
                reached.append(reached_precision(record.visits))
    known: Sequence[float] = sorted(value for value in reached if value is not None)
    n_within = sum(value <= study.options.precision for value in known)
    return {
        "asked": study.options.precision,
        "n_measured": len(reached),
        "n_within": n_within,
        "worst": round(known[-1], 4) if len(known) == len(reached) and known else None,
        "stopped_by": "precision" if n_within == len(reached) else "budget or number of rounds",
    }


def _names(graph: LayerGraph) -> tuple[str, ...]:
    return (*dict.fromkeys(subject_of(graph, layer) for layer in graph.layers), WHOLE, OVERHEAD)


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
