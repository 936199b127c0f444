"""A lower bound on the period of a single lane that counts hand-over: what whole units can hold.

The relaxation of ``solvers.bounds`` splits every block over all units, and so hands nothing over.  Here
units stay whole.  Give every element a price, of sum 1.  A unit on slot r whose busy time stays within P
holds elements worth at most W_r(P), with what it hands over, and the units of a lane hold everything.  So
a lane has a period within P only if some units within the cores have

    sum over the units of W_r(P) >= 1.

The smallest P for which some have is a bound for *any* prices, so the search for good ones needs no care,
and rounding times down keeps it a bound.  ``solvers.frontier`` gives W_r for all P at once.  The best prices
are the dual of the linear programme over all sets that a unit can hold (Gilmore & Gomory, Operations
Research 9, 1961); they are found by cutting planes within a box around the best prices so far (Marsten,
Hogan & Blankenship, "The boxstep method", Operations Research 23, 1975) on costs rounded to coarse steps.
Fine steps judge them.  With the work of each element as its price this is close to what Archer et al.
("Practical performance guarantees for pipelined DNN inference", ICML 2024) bound: some block does its share
of the work, and hands over.
"""

from __future__ import annotations

import time

import numpy as np

from solvers.bounds import charge, relaxation
from solvers.frontier import Table
from solvers.limits import Limits
from solvers.problem import BoolArray, FloatArray, Problem
from solvers.unit_loads import Steps, Units, build_units

COARSE, FINE = 1500, 60_000
"""Steps of load up to the known period for finding prices, and most for judging them."""
CLOSE = 1
"""Coarse steps between what is shown and what can not be shown at which the search ends."""
MOST_ROUNDS = 400
MOST_WORK = 200_000_000
"""States times steps that judging prices may take; fewer steps otherwise."""
MOST_CORE_VECTORS = 200
"""Core vectors up to which this bound is looked for."""
MOST_ELEMENTS = 2000
FIRST_BOX = 0.5
"""Half the width of the box, relative to the prices."""
SAFETY = 1e-9


