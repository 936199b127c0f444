"""Rows of layers that are timed as stages on an accelerator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dse.costs import Cost
from dse.graph import Layer, LayerGraph, Tensor
from dse.profiling.regions import N_REGIONS, regions, scaled


def row_of_layers(macs: list[int]) -> LayerGraph:
    tensors = tuple(Tensor(n, f"t{n}", "float32", (4,), 16, "activation") for n in range(len(macs) + 1))
    layers = tuple(
        Layer(n, f"l{n}", "ADD", (n,), (n,), (n + 1,), (), amount, 0, 0, f"k{n}")
        for n, amount in enumerate(macs)
    )
    return LayerGraph("row", layers, tensors, (0,), (len(macs),))


flags = st.lists(st.tuples(st.booleans(), st.integers(0, 10_000)), min_size=1, max_size=60)


@given(flags)
def test_regions_are_rows_of_supported_layers(found: list[tuple[bool, int]]) -> None:
    supported = [ok for ok, _ in found]
    rows = regions(row_of_layers([macs for _, macs in found]), supported)
    inside = [layer for row in rows for layer in row]
    assert inside == sorted(set(inside)), "each layer once, in order"
    assert all(row == tuple(range(row[0], row[-1] + 1)) and len(row) > 1 for row in rows)
    assert all(supported[layer] for layer in inside)
    gaps = sum(not ok for ok in supported)
    assert len(rows) <= N_REGIONS + 1 + gaps


@given(
    costs=st.lists(st.integers(0, 10**7), min_size=2, max_size=30),
    time_ns=st.integers(0, 10**9),
    overhead_ns=st.integers(0, 10**6),
    back_ns=st.integers(0, 10**6),
)
def test_layers_sum_up_to_what_their_region_takes(
    costs: list[int], time_ns: int, overhead_ns: int, back_ns: int
) -> None:
    row = tuple(range(len(costs)))
    column = [Cost(value, (value,), interval_ns=(value, value)) for value in costs]
    found = scaled(column, {row: time_ns}, overhead_ns, {row: back_ns})
    if sum(costs):
        wanted = max(0, time_ns - overhead_ns - back_ns)
        assert abs(sum(cost.median_ns or 0 for cost in found) - wanted) <= len(costs)
        assert all("timed as one stage" in cost.reason for cost in found)
    else:
        assert found == column, "no shape to share a time by"


def test_an_unsupported_layer_stays_unsupported() -> None:
    column = [Cost(5), Cost(None, reason="no")]
    assert scaled(column, {(0, 1): 100}, 0, {})[1] == column[1]
