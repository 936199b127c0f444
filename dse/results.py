"""What a run found out: the data behind the table, ``results.json`` and the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dse.costs import CostTable
from dse.graph import LayerGraph
from dse.placement import PlacedMapping
from dse.platforms import Platform

RESULTS_FORMAT = "tflite-dse results"
RESULTS_VERSION = 1

GIVEN = "this mapping"
"""Family of a proof where nothing was searched (``Proof.family``)."""
Role = Literal["baseline", "candidate"]
NUMBERED = "plan "
"""Start of the names of further candidates, which have numbers instead of names."""
Goal = Literal["throughput", "latency", "energy"]


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage, predicted and (when measured) measured; times per frame.

    ``measured_interval_ns`` is the lowest and the highest of the repeats' busy times, see
    ``Diagnosis.confidence``.
    """

    name: str
    predicted_busy_ns: int
    predicted_compute_ns: int
    predicted_receive_ns: int
    predicted_send_ns: int = 0
    measured_busy_ns: int | None = None
    measured_compute_ns: int | None = None
    measured_receive_ns: int | None = None
    measured_send_ns: int | None = None
    measured_wait_ns: int | None = None
    utilisation: float | None = None
    measured_interval_ns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """From ``solvers.evaluate``."""

    throughput_hz: float
    latency_ns: int
    memory_bytes: int
    energy_nj: int | None
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a measurement differs from its prediction, and what the plan cost the machine.

    Parameters
    ----------
    error_interval
        (predicted - measured) / measured of the throughput against the fastest and the slowest
        repeat that counts.
    confidence
        Probability that the true median of a figure lies between the lowest and the highest repeat, and
        so its error in the interval: 1 - 2^(1 - n) for n repeats, whatever the distribution.
    n_counted
        Repeats that count: the calm ones, where they can decide.
    latency_error
        The same for one frame in an empty lane.
    causes
        What explains the error, the bottleneck of each lane first; empty where it is small.
    core_utilisation
        Pairs of core and the share of the time in which it worked on this plan.
    traffic_bytes
        Bytes of weights and activations that the layers read and write for a frame: what memory
        and caches have to move at least once.
    cpu_ns, switches, involuntary_switches, page_faults
        Per frame, of all lanes: CPU time, waits, losses of the core, pages touched first or read.
    cycles, instructions, memory_bytes
        Per frame by the processor's counters (``memory_bytes``: last-level misses times the line),
        None where it offers none.
    counters_note
        Why those are None, else empty.
    """

    error_interval: tuple[float, float]
    latency_error: float
    causes: tuple[str, ...]
    core_utilisation: tuple[tuple[int, float], ...]
    traffic_bytes: int
    cpu_ns: int
    switches: float
    involuntary_switches: float
    page_faults: float
    cycles: int | None = None
    instructions: int | None = None
    memory_bytes: int | None = None
    counters_note: str = ""
    confidence: float = 0.0
    n_counted: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which the cores of stage ``before`` wait after their work on stage ``after``.

    ``n_per_frame`` gaps, half of them longer than ``median_ns``; together they take ``share`` of the time.
    """

    after: str
    before: str
    n_per_frame: float
    median_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class Measured:
    """From real pipelines, interleaved with all other plans.

    ``throughput_hz`` is the median of ``throughput_samples_hz`` (one per repeat); latencies are of
    the full pipeline from source to sink, ``empty_latency_ns`` of one frame in an empty lane.
    ``gaps`` are those of the last repeat that counts, the longest in sum first; ``fallbacks`` say which
    stages ran elsewhere than asked, and why.
    """

    throughput_hz: float
    throughput_samples_hz: tuple[float, ...]
    latency_ns: int
    latency_p90_ns: int
    latency_p99_ns: int
    empty_latency_ns: int
    memory_bytes: int
    disturbed: bool
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    gaps: tuple[Gap, ...] = ()
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan, what was predicted for it and what was measured.

    ``role`` is ``baseline`` for what needs no search: the whole model on a slot, and copies of it.
    ``round`` is the round in which it was measured last (see ``Round``); ``predicted`` is what was
    said before it was measured first, ``corrected`` what the costs say after all that was measured
    went back into them.
    """

    name: str
    role: Role
    mapping: PlacedMapping
    predicted: Predicted
    stages: tuple[StageNumbers, ...]
    measured: Measured | None = None
    round: int = 1
    corrected: Predicted | None = None

    @property
    def corrected_error(self) -> float | None:
        """As ``error``, of the corrected prediction."""
        if self.corrected is None or self.measured is None or self.measured.throughput_hz == 0:
            return None
        return self.corrected.throughput_hz / self.measured.throughput_hz - 1

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured of the throughput."""
        if self.measured is None or self.measured.throughput_hz == 0:
            return None
        return self.predicted.throughput_hz / self.measured.throughput_hz - 1

    @property
    def is_numbered(self) -> bool:
        """Whether it is one of several further candidates, without a name of its own."""
        return self.name.startswith(NUMBERED)

    @property
    def feasible(self) -> bool:
        """Whether it breaks none of the user's constraints."""
        return not self.predicted.violations


