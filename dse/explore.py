"""The whole flow on one page: model -> layers -> costs -> search -> stages -> measurement -> answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dse import costing
from dse.answer import choose, disagreements, explain
from dse.config import Experiment
from dse.costing import cache_of
from dse.costs import CostTable
from dse.deploy.support import describe, supported_clusters, unsupported_layers
from dse.errors import InputError, PlatformError
from dse.files import write_bytes, write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.machine import this_machine
from dse.measuring import Measurements, Trial, attach
from dse.pipeline.opening import MANIFEST
from dse.pipeline.streamline import check_daemon
from dse.planning import Planner, check_solver, find_plans, search_limits
from dse.platforms import ASSUMED_BYTES_PER_S, ASSUMED_SETUP_NS, Platform, Slot, assumed_links
from dse.problems import ResolvedPin, Wishes, build_problem, problem_slots, resolve_pins, wanted_slots
from dse.progress import Progress, SilentProgress
from dse.record import (
    journal,
    write_failure,
    write_inputs,
    write_measurements,
    write_plans,
    write_result,
    write_traces,
)
from dse.reports.html import write_report
from dse.results import PlanResult, Proof, RunResult
from dse.rounds import Outcome, measure_in_rounds
from dse.run_folder import LoggedProgress, RunFolder
from dse.staging import Stager
from dse.trials import trials_of
from dse.units import format_ns
from dse.variants import mask_unsound
from dse.workloads import open_source
from solvers.problem import Goal, Objective, Problem

KILLED = (
    "the run's process was killed while plans were measured: plans.json is of its last complete round, "
    "measurements.jsonl has every repeat; the same command measures plans again, with the costs in the cache"
)


@dataclass(frozen=True)
class Subject:
    """What an experiment is about, once it is loaded."""

    experiment: Experiment
    file: ModelFile
    graph: LayerGraph
    platform: Platform

    @property
    def here(self) -> bool:
        """Whether the platform is this machine, so that things can be measured on it."""
        return self.platform.origin == "detected" or self.experiment.measure.enabled is True

    @property
    def measures(self) -> bool:
        """Whether plans are to be run."""
        wanted = self.experiment.measure.enabled
        return self.here if wanted == "auto" else wanted


def run(experiment: Experiment, progress: Progress | None = None) -> RunResult:
    """Find, prove and measure the best mapping; leave a run folder.

    Raises
    ------
    DseError
        See the parts.  What was found out before stays in the run folder and in the cache.
    """
    folder = RunFolder(experiment.output, experiment.name)
    progress = LoggedProgress(progress or SilentProgress(), folder)
    graph: LayerGraph | None = None
    measurements = Measurements(journal=journal(folder.path))
    try:
        subject = load(experiment, folder.work, progress)
        graph = subject.graph
        write_inputs(folder.path, experiment, subject.platform)
        costs = find_costs(subject, progress)
        if subject.measures:
            parts = subject.file, graph, subject.platform
            costs = mask_unsound(*parts, costs, experiment.seed, progress)
        write_json(folder.path / "costs.json", costs.to_json())
        stager = Stager(subject.file, graph, folder.work / "stages")
        trial = Trial(experiment, subject.file, graph, stager, measurements, progress, costs.yardstick_ns)
        searched = search_plans(subject, costs, progress, trial if subject.measures else None)
        outcome = _measure(subject, costs, searched, trial, folder)
        costs = costs.with_stages(outcome.stages).corrected_by(outcome.corrections)
        result = conclude(subject, costs, outcome)
        files = _keep_stages(folder, stager, result)
        write_result(folder.path, result, files, trial.tried)
        write_measurements(folder.path, measurements.all)
        write_traces(folder.path, result.best.name, measurements.all, experiment.measure.traces)
        write_report(folder.path / "report.html", result)
        return replace(result, run_dir=folder.finish())
    except InputError:
        folder.discard()
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        folder.log(f"{'interrupted' if interrupted else 'failed'}: {error}")
        write_measurements(folder.path, measurements.all)
        write_failure(folder.path, graph, "interrupted" if interrupted else "failed", str(error))
        folder.finish()
        raise


def load(experiment: Experiment, work: Path, progress: Progress | None = None) -> Subject:
    """Read, build, download or merge the model, and find the platform."""
    file = open_source(
        experiment.model, work, name=experiment.name, cache=experiment.cache_dir, progress=progress
    )
    return join(experiment, file, build_graph(file))


def join(experiment: Experiment, file: ModelFile, graph: LayerGraph) -> Subject:
    """Find the platform of a model that is already read, and check the experiment's wishes."""
    variants = experiment.variants
    platform = experiment.platform or this_machine(variants.kernels, variants.accelerators)
    if experiment.measure.enabled is True and experiment.platform is not None:
        missing = sorted(set(platform.cpu_cores) - os.sched_getaffinity(0))
        if missing:
            raise PlatformError(
                f"measure.enabled is true, but platform {platform.name} has cores {missing} that this "
                f"process may not use (affinity mask: {sorted(os.sched_getaffinity(0))})"
            )
    # Faults in wishes are told now, not after a minute of measuring.
    check_solver(experiment.search.solver)
    unknown = [cluster.name for cluster in platform.clusters if cluster.active_power_mw is None]
    if experiment.search.goal == "energy" and unknown:
        raise PlatformError(
            f"search.goal is energy, but platform {platform.name} gives no active_power_mw for "
            f"{', '.join(unknown)}: add it to the platform's description, or choose another goal"
        )
    wanted_slots(platform, experiment.search.slots)
    resolve_pins(graph, platform, experiment.pins)
    subject = Subject(experiment, file, graph, platform)
    refused_layers(subject)
    if experiment.measure.annotate and subject.measures:
        check_daemon()
    return subject


