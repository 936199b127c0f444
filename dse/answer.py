"""Which plan is the answer, and why: measurement decides, prediction only proposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dse.platforms import Platform
from dse.profiling.stats import surely_more
from dse.results import Goal, PlanResult, merit
from dse.units import format_bytes, format_hz, format_ns

_CLOSE = 0.05


def choose(plans: Sequence[PlanResult], goal: Goal = "throughput") -> int:
    """Return the index of the answer.

    The best measured plan among those that break none of the user's constraints; without
    measurements the best predicted one.  ``plans`` come best prediction first, so that among equals
    the one with fewer cores, lower latency and fewer stages wins.  A plan that needs no search is preferred
    to one that measured more where their repeats do not tell them apart: the best of several equal
    plans is the luckiest, and would disappoint when it is used.

    Raises
    ------
    ValueError
        No plan is feasible.
    """
    feasible = [number for number, plan in enumerate(plans) if plan.feasible]
    measured = [number for number in feasible if plans[number].measured]
    # Only plans of one round were measured side by side; the best of the earlier ones are among them.
    last = max((plans[number].round for number in measured), default=1)
    measured = [number for number in measured if plans[number].round == last]
    best = max(measured or feasible, key=lambda number: merit(plans[number], goal))
    if goal == "throughput" and plans[best].role != "baseline":
        rivals = [number for number in measured if plans[number].role == "baseline"]
        tied = [number for number in rivals if _ties(plans[number], plans[best])]
        best = max(tied, key=lambda number: merit(plans[number], goal), default=best)
    return best


def _ties(plan: PlanResult, best: PlanResult) -> bool:
    """Whether the repeats leave open that a plan is as fast as the one that measured more."""
    if plan.measured is None or best.measured is None:
        return False
    samples = best.measured.throughput_samples_hz, plan.measured.throughput_samples_hz
    return surely_more(*samples) is False


def explain(
    plans: Sequence[PlanResult],
    winner: int,
    platform: Platform,
    *,
    pinned: bool = False,
    goal: Goal = "throughput",
) -> str:
    """Say in a few sentences why the answer won, with the numbers."""
    best = plans[winner]
    one = len(best.mapping.lanes) == 1
    how = "measured" if best.measured and goal != "energy" else "predicted"
    text = f"{describe(best)} {_reaches(best, goal, one=one)} ({how})"
    baselines = [plan for plan in plans if plan.role == "baseline" and plan.feasible and plan is not best]
    known = [p for p in baselines if bool(p.measured) == bool(best.measured) and p.round == best.round]
    rival = max(known, key=lambda plan: merit(plan, goal), default=None)
    if rival is not None and merit(rival, goal) > 0 and merit(best, goal) > 0:
        ratio = merit(best, goal) / merit(rival, goal)
        # Times and energies are told as such: less is better.
        change = ratio - 1 if goal == "throughput" else 1 / ratio - 1
        text += f", {change:+.1%} against {rival.name!r}"
    cause = "It is the best that the pins allow." if pinned else _cause(best, plans, platform, goal)
    return f"{text}. {_tie_text(best, plans, goal)}{cause}"


def _tie_text(best: PlanResult, plans: Sequence[PlanResult], goal: Goal) -> str:
    """Say which plan measured more, but not by more than its repeats scatter."""
    beside = (
        [p for p in plans if p.feasible and p.measured and p.round == best.round] if best.measured else []
    )
    first = max(beside, key=lambda plan: merit(plan, goal), default=best)
    if first is best or goal != "throughput" or not _ties(best, first):
        return ""
    lead = merit(first, goal) / merit(best, goal) - 1
    return (
        f"{first.name!r} measured {lead:.1%} more, but its repeats do not tell it from this plan, "
        "which needs no search. "
    )


def _reaches(plan: PlanResult, goal: Goal, *, one: bool) -> str:
    """Say what a plan achieves, in the unit of the goal."""
    s = "s" if one else ""
    if goal == "latency":
        latency_ns = plan.measured.empty_latency_ns if plan.measured else plan.predicted.latency_ns
        return f"need{s} {format_ns(latency_ns)} for a frame"
    if goal == "energy" and plan.predicted.energy_nj is not None:
        return f"need{s} {plan.predicted.energy_nj / 1e6:.3g} mJ for a frame"
    return f"reach{'es' if one else ''} {format_hz(merit(plan, 'throughput'))} frames/s"


def describe(plan: PlanResult) -> str:
    """Say what a plan is, for example ``2 copies of the whole model on 1 cpu each``."""
    lanes = plan.mapping.lanes
    if len(lanes) == 1 and len(lanes[0].stages) > 1 and not _pipelined(plan):
        stages = lanes[0].stages
        return f"The model in {len(stages)} pieces, one after another on {stages[0].slot},"
    if _apart(plan):
        return f"Running whole networks side by side ({' / '.join(s.slot for s in lanes[0].stages)})"
    forms = Counter(" -> ".join(stage.slot for stage in lane.stages) for lane in lanes)
    if all(len(lane.stages) == 1 for lane in lanes):
        if len(lanes) == 1:
            return f"The whole model on {lanes[0].stages[0].slot}"
        if len(forms) == 1:
            return f"{len(lanes)} copies of the whole model on {lanes[0].stages[0].slot} each"
        return f"{len(lanes)} copies of the whole model ({_counted(forms)})"
    if len(lanes) == 1:
        return f"A pipeline of {len(lanes[0].stages)} stages ({next(iter(forms))})"
    return f"{len(lanes)} lanes ({_counted(forms)})"


def _counted(forms: Mapping[str, int]) -> str:
    return " | ".join(form if count == 1 else f"{count} x {form}" for form, count in forms.items())


def _cause(best: PlanResult, plans: Sequence[PlanResult], platform: Platform, goal: Goal) -> str:
    """Say which of the formulation's reasons it was."""
    lanes = best.mapping.lanes
    if _apart(best) and _pipelined(best):
        return "Networks that do not wait for each other run at the same time, each where it fits best."
    if not _pipelined(best):
        if len(lanes) > 1 and any(len(lane.stages) > 1 for lane in lanes):
            return (
                "Every lane runs all of its stages one after another on the same cores: that keeps them as "
                "busy as copies of the whole model do."
            )
        if len(lanes) > 1:
            return (
                "Copies keep every core busy with no hand-overs and no synchronisation between threads; "
                "a pipeline would only add transfers and a bottleneck."
            )
        if lanes[0].stages[0].threads > 1:
            return "One frame at a time on several threads: the model scales well with threads here."
        return "More cores would not help this model under the given constraints."
    others = [
        p
        for p in plans
        if not _pipelined(p)
        and p.feasible
        and bool(p.measured) == bool(best.measured)
        and p.round == best.round
    ]
    rival = max(others, key=lambda plan: merit(plan, goal), default=None)
    if rival is not None and rival.mapping.lanes and len(rival.mapping.lanes) > 1:
        lead = abs(merit(best, goal) / merit(rival, goal) - 1)
        if lead <= _CLOSE:
            return (
                f"Whole copies come within {lead:.1%}: the cores do the same work either way; "
                f"the stages need {_memory_text(best, rival)}."
            )
    clusters = {stage.cluster for stage in best.mapping.stages}
    if len(clusters) > 1 and len(platform.clusters) > 1:
        return "The layers prefer different cores, and each stage runs where it costs least."
    if rival is None or len(rival.mapping.lanes) == 1:
        return "Copies are not possible here (state, memory or a cap on lanes), so stages share the work."
    return "Each stage keeps to a part of the weights and layers that fits its cores and caches."


