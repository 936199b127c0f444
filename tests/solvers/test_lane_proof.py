"""Sweeps over ideals, and the proof of the mix that rests on them, against pairs of ideals and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from benchmarks.graph_files import read_pipedream
from solvers.errors import CapError, InfeasibleError
from solvers.evaluate import evaluate
from solvers.exhaustive import search_exhaustively
from solvers.growth import Growth, _distinct
from solvers.ideal_dp import IdealTable
from solvers.ideals import enumerate_ideals
from solvers.knapsack import Knapsack, LaneType
from solvers.lane_proof import LaneProof
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Stage, Status
from solvers.order_costs import NEVER
from solvers.problem import Flow, Problem, Slot
from solvers.reach import Reach
from solvers.registry import solve
from solvers.topology import contract

MANY = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


def periods_by_pairs(blocks):
    """Best periods on exactly so many cores, by the programme over pairs of ideals."""
    shape = tuple(size + 1 for size in blocks.problem.cluster_sizes)
    return IdealTable(blocks, np.full(shape, NEVER), Limits()).periods()


def grown(problem):
    """The blocks of a problem and their levels; examples without any are left out."""
    try:
        blocks = contract(problem)
    except InfeasibleError:
        assume(False)
    return blocks, Growth(blocks, Limits())


@st.composite
def modules(draw):
    """Two modules of parallel branches with hand-over both ways; some tensors skip a module, too."""
    n, heads = 1, [0]
    flows: list[list[int]] = []  # producer, then users
    for _ in range(2):
        first, ends = [], []
        for length in draw(st.lists(st.integers(1, 2), min_size=2, max_size=3)):
            first.append(n)
            flows += [[layer, layer + 1] for layer in range(n, n + length - 1)]
            n += length
            ends.append(n - 1)
        flows += [[heads[-1], *first], *([end, n] for end in ends)]
        heads.append(n)
        n += 1
    for users in flows:
        if users[-1] < heads[1] and draw(st.integers(0, 3)) == 0:
            users.append(heads[-1])
    few, some = st.integers(0, 4), st.integers(0, 20)
    row, send = ([draw(few) for _ in range(2)] for _ in range(2))
    return Problem(
        np.array([[draw(st.integers(1, 20)) for _ in range(2)] for _ in range(n)]),
        np.array([[draw(st.integers(0, 9)) > 0 or layer in heads for _ in range(2)] for layer in range(n)]),
        (Slot(0, 1), Slot(1, 1)),
        draw(st.sampled_from([(2, 1), (3, 1), (2, 2)])),
        tuple(Flow(producer, tuple(users), draw(some)) for producer, *users in flows),
        setup_ns=np.array([row] * 2),
        bandwidth_bytes_per_s=np.full((2, 2), 1e9),
        send_setup_ns=tuple(send),
        send_bandwidth_bytes_per_s=(draw(st.sampled_from([np.inf, 1e9])), np.inf),
    )


@MANY
@given(problem=st.one_of(problems(6, chain=False), modules()), data=st.data())
def test_reach_equals_the_programme_over_pairs(problem, data):
    blocks, growth = grown(problem)
    assert growth.n_ideals == len(enumerate_ideals(blocks, 1000))
    wanted = periods_by_pairs(blocks)
    values = sorted({int(value) for value in wanted[wanted < NEVER]} | {0})
    period = data.draw(st.sampled_from(values)) + data.draw(st.integers(-1, 1))
    reach = Reach(growth, problem.cluster_sizes, period, Limits())
    assert (reach.final() | (wanted > period)).all()
    for cores in np.argwhere(reach.final()):
        stages = reach.lane(tuple(map(int, cores)), 1000)
        assert (stages is not None) == (wanted[tuple(cores)] <= period)
        if stages is not None:
            lane = Lane(tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(stages)))
            assert sum(problem.cores[stage.slot] for stage in lane.stages).tolist() == cores.tolist()
            assert _same_links(problem) <= (evaluate(problem, Mapping((lane,))).lanes[0].period_ns <= period)


@settings(MANY, max_examples=examples(60))
@given(problem=modules())
def test_no_stage_pays_less_than_what_is_sure(problem):
    _, growth = grown(replace(problem, supported=np.ones_like(problem.supported)))
    sizes = [size for size, level in enumerate(growth.levels) for _ in level.bits]
    necks = [size for size, level in enumerate(growth.levels) if len(level.bits) == 1]
    by_ideal = [np.concatenate(x) for x in (growth.sure.first_block_ns, growth.sure.to_neck_ns)]
    made_since = np.concatenate(growth.sure.made_since_ns)
    sent = np.concatenate([level.sent_ns for level in growth.levels])
    n_met = 0
    for end, end_bits in enumerate(growth.ideals.bits):
        below = (growth.ideals.bits & ~end_bits == 0).all(axis=1) & (np.arange(len(sizes)) != end)
        starts = np.flatnonzero(below)
        if not len(starts):
            continue
        neck = max(size for size in necks if size < sizes[end])
        for column, cluster in enumerate(growth.cluster_of_slot):
            paid = growth.busy_ns(starts, end, column, np.zeros(len(starts), np.int64))
            for start, moving in zip(starts, paid):
                over = sizes[start] <= neck
                received = by_ideal[sizes[start] < neck if over else sizes[end] in necks][start]
                least = received[cluster] + (made_since if over else sent)[end][cluster]
                assert least <= moving
                n_met += least == moving
    assert n_met


def _same_links(problem):
    """Whether hand-over does not depend on the producer's cluster."""
    return (problem.setup == problem.setup[:1]).all() and (problem.bandwidth == problem.bandwidth[:1]).all()


