"""Search and measurement take turns until predictions hold and nothing better turns up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dse.config import Experiment
from dse.corrections import Corrections
from dse.costs import StageCost
from dse.learning import corrected, corrections, learn, stage_costs, summarise
from dse.measuring import Trial
from dse.pipeline.measurement import PlanMeasurement
from dse.placement import PlacedMapping
from dse.planning import Planner, find_plans, search_limits
from dse.results import PlanResult, Proof, Round, merit
from solvers.under_load import rate_bound_hz

_STILL_IN = 0.1
"""Plans within this share of the best take part in the next round."""


@dataclass(frozen=True)
class Outcome:
    """What search and measurement found.

    Parameters
    ----------
    proof
        Of the last search.
    plans
        Every plan of every round, best prediction first within each.
    check
        One line on split equals whole.
    warnings
        What the reader must know.
    rounds
        One entry per round.
    stages
        Measured stages, for the cost table.
    corrections
        What they say of all costs, for the cost table too; None where nothing was measured.
    """

    proof: Proof
    plans: tuple[PlanResult, ...]
    check: str = ""
    warnings: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    stages: tuple[StageCost, ...] = ()
    corrections: Corrections | None = None


def measure_in_rounds(
    trial: Trial,
    planner: Planner,
    proof: Proof,
    plans: Sequence[PlanResult],
    told: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Measure the best different plans and the baselines; learn, search again, measure what is new.

    Each further round measures its new plans side by side with those that may still be the answer
    and the best baseline.  It stops early when a search brings nothing new, or when the new plans of a round
    were predicted within the tolerance and none of them was better than what was known.  ``told`` hears of
    every round that is complete.

    Raises
    ------
    DseError
        See ``Trial.measure``.
    """
    experiment = trial.experiment
    measured = trial.measure(worth_measuring(plans, experiment))
    known = _replaced(plans, measured)
    tried = {_key(plan.mapping) for plan in measured}
    rounds = [summarise(1, measured, measured)]
    told(Outcome(proof, tuple(known), trial.check_text, trial.warnings, tuple(rounds)))
    learned = learn(planner, _seen(trial, known))
    while len(rounds) < experiment.measure.rounds:
        number = len(rounds) + 1
        rounds[-1] = _with_bound(rounds[-1], learned)
        with trial.progress.task(f"searching, round {number}", 1) as task:
            search = experiment.search
            limits = search_limits(experiment, task)
            proof, found = find_plans(learned, search.solver, limits, search.candidates)
            task.advance()
        if proof.interrupted:
            raise KeyboardInterrupt
        proof = replace(proof, corrected=True)
        hopeful = _hopeful(found, known, experiment)
        if len(hopeful) < len(found):
            trial.progress.log(
                f"round {number}: {len(found) - len(hopeful)} plans of several pieces on the same cores "
                f"are left out: those that were measured ran far below their predictions"
            )
        fresh = _new_plans(hopeful, tried, number)[: search.candidates]
        if not fresh:
            trial.progress.log(f"round {number}: the corrected search brings nothing new")
            break
        batch = trial.measure([*fresh, *_contenders(known, experiment)], number)
        new = batch[: len(fresh)]
        tried |= {_key(plan.mapping) for plan in new}
        known = _replaced((*known, *fresh), batch)
        rounds.append(summarise(number, batch, new))
        told(Outcome(proof, tuple(known), trial.check_text, trial.warnings, tuple(rounds)))
        learned = learn(planner, _seen(trial, known))
        best_now = _best(known, experiment)
        better = best_now is not None and best_now.name in {plan.name for plan in new}
        worst = rounds[-1].worst_error
        if not better and worst is not None and worst <= experiment.measure.tolerance:
            break
    seen = _seen(trial, known)
    rounds[-1] = _with_bound(rounds[-1], learned)
    final = corrected(learned, known)
    stages, factors = stage_costs(planner, seen), corrections(planner, seen)
    return Outcome(proof, final, trial.check_text, trial.warnings, tuple(rounds), stages, factors)


def _with_bound(entry: Round, learned: Planner) -> Round:
    """Add what no mapping is predicted to exceed, once the round's measurements correct the costs."""
    return replace(entry, bound_hz=rate_bound_hz(learned.problem))


