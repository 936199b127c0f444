"""Measuring what every layer costs on every slot of this machine."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dse import conditions
from dse.costs import Cost, CostTable, WholeCost
from dse.errors import DeviceError, PlatformError
from dse.graph import Layer, LayerGraph
from dse.platforms import Link, Platform, Slot
from dse.profiling.accelerator_links import measure_accelerator_links
from dse.profiling.assembly import layer_cost, precision_reached, resolutions, unresolved_layers
from dse.profiling.background import Background
from dse.profiling.cache import CacheKey, Journal, ProfileCache
from dse.profiling.campaign import YARDSTICK, Campaign, Subject
from dse.profiling.idle import measure_idle
from dse.profiling.in_situ import Resolution
from dse.profiling.inside_run import TOTAL, InsideRun
from dse.profiling.layer_models import (
    capture_numbers,
    layer_subjects,
    span_name,
    span_subject,
    subject_of,
)
from dse.profiling.links import links_from_json, measure_links
from dse.profiling.options import ProfileOptions
from dse.profiling.regions import Region, regions, scaled
from dse.profiling.reuse import Known
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import median
from dse.profiling.tiny import tiny_model
from dse.progress import Progress, SilentProgress
from dse.units import NS_PER_S

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile

RUNTIME = "ai-edge-litert"
WHOLE = "whole model"
OVERHEAD = "invocation"
IDLE = "idle"  # note of a journal, by slot: what waiting adds
FALLBACK = "fallback"
MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Study:
    """What one profile is about."""

    file: ModelFile
    graph: LayerGraph
    platform: Platform
    options: ProfileOptions
    progress: Progress
    known: Known

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots on which something is left to measure."""
        n_layers = len(self.graph.layers)
        return tuple(slot for slot in self.platform.slots if self.known.missing(slot, n_layers))

    @property
    def measures_links(self) -> bool:
        """Whether hand-overs are measured."""
        return self.options.links and not self.platform.links and not self.known.links(self.platform)


def profile(
    file: ModelFile,
    graph: LayerGraph,
    platform: Platform,
    options: ProfileOptions | None = None,
    cache: ProfileCache | None = None,
    progress: Progress | None = None,
    known: Sequence[CostTable] = (),
) -> CostTable:
    """Measure a model, layer by layer and as a whole, on every slot of this machine.

    There is a process per slot, pinned before it builds anything.  Layers are timed inside the
    whole model by the runtime's profiler; where that is not possible (or not wanted), every
    distinct layer becomes a model of its own.  The profiled model, the plain whole model, an empty
    model and single layers take turns in random order, slot after slot, until the wanted precision
    or the budget is reached.

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
    known
        Measured tables of this model: what they supply is not measured.

    Returns
    -------
    CostTable
        In-situ samples are one mean per visit; those of extracted layers are single invocations, and
        ``median_ns`` is their median less what an invocation costs by itself (``overhead_ns``).  A
        layer that the runtime refuses on a slot has no median, and the reason.

    Raises
    ------
    PlatformError
        The platform is only described, or has accelerators that the runtime can not drive.
    DeviceError
        The runtime can run the model on no slot, the method ``in_situ`` does not resolve every
        layer, or a thread lost its affinity mask.
    InputError
        The cache can not be written.
    """
    options = options or ProfileOptions()
    study = _Study(file, graph, platform, options, progress or SilentProgress(), Known(tuple(known)))
    check_measurable(platform)
    key = cache_key(file.sha256, platform, options)
    with Journal() if cache is None else cache.open(key, refresh=options.refresh) as journal:
        if study.slots or study.measures_links:
            _measure(study, journal)
        return study.known.fill(_table(study, journal), platform.slots)


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
    others = [cluster.name for cluster in platform.clusters if cluster.kind not in ("cpu", "gpu")]
    if others:
        raise PlatformError(
            f"platform {platform.name!r}: only cores and GPUs can be measured, not {', '.join(others)}"
        )


