"""The pieces of the well-known architectures give what the whole gives."""

from __future__ import annotations

import pytest
from cutting import check_positions, check_random

from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.zoo import registry

SMALL = {
    "alexnet": {"size": 67, "classes": 10},
    "bert_encoder": {"hidden": 48, "sequence": 12, "layers": 3, "heads": 4, "intermediate": 96, "vocab": 50},
    "bert_encoder_int8": {
        "hidden": 48,
        "sequence": 12,
        "layers": 2,
        "heads": 4,
        "intermediate": 96,
        "vocab": 50,
    },
    "googlenet": {"size": 64, "classes": 20},
    "inception_v3": {"size": 96, "classes": 20},
    "mobilenet_v1": {"size": 64, "width": 25, "classes": 20},
    "mobilenet_v1_int8": {"size": 64, "width": 25, "classes": 20},
    "mobilenet_v2": {"size": 64, "width": 25, "classes": 20},
    "mobilenet_v2_int8": {"size": 64, "width": 25, "classes": 20},
    "resnet50": {"size": 64, "classes": 20},
    "squeezenet": {"size": 64, "classes": 20},
    "streaming_lstm": {"steps": 5, "features": 12, "units": 16, "classes": 6},
    "two_stream": {"size": 64, "base": 8, "classes": 20},
    "unet": {"size": 48, "base": 4, "depth": 3, "classes": 3},
}
QUICK = ("bert_encoder", "mobilenet_v2_int8", "streaming_lstm", "two_stream", "unet")
N_QUICK = 5
# Large files: all positions are tried by benchmarks/cut_everywhere.py.
N_SLOW = 12


def load(name):
    file = model_from_bytes(encode(registry.build(name, SMALL[name], seed=1)), name)
    return file, build_graph(file)


def test_every_architecture_is_cut():
    assert set(SMALL) == set(registry.ZOO)


@pytest.mark.parametrize("name", QUICK)
def test_halves_and_random_stages_equal_the_whole(name, runner):
    file, graph = load(name)
    check_positions(file, graph, runner, N_QUICK)
    check_random(file, graph, runner, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_many_cuts_equal_the_whole(name, runner):
    file, graph = load(name)
    check_positions(file, graph, runner, N_SLOW)
    check_random(file, graph, runner, range(4))
