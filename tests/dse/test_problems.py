"""Layer graphs become problems, pins find their layers, and mappings find their cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.config import Pin
from dse.costs import Cost, CostTable, WholeCost
from dse.errors import ConfigError, InputError, PlatformError
from dse.graph import Layer, LayerGraph, Tensor
from dse.placement import PlacedMapping
from dse.platforms import Cluster, Link, Platform, Slot
from dse.problems import (
    ResolvedPin,
    Wishes,
    build_problem,
    find_layers,
    place,
    problem_slots,
    resolve_pins,
    unplace,
    wanted_slots,
)
from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.registry import solve

BOARD = Platform("board", (Cluster("LITTLE", (0, 1, 2, 3)), Cluster("big", (4, 5, 6, 7))))


def chain(n: int, name: str = "net") -> LayerGraph:
    """Layers 0..n-1 in a row; the first output also skips to the last layer; one weight each."""
    tensors = [Tensor(0, "input", "float32", (4,), 16, "input")]
    layers = []
    for index in range(n):
        tensors.append(Tensor(len(tensors), f"block_{index}/out", "float32", (4,), 16, "activation"))
        output = len(tensors) - 1
        tensors.append(Tensor(len(tensors), f"block_{index}/w", "float32", (100,), 400, "constant"))
        inputs = (layers[-1].outputs[0] if layers else 0,)
        if index == n - 1 and n > 2:
            inputs = (*inputs, layers[0].outputs[0])
        layers.append(
            Layer(
                index,
                f"block_{index}/out",
                "ADD",
                (index,),
                inputs,
                (output,),
                (output + 1,),
                10,
                0,
                400,
                f"k{index}",
            )
        )
    return LayerGraph(name, tuple(layers), tuple(tensors), (0,), (layers[-1].outputs[0],))


def table(graph: LayerGraph, platform: Platform = BOARD, whole: bool = False) -> CostTable:
    slots = platform.slots
    costs = tuple(
        tuple(
            Cost(1000 * (1 + layer.index) // slot.threads * (3 if slot.cluster == "LITTLE" else 1))
            for slot in slots
        )
        for layer in graph.layers
    )
    wholes = tuple(
        WholeCost(2 * sum(row[i].median_ns or 0 for row in costs) + 10, ()) if whole else None
        for i in range(len(slots))
    )
    return CostTable("0" * 64, graph.name, platform.name, slots, costs, (10,) * len(slots), wholes)


def test_problem_has_the_graphs_flows_constants_and_costs():
    graph = chain(4)
    problem = build_problem(graph, BOARD, table(graph))
    assert problem.n_layers == 4
    assert problem.edges == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert [flow.is_output for flow in problem.flows] == [False, False, False, False, True]
    assert problem.flows[0].producer is None
    assert sum(constant.n_bytes for constant in problem.constants) == graph.weight_bytes == 1600
    big2 = BOARD.slots.index(Slot("big", 2))
    assert problem.cost_ns[3, big2] == 2000
    assert problem.overhead[big2] == 10


def test_costs_are_calibrated_by_the_whole_model():
    graph = chain(3)
    costs = table(graph, whole=True)
    assert costs.calibration == pytest.approx([2.0] * len(costs.slots))
    problem = build_problem(graph, BOARD, costs)
    whole = Mapping((Lane((Stage((0, 1, 2), 0, 0),)),))
    assert evaluate(problem, whole).lanes[0].period_ns == costs.whole[0].median_ns


def test_unsupported_layers_are_masked_and_switch_calibration_off():
    graph = chain(3)
    costs = table(graph, whole=True)
    row = (Cost(None, reason="refused"), *costs.costs[1][1:])
    costs = CostTable(
        costs.model_hash,
        "net",
        "board",
        costs.slots,
        (costs.costs[0], row, costs.costs[2]),
        costs.overhead_ns,
        costs.whole,
    )
    problem = build_problem(graph, BOARD, costs)
    assert not problem.supported[1, 0]
    assert problem.supported[1, 1:].all()
    assert costs.calibration[0] == 1.0


def test_described_links_win_over_measured_ones():
    graph = chain(2)
    platform = Platform("board", BOARD.clusters, links=(Link("big", "LITTLE", 5, None),))
    costs = table(graph, platform)
    costs = CostTable(
        costs.model_hash, "net", "b", costs.slots, costs.costs, costs.overhead_ns, costs.whole,
        links=(Link("big", "LITTLE", 100, 10), Link("LITTLE", "big", 7, 1_000_000_000)),
    )  # fmt: skip
    problem = build_problem(graph, platform, costs)
    assert problem.transfer_ns(1, 0, 1000) == 5
    assert problem.transfer_ns(0, 1, 1000) == 7 + 1000


def test_costs_of_another_model_are_refused():
    graph = chain(3)
    with pytest.raises(InputError, match="has 3 layers, net has 4"):
        build_problem(chain(4), BOARD, table(graph))


def test_costs_for_other_slots_are_refused():
    graph = chain(2)
    with pytest.raises(InputError, match="cost table is for slots"):
        problem_slots(Platform("other", (Cluster("cpu", (0,)),)), table(graph))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (0, (0,)),
        ("1", (1,)),
        ("0-2", (0, 1, 2)),
        ("block_1/out", (1,)),
        ("block_[12]/*", (1, 2)),
        ("block_*", (0, 1, 2, 3)),
    ],
)
def test_layers_are_found(wanted, found):
    assert find_layers(chain(4), wanted) == found


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (4, "layers 0-3"),
        ("2-9", "layers 0-3"),
        ("3-1", "layers 0-3"),
        ("blok_1/out", "close names: block_1/out"),
    ],
)
def test_layers_that_are_not_there(wanted, message):
    with pytest.raises(InputError, match=message):
        find_layers(chain(4), wanted)


def test_the_users_first_wish_resolves():
    graph = chain(4)
    pins = [
        Pin(layers=("0-1",), cluster="big", threads=3, cores=()),
        Pin(layers=(2,), cluster="big", threads=1, cores=()),
        Pin(layers=(3,), cluster="LITTLE", threads=4, cores=()),
    ]
    resolved = resolve_pins(graph, BOARD, pins)
    assert [(pin.layers, pin.slots) for pin in resolved] == [
        ((0, 1), (Slot("big", 3),)),
        ((2,), (Slot("big", 1),)),
        ((3,), (Slot("LITTLE", 4),)),
    ]


def test_rest_means_what_no_other_pin_names():
    pins = [
        Pin(layers=(), cluster="LITTLE", threads=4, rest=True),
        Pin(layers=("0-1",), cluster="big", threads=3),
    ]
    resolved = resolve_pins(chain(4), BOARD, pins)
    assert [pin.layers for pin in resolved] == [(0, 1), (2, 3)]


def test_all_faults_of_pins_come_at_once():
    pins = [
        Pin(layers=("0-9",), cluster="big", threads=3, cores=()),
        Pin(layers=(1,), cluster="huge", threads=1, cores=()),
        Pin(layers=(2,), cluster="big", threads=5, cores=()),
        Pin(layers=(3,), cluster=None, threads=None, cores=(3, 4)),
        Pin(layers=(3,), cluster=None, threads=None, cores=(9,)),
        Pin(layers=(0,), cluster="big", threads=1, cores=()),
        Pin(layers=(0,), cluster="big", threads=2, cores=()),
    ]
    with pytest.raises(ConfigError) as caught:
        resolve_pins(chain(4), BOARD, pins)
    assert len(caught.value.faults) == 6
    for part in ("layers 0-3", "'huge'", "5 big", "several clusters", "core 9", "already pinned in"):
        assert part in str(caught.value)


def test_pins_on_cores_place_their_stages_there():
    graph = chain(3)
    slots = BOARD.slots
    pins = (ResolvedPin((1,), (Slot("big", 1),), (6,)), ResolvedPin((2,), (Slot("big", 1),), (4,)))
    one_big = slots.index(Slot("big", 1))
    mapping = Mapping((Lane((Stage((0,), one_big, 0), Stage((1,), one_big, 1), Stage((2,), one_big, 2))),))
    placed = place(mapping, BOARD, slots, pins)
    assert [stage.cores for stage in placed.stages] == [(5,), (6,), (4,)]
    assert build_problem(graph, BOARD, table(graph), Wishes(pins=pins)).max_lanes == 1


def test_cores_are_disjoint_and_mappings_come_back():
    slots = BOARD.slots
    three, one, four = (slots.index(Slot(*s)) for s in (("big", 3), ("big", 1), ("LITTLE", 4)))
    mapping = Mapping((Lane((Stage((0, 1), three, 0), Stage((2,), one, 1), Stage((3,), four, 2))),))
    placed = place(mapping, BOARD, slots)
    assert [stage.cores for stage in placed.stages] == [(4, 5, 6), (7,), (0, 1, 2, 3)]
    assert placed.stages[0].slot == "3 big"
    assert unplace(placed, BOARD, slots) == mapping


def test_stages_of_one_unit_share_cores():
    slots = BOARD.slots
    one = slots.index(Slot("big", 1))
    mapping = Mapping((Lane((Stage((0,), one, 0), Stage((1,), one, 1), Stage((2,), one, 0))),))
    placed = place(mapping, BOARD, slots)
    assert [stage.cores for stage in placed.stages] == [(4,), (5,), (4,)]
    assert unplace(placed, BOARD, slots) == mapping


def test_too_many_cores_are_refused():
    slots = BOARD.slots
    three = slots.index(Slot("big", 3))
    mapping = Mapping((Lane((Stage((0,), three, 0),)), Lane((Stage((0,), three, 1),))))
    with pytest.raises(PlatformError, match="more cores"):
        place(mapping, BOARD, slots)


def test_equal_plans_have_equal_signatures():
    slots = BOARD.slots
    one, four = slots.index(Slot("big", 1)), slots.index(Slot("LITTLE", 4))
    first = Mapping((Lane((Stage((0,), one, 0),)), Lane((Stage((0,), four, 1),))))
    second = Mapping((Lane((Stage((0,), four, 0),)), Lane((Stage((0,), one, 1),))))
    signatures = {place(mapping, BOARD, slots).signature for mapping in (first, second)}
    assert len(signatures) == 1
    assert PlacedMapping(()).signature not in signatures


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], [str(slot) for slot in BOARD.slots]),
        (["4 big"], ["4 big"]),
        (["big", "1 LITTLE", "2 big"], ["1 big", "2 big", "3 big", "4 big", "1 LITTLE"]),
    ],
)
def test_wanted_slots_are_found(wanted, found):
    assert [str(slot) for slot in wanted_slots(BOARD, wanted)] == found


def test_a_wanted_slot_that_is_not_there_is_refused():
    with pytest.raises(PlatformError, match="no slot '5 big'; it has 1 LITTLE, 2 LITTLE"):
        wanted_slots(BOARD, ["5 big"])


def test_a_table_with_fewer_slots_gives_the_answer_of_the_smaller_board():
    graph = chain(5)
    costs = table(graph, whole=True).only(wanted_slots(BOARD, ["big"]))
    small = Platform("board", (Cluster("big", (4, 5, 6, 7)),))
    fewer, smaller = (
        solve(build_problem(graph, BOARD, costs), "lanes"),
        solve(build_problem(graph, small, table(graph, small, whole=True)), "lanes"),
    )
    assert fewer.evaluation and smaller.evaluation
    assert fewer.evaluation.throughput_hz == smaller.evaluation.throughput_hz
    assert costs.calibrated_ns == table(graph, small, whole=True).calibrated_ns


def under_load(graph, factor):
    """A table with costs under load, ``factor`` times the isolated ones (layer 0 refuses, layer 1 is faster)."""
    alone = table(graph)
    rows = []
    for layer, row in enumerate(alone.costs):
        times = [factor, None, 0.5][(layer + 1) % 3 if layer < 2 else 0]
        rows.append(tuple(Cost(None if times is None else round(cost.median_ns * times)) for cost in row))
    return replace(alone, loaded=replace(alone, costs=tuple(rows)))


def test_costs_under_load_reach_the_problem():
    graph = chain(4)
    costs = CostTable.from_json(under_load(graph, 2).to_json(), "x")
    assert costs == under_load(graph, 2)
    problem = build_problem(graph, BOARD, costs)
    assert (problem.cost_ns == build_problem(graph, BOARD, table(graph)).cost_ns).all()
    expected = problem.cost_ns * np.array([[1], [1], [2], [2]])  # never below the isolated cost
    assert (problem.loaded_cost_ns == expected).all()
    whole = Mapping((Lane((Stage((0, 1, 2, 3), 0, 0),)),))
    two = Mapping((*whole.lanes, Lane((Stage((0, 1, 2, 3), 4, 1),))))
    assert evaluate(problem, whole).lanes[0].period_ns == problem.cost_ns[:, 0].sum() + 10  # the invocation
    assert evaluate(problem, two).lanes[0].period_ns == expected[:, 0].sum() + 10
    fewer = costs.only(costs.slots[:2])
    assert fewer.loaded.slots == costs.slots[:2]


def test_a_table_under_load_for_something_else_is_refused():
    costs = under_load(chain(3), 2).to_json()
    costs["loaded"]["layers"].pop()
    with pytest.raises(InputError, match="under load"):
        CostTable.from_json(costs, "x")
    costs["loaded"]["format"] = "x"
    with pytest.raises(InputError, match="x: loaded"):
        CostTable.from_json(costs, "x")
