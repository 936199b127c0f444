"""Mixes of lanes when memory, latency, power or energy count: labels for lanes, labels for mixes.

The undominated lanes of ``solvers.labels`` are combined as in the knapsack, but every vector of used
cores keeps all undominated totals of (rate, worst latency, power, memory).  Energy per frame is
(power of the lanes + idle power) / rate, so it falls with either and these labels suffice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.coarse import join_evenly
from solvers.errors import InfeasibleError
from solvers.evaluate import Evaluation, evaluate, score_key
from solvers.infeasible import why_no_lane
from solvers.labels import Criteria, LabelSearch, LaneLabel, pareto_by_key
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.order_costs import Links, OrderCosts, exact_links
from solvers.problem import BoolArray, Goal, IntArray, Problem
from solvers.quick_lanes import quick_lanes
from solvers.topology import Blocks, contract, orders

RATE_STEPS = 10**12
"""The fastest lane's rate in integer steps: exact sums, and differences below count as ties."""
POWER_STEPS_PER_MW = 10**6
FEW_BLOCKS, N_QUICK = 40, 240
"""With more than a few blocks, and only latency and period to count, ``solvers.quick_lanes`` searches."""
MANY_BLOCKS, N_COARSE = 120, 60
"""With more blocks, neighbours are joined to about so many first, without proof."""
MOST_OFFERS = 300
"""Lanes that are combined; of more, some on each vector of cores are left out, without proof."""
SAME = 1e-6
"""Values that differ by less are all scored, because sums are rounded here."""
MOST_SCORED = 300
"""Final labels that the evaluator ranks."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A lane label with the layers of its stages."""

    label: LaneLabel
    stages: tuple[Stage, ...]


@dataclass
class _Search:
    """Lanes of several orders, and whether anything was cut off."""

    offers: list[_Offer]
    exact: bool


def solve_constrained(name: str, blocks: Blocks, limits: Limits, max_lanes: int | None) -> Solution:
    """Solve a problem under every goal and limit.

    Exact for graphs with one topological order whose hand-over costs are exact there, unless the
    cap on labels is hit (then FEASIBLE); on branching graphs latency is taken as the sum of busy
    times while searching, and the evaluator decides.

    Raises
    ------
    InfeasibleError
        Proved; names the limit that binds.
    """
    problem = blocks.problem
    family = Family.CONTIGUOUS if blocks.has_one_order else Family.ORDER
    search = _lanes(blocks, limits)
    found, mix_exact = _best_mix(problem, search.offers, max_lanes)
    exact = search.exact and mix_exact
    if found is None:
        reason = None if search.offers else why_no_lane(blocks)
        if reason is not None:
            raise InfeasibleError(reason)
        if exact:
            raise InfeasibleError(_binding(problem, limits, max_lanes))
        reason = f"no mapping within the limits found; {_binding(problem, limits, max_lanes)}"
        return Solution(name, Status.UNKNOWN, family, None, None, None, reason)
    mapping, evaluation = found
    return Solution(name, Status.OPTIMAL if exact else Status.FEASIBLE, family, mapping, evaluation, None)


def _lanes(blocks: Blocks, limits: Limits) -> _Search:
    criteria = Criteria.of(blocks.problem)
    if blocks.n_blocks > FEW_BLOCKS and not criteria.energy and not criteria.needs_memory:
        if blocks.n_blocks <= N_QUICK:
            return _quick_lanes(blocks, limits)
        return replace(_quick_lanes(join_evenly(blocks, N_QUICK), limits), exact=False)
    if blocks.n_blocks > MANY_BLOCKS:
        search = _lanes(join_evenly(blocks, N_COARSE), limits)
        return replace(search, exact=False)
    n = blocks.n_blocks
    most_labels = 256 if n <= 12 else 64 if n <= 30 else 12
    n_orders = 40 if n <= 10 else 8 if n <= 40 else 2
    search = _Search([], blocks.has_one_order)
    for order in orders(blocks, n_orders, limits.seed):
        exact = exact_links(blocks, order)
        labels = LabelSearch(OrderCosts(blocks, order, exact or Links.PREVIOUS), most_labels, limits)
        for label in labels.lanes():
            search.offers.append(_offer(blocks, order, label))
        search.exact &= exact is not None and not labels.capped
    return search


def _quick_lanes(blocks: Blocks, limits: Limits) -> _Search:
    """Lanes where only latency and period count, found without labels."""
    nothing = (0,) * len(blocks.problem.cluster_sizes)
    lanes, proved = quick_lanes(blocks, limits)
    offers = [_offer(blocks, lane.order, LaneLabel(lane.use, 0, 0, 0, nothing, lane.spans)) for lane in lanes]
    return _Search(offers, proved)


