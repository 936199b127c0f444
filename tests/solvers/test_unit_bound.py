"""The bound that counts hand-over: below brute force always, and near it on published graphs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from benchmarks.cost_graphs import read
from solvers.exhaustive import search_exhaustively
from solvers.frontier import Frontier, Tensor, good_order
from solvers.limits import Limits
from solvers.unit_bound import unit_bound_ns

MANY = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
PATIENT = Limits(time_s=1000.0)


@st.composite
def units(draw):
    """Elements with loads and values, some not allowed, and tensors between them."""
    n = draw(st.integers(1, 6))
    tensors = []
    for _ in range(draw(st.integers(0, 5)) if n > 1 else 0):
        touched = draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=4, unique=True))
        cost = st.integers(0, 4)
        tensors.append(Tensor(touched[0], tuple(sorted(touched[1:])), draw(cost), draw(cost)))
    load = np.array([draw(st.integers(0, 5)) for _ in range(n)])
    value = np.array([float(draw(st.integers(-3, 9))) for _ in range(n)])
    allowed = np.array([draw(st.integers(0, 5)) > 0 for _ in range(n)])
    return n, tensors, load, value, allowed, draw(st.permutations(range(n)))


def load_of(held, tensors, load):
    total = sum(int(load[element]) for element in held)
    for tensor in tensors:
        if tensor.source in held:
            total += 0 if held.issuperset(tensor.users) else tensor.send
        else:
            total += tensor.receive if held & set(tensor.users) else 0
    return total


@MANY
@given(case=units(), own_order=st.booleans())
def test_what_a_unit_holds_equals_all_subsets(case, own_order):
    n, tensors, load, value, allowed, order = case
    if own_order:
        order, _ = good_order(n, [(t.source, *t.users) for t in tensors])
        assert sorted(order) == list(range(n))
    most = 20
    table = Frontier(order, tensors).table(load, allowed, value, most, trace=True)
    best = np.zeros(most + 1)
    for chosen in itertools.product((False, True), repeat=n):
        held = {element for element in range(n) if chosen[element]}
        if all(allowed[element] for element in held):
            needed = load_of(held, tensors, load)
            worth = sum(value[element] for element in held)
            best[needed:] = np.maximum(best[needed:], worth)
    assert table.best.tolist() == best.tolist()
    for period in (0, 7, most):
        held = set(np.flatnonzero(table.members(period)).tolist())
        assert load_of(held, tensors, load) <= period
        assert sum(value[element] for element in held) == best[period]


@MANY
@given(problem=problems(max_layers=4), free=st.booleans(), slack=st.sampled_from([1.0, 1.3, 4.0]))
def test_never_above_brute_force(problem, free, slack):
    """Every feature mixed, units may be shared; whatever period is known before."""
    problem = replace(problem, max_lanes=1, free_within_unit=free)
    oracle = search_exhaustively(problem, True, 1)
    if oracle.evaluation is not None:
        period = oracle.evaluation.lanes[0].period_ns
        assert unit_bound_ns(problem, period * slack, PATIENT) <= period


@pytest.mark.slow
@settings(MANY, max_examples=examples(60))
@given(problem=problems(max_layers=5, features=False, links="target", chain=False))
def test_often_tight_where_hand_over_is_dear(problem):
    """Never below what a single element needs; equal to the optimum when only one unit is there."""
    problem = replace(problem, max_lanes=1, overlap=False)
    oracle = search_exhaustively(problem, True, 1)
    period = oracle.evaluation.lanes[0].period_ns
    bound = unit_bound_ns(problem, float(period), PATIENT)
    if sum(problem.cluster_sizes) == 1:
        assert bound == pytest.approx(period, rel=1e-3)
    else:
        assert bound >= 0.999 * max(1, problem.cost_ns.min(axis=1).max())


def test_does_not_apply_to_copies_and_overlap(corpus):
    path = corpus / "cost-graphs" / "dnn-partitioning" / "Layer_bert24_inference.json"
    problem = read(path).problem
    assert unit_bound_ns(replace(problem, max_lanes=None), 2e7, PATIENT) == 0
    assert unit_bound_ns(replace(problem, overlap=True), 2e7, PATIENT) == 0


@pytest.mark.parametrize(
    ("name", "known", "at_least"),
    [
        ("Layer_bert24", 17.7148, 17.703),
        ("Layer_gnmt", 31.6874, 31.6),
        ("Operator_resnet50", 124.3489, 124.2),
    ],
)
def test_closes_the_gap_of_published_graphs(corpus, name, known, at_least):
    """The relaxation gives 15.3, 30.1 and 53.8."""
    path = corpus / "cost-graphs" / "dnn-partitioning" / f"{name}_inference.json"
    assert json.loads(path.read_text())["maxFPGAs"] == 6
    bound = unit_bound_ns(read(path).problem, known * 1e6, PATIENT) / 1e6
    assert at_least <= bound <= known