def cache_key(
    sha256: str, platform: Platform, options: ProfileOptions, *, subject: str = "layers"
) -> CacheKey:
    """Return what the measurements of a model on this machine depend on."""
    device = f"{platform.fingerprint} {conditions.cpu_model()}"
    method = f"{subject}, load: {options.load}"
    if options.time_shared:
        method += f", time-shared: {', '.join(sorted(options.time_shared))}"
    return CacheKey(sha256, device, f"{RUNTIME} {runtime_version()}", method)


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
    cores = study.platform.cpu_cores
    before = conditions.snapshot(cores)
    busy_before = _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="tflite-dse-profile-") as name:
        folder = Path(name)
        if study.measures_links and "links" not in journal.extra:
            fits = measure_links(study.platform, folder, study.options.timeout_s)
            fits += measure_accelerator_links(study.platform, folder)
            journal.note("links", [fit.to_json() for fit in fits])
        if study.slots:
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
    slots = study.slots
    always = (
        Subject(WHOLE, study.file.n_bytes, path=study.file.path, may_fall_back=True),
        Subject(OVERHEAD, 0, build=tiny_model),
    )
    available = conditions.snapshot().available_bytes or (1 << 30)
    with ExitStack() as stack:
        workers = {
            slot: stack.enter_context(
                slot_worker(study.platform, slot, folder / f"slot{i}.log", study.options)
            )
            for i, slot in enumerate(slots)
        }
        for worker in workers.values():
            worker.settle(folder)
        _load_whole(study, journal, workers)
        background = None
        if study.options.load == "loaded":
            background = stack.enter_context(
                Background(study.file.path, study.platform, study.options, folder)
            )
        inside = None
        if study.options.method != "extracted":
            inside = InsideRun(study.file.path, journal, study.options)
            for slot, worker in workers.items():
                if worker.device != "cpu":
                    journal.refuse(str(slot), TOTAL, "accelerators have no profiler")
                    continue
                if background is not None:
                    background.surround(worker.cores)
                inside.load(slot, worker)
                inside.visit(slot, worker)
        _insist_on_in_situ(study, journal)
        alone = _alone(study, journal)
        numbers = capture_numbers(study.file, study.graph, folder, study.options.seed) if alone else {}
        subjects = tuple(
            replace(subject, only=alone[subject.name])
            for subject in layer_subjects(study.file, study.graph, numbers)
            if subject.name in alone
        )
        steps = (len(subjects) + len(always)) * len(slots)
        task = stack.enter_context(study.progress.task("profile", steps))
        share = round(available * MEMORY_SHARE / len(slots))
        campaign = Campaign(workers, journal, study.options, folder, task, share, inside, background)
        campaign.run(subjects, always)
        journal.note("stopped by", campaign.stopped_by)
        _measure_idle(study, journal, workers)
        for slot, worker in workers.items():
            rows = _regions(study, journal, slot)
            if rows:
                parts = [span_subject(study.file, study.graph, row, numbers) for row in rows]
                Campaign({slot: worker}, journal, study.options, folder, task, share).run(parts)


def _alone(study: _Study, journal: Journal) -> dict[str, frozenset[Slot]]:
    """Return the layers that have to be models of their own, by subject, and on which slots."""
    wanted: dict[str, set[Slot]] = {}
    for slot, resolution in _resolutions(study, journal).items():
        for layer in _unresolved(study, slot, resolution):
            wanted.setdefault(subject_of(study.graph, layer), set()).add(slot)
    return {name: frozenset(slots) for name, slots in wanted.items()}