def _offer(blocks: Blocks, order: tuple[int, ...], label: LaneLabel) -> _Offer:
    stages = tuple(
        Stage(_layers(blocks, order[start:end]), slot, unit)
        for unit, (start, end, slot) in enumerate(label.spans)
    )
    return _Offer(_rescored(blocks.problem, label, stages), stages)


def _layers(blocks: Blocks, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(layer for block in members for layer in blocks.members[block]))


def _rescored(problem: Problem, label: LaneLabel, stages: tuple[Stage, ...]) -> LaneLabel:
    """Return the label with the evaluator's period and latency (guesses about links may be wrong)."""
    lane = evaluate(problem, Mapping((Lane(stages),))).lanes[0]
    power = problem.active_power_mw
    energy = 0 if power is None else sum(n.busy_ns * power[s.slot] for s, n in zip(stages, lane.stages))
    return replace(label, period_ns=lane.period_ns, latency_ns=lane.latency_ns, energy_pj=energy)


def _best_mix(
    problem: Problem, offers: list[_Offer], max_lanes: int | None
) -> tuple[tuple[Mapping, Evaluation] | None, bool]:
    """Return the best mapping with its evaluation, and whether nothing was cut off."""
    if not offers:
        return None, True
    exact = len(offers) <= MOST_OFFERS
    if not exact:
        offers = _thinned(offers)
    table = _table(problem, offers)
    n_clusters = len(problem.cluster_sizes)
    most = sum(problem.cluster_sizes) if max_lanes is None else max_lanes
    rows = np.zeros((1, table.shape[1]), np.int64)
    mixes: list[tuple[int, ...]] = [()]
    fresh = [0]
    for _ in range(most):
        grown, parents = [], []
        for number in fresh:
            total = rows[number] + table
            total[:, n_clusters + 1] = np.maximum(rows[number, n_clusters + 1], table[:, n_clusters + 1])
            possible = np.flatnonzero(_possible(problem, total))
            grown.append(total[possible])
            parents += [(number, int(offer)) for offer in possible]
        if not parents:
            break
        n_before = len(rows)
        rows = np.concatenate([rows, *grown])
        n_lanes = np.array([len(mix) for mix in mixes] + [len(mixes[parent]) + 1 for parent, _ in parents])
        keep, capped = pareto_by_key(
            rows[:, :n_clusters], _relevant(problem, rows), n_lanes[:, None], 64 if len(offers) < 100 else 16
        )
        exact &= not capped
        rows = rows[keep]
        mixes = [
            mixes[number]
            if number < n_before
            else (*mixes[parents[number - n_before][0]], parents[number - n_before][1])
            for number in keep
        ]
        fresh = [place for place, number in enumerate(keep) if number >= n_before]
        if not fresh:
            break
    return _best_scored(problem, offers, rows, mixes), exact


