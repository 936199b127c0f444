from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import PlatformError
from dse.graph import Layer, LayerGraph, Tensor
from dse.platforms import Cluster, Platform
from dse.profiling.analytic import predict, predict_layer_ns, speedup

BIG = Cluster("big", (4, 5, 6, 7), macs_per_s=19_000_000_000, bytes_per_s=10_000_000_000)
LITTLE = Cluster("LITTLE", (0, 1, 2, 3), macs_per_s=7_000_000_000, bytes_per_s=4_000_000_000)


def graph(
    macs: int | None, *, n_bytes: int = 4000, weight_bytes: int = 100, op: str = "CONV_2D"
) -> LayerGraph:
    tensors = tuple(Tensor(i, f"t{i}", "float32", (n_bytes // 4,), n_bytes, "activation") for i in (0, 1))
    layer = Layer(0, "t1", op, (0,), (0,), (1,), (), macs, None, weight_bytes, "k")
    return LayerGraph("m", (layer,), tensors, (0,), (1,))


def cost(model: LayerGraph, cluster: Cluster, threads: int) -> int:
    return predict_layer_ns(model, model.layers[0], cluster, threads)


def test_compute_bound_layer_by_hand() -> None:
    # 6 M MACs at 19 GMAC/s and 60 %: 526 us, and 1 us to start it.
    assert cost(graph(6_000_000), BIG, 1) == round(6e6 / (19e9 * 0.6) * 1e9) + 1000


def test_memory_bound_layer_by_hand() -> None:
    # 2 x 8 MB over 10 GB/s on one core and four times that on four, which cost 0.3 us each to wake.
    assert cost(graph(0, n_bytes=8_000_000, weight_bytes=0), BIG, 1) == 1_600_000 + 1000
    assert cost(graph(0, n_bytes=8_000_000, weight_bytes=0), BIG, 4) == 400_000 + 1900


def test_threads_pay_early_for_heavy_layers_and_late_for_light_ones() -> None:
    heavy = [cost(graph(200_000), BIG, threads) for threads in (1, 2)]
    assert heavy[1] < heavy[0]
    light = [cost(graph(0, n_bytes=40_000, op="ADD"), BIG, threads) for threads in (1, 2)]
    assert light[1] > light[0]
    long = [cost(graph(0, n_bytes=4_000_000, op="ADD"), BIG, threads) for threads in (1, 2)]
    assert long[1] < long[0]


@given(
    macs=st.integers(0, 10**10),
    n_bytes=st.integers(4, 10**8),
    op=st.sampled_from(["CONV_2D", "DEPTHWISE_CONV_2D", "SOFTMAX"]),
)
def test_slower_core_is_never_faster_and_more_work_never_cheaper(macs: int, n_bytes: int, op: str) -> None:
    model = graph(macs, n_bytes=n_bytes, op=op)
    for threads in (1, 2, 4):
        assert cost(model, LITTLE, threads) >= cost(model, BIG, threads) >= 1
        assert cost(graph(2 * macs, n_bytes=2 * n_bytes, op=op), BIG, threads) >= cost(model, BIG, threads)


@given(st.integers(1, 64))
def test_speedup_is_below_the_thread_count(threads: int) -> None:
    assert 1.0 <= speedup(threads) <= threads
    assert speedup(threads) < speedup(threads + 1)


def test_small_integers_are_faster() -> None:
    floats = graph(10_000_000)
    narrow = tuple(dataclasses.replace(t, dtype="int8") for t in floats.tensors)
    assert cost(dataclasses.replace(floats, tensors=narrow), BIG, 1) < cost(floats, BIG, 1)


def test_table_has_every_slot_and_says_that_it_is_predicted() -> None:
    table = predict(graph(1000), Platform("board", (LITTLE, BIG)))
    assert len(table.slots) == 8
    assert [len(row) for row in table.costs] == [8]
    assert not table.measured
    assert table.conditions["method"] == "analytic"
    assert table.calibrated_ns[0][0] == table.costs[0][0].median_ns


def test_unknown_operators_are_named() -> None:
    assert predict(graph(None), Platform("b", (BIG,))).conditions["layers_without_macs"] == ["t1"]


def test_missing_numbers_are_all_named() -> None:
    platform = Platform(
        "b", (dataclasses.replace(BIG, macs_per_s=None), dataclasses.replace(LITTLE, bytes_per_s=None))
    )
    with pytest.raises(PlatformError, match=r"big\.macs_per_s, LITTLE\.bytes_per_s"):
        predict(graph(1), platform)
