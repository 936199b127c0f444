"""Slots with kernel libraries and accelerators: their texts, their cores, their costs, their hand-overs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.config import Pin, check_pins, experiment_for_model, platform_data
from dse.config.loading import load_platform
from dse.config.pins import expand
from dse.costs import Cost, CostTable, WholeCost
from dse.elsewhere import elsewhere
from dse.errors import ConfigError, PlatformError
from dse.mapping_file import MappingFile, read_mapping, write_mapping
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import KERNELS, Cluster, Link, Platform, Slot, parse_slot, split_kernels
from dse.problems import build_problem, place, problem_slots, resolve_pins, unplace, wanted_slots
from dse.yaml_io import dump
from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.registry import solve
from tests.dse.test_problems import chain

BOARD = Platform(
    "board",
    (
        Cluster("big", (0, 1, 2), kernels=("default", "builtin")),
        Cluster("gpu", (3,), kind="gpu", host=Slot("big", 1), device="Some GPU"),
    ),
)
TEXT = """\
name: board
clusters:
  - {name: big, cores: 0-2, kernels: [default, builtin]}
  - {name: gpu, kind: gpu, host: 1 big, device: Some GPU}
"""


def table(n_layers: int, gpu: int = 1, links: tuple[Link, ...] = ()) -> CostTable:
    """Default kernels cost 10 a layer, built-in ones 20, the GPU ``gpu``."""
    slots = BOARD.slots
    cost = {slot: gpu if slot.cluster == "gpu" else 20 if slot.kernels == "builtin" else 10 for slot in slots}
    rows = tuple(tuple(Cost(cost[slot]) for slot in slots) for _ in range(n_layers))
    none: tuple[WholeCost | None, ...] = (None,) * len(slots)
    return CostTable("0" * 64, "net", "board", slots, rows, (0,) * len(slots), none, links)


names = st.text(min_size=1, max_size=12).filter(lambda t: t == t.strip() and split_kernels(t)[1] is None)


@given(cluster=names, threads=st.integers(1, 9999), kernels=st.sampled_from(KERNELS))
def test_a_slots_text_is_read_back(cluster: str, threads: int, kernels: str) -> None:
    slot = Slot(cluster, threads, kernels)  # type: ignore[arg-type]
    assert parse_slot(str(slot)) == slot


@pytest.mark.parametrize("text", ["", "big", "0 big", "-1 big", "two big", "2", "²  big"])
def test_other_texts_are_no_slots(text: str) -> None:
    assert parse_slot(text) is None


def test_a_platform_file_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(TEXT)
    platform = load_platform(path)
    assert platform == BOARD
    assert [str(slot) for slot in platform.slots] == [
        *("1 big", "2 big", "3 big", "1 big builtin", "2 big builtin", "3 big builtin", "1 gpu"),
    ]
    assert platform.cpu_cores == (0, 1, 2)
    path.write_text(dump(platform_data(platform)))
    assert load_platform(path) == BOARD


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[default, builtin]", "[default, default]", "each once"),
        ("[default, builtin]", "[fast]", "'default', 'builtin' or 'reference'"),
        ("[default, builtin]", "[]", "kernels"),
        ("host: 1 big", "host: 4 big", "cores of 3 big"),
        ("host: 1 big", "host: big", "cores of 3 big"),
        ("host: 1 big", "host: 1 gpu", "cores of 3 big"),
        ("kind: gpu", "kind: gpu, kernels: [builtin]", "a gpu has its own"),
        ("kind: gpu, host: 1 big", "cores: 3, host: 1 big", "at accelerators only"),
        ("kind: gpu", "kind: gpu, cores: [3, 4]", "one number"),
        ("name: gpu", "name: fast builtin", "does not end with that of a kernel library"),
    ],
)
def test_one_fault_in_a_platform(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "board.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        load_platform(path)
    assert "board.yaml:" in caught.value.faults[0]


@pytest.mark.parametrize(
    ("on", "slots"),
    [
        ("2 big", ("2 big", "2 big builtin")),
        ("2 big builtin", ("2 big builtin",)),
        ("2 big default", ("2 big",)),
        ("big builtin", ("1 big builtin", "2 big builtin", "3 big builtin")),
        ("1 gpu", ("1 gpu",)),
        ("gpu", ("1 gpu",)),
    ],
)
def test_a_pin_names_slots(on: str, slots: tuple[str, ...]) -> None:
    pins = expand([0], on, None)
    assert check_pins(pins, BOARD) == []
    (resolved,) = resolve_pins(chain(3), BOARD, pins)
    assert tuple(map(str, resolved.slots)) == slots


def test_a_pin_to_kernels_that_are_not_offered_is_refused() -> None:
    pins = expand([0], "1 big reference", None, where="x.yaml:3")
    (fault,) = check_pins(pins, BOARD)
    assert "expected kernels that cluster big offers (default, builtin" in fault
    with pytest.raises(ConfigError, match=r"'1 big reference' is not a slot.*kernels default, builtin"):
        resolve_pins(chain(3), BOARD, pins)


def test_the_core_number_of_an_accelerator_is_no_core() -> None:
    with pytest.raises(ConfigError, match="core 3 is not on platform"):
        resolve_pins(chain(3), BOARD, [Pin((0,), cores=(3,))])


def test_slots_that_a_search_may_use_are_chosen_by_text() -> None:
    assert wanted_slots(BOARD, ["1 big", "big builtin"]) == (
        *(Slot("big", 1), Slot("big", 1, "builtin"), Slot("big", 2, "builtin"), Slot("big", 3, "builtin")),
    )
    with pytest.raises(PlatformError, match="1 big reference"):
        wanted_slots(BOARD, ["1 big reference"])


def test_an_accelerator_takes_its_host_core_too() -> None:
    problem = build_problem(chain(4), BOARD, table(4))
    slots = problem_slots(BOARD, table(4))
    gpu, one = slots.index(Slot("gpu", 1)), slots.index(Slot("big", 1))
    mapping = Mapping(
        (Lane((Stage((0, 1, 2, 3), gpu, 0),)), *(Lane((Stage((0, 1, 2, 3), one, n),)) for n in (1, 2)))
    )
    assert evaluate(problem, mapping).feasible
    placed = place(mapping, BOARD, slots)
    assert (placed.stages[0].cores, placed.stages[0].host_cores) == ((3,), (0,))
    assert [stage.cores for stage in placed.stages[1:]] == [(1,), (2,)]
    assert placed.stages[0].cpu_cores == (0,)
    assert unplace(placed, BOARD, slots) == mapping
    with pytest.raises(PlatformError, match="more cores of cluster big"):
        place(replace(mapping, lanes=(*mapping.lanes, Lane((Stage((0, 1, 2, 3), one, 3),)))), BOARD, slots)


def test_the_search_uses_whatever_slot_is_best() -> None:
    """The GPU costs a tenth: every optimal mapping uses it."""
    solution = solve(build_problem(chain(4), BOARD, table(4)), "auto")
    slots = problem_slots(BOARD, table(4))
    assert solution.mapping is not None
    assert Slot("gpu", 1) in {slots[stage.slot] for lane in solution.mapping.lanes for stage in lane.stages}
    dear = solve(build_problem(chain(4), BOARD, table(4, gpu=10_000)), "auto")
    assert dear.mapping is not None
    assert {slots[s.slot].kernels for lane in dear.mapping.lanes for s in lane.stages} == {"default"}


def test_what_the_sender_pays_is_the_producers_time() -> None:
    links = (
        Link("big", "gpu", 5, None),
        Link("gpu", "big", 7, 1_000_000_000, sender_pays=True),
    )
    costs = table(4, links=links)
    again = CostTable.from_json(json.loads(json.dumps(costs.to_json())), "t")
    assert again == costs
    problem = build_problem(chain(4), BOARD, costs)
    slots = problem_slots(BOARD, costs)
    gpu, one = slots.index(Slot("gpu", 1)), slots.index(Slot("big", 1))
    lane = Lane((Stage((0,), one, 0), Stage((1, 2), gpu, 1), Stage((3,), one, 2)))
    first, second, third = evaluate(problem, Mapping((lane,))).lanes[0].stages
    assert (first.busy_ns, first.send_ns) == (10, 0)
    # One tensor of 16 bytes comes in (5 ns), two layers compute (2), one tensor goes out (7 + 16 ns).
    assert (second.receive_ns, second.compute_ns, second.send_ns) == (5, 2, 23)
    assert third.receive_ns == 0, "tensors that come from the GPU are paid there"


def test_a_cost_table_keeps_kernels_and_fallbacks_and_tells_them() -> None:
    costs = table(3)
    column = costs.slots.index(Slot("gpu", 1))
    rows = [list(row) for row in costs.costs]
    rows[1][column] = Cost(None, reason="left to the CPU: CAST")
    rows[2][0] = Cost(5, fallback="built-in kernels")
    rows[2][1] = Cost(5, fallback="built-in kernels")
    costs = replace(
        costs, costs=tuple(map(tuple, rows)), conditions={"fallbacks": {"1 gpu": ["CAST: no such thing"]}}
    )
    assert CostTable.from_json(json.loads(json.dumps(costs.to_json())), "t") == costs
    assert [str(entry) for entry in elsewhere(costs)] == [
        "fallback on 1 big, 2 big, layer 2: built-in kernels",
        "unsupported on 1 gpu, layer 1: left to the CPU: CAST",
        "fallback on 1 gpu, of the whole model: CAST: no such thing",
    ]
    problem = build_problem(chain(3), BOARD, costs)
    assert not problem.supported[1, problem_slots(BOARD, costs).index(Slot("gpu", 1))]
    assert np.count_nonzero(~problem.supported) == 1


def test_masked_slots_support_nothing() -> None:
    costs = table(3).without({Slot("gpu", 1): "wrong outputs"})
    column = costs.slots.index(Slot("gpu", 1))
    assert {(row[column].median_ns, row[column].reason) for row in costs.costs} == {(None, "wrong outputs")}
    assert all(row[0].median_ns == 10 for row in costs.costs)


def test_a_mapping_file_keeps_kernels_and_accelerators(tmp_path: Path) -> None:
    lane = PlacedLane(
        (
            PlacedStage("a", (0,), "big", 2, (1, 2), "builtin"),
            PlacedStage("b", (1,), "gpu", 1, (3,), device="gpu", host_cores=(0,)),
        )
    )
    content = MappingFile("net", "0" * 64, "board", PlacedMapping((lane,)), {})
    path = tmp_path / "mapping.yaml"
    write_mapping(path, content)
    assert read_mapping(path) == content
    assert [stage.slot for stage in lane.stages] == ["2 big builtin", "1 gpu"]
    good = path.read_text()
    for old, new, message in (
        ("kernels: builtin", "kernels: quick", "expected one of default, builtin, reference"),
        ("device: gpu", "device: dsp", "expected one of cpu, gpu, npu"),
        ("host_cores: [0]", "host_cores: [-1]", "expected core numbers, at accelerators only"),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(ConfigError, match=message):
            read_mapping(path)


def test_variants_are_part_of_an_experiment(tmp_path: Path) -> None:
    model = tmp_path / "m.tflite"
    model.touch()
    experiment = experiment_for_model(model, ["variants.kernels=[default, builtin]"])
    assert experiment.variants.kernels == ("default", "builtin")
    assert experiment.variants.accelerators == "auto"
    assert experiment.resolved()["variants"] == {"kernels": ["default", "builtin"], "accelerators": "auto"}
    with pytest.raises(ConfigError, match=r"variants\.kernels: expected each once"):
        experiment_for_model(model, ["variants.kernels=[builtin, builtin]"])