def find_costs(subject: Subject, progress: Progress) -> CostTable:
    """Read, measure or predict what layers cost on each slot, and assume hand-overs that nobody tells."""
    costs = costing.find_costs(
        subject.experiment,
        subject.file,
        subject.graph,
        subject.platform,
        here=subject.here,
        progress=progress,
    )
    links = tuple(link for link in costs.links if not link.assumed)
    if not links and not subject.platform.links and subject.platform.origin == "described":
        links = assumed_links(subject.platform)
    return replace(costs, links=links)


def make_problem(
    subject: Subject, costs: CostTable
) -> tuple[Problem, tuple[Slot, ...], tuple[ResolvedPin, ...]]:
    """Build the problem that the experiment's wishes pose; returns its slots and pins as well."""
    search = subject.experiment.search
    pins = resolve_pins(subject.graph, subject.platform, subject.experiment.pins)
    costs = costs.only(wanted_slots(subject.platform, search.slots))
    latency_ms = search.max_latency_ms
    wishes = Wishes(
        pins=pins,
        max_lanes=search.max_lanes,
        max_stages=search.max_stages,
        memory_limit_bytes=search.memory_limit,
        objective=Objective(
            Goal(search.goal),
            search.min_throughput_hz,
            None if latency_ms is None else round(latency_ms * 1e6),
        ),
        queue_depth=search.queue_depth,
        refused=refused_layers(subject),
    )
    problem = build_problem(subject.graph, subject.platform, costs, wishes)
    return problem, problem_slots(subject.platform, costs), pins


def refused_layers(subject: Subject) -> dict[str, frozenset[int]]:
    """Return the layers that ``search: supported_by`` keeps off clusters, by cluster.

    Raises
    ------
    InputError
        No cluster is left for a layer; names all such layers.
    """
    graph, platform = subject.graph, subject.platform
    wanted = supported_clusters(platform, subject.experiment.search.supported_by)
    reasons = {
        runtime: unsupported_layers(runtime, subject.file, graph) for runtime in sorted(set(wanted.values()))
    }
    if all(cluster.name in wanted for cluster in platform.clusters):
        stuck = set.intersection(*(set(found) for found in reasons.values())) if reasons else set()
        if stuck:
            told = {index: next(iter(reasons.values()))[index] for index in stuck}
            raise InputError(
                f"search.supported_by leaves no cluster for {len(stuck)} of {len(graph.layers)} layers:\n"
                f"{describe(graph, told)}\nLeave a cluster out, for example {{{platform.clusters[0].name}: "
                f"{next(iter(reasons))}}}: stages on the others stay in LiteRT"
            )
    return {cluster: frozenset(reasons[runtime]) for cluster, runtime in wanted.items()}


def search_plans(
    subject: Subject, costs: CostTable, progress: Progress, trial: Trial | None = None
) -> tuple[Planner, Proof, tuple[PlanResult, ...]]:
    """Search, and gather baselines and alternatives; ``trial`` runs mappings where that is asked for."""
    search = subject.experiment.search
    problem, slots, pins = make_problem(subject, costs)
    folder = cache_of(subject.experiment).folder
    planner = Planner(problem, subject.platform, slots, pins, costs)
    running = None if trial is None else lambda _: trial.scorer(planner)
    trials = trials_of(subject.experiment, costs, slots, folder, running)
    planner = replace(planner, trials=trials)
    with progress.task("searching", 1) as task:
        limits = search_limits(subject.experiment, task)
        proof, plans = find_plans(planner, search.solver, limits, search.candidates)
        task.advance()
    return planner, proof, plans