@MANY
@given(problem=problems(6, chain=True, links="target"), data=st.data())
def test_sure_hand_over_is_all_there_is_where_stages_meet_in_necks(problem, data):
    free = {"overlap": False, "send_setup_ns": None, "send_bandwidth_bytes_per_s": None}
    blocks, growth = grown(replace(problem, stage_times=(), **free))
    assume(all(pin is None for pin in blocks.pin))
    wanted = periods_by_pairs(blocks)
    period = data.draw(st.sampled_from(sorted({int(value) for value in wanted[wanted < NEVER]} | {0})))
    assert (Reach(growth, problem.cluster_sizes, period, Limits()).final() == (wanted <= period)).all()


def _n_cores(problem, solution):
    slots = [stage.slot for lane in solution.mapping.lanes for stage in lane.stages]
    return problem.cores[slots].sum()


@MANY
@given(problem=problems(chain=False))
def test_many_ideals_equal_brute_force_over_all_contiguous_plans(problem):
    oracle = search_exhaustively(problem, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.lanes.FEW_IDEALS", 0)
        found = solve(problem, "ideal_dp")
    if oracle.evaluation is None:
        assert found.evaluation is None
        return
    assert found.evaluation is not None
    assert found.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns
    assert found.status is Status.OPTIMAL or not _same_links(problem)
    if found.status is Status.OPTIMAL:
        assert found.family is not Family.ORDER
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns
        assert _n_cores(problem, found) == _n_cores(problem, oracle)


@settings(MANY, max_examples=examples(100))
@given(problem=problems(6, chain=False, links="target"), gap=st.sampled_from([0.0, 0.1, 0.5]))
def test_lower_bounds_hold_and_the_mix_is_within_the_gap(problem, gap):
    blocks, growth = grown(replace(problem, overlap=False))
    wanted = periods_by_pairs(blocks)
    known = np.full(wanted.shape, NEVER)
    found = {}

    def offer(use, stages):
        lane = Lane(tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(stages)))
        found[use] = evaluate(blocks.problem, Mapping((lane,))).lanes[0].period_ns
        return found[use]

    proof = LaneProof(growth, known, problem.lane_limit, Limits(gap=gap))
    proof.run(offer)
    assert (proof.lower_ns <= wanted).all()
    for cores, period in found.items():
        assert wanted[cores] <= period
    assert _best_rate(problem, proof.known_ns) * (1 + gap) >= _best_rate(problem, wanted) * (1 - 1e-9)


def _best_rate(problem, periods):
    types = [LaneType(tuple(use), 1 / periods[tuple(use)], 0) for use in np.argwhere(periods < NEVER)]
    return Knapsack(problem.cluster_sizes, types, problem.lane_limit).best_rate


def test_caps_are_named():
    free = Problem(np.ones((12, 1), np.int64), np.ones((12, 1), bool), (Slot(0, 1),), (1,))
    with pytest.raises(
        CapError, match=r"more than 1000 ideals after sets of \d+ of 12 blocks \(cap on ideals"
    ):
        Growth(contract(free), Limits(), 1000)
    with pytest.raises(CapError, match="100000 bytes of memory"):
        Growth(contract(free), Limits(memory_bytes=100_000))
    growth = Growth(contract(replace(free, cluster_sizes=(2,))), Limits())
    with pytest.raises(CapError, match=r"a sweep over 4096 ideals needs \d+ bytes, the limit is 50000 bytes"):
        LaneProof(growth, np.full(3, NEVER), None, Limits(memory_bytes=50_000))
    with pytest.raises(CapError, match="0 ideals do not tell"):
        Reach(growth, (2,), 6, Limits()).lane((2,), 0)


@settings(MANY, max_examples=examples(60))
@given(problem=st.one_of(problems(chain=False, links="target"), modules()))
def test_nothing_is_claimed_where_the_backward_search_gives_up(problem):
    oracle = solve(problem, "ideal_dp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.lanes.FEW_IDEALS", 0)
        patch.setattr("solvers.mix.MOST_IDEALS", 1)
        patch.setattr("solvers.lane_proof.MOST_STEPS", 0)
        patch.setattr("solvers.lane_proof.FEW_STEPS", 0)
        found = solve(problem, "ideal_dp")
    if found.status is Status.OPTIMAL:
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns
    elif found.evaluation is not None:
        assert found.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns


def test_sets_of_one_key_are_told_apart():
    bits = np.array([[3], [5], [3], [5]], np.uint64)
    for key in ([1, 1, 1, 1], [1, 2, 1, 2]):
        first, which = _distinct(np.array(key, np.uint64), bits)
        assert (bits[first][which] == bits).all()
        assert len(first) == 2


@pytest.mark.parametrize("rate", [np.inf, 1e10])
def test_many_and_few_ideals_agree_on_a_profile(corpus, monkeypatch, rate):
    path = corpus / "cost-graphs" / "pipedream" / "resnet50.txt"
    problem = replace(read_pipedream(path, (2, 2), (1.0, 2.5)), bandwidth_bytes_per_s=np.full((2, 2), rate))
    few = solve(problem, "ideal_dp")
    monkeypatch.setattr("solvers.lanes.FEW_IDEALS", 100)
    many = solve(problem, "ideal_dp")
    assert few.status is many.status is Status.OPTIMAL
    assert few.evaluation.frames_per_ns == many.evaluation.frames_per_ns
