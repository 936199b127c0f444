from __future__ import annotations

from pathlib import Path

import pytest

from dse.config import load_platform
from dse.graph import Layer, LayerGraph, Tensor
from dse.profiling.analytic import predict

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "platforms"
CORES = {
    "hikey970": [4, 4],
    "jetson_orin": [12],
    "raspberrypi5": [4],
    "rk3588": [4, 4],
    "snapdragon8gen1": [4, 3, 1],
    "snapdragon8gen2-class": [3, 4, 1],
}


def test_every_board_is_known_to_this_test() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CORES)


@pytest.mark.parametrize("name", sorted(CORES))
def test_board(name: str) -> None:
    platform = load_platform(FOLDER / f"{name}.yaml")
    assert platform.origin == "described"
    assert [cluster.n_cores for cluster in platform.clusters] == CORES[name]
    for cluster in platform.clusters:
        assert cluster.max_hz and cluster.macs_per_s and cluster.bytes_per_s
        # The peak is a whole number of 128-bit pipes of four floats, as the comments say.
        assert cluster.macs_per_s / cluster.max_hz in (4, 8, 16)
        assert cluster.bytes_per_s <= 8 * cluster.max_hz
    speeds = [cluster.macs_per_s or 0 for cluster in platform.clusters]
    assert speeds == sorted(speeds)


@pytest.mark.parametrize("name", sorted(CORES))
def test_a_model_can_be_predicted_on_it(name: str) -> None:
    platform = load_platform(FOLDER / f"{name}.yaml")
    tensors = tuple(Tensor(i, f"t{i}", "float32", (1000,), 4000, "activation") for i in (0, 1))
    layer = Layer(0, "t1", "CONV_2D", (0,), (0,), (1,), (), 10**8, None, 400, "k")
    table = predict(LayerGraph("m", (layer,), tensors, (0,), (1,)), platform)
    times = dict(zip(table.slots, (cost.median_ns for cost in table.costs[0]), strict=True))
    ones = [times[slot] for slot in table.slots if slot.threads == 1]
    assert ones == sorted(ones, reverse=True)