def _thinned(offers: list[_Offer]) -> list[_Offer]:
    """Keep about ``MOST_OFFERS``: of the lanes on the same cores those spread over their front."""
    by_use: dict[tuple[int, ...], list[_Offer]] = {}
    for offer in offers:
        by_use.setdefault(offer.label.use, []).append(offer)
    share = max(2, MOST_OFFERS // len(by_use))
    kept = []
    for use in sorted(by_use):
        front = sorted(by_use[use], key=lambda o: (o.label.period_ns, o.label.latency_ns))
        places = {round(place) for place in np.linspace(0, len(front) - 1, min(share, len(front)))}
        kept += [front[place] for place in sorted(places)]
    return kept


def _table(problem: Problem, offers: list[_Offer]) -> IntArray:
    """Rows of offers: cores, minus rate, latency, power, stages, memory per cluster (all add up but one)."""
    fastest = min(max(offer.label.period_ns, 1) for offer in offers)
    rows = []
    for offer in offers:
        label = offer.label
        period = max(label.period_ns, 1)
        rows.append(
            [
                *label.use,
                -(RATE_STEPS * fastest // period),
                label.latency_ns,
                label.energy_pj * POWER_STEPS_PER_MW // period,
                len(offer.stages),
                *label.memory_bytes,
            ]
        )
    return np.array(rows, np.int64)


def _possible(problem: Problem, total: IntArray) -> BoolArray:
    n_clusters = len(problem.cluster_sizes)
    kept = np.asarray((total[:, :n_clusters] <= np.array(problem.cluster_sizes)).all(axis=1))
    ceiling = problem.objective.max_latency_ns
    if ceiling is not None:
        kept &= total[:, n_clusters + 1] <= ceiling
    if problem.max_power_mw is not None:
        room = problem.max_power_mw - (problem.idle_power_mw or 0)
        kept &= total[:, n_clusters + 2] <= room * POWER_STEPS_PER_MW
    memory = total[:, n_clusters + 4 :]
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            kept &= memory[:, cluster] <= limit
    if problem.total_memory_limit_bytes is not None:
        kept &= memory.sum(axis=1) <= problem.total_memory_limit_bytes
    return kept


def _relevant(problem: Problem, rows: IntArray) -> IntArray:
    criteria = Criteria.of(problem)
    n = len(problem.cluster_sizes)
    columns = [rows[:, n], rows[:, n + 1]]
    if criteria.energy:
        columns.append(rows[:, n + 2])
    columns += [rows[:, n + 4 + cluster] for cluster in criteria.memory_clusters]
    if criteria.total_memory:
        columns.append(rows[:, n + 4 :].sum(axis=1))
    return np.stack(columns, axis=1)


def _best_scored(
    problem: Problem, offers: list[_Offer], rows: IntArray, mixes: list[tuple[int, ...]]
) -> tuple[Mapping, Evaluation] | None:
    n = len(problem.cluster_sizes)
    goal = problem.objective.goal
    rate = -rows[:, n].astype(np.float64)
    if goal is Goal.THROUGHPUT:
        value = -rate
    elif goal is Goal.LATENCY:
        value = rows[:, n + 1].astype(np.float64)
    else:
        power = rows[:, n + 2] / POWER_STEPS_PER_MW + (problem.idle_power_mw or 0)
        value = power / np.maximum(rate, 1)
    best: tuple[Mapping, Evaluation] | None = None
    reached = float("inf")
    n_scored = 0
    for number in np.lexsort((rows[:, n + 1], rows[:, :n].sum(axis=1), value)):
        if not mixes[number]:
            continue
        if value[number] > reached:  # what follows is worse: values are as the evaluator has them
            break
        mapping = _mapping([offers[offer] for offer in mixes[number]])
        evaluation = evaluate(problem, mapping)
        if not evaluation.feasible:
            continue
        if best is None or score_key(problem, evaluation) < score_key(problem, best[1]):
            best = (mapping, evaluation)
            reached = float(value[number]) + abs(float(value[number])) * SAME
        n_scored += 1
        if n_scored == MOST_SCORED:
            break
    return best


def _mapping(offers: list[_Offer]) -> Mapping:
    lanes = []
    unit = 0
    for offer in offers:
        lanes.append(Lane(tuple(Stage(s.layers, s.slot, s.unit + unit) for s in offer.stages)))
        unit += len(offer.stages)
    return Mapping(tuple(lanes))


def _binding(problem: Problem, limits: Limits, max_lanes: int | None) -> str:
    """Name the limit that makes the problem infeasible: lifting it alone helps."""
    objective = problem.objective
    relaxed: list[tuple[str, float, str, Problem]] = []
    for cluster, limit in enumerate(problem.memory_limits_bytes or ()):
        if limit is not None:
            kept = tuple(None if c == cluster else m for c, m in enumerate(problem.memory_limits_bytes or ()))
            relaxed.append(
                (f"memory of cluster {cluster}", limit, "bytes", replace(problem, memory_limits_bytes=kept))
            )
    if problem.total_memory_limit_bytes is not None:
        relaxed.append(
            (
                "total memory",
                problem.total_memory_limit_bytes,
                "bytes",
                replace(problem, total_memory_limit_bytes=None),
            )
        )
    if objective.max_latency_ns is not None:
        free = replace(problem, objective=replace(objective, max_latency_ns=None))
        relaxed.append(("latency", objective.max_latency_ns, "ns", free))
    if objective.min_throughput_hz is not None:
        free = replace(problem, objective=replace(objective, min_throughput_hz=None))
        relaxed.append(("throughput floor", objective.min_throughput_hz, "frames/s", free))
    if problem.max_power_mw is not None:
        relaxed.append(("power", problem.max_power_mw, "mW", replace(problem, max_power_mw=None)))
    for what, value, unit, free in relaxed:
        search = _lanes(contract(free), limits)
        found, _ = _best_mix(free, search.offers, max_lanes)
        if found is not None:
            violations = evaluate(problem, found[0]).violations
            demand = next((v.demand for v in violations), float("nan"))
            return (
                f"{what}: the best mapping without this limit takes {demand:g} {unit}, limit {value:g} {unit}"
            )
    names = ", ".join(f"{what} limit {value:g} {unit}" for what, value, unit, _ in relaxed)
    return f"no mapping keeps these limits together, and lifting one of them does not help: {names}"
