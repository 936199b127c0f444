"""Facts of a run that every report words alike: labels, bound and gap, the answer in a sentence."""

from __future__ import annotations

from dse.placement import PlacedMapping
from dse.results import PlanResult, Proof, RunResult, score
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

    Compared like with like: measured with measured, else predicted with predicted.
    """
    baseline = result.best_baseline
    if baseline is None:
        return None
    if plan.measured is not None and baseline.measured is not None:
        over, under = plan.measured.throughput_hz, baseline.measured.throughput_hz
    else:
        over, under = plan.predicted.throughput_hz, baseline.predicted.throughput_hz
    return over / under - 1 if under > 0 else None


def cores_text(mapping: PlacedMapping) -> str:
    """Write the cores in use by cluster, for example ``3 big, 4 LITTLE``."""
    used: dict[str, set[int]] = {}
    for stage in mapping.stages:
        used.setdefault(stage.cluster, set()).update(stage.cores)
    return ", ".join(f"{len(cores)} {cluster}" for cluster, cores in used.items())


def shape(mapping: PlacedMapping, *, spans: bool = False) -> str:
    """Write a mapping in one line, for example ``3 big > 1 big | 2 x (4 LITTLE)``.

    ``>`` joins the stages of a lane, ``|`` lanes; ``spans`` adds the layers of each stage.
    """
    lanes: dict[str, int] = {}
    for lane in mapping.lanes:
        whole = len(lane.stages) == 1
        text = " > ".join(
            stage.slot if whole or not spans else f"{stage.slot} ({stage.span})" for stage in lane.stages
        )
        lanes[text] = lanes.get(text, 0) + 1
    return " | ".join(
        text if count == 1 else f"{count} x ({text})" if ">" in text else f"{count} x {text}"
        for text, count in lanes.items()
    )


def is_numbered(plan: PlanResult) -> bool:
    """Whether the plan is one of several further candidates, without a name of its own."""
    return plan.name.startswith("plan ")


def says_shape(plan: PlanResult) -> bool:
    """Whether the plan's name alone tells its mapping."""
    return plan.name.startswith(("whole, ", "copies, "))


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
    rival = max(known, key=score, default=None)
    if rival is None or score(rival) <= score(result.best):
        return ""
    return (
        f"Limits and pins have a price: without them {first_name(rival)} "
        f"{'reaches' if rival.measured else 'is predicted at'} {format_hz(score(rival))} frames/s, "
        f"{format_share(score(rival) / score(result.best) - 1)} above the winner."
    )


def proof_text(proof: Proof) -> str:
    """Say what is proved about the best prediction."""
    status = {
        "optimal": f"best possible among {proof.family}",
        "feasible": f"best found among {proof.family}, not proved",
        "infeasible": "proved impossible",
        "unknown": "nothing found in time",
    }.get(proof.status, proof.status)
    parts = [f"{status} (solver {proof.solver}, {format_ns(proof.wall_ns)})"]
    if proof.bound_hz is not None:
        parts.append(f"no mapping can be predicted above {format_hz(proof.bound_hz)} frames/s")
    if proof.gap is not None:
        parts.append(f"gap {proof.gap * 100:.1f} %")
    return "; ".join(parts)


def answer(result: RunResult) -> str:
    """Return the answer in one sentence with its numbers."""
    best = result.best
    measured = best.measured is not None
    latency_ns = best.measured.latency_ns if best.measured else best.predicted.latency_ns
    text = (
        f"{result.graph.name} {'runs' if measured else 'is predicted to run'} at "
        f"{format_hz(score(best))} frames/s on {result.platform.name} as {shape(best.mapping)}, "
        f"latency {format_ns(latency_ns)}"
    )
    share, baseline = gain(best, result), result.best_baseline
    if share is None or baseline is None:
        return text + "."
    if baseline.mapping.signature == best.mapping.signature:
        return text + "; no search is needed for this plan, and none found a better one."
    if abs(share) < 0.0005:
        return text + f", as fast as the best plan without search ({first_name(baseline)})."
    word = "faster" if share > 0 else "slower"
    return (
        text
        + f": {abs(share) * 100:.1f} % {word} than the best plan without search ({first_name(baseline)})."
    )


def first_name(plan: PlanResult) -> str:
    """Return the first of the names of a plan."""
    return plan.name.partition(" = ")[0]