def unit_bound_ns(problem: Problem, known_ns: float, limits: Limits) -> float:
    """Return a lower bound on the period of every mapping of a single lane, shared units allowed.

    Parameters
    ----------
    problem
        With a lane limit of one: copies of the whole model hand nothing over.
    known_ns
        A known period: the answer is at most that.
    limits
        ``time_s`` is a ceiling that is looked at between rounds; their number is limited too.

    Returns
    -------
    float
        0 where this bound does not apply: several lanes, hand-over that overlaps with computing, very
        many cores or elements.
    """
    n_vectors = np.prod([size + 1 for size in problem.cluster_sizes])
    if problem.lane_limit != 1 or problem.overlap or known_ns <= 0 or n_vectors > MOST_CORE_VECTORS:
        return 0.0
    deadline = time.monotonic() + limits.time_s
    units = build_units(problem, known_ns)
    if units is None:
        return known_ns
    if len(units.order) > MOST_ELEMENTS:
        return 0.0
    coarse = Steps(units, COARSE, nearest=True)
    prices = _Search(coarse, limits).best_prices(_first_prices(units), deadline)
    fine = Steps(units, int(np.clip(MOST_WORK // coarse.n_states, COARSE, FINE)))
    period = fine.least_period(fine.values(fine.tables(prices)))
    return min(known_ns, period * known_ns / fine.n_steps * (1 - SAFETY))


def _first_prices(units: Units) -> FloatArray:
    """The prices of the relaxation: what an element costs where it is cheapest."""
    problem = units.problem
    cores = problem.cores[list(units.slots)]
    _, per_core = relaxation(units.cost_ns, cores, np.array(problem.cluster_sizes))
    per_slot = cores @ per_core
    prices: FloatArray = charge(units.cost_ns, per_slot).min(axis=1)
    total = float(prices.sum())
    return prices / total if total > 0 else np.full(len(prices), 1 / len(prices))


class _Search:
    """Cutting planes for the prices; the target is a period that is to be shown to be too short."""

    def __init__(self, steps: Steps, limits: Limits) -> None:
        self._steps = steps
        self._limits = limits
        self._master = _Master(steps.units)
        n_units = max(steps.units.problem.cluster_sizes)
        self._n_sets = min(n_units, 6)

    def best_prices(self, centre: FloatArray, deadline: float) -> FloatArray:
        """Return the prices of the highest bound met before the deadline, starting from some."""
        steps = self._steps
        values = self._evaluate(centre, None)
        low, high = steps.least_period(values), steps.n_steps
        best = centre
        target = -1
        box, held, misses = FIRST_BOX, 0.0, 0
        for _ in range(MOST_ROUNDS):
            if high - low <= CLOSE or time.monotonic() > deadline or self._limits.stopped:
                break
            if not low < target <= high:
                target = min(high, (low + high) // 2 + 1)
                self._master.aim(target)
                values = self._evaluate(centre, target)
                held, misses, box = steps.held(values, target), 0, max(box, 0.1)
            solved = self._master.solve(centre, box)
            if solved is None:
                box *= 1.5
                continue
            least, prices, inside = solved
            if least >= 1 - 1e-6:  # no prices in this box show the target to be too short
                if inside or box > 50:
                    high = target - 1
                    target = -1
                else:
                    box *= 3
                continue
            values = self._evaluate(prices, target)
            period = steps.least_period(values)
            if period > low:
                low, best = period, prices
            now = steps.held(values, target)
            if now < held:
                box = min(box * 2, 100) if now < held - 0.3 * (held - least) else box
                centre, held, misses = prices, now, 0
            else:
                misses += 1
                if misses == 2:
                    box, misses = box / 2, 0
        return best

    def _evaluate(self, prices: FloatArray, target: int | None) -> FloatArray:
        """Fill in the tables; with a target, give the master sets that are worth much within it."""
        steps = self._steps
        tables = steps.tables(prices, trace=target is not None)
        if target is not None:
            for column, table in enumerate(tables):
                self._add_sets(column, table, prices.copy(), target)
        return steps.values(tables)

    def _add_sets(self, column: int, table: Table, left: FloatArray, target: int) -> None:
        """Sets that go beside each other tell the master more than the best one alone."""
        for _ in range(self._n_sets):
            found = self._steps.members(column, table, target)
            if found is None or not found[0].any():
                break
            members, period = found
            self._master.add(column, members, period)
            left[members] = np.minimum(left[members], 0.0)
            table = self._steps.table(column, left, trace=True)


class _Master:
    """Linear programme: prices of sum 1 in a box, such that the sets known so far are worth little."""

    def __init__(self, units: Units) -> None:
        from ortools.linear_solver import pywraplp

        problem = units.problem
        self._optimal = pywraplp.Solver.OPTIMAL
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._price = [self._solver.NumVar(-1, 1, "") for _ in units.order]
        self._core = [self._solver.NumVar(0, self._solver.infinity(), "") for _ in problem.cluster_sizes]
        self._cores = problem.cores[list(units.slots)]
        self._solver.Add(sum(self._price) == 1)
        self._solver.Minimize(sum(size * core for size, core in zip(problem.cluster_sizes, self._core)))
        self._sets: set[tuple[int, bytes]] = set()
        self._rows: list[tuple[object, int]] = []
        self._target = 0

    def add(self, column: int, members: BoolArray, period: int) -> None:
        """Add a set that a unit on a slot can hold within a period."""
        key = column, members.tobytes()
        if key in self._sets:
            return
        self._sets.add(key)
        row = self._solver.Constraint(-self._solver.infinity(), 0)
        for cluster, n in enumerate(self._cores[column]):
            if n:
                row.SetCoefficient(self._core[cluster], -int(n))
        for element in np.flatnonzero(members):
            row.SetCoefficient(self._price[element], 1)
        self._rows.append((row, period))

    def aim(self, target: int) -> None:
        """Count only sets within the target."""
        for row, period in self._rows:
            row.SetUb(0 if period <= target else self._solver.infinity())  # type: ignore[attr-defined]

    def solve(self, centre: FloatArray, box: float) -> tuple[float, FloatArray, bool] | None:
        """Return the least worth of all cores, its prices, and whether the box leaves them be.

        None where the linear programme meets numerical trouble.
        """
        reach = box * np.maximum(np.abs(centre), 1 / len(centre))
        for price, middle, side in zip(self._price, centre, reach):
            price.SetBounds(float(middle - side), float(middle + side))
        if self._solver.Solve() != self._optimal:
            return None
        prices = np.array([price.solution_value() for price in self._price])
        inside = bool((np.abs(prices - centre) < reach * (1 - 1e-9)).all())
        total = float(prices.sum())
        return float(self._solver.Objective().Value()), prices / total, inside
