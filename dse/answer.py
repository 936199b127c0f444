"""Which plan is the answer, and why: measurement decides, prediction only proposes."""

from __future__ import annotations

from collections.abc import Sequence

from dse.platforms import Platform
from dse.results import PlanResult, score
from dse.units import format_hz


def choose(plans: Sequence[PlanResult]) -> int:
    """Return the index of the answer.

    The best measured plan among those that break none of the user's constraints; without
    measurements the best predicted one.  ``plans`` come best prediction first, so that among equals
    the one with fewer cores, lower latency and fewer stages wins.

    Raises
    ------
    ValueError
        No plan is feasible.
    """
    feasible = [number for number, plan in enumerate(plans) if plan.feasible]
    measured = [number for number in feasible if plans[number].measured]
    return max(measured or feasible, key=lambda number: score(plans[number]))


def explain(plans: Sequence[PlanResult], winner: int, platform: Platform, *, pinned: bool = False) -> str:
    """Say in a few sentences why the answer won, with the numbers."""
    best = plans[winner]
    shape = describe(best)
    rate = format_hz(score(best))
    how = "measured" if best.measured else "predicted"
    text = f"{shape} reach{'es' if len(best.mapping.lanes) == 1 else ''} {rate} frames/s ({how})"
    baselines = [plan for plan in plans if plan.role == "baseline" and plan.feasible and plan is not best]
    known = [plan for plan in baselines if bool(plan.measured) == bool(best.measured)]
    rival = max(known, key=score, default=None)
    if rival is not None and score(rival) > 0:
        gain = score(best) / score(rival) - 1
        text += f", {gain:+.1%} against {rival.name!r}"
    cause = "It is the best that the pins allow." if pinned else _cause(best, platform)
    return f"{text}. {cause}"


def describe(plan: PlanResult) -> str:
    """Say what a plan is, for example ``2 copies of the whole model on 1 cpu each``."""
    lanes = plan.mapping.lanes
    if all(len(lane.stages) == 1 for lane in lanes):
        slots = [lane.stages[0].slot for lane in lanes]
        if len(lanes) == 1:
            return f"The whole model on {slots[0]}"
        if len(set(slots)) == 1:
            return f"{len(lanes)} copies of the whole model on {slots[0]} each"
        return f"{len(lanes)} copies of the whole model on {', '.join(slots)}"
    if len(lanes) == 1:
        return f"A pipeline of {len(lanes[0].stages)} stages ({' -> '.join(s.slot for s in lanes[0].stages)})"
    parts = [" -> ".join(stage.slot for stage in lane.stages) for lane in lanes]
    return f"{len(lanes)} lanes ({' | '.join(parts)})"


def _cause(best: PlanResult, platform: Platform) -> str:
    """Say which of the formulation's reasons it was."""
    lanes = best.mapping.lanes
    pipelined = any(len(lane.stages) > 1 for lane in lanes)
    if not pipelined and len(lanes) > 1:
        return (
            "Copies keep every core busy with no hand-overs and no synchronisation between threads; "
            "a pipeline would only add transfers and a bottleneck."
        )
    if not pipelined:
        only = lanes[0].stages[0]
        if only.threads > 1:
            return "One frame at a time on several threads: the model scales well with threads here."
        return "More cores would not help this model under the given constraints."
    clusters = {stage.cluster for stage in best.mapping.stages}
    if len(clusters) > 1 and len(platform.clusters) > 1:
        return "The layers prefer different cores, and each stage runs where it costs least."
    return "Each stage keeps to a part of the weights and layers that suits its cores."


def disagreements(plans: Sequence[PlanResult], winner: int) -> tuple[str, ...]:
    """List what a reader must know about prediction against measurement."""
    notes = []
    feasible = [plan for plan in plans if plan.feasible and plan.measured]
    if feasible:
        predicted_best = max(feasible, key=lambda plan: plan.predicted.throughput_hz)
        best = plans[winner]
        if predicted_best is not best and predicted_best.measured and best.measured:
            gap = best.measured.throughput_hz / predicted_best.measured.throughput_hz - 1
            low = min(best.measured.throughput_samples_hz)
            high = max(predicted_best.measured.throughput_samples_hz)
            noise = " (within the spread of the repeats)" if low <= high else ""
            notes.append(
                f"Measurement disagrees with prediction: {predicted_best.name!r} was predicted best, "
                f"{best.name!r} measured {gap:.1%} faster{noise}; the measured best is the answer."
            )
        disturbed = [plan.name for plan in feasible if plan.measured and plan.measured.disturbed]
        if disturbed:
            notes.append(
                f"Other work disturbed the machine while measuring {', '.join(map(repr, disturbed))}: "
                "measure again on a quiet machine before you rely on small differences."
            )
        far = [plan for plan in feasible if plan.error is not None and abs(plan.error) > 0.25]
        if far:
            worst = max(far, key=lambda plan: abs(plan.error or 0))
            notes.append(
                f"Prediction is off by more than 25 % for {len(far)} of {len(feasible)} measured plans "
                f"(worst: {worst.name!r}, {worst.error:+.0%}); trust the measured column."
            )
    return tuple(notes)