def worth_measuring(plans: Sequence[PlanResult], experiment: Experiment) -> tuple[PlanResult, ...]:
    """Return the K best different plans that were searched for, and the baselines.

    Baselines are run even where they break a wish of the user: they are what the answer is
    compared with.
    """
    searched = [plan for plan in plans if plan.feasible and plan.role != "baseline"]
    chosen = searched[: experiment.search.candidates]
    # Sharing cores may cost more than predicted: a plan without that is always measured as well.
    simple = [plan for plan in searched if not plan.mapping.takes_turns]
    wanted = {id(plan) for plan in (*chosen, *simple[:1])}
    if experiment.measure.baselines:
        wanted |= {id(plan) for plan in plans if not plan.is_numbered}
    elif not wanted:
        wanted = {id(plan) for plan in plans if plan.feasible}
    return tuple(plan for plan in plans if id(plan) in wanted)


def _seen(trial: Trial, plans: Sequence[PlanResult]) -> list[tuple[PlacedMapping, PlanMeasurement]]:
    return [(plan.mapping, trial.measurement(plan)) for plan in plans if plan.measured]


def _new_plans(found: Sequence[PlanResult], tried: Collection[object], number: int) -> list[PlanResult]:
    """Plans whose mapping was neither measured nor refused yet, named after their round."""
    fresh = [plan for plan in found if plan.feasible and _key(plan.mapping) not in tried]
    return [replace(plan, name=f"plan {number}.{n}", round=number) for n, plan in enumerate(fresh, 1)]


def _hopeful(
    found: Sequence[PlanResult], known: Sequence[PlanResult], experiment: Experiment
) -> list[PlanResult]:
    """Leave out plans of several pieces on the same cores where such plans disappointed.

    What their threads lose by waking each other in turn is in no cost of a layer or a hand-over; where that
    is much, the search would propose such plans again and again.  Others stay, and so do those that would be
    good enough even so.
    """
    goal = experiment.search.goal
    kept: dict[bool, list[float]] = {True: [], False: []}
    for plan in known:
        if plan.measured and merit(plan, goal, predicted=True) > 0:
            share = merit(plan, goal) / merit(plan, goal, predicted=True)
            kept[plan.mapping.takes_turns].append(share)
    best = _best(known, experiment)
    if best is None or not kept[True] or not kept[False]:
        return list(found)
    share = min(1.0, statistics.median(kept[True]) / statistics.median(kept[False]))
    limit = (1 - _STILL_IN) * merit(best, goal)
    return [
        plan
        for plan in found
        if not plan.mapping.takes_turns or merit(plan, goal, predicted=True) * share >= limit
    ]


def _key(mapping: PlacedMapping) -> object:
    return mapping.signature


def _replaced(plans: Sequence[PlanResult], measured: Sequence[PlanResult]) -> list[PlanResult]:
    by_name = {plan.name: plan for plan in measured}
    return [by_name.get(plan.name, plan) for plan in plans]


def _best(plans: Sequence[PlanResult], experiment: Experiment) -> PlanResult | None:
    """Best measured plan of the latest round that breaks no wish."""
    measured = [plan for plan in plans if plan.measured and plan.feasible]
    last = max((plan.round for plan in measured), default=1)
    goal = experiment.search.goal
    return max((plan for plan in measured if plan.round == last), key=lambda p: merit(p, goal), default=None)


def _contenders(plans: Sequence[PlanResult], experiment: Experiment) -> list[PlanResult]:
    """Plans that may still be the answer, and the best baseline.

    A machine's speed drifts between rounds, so only plans that are measured side by side with the
    new ones can be compared with them.
    """
    goal = experiment.search.goal
    best = _best(plans, experiment)
    if best is None:
        return []
    rivals = [plan for plan in plans if plan.measured and plan.feasible and plan.round == best.round]
    baselines = [plan for plan in rivals if plan.role == "baseline"]
    strongest = max(baselines, key=lambda plan: merit(plan, goal), default=None)
    limit = (1 - _STILL_IN) * merit(best, goal)
    return [plan for plan in rivals if merit(plan, goal) >= limit or plan is strongest]
