"""Facts of a run that every report words alike: labels, bound and gap, the answer in a sentence."""

from __future__ import annotations

from dse.graph import LayerGraph
from dse.networks import span_of
from dse.placement import PlacedMapping
from dse.results import GIVEN, Goal, PlanResult, Proof, RunResult, merit, score
from dse.units import format_hz, format_ns


def format_share(value: float | None) -> str:
    """Write a signed share in percent, for example ``+12 %``."""
    if value is None:
        return "-"
    percent = value * 100
    if abs(percent) >= 999.5:
        return f"{value + 1:.3g}x" if value > 0 else f"{percent:+.0f} %"
    return f"{percent:+.1f} %" if abs(percent) < 9.95 else f"{percent:+.0f} %"


def gain(plan: PlanResult, result: RunResult) -> float | None:
    """Gain of a plan over the best plan that needs no search, or None where there is none.

    Compared like with like: measured with measured, else predicted with predicted.  Of what the run
    made best: with the goal ``latency``, +100 % means half the latency.
    """
    baseline = result.best_baseline
    if baseline is None:
        return None
    predicted = plan.measured is None or baseline.measured is None
    over = merit(plan, result.goal, predicted=predicted)
    under = merit(baseline, result.goal, predicted=predicted)
    return over / under - 1 if under > 0 else None


def cores_text(mapping: PlacedMapping) -> str:
    """Write the cores in use by cluster, for example ``3 big, 4 LITTLE``."""
    used: dict[str, set[int]] = {}
    for stage in mapping.stages:
        used.setdefault(stage.cluster, set()).update(stage.cores)
    return ", ".join(f"{len(cores)} {cluster}" for cluster, cores in used.items())


def shape(mapping: PlacedMapping, spans: LayerGraph | None = None) -> str:
    """Write a mapping in one line, for example ``3 big > 1 big | 2 x (4 LITTLE)``.

    ``>`` joins the stages of a lane, ``|`` lanes; with a graph the layers of each stage are told.
    """
    lanes: dict[str, int] = {}
    for lane in mapping.lanes:
        whole = len(lane.stages) == 1
        text = " > ".join(
            stage.slot if whole or spans is None else f"{stage.slot} ({span_of(spans, stage.layers)})"
            for stage in lane.stages
        )
        lanes[text] = lanes.get(text, 0) + 1
    return " | ".join(
        text if count == 1 else f"{count} x ({text})" if ">" in text else f"{count} x {text}"
        for text, count in lanes.items()
    )


def says_shape(plan: PlanResult) -> bool:
    """Whether the plan's name alone tells its mapping."""
    return plan.name.startswith(("whole, ", "copies, ", "in turn, ", "apart, "))


def labels(result: RunResult) -> tuple[str, ...]:
    """Return in a few words what the numbers are not: emulated, described, predicted, not measured."""
    found = []
    if result.platform.emulated:
        found.append("emulated cores")
    if result.platform.origin == "described":
        found.append("described platform")
    if not result.costs.measured:
        sources = {c.source for row in result.costs.costs for c in row} - {"extracted", "in_situ", "imported"}
        found.append(f"predicted costs ({', '.join(sorted(sources))})")
    if all(plan.measured is None for plan in result.plans):
        found.append("no plan was run")
    return tuple(found)


def refusal(plan: PlanResult) -> str:
    """Say which of the user's limits and pins a plan breaks, else nothing."""
    pins = [fault for fault in plan.predicted.violations if fault.startswith("pin:")]
    others = [fault for fault in plan.predicted.violations if fault not in pins]
    parts = ["does not keep to the pins"] if pins else []
    parts += others[:1]
    if len(others) > 1:
        parts.append(f"{len(others) - 1} more")
    return "; ".join(parts)


def price_of_wishes(result: RunResult) -> str:
    """Say what the user's limits and pins cost, when a plan that breaks them is better, else nothing."""
    broken = [plan for plan in result.plans if not plan.feasible]
    known = [plan for plan in broken if (plan.measured is None) == (result.best.measured is None)]
    rival = max(known, key=lambda plan: merit(plan, result.goal), default=None)
    own = merit(result.best, result.goal)
    if rival is None or own <= 0 or merit(rival, result.goal) <= own:
        return ""
    return (
        f"Limits and pins have a price: without them {first_name(rival)} "
        f"{'reaches' if rival.measured else 'is predicted at'} {goal_text(rival, result.goal)}, "
        f"{format_share(merit(rival, result.goal) / own - 1)} better than the winner."
    )


def goal_text(plan: PlanResult, goal: Goal) -> str:
    """Write what a plan achieves, in the unit of the goal."""
    if goal == "latency":
        return f"{format_ns(latency_ns(plan))} a frame"
    if goal == "energy":
        energy_nj = plan.predicted.energy_nj
        return "unknown energy" if energy_nj is None else f"{format_energy(energy_nj)} a frame"
    return f"{format_hz(score(plan))} frames/s"