def _measure_idle(study: _Study, journal: Journal, workers: Mapping[Slot, SlotWorker]) -> None:
    """Measure, once per slot, what waiting adds to a run of the whole model."""
    for slot, worker in workers.items():
        record = journal.record(str(slot), WHOLE)
        if record.refused or not record.samples_ns or f"{IDLE} {slot}" in journal.extra:
            continue
        if isinstance(worker.load(WHOLE, study.file.path), str):
            continue
        effect = measure_idle(worker, WHOLE, median(record.samples_ns))
        worker.unload([WHOLE])
        if effect is not None:
            journal.note(f"{IDLE} {slot}", effect.to_json())


def _unresolved(study: _Study, slot: Slot, resolution: Resolution) -> tuple[Layer, ...]:
    """Return the layers that the profiler does not resolve on a slot, of those that are not known."""
    missing = set(study.known.missing(slot, len(study.graph.layers)))
    layers = unresolved_layers(study.graph, {slot: resolution})
    return tuple(layer for layer in layers if layer.index in missing)


def _insist_on_in_situ(study: _Study, journal: Journal) -> None:
    """Raise where the method is ``in_situ`` and does not resolve every layer on all cores."""
    if study.options.method != "in_situ":
        return
    for slot, resolution in _resolutions(study, journal).items():
        unresolved = _unresolved(study, slot, resolution)
        if unresolved and not _is_accelerator(study, slot):
            raise DeviceError(
                f"{study.file.path}: {len(unresolved)} of {len(study.graph.layers)} layers can not be timed"
                f" inside the model on {slot} ({resolution.reason}); use the method 'auto' or 'extracted'"
            )


def _is_accelerator(study: _Study, slot: Slot) -> bool:
    return study.platform.cluster(slot.cluster).is_accelerator


def _regions(study: _Study, journal: Journal, slot: Slot) -> tuple[Region, ...]:
    """Return the rows of layers that are timed as stages on an accelerator, none elsewhere."""
    if not _is_accelerator(study, slot):
        return ()
    records = [journal.record(str(slot), subject_of(study.graph, layer)) for layer in study.graph.layers]
    return regions(study.graph, [bool(r.visits) and not r.refused for r in records])


def _resolutions(study: _Study, journal: Journal) -> dict[Slot, Resolution]:
    return resolutions(study.file.model, study.graph, study.slots, journal, study.options)


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
            journal.note(f"{FALLBACK} {slot}", list(loaded.fallback))
    if not memory:
        raise DeviceError(f"{study.file.path}: the runtime can not run this model on any slot: {reasons[0]}")
    journal.note("memory", memory)


def slot_worker(platform: Platform, slot: Slot, log_path: Path, options: ProfileOptions) -> SlotWorker:
    """Start the process that measures on a slot."""
    device = platform.cluster(slot.cluster).kind
    return SlotWorker(slot, slot_cores(platform, slot), log_path, options, device)


def slot_cores(platform: Platform, slot: Slot) -> tuple[int, ...]:
    """Return the cores on which a slot is measured: the first of its cluster, or of an accelerator's host.

    An accelerator without a host is driven from any core.
    """
    cluster = platform.cluster(slot.cluster)
    if not cluster.is_accelerator:
        return cluster.core_ids[: slot.threads]
    if cluster.host is None:
        return platform.cpu_cores
    return platform.cluster(cluster.host.cluster).core_ids[: cluster.host.threads]


def _complete(study: _Study, journal: Journal) -> bool:
    if study.measures_links and "links" not in journal.extra:
        return False
    inside = () if study.options.method == "extracted" else (TOTAL,)
    wanted = {slot: [*inside, WHOLE, OVERHEAD] for slot in study.slots}
    for slot, names in wanted.items():
        names += [span_name(row) for row in _regions(study, journal, slot)]
    for name, slots in _alone(study, journal).items():
        for slot in slots:
            wanted[slot].append(name)
    return all(
        journal.record(str(slot), name).satisfies(study.options.precision)
        for slot, names in wanted.items()
        for name in names
    )