def _apart(plan: PlanResult) -> bool:
    return any(part.startswith("apart, ") for part in plan.name.split(" = "))


def _pipelined(plan: PlanResult) -> bool:
    """Whether stages of a lane work at the same time."""
    return any(len({stage.cores for stage in lane.stages}) > 1 for lane in plan.mapping.lanes)


def _memory_text(best: PlanResult, rival: PlanResult) -> str:
    ours, theirs = (
        plan.measured.memory_bytes if plan.measured else plan.predicted.memory_bytes for plan in (best, rival)
    )
    if ours < theirs:
        return f"{format_bytes(theirs - ours)} less memory"
    return "no less memory"


def _expected(plan: PlanResult, goal: Goal) -> float:
    """Return what was predicted of a plan; after further rounds from the costs that all plans corrected."""
    if plan.round > 1 and plan.corrected is not None:
        plan = replace(plan, predicted=plan.corrected)
    return merit(plan, goal, predicted=True)


def disagreements(plans: Sequence[PlanResult], winner: int, goal: Goal = "throughput") -> tuple[str, ...]:
    """List what a reader must know about prediction against measurement."""
    notes = []
    feasible = [plan for plan in plans if plan.feasible and plan.measured]
    if feasible:
        best = plans[winner]
        # Only what was measured side by side, and predicted from the same costs, can disagree.
        beside = [plan for plan in feasible if plan.round == best.round]
        predicted_best = max(beside, key=lambda plan: _expected(plan, goal), default=best)
        better = merit(best, goal) >= merit(predicted_best, goal)  # else they tie
        if predicted_best is not best and predicted_best.measured and best.measured and better:
            gap = merit(best, goal) / merit(predicted_best, goal) - 1
            low = min(best.measured.throughput_samples_hz)
            high = max(predicted_best.measured.throughput_samples_hz)
            within = goal == "throughput" and low <= high
            noise = " (within the spread of the repeats)" if within else ""
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