def format_energy(energy_nj: float) -> str:
    """Write an energy with three significant digits, for example ``4.95 mJ``."""
    for limit, divisor, unit in ((1e3, 1.0, "nJ"), (1e6, 1e3, "uJ"), (1e9, 1e6, "mJ")):
        if energy_nj < limit:
            return f"{energy_nj / divisor:.3g} {unit}"
    return f"{energy_nj / 1e9:.3g} J"


def latency_ns(plan: PlanResult) -> int:
    """Return the time of one frame in an empty lane, measured where there is a measurement."""
    return plan.measured.empty_latency_ns if plan.measured else plan.predicted.latency_ns


def proof_text(proof: Proof) -> str:
    """Say what is proved about the best prediction."""
    status = {
        "optimal": f"best possible among {proof.family}",
        "feasible": f"best found among {proof.family}, not proved",
        "infeasible": "proved impossible",
        "unknown": "nothing found in time",
    }.get(proof.status, proof.status)
    if proof.family == GIVEN:
        parts = ["the mapping was given, nothing was searched"]
    else:
        parts = [f"{status} (solver {proof.solver}, {format_ns(proof.wall_ns)})"]
    if proof.bound_hz is not None:
        parts.append(f"no mapping can be predicted above {format_hz(proof.bound_hz)} frames/s")
    if proof.bound_latency_ns is not None:
        parts.append(f"none below {format_ns(proof.bound_latency_ns)} a frame")
    if proof.bound_energy_nj is not None:
        parts.append(f"none below {format_energy(proof.bound_energy_nj)} a frame")
    if proof.corrected:
        parts.append(
            "all with the costs as earlier rounds corrected them, which first predictions did not know"
        )
    if proof.gap is not None and proof.family != GIVEN:
        parts.append(f"gap {proof.gap * 100:.1f} %")
    if proof.interrupted:
        parts.append("the search was interrupted")
    return "; ".join(parts)


def answer(result: RunResult) -> str:
    """Return the answer in one sentence with its numbers."""
    best = result.best
    name, where, plan = result.graph.name, result.platform.name, shape(best.mapping)
    rate, latency = f"{format_hz(score(best))} frames/s", format_ns(latency_ns(best))
    measured = best.measured is not None
    if result.goal == "throughput":
        verb = "runs" if measured else "is predicted to run"
        text = f"{name} {verb} at {rate} on {where} as {plan}, latency {latency}"
    else:
        verb = "takes" if measured and result.goal == "latency" else "is predicted to take"
        text = f"{name} {verb} {goal_text(best, result.goal)} on {where} as {plan}, {rate}"
    share, baseline = gain(best, result), result.best_baseline
    if share is None or baseline is None:
        return text + "."
    if baseline.mapping.signature == best.mapping.signature:
        return text + "; no search is needed for this plan, and none found a better one."
    if abs(share) < 0.0005:
        return text + f", as good as the best plan without search ({first_name(baseline)})."
    if result.goal == "throughput":
        change = f"{abs(share) * 100:.1f} % {'faster' if share > 0 else 'slower'}"
    else:
        change = f"{abs(1 / (1 + share) - 1) * 100:.1f} % {'less' if share > 0 else 'more'}"
    return text + f": {change} than the best plan without search ({first_name(baseline)})."


def first_name(plan: PlanResult) -> str:
    """Return the first of the names of a plan."""
    return plan.name.partition(" = ")[0]


def rounds_text(result: RunResult) -> str:
    """Say how predictions improved from round to round, and by what was learned; empty for one round."""
    if len(result.rounds) < 2:
        return ""
    parts = []
    for entry in result.rounds:
        plans = f"{entry.n_new} new plan{'' if entry.n_new == 1 else 's'}"
        error = "" if entry.worst_error is None else f" predicted within {entry.worst_error:.0%}"
        best = "" if entry.best_hz is None else f", best {format_hz(entry.best_hz)} frames/s"
        parts.append(f"round {entry.number}: {plans}{error}{best}")
    left = [abs(plan.corrected_error) for plan in result.plans if plan.corrected_error is not None]
    if left:
        parts.append(f"the corrected costs give all measured plans back within {max(left):.0%}")
    if earlier := measured_earlier(result):
        parts.append(f"not side by side with the answer, but in an earlier round: {', '.join(earlier)}")
    return "; ".join(parts)


def measured_earlier(result: RunResult) -> tuple[str, ...]:
    """Name the plans that were measured in an earlier round than the answer: the machine may have changed."""
    return tuple(
        first_name(plan)
        for plan in result.plans
        if plan.measured and result.best.measured and plan.round < result.best.round
    )
