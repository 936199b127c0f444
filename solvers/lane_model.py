"""One lane as a model for CP-SAT: pieces that take turns on units, under every goal and limit.

The lane is cut along one topological order of the blocks (``solvers.lane_literals``).  A graph with one
order has no other lanes than these, so the model is exact there; on a branching graph it is exact for the
order.  It is what ``solvers.evaluate`` computes, but for measured whole stages, hand-over that overlaps with
computing, and the memory inside blocks of several layers (a lower bound).  Answers are scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from solvers.cp_sat import Found, run_cp_sat
from solvers.evaluate import stage_memory_bytes
from solvers.lane_literals import LaneLiterals
from solvers.limits import Limits
from solvers.mapping import Lane
from solvers.problem import Flow, Goal
from solvers.topology import Blocks

FEW_CHOICES = 500
"""With up to so many pairs of position and unit one worker is quicker than many."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is wanted of one lane, and what the other lanes of a mapping leave to it.

    Parameters
    ----------
    goal
        THROUGHPUT: the period, LATENCY: the latency, ENERGY: the lane's energy per frame plus
        ``period_price_mw`` times its period is made small.
    cores, memory_bytes
        Per cluster; None for no limit.
    total_memory_bytes
        Of all clusters together, or None.
    max_period_ns, max_latency_ns
        Ceilings, or None.
    max_power_mw
        Ceiling on energy over period, or None.
    least_period_ns
        No lane has a shorter period.
    """

    goal: Goal
    cores: tuple[int, ...]
    memory_bytes: tuple[int | None, ...]
    total_memory_bytes: int | None = None
    max_period_ns: int | None = None
    max_latency_ns: int | None = None
    max_power_mw: Fraction | None = None
    period_price_mw: int = 0
    least_period_ns: int = 0

    @property
    def limits_memory(self) -> bool:
        """Whether any memory is limited."""
        return self.total_memory_bytes is not None or any(m is not None for m in self.memory_bytes)


class LaneModel(LaneLiterals):
    """The model of one lane along an order.

    Parameters
    ----------
    blocks, order, units
        See ``LaneLiterals``.
    room
        What is wanted.
    """

    def __init__(self, blocks: Blocks, order: Sequence[int], units: Sequence[int], room: Room) -> None:
        super().__init__(blocks, order, units, room.cores)
        self.room = room
        self._only_tensors = replace(self._problem, constants=(), queue_depth=0)
        self._load: list[list[tuple[int, Any]]] = [[] for _ in self.units]
        self._time: list[list[tuple[int, Any]]] = [[] for _ in self.order]
        self._add_computing()
        for flow, home, users in self._flows:
            if home is not None and users:
                self._add_hand_over(flow, home, users)
        self._add_goal()
        if room.limits_memory:
            self._add_memory()

    def solve(self, time_s: float, limits: Limits, tell: Callable[[Lane], None] | None = None) -> Found[Lane]:
        """Run CP-SAT; see ``run_cp_sat``."""
        few = sum(map(len, self._x)) <= FEW_CHOICES
        return run_cp_sat(self._model, self._read, time_s, limits, tell, workers=1 if few else None)

    def _add_computing(self) -> None:
        problem = self._problem
        for i, block in enumerate(self.order):
            layers = list(self.blocks.members[block])
            for u, choice in self._x[i].items():
                slot = self.units[u]
                self._charge(i, u, int(problem.cost_ns[layers, slot].sum()), [choice])
                self._charge(i, u, int(problem.overhead[slot]), [self._cut[i], choice])

    def _charge(self, i: int, u: int, time_ns: int, when: Sequence[Any]) -> None:
        """Charge a time to a unit and to the stage at a position, when all the literals hold."""
        if time_ns:
            term = (time_ns, self._all(when))
            self._load[u].append(term)
            self._time[i].append(term)

    def _add_hand_over(self, flow: Flow, home: int, users: list[int]) -> None:
        """Charge what the consumers' stages pay to receive a tensor, and the producer's to send it."""
        problem, n_clusters = self._problem, len(self.room.cores)
        prices = [
            [problem.transfer_ns(a, b, flow.n_bytes) for b in range(n_clusters)] for a in range(n_clusters)
        ]
        for j, entering in self._arrivals(home, users):
            for u, choice in self._x[j].items():
                paid = entering
                if problem.free_within_unit:  # nothing where the tensor is on the unit already
                    earlier = [self._x[i].get(u) for i in (home, *users[: users.index(j)])]
                    paid = [other.negated() for other in earlier if other is not None]
                row = [prices[a][self._clusters[u]] for a in range(n_clusters)]
                if len(set(row)) == 1:
                    self._charge(j, u, row[0], [*paid, choice])
                    continue
                for a, price in enumerate(row):
                    there = self._on(home, a)
                    if there is not None:
                        self._charge(j, u, price, [*paid, *there, choice])
        for u, choice in self._x[home].items():
            price = problem.send_ns(self._clusters[u], flow.n_bytes)
            if price and problem.free_within_unit:
                kept = [self._x[j][u] for j in users if u in self._x[j]]
                leaves = [self._all(kept).negated()] if len(kept) == len(users) else []
                self._charge(home, u, price, [*leaves, choice])
            elif price:
                self._charge(home, u, price, [self._between(home, users[-1]), choice])

    def _add_goal(self) -> None:
        model, room, power = self._model, self.room, self._problem.active_power_mw
        loads = [sum(time * literal for time, literal in terms) for terms in self._load]
        horizon = sum(time for terms in self._load for time, _ in terms)
        most = horizon if room.max_period_ns is None else room.max_period_ns
        period = model.new_int_var(min(room.least_period_ns, most), most, "period")
        for load in loads:
            model.add(load <= period)
        energy = 0 if power is None else sum(power[s] * load for s, load in zip(self.units, loads))
        if room.max_power_mw is not None:  # a longer period would be a way out: it is exact here
            largest = [model.new_bool_var("") for _ in loads]
            model.add_exactly_one(largest)
            for load, chosen in zip(loads, largest):
                model.add(period <= load).only_enforce_if(chosen)
            limit = room.max_power_mw
            model.add(energy * limit.denominator <= limit.numerator * period)
        latency = None
        if room.goal is Goal.LATENCY or room.max_latency_ns is not None:
            latency = self._latency(horizon)
            if room.max_latency_ns is not None:
                model.add(latency <= room.max_latency_ns)
        if room.goal is Goal.THROUGHPUT:
            model.minimize(period)
        elif room.goal is Goal.LATENCY:
            model.minimize(latency)
        else:
            model.minimize(energy + room.period_price_mw * period)

    def _latency(self, horizon: int) -> Any:
        """Return the latency, or something that is not below it."""
        model, cut = self._model, self._cut
        times = [sum(time * literal for time, literal in terms) for terms in self._time]
        if self.blocks.has_one_order:
            return sum(times)
        n = len(self.order)
        ready, spent, finish = (
            [model.new_int_var(0, horizon, f"{what}{i}") for i in range(n)]
            for what in ("ready", "spent", "finish")
        )
        done = [
            [model.new_int_var(0, horizon, f"done{i}_{u}") for u in range(len(self.units))] for i in range(n)
        ]
        for i in range(n):
            model.add(finish[i] >= ready[i] + spent[i])
            model.add(spent[i] >= times[i])
            for u, choice in self._x[i].items():
                model.add(done[i][u] >= finish[i]).only_enforce_if(choice)
            if i == 0:
                continue
            same = cut[i].negated()
            model.add(spent[i] >= spent[i - 1] + times[i]).only_enforce_if(same)
            model.add(ready[i] >= ready[i - 1]).only_enforce_if(same)
            model.add(finish[i - 1] >= finish[i]).only_enforce_if(same)
            for u in range(len(self.units)):
                model.add(done[i][u] >= done[i - 1][u])
                if u in self._x[i]:
                    model.add(ready[i] >= done[i - 1][u]).only_enforce_if([cut[i], self._x[i][u]])
        for _, home, users in self._flows:
            if home is not None:
                for j in users:
                    model.add(ready[j] >= finish[home]).only_enforce_if(self._between(home, j))
        latency = model.new_int_var(0, horizon, "latency")
        for last in finish:
            model.add(latency >= last)
        return latency

    def _add_memory(self) -> None:
        """Keep to the limits on memory: constants, what waits in front of stages, and live tensors."""
        model, room, problem = self._model, self.room, self._problem
        used: list[list[tuple[int, Any]]] = [[] for _ in room.cores]
        for constant in problem.constants:
            places = sorted({self._position[self.blocks.of_layer[layer]] for layer in constant.users})
            for j, when in self._arrivals(None, places):
                self._occupy(used, j, constant.n_bytes, when)
        for flow, home, users in self._flows:
            for j, when in self._arrivals(home, users):
                self._occupy(used, j, problem.queue_depth * flow.n_bytes, when)
        peaks = self._peaks()
        for i, peak in enumerate(peaks):
            last = [] if i + 1 == len(peaks) else [self._cut[i + 1]]
            for cluster in range(len(used)):
                here = self._on(i, cluster)
                if here is not None:
                    resident = model.new_int_var(0, self._most_live(), f"resident{i}_{cluster}")
                    model.add(resident >= peak).only_enforce_if([*last, *here])
                    used[cluster].append((1, resident))
        sums = [sum(size * literal for size, literal in terms) for terms in used]
        for total, limit in zip(sums, room.memory_bytes):
            if limit is not None:
                model.add(total <= max(0, limit))
        if room.total_memory_bytes is not None:
            model.add(sum(sums) <= max(0, room.total_memory_bytes))

    def _occupy(self, used: list[list[tuple[int, Any]]], i: int, n_bytes: int, when: Sequence[Any]) -> None:
        for cluster, terms in enumerate(used):
            here = self._on(i, cluster)
            if here is not None and n_bytes:
                terms.append((n_bytes, self._all([*when, *here])))

    def _most_live(self) -> int:
        return sum(flow.n_bytes for flow in self._problem.flows)

    def _peaks(self) -> list[Any]:
        """Return, per position, the most bytes that live in its stage until then."""
        model = self._model
        peaks: list[Any] = []
        for i, block in enumerate(self.order):
            own = stage_memory_bytes(self._only_tensors, self.blocks.members[block])
            live = [own] + [
                flow.n_bytes * literal
                for flow, home, users in self._flows
                if (literal := self._lives_through(i, home, users, flow.is_output)) is not None
            ]
            peak = model.new_int_var(0, self._most_live(), f"peak{i}")
            model.add(peak >= sum(live))
            if i:
                model.add(peak >= peaks[-1]).only_enforce_if(self._cut[i].negated())
            peaks.append(peak)
        return peaks

    def _lives_through(self, i: int, home: int | None, users: list[int], is_output: bool) -> Any:
        """Return whether a tensor that position i neither makes nor uses is alive there; None for never."""
        if i in users or (home is not None and home >= i):
            return None
        later = next((j for j in users if j > i), None)
        ways = []  # made in this stage and needed later, or needed later in this stage
        if home is not None and (later is not None or is_output):
            ways.append(self._between(home, i))
        if later is not None:
            ways.append(self._between(i, later))
        return self._all(ways).negated() if ways else None