@dataclass(frozen=True, slots=True)
class Proof:
    """What the solver says about the search.

    ``status`` and ``family`` as in ``solvers.mapping``; no mapping whatsoever has a higher
    predicted throughput than ``bound_hz``, nor, where that is the goal, a lower latency than
    ``bound_latency_ns`` or less energy per frame than ``bound_energy_nj``.  ``gap``: the share by which
    the goal may still be better.  ``interrupted``: the user ended the search early.  ``corrected``: all
    this is told with costs that earlier rounds of measurements corrected, so first predictions may lie
    above the bound.
    """

    solver: str
    status: str
    family: str
    bound_hz: float | None
    gap: float | None
    wall_ns: int
    interrupted: bool = False
    bound_latency_ns: int | None = None
    bound_energy_nj: int | None = None
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of search and measurement.

    Parameters
    ----------
    number
        From 1.
    n_measured, n_new
        Plans measured side by side, and how many of them for the first time.
    median_error, worst_error
        Of the predicted throughput of the new ones, without sign; None when none was new.
    best_hz
        Best measured throughput of a plan that breaks no wish.
    bound_hz
        What no mapping is predicted to exceed with costs as measured so far; None where it was not asked.
    """

    number: int
    n_measured: int
    n_new: int
    median_error: float | None
    worst_error: float | None
    best_hz: float | None
    bound_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the machine is, compared with an earlier run.

    Parameters
    ----------
    judge
        Name of the plan that was measured both times.
    change
        How much faster it ran, as a share; negative for slower.
    n_tries
        How often everything was measured until the speeds agreed, or time was up.
    """

    judge: str
    change: float
    n_tries: int = 1


@dataclass(frozen=True)
class RunResult:
    """Everything a run found out.

    Parameters
    ----------
    graph, platform, costs
        What was planned for.
    proof
        Of the search.
    plans
        Baselines and candidates, best prediction first; each mapping once.
    winner
        Index of the answer in ``plans``.
    reason
        One or two sentences: why this plan wins.
    warnings
        What the reader must know: disagreement of measurement and prediction, disturbed
        measurements, inputs that did not move the outputs, emulated or predicted costs.
    output_check
        One line on split equals whole, empty when nothing was cut.
    run_dir
        Folder that holds the files, None before it is written.
    goal
        What was made best.
    rounds
        How search and measurement took turns; empty when nothing was measured.
    speed
        Of a validation: the machine's, compared with the run's; None where nothing tells it.
    """

    graph: LayerGraph
    platform: Platform
    costs: CostTable
    proof: Proof
    plans: tuple[PlanResult, ...]
    winner: int
    reason: str
    warnings: tuple[str, ...] = ()
    output_check: str = ""
    run_dir: Path | None = None
    goal: Goal = "throughput"
    rounds: tuple[Round, ...] = ()
    speed: Speed | None = None

    @property
    def best(self) -> PlanResult:
        """The answer."""
        return self.plans[self.winner]

    @property
    def best_baseline(self) -> PlanResult | None:
        """The best plan that needs no search (whole model, copies), by measurement or prediction.

        Of the answer's own round where there is one: only those were measured side by side.
        """
        baselines = [plan for plan in self.plans if plan.role == "baseline" and plan.feasible]
        beside = [plan for plan in baselines if plan.measured and plan.round == self.best.round]
        if self.best.measured and beside:
            baselines = beside
        return max(baselines, key=lambda plan: merit(plan, self.goal), default=None)


def score(plan: PlanResult) -> float:
    """Frames per second that count: measured where there is a measurement, else predicted."""
    return plan.measured.throughput_hz if plan.measured else plan.predicted.throughput_hz


def merit(plan: PlanResult, goal: Goal, *, predicted: bool = False) -> float:
    """How good a plan is for a goal: ratios of it are gains, more is better.

    Parameters
    ----------
    goal
        ``throughput``: frames per second; ``latency``: one over the seconds of one frame in an empty
        lane; ``energy``: frames per joule, 0 where no power is known.
    predicted
        Ignore measurements.  Energy is always predicted.
    """
    real = None if predicted else plan.measured
    if goal == "throughput":
        return real.throughput_hz if real else plan.predicted.throughput_hz
    if goal == "latency":
        return 1e9 / max(1, real.empty_latency_ns if real else plan.predicted.latency_ns)
    return 0.0 if plan.predicted.energy_nj is None else 1e9 / max(1, plan.predicted.energy_nj)