def conclude(subject: Subject, costs: CostTable, outcome: Outcome) -> RunResult:
    """Choose the answer and say why."""
    goal = subject.experiment.search.goal
    plans = outcome.plans
    winner = choose(plans, goal)
    warnings = [*subject.file.warnings, *outcome.warnings]
    if subject.platform.emulated:
        warnings.append("The unlike cores of this platform are emulated.")
    if not costs.measured:
        warnings.append("Costs are predicted, not measured: use them to compare plans, not as frames/s.")
    if any(link.assumed for link in costs.links):
        warnings.append(
            f"What a hand-over costs is assumed ({format_ns(ASSUMED_SETUP_NS)} and "
            f"{ASSUMED_BYTES_PER_S / 1e9:g} GB/s): write it as 'hand_over' into the platform's file."
        )
    return RunResult(
        graph=subject.graph,
        platform=subject.platform,
        costs=costs,
        proof=outcome.proof,
        plans=plans,
        winner=winner,
        reason=explain(plans, winner, subject.platform, pinned=bool(subject.experiment.pins), goal=goal),
        warnings=(*warnings, *disagreements(plans, winner, goal)),
        output_check=outcome.check,
        goal=goal,
        rounds=outcome.rounds,
    )


def _measure(
    subject: Subject,
    costs: CostTable,
    searched: tuple[Planner, Proof, tuple[PlanResult, ...]],
    trial: Trial,
    folder: RunFolder,
) -> Outcome:
    """Measure plans where that is wanted; the folder tells the best known, also after Ctrl-C or a kill."""
    planner, proof, plans = searched
    latest = Outcome(proof, plans)

    def told(outcome: Outcome) -> None:
        nonlocal latest
        latest = outcome
        write_plans(folder.path, conclude(subject, costs, outcome), {}, trial.tried)

    try:
        if proof.interrupted:
            raise KeyboardInterrupt
        if not subject.measures:
            return latest
        write_failure(folder.path, subject.graph, "killed", KILLED)
        told(latest)
        return measure_in_rounds(trial, planner, proof, plans, told)
    except KeyboardInterrupt:
        result = conclude(subject, costs, _with_first_repeats(latest, trial))
        write_plans(folder.path, result, _keep_stages(folder, trial.stager, result), trial.tried)
        raise


def _with_first_repeats(outcome: Outcome, trial: Trial) -> Outcome:
    """Add what was measured of a first round that was interrupted; later ones count when complete."""
    if outcome.rounds:
        return outcome
    found = trial.measurements.by_plan
    plans = (
        attach(plan, found[plan.name], trial.graph, trial.yardstick_ns) if plan.name in found else plan
        for plan in outcome.plans
    )
    return replace(outcome, plans=tuple(plans))


def _keep_stages(folder: RunFolder, stager: Stager, result: RunResult) -> dict[str, str]:
    """Copy the answer's model files into the run folder; return them by stage name."""
    target = folder.path / "stages"
    target.mkdir()
    kept: dict[str, str] = {}
    for lane in result.best.mapping.lanes:
        stager.write(lane)
    for name, path in stager.files(result.best.mapping).items():
        copy = target / path.name
        if not copy.exists():
            write_bytes(copy, path.read_bytes())
        kept[name] = f"stages/{path.name}"
    for number, lane in enumerate(result.best.mapping.lanes):
        if len(lane.stages) > 1:
            write_json(target / MANIFEST.format(number), stager.manifest(lane))
    return kept


def profile(
    experiment: Experiment, progress: Progress | None = None, spans: Sequence[str] = ()
) -> tuple[Subject, CostTable]:
    """Measure (or predict) what each layer costs, and what spans of layers cost as stages; nothing more.

    Parameters
    ----------
    spans
        Each ``FROM:TO``; see ``dse.costing.measure_stages``.
    """
    import tempfile

    progress = progress or SilentProgress()
    with tempfile.TemporaryDirectory(prefix="dse-profile-") as work:
        subject = load(experiment, Path(work), progress)
        for span in spans:  # faults are told before anything is measured
            costing.span_layers(subject.graph, span)
        table = find_costs(subject, progress)
        if spans:
            parts = (experiment, subject.file, subject.graph, subject.platform)
            stages = costing.measure_stages(*parts, spans, progress)
            table = replace(table, stages=(*table.stages, *stages))
        return subject, table


def search(experiment: Experiment, progress: Progress | None = None) -> RunResult:
    """Search without running any plan; costs come from a file, the cache, a prediction, or profiling."""
    import tempfile

    progress = progress or SilentProgress()
    with tempfile.TemporaryDirectory(prefix="dse-search-") as work:
        subject = load(experiment, Path(work), progress)
        return search_subject(subject, find_costs(subject, progress), progress)


def search_subject(subject: Subject, costs: CostTable, progress: Progress) -> RunResult:
    """Search with what is already loaded and known."""
    _, proof, plans = search_plans(subject, costs, progress)
    return conclude(subject, costs, Outcome(proof, plans))