def _table(study: _Study, journal: Journal) -> CostTable:
    slots = study.slots
    empty = [journal.record(str(slot), OVERHEAD).samples_ns for slot in slots]
    overheads = tuple(median(samples) if samples else 0 for samples in empty)
    found = _resolutions(study, journal)
    measured_links = journal.extra.get("links") if study.measures_links else None
    links = study.platform.links or study.known.links(study.platform) or links_from_json(measured_links or ())
    columns = [
        _column(study, journal, slot, found[slot], overhead, links)
        for slot, overhead in zip(slots, overheads, strict=True)
    ]
    costs = tuple(tuple(column[n] for column in columns) for n in range(len(study.graph.layers)))
    return CostTable(
        model_hash=study.file.sha256,
        model_name=study.graph.name,
        platform_name=study.platform.name,
        slots=slots,
        costs=costs,
        overhead_ns=overheads,
        whole=tuple(_whole(journal, slot, study.options) for slot in slots),
        links=links,
        conditions={
            "method": study.options.method,
            "load": study.options.load,
            "in_situ": {
                str(slot): {
                    "n_layers": len(found[slot].layers),
                    "refused": journal.record(str(slot), TOTAL).refused,
                    "unresolved": found[slot].reason,
                }
                for slot in slots
            },
            "fallbacks": {
                str(slot): told for slot in slots if (told := journal.extra.get(f"{FALLBACK} {slot}"))
            },
            "runtime": RUNTIME,
            "runtime_version": runtime_version(),
            **({"emulated": True} if study.platform.emulated else {}),
            "platform_fingerprint": study.platform.fingerprint,
            "slot_cores": {str(slot): list(slot_cores(study.platform, slot)) for slot in slots},
            "precision": {
                **precision_reached(study.graph, costs, study.options.precision),
                "stopped_by": journal.extra.get("stopped by", "nothing was left to measure"),
            },
            "yardstick_ns": {str(slot): journal.extra.get(f"{YARDSTICK} {slot}") for slot in slots},
            "idle": {str(slot): told for slot in slots if (told := journal.extra.get(f"{IDLE} {slot}"))},
            "n_visits": journal.n_visits[0],
            "n_disturbed_visits": journal.n_visits[1],
            "links": measured_links,
            "machine": journal.extra.get("conditions"),
        },
    )


def _column(
    study: _Study,
    journal: Journal,
    slot: Slot,
    resolution: Resolution,
    overhead_ns: int,
    links: Sequence[Link],
) -> list[Cost]:
    column = [
        layer_cost(study.graph, layer, slot, journal, resolution, overhead_ns, study.options.typical(slot))
        for layer in study.graph.layers
    ]
    times = {
        row: study.options.typical(slot)(record.samples_ns)
        for row in _regions(study, journal, slot)
        if (record := journal.record(str(slot), span_name(row))).visits and not record.refused
    }
    # What a region's outputs cost on the way back is paid apart from computing: see the links.
    back = [link for link in links if link.source == slot.cluster and link.sender_pays]
    handing = {row: _handing_out_ns(study.graph, row, back[0]) if back else 0 for row in times}
    return scaled(column, times, overhead_ns, handing)


def _handing_out_ns(graph: LayerGraph, row: Region, link: Link) -> int:
    """Return what it costs to hand the tensors of a row to the layers after it."""
    made = {tensor for layer in row for tensor in graph.layers[layer].outputs}
    leaving = [t for t in made if not set(row).issuperset(graph.consumers.get(t, ()))]
    rate = link.bandwidth_bytes_per_s
    n_bytes = sum(graph.tensors[tensor].n_bytes for tensor in leaving)
    return link.setup_ns * len(leaving) + (0 if rate is None else round(n_bytes * NS_PER_S / rate))


def _whole(journal: Journal, slot: Slot, options: ProfileOptions) -> WholeCost | None:
    samples = journal.record(str(slot), WHOLE).samples_ns
    if not samples:
        return None
    return WholeCost(options.typical(slot)(samples), samples, journal.extra.get("memory", {}).get(str(slot)))


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
