"""Work and size of the architectures equal the published figures."""

from __future__ import annotations

import pytest

from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.zoo import ZOO
from dse.zoo.assemble import assemble

# Exact figures, worked out by hand from the papers' tables; the published ones are rounded.
EXACT = {
    # 55^2 96 363 + 27^2 256 1200 + 13^2 (384 2304 + 384 1728 + 256 1728) + 9216 4096 + 4096^2 + 4096 1000
    "alexnet": 724_406_816,
    "mobilenet_v1": 568_740_352,
    "mobilenet_v2": 300_774_272,
    "resnet50": 3_857_973_248,
}
# How far the published figure may be from the exact one, by its rounding.
ROUNDING = {
    "alexnet": 0.001,
    "squeezenet": 0.005,
    "googlenet": 0.002,
    "resnet50": 0.02,  # 3.8e9: two digits, rounded down
    "inception_v3": 0.001,
    "mobilenet_v1": 0.001,
    "mobilenet_v2": 0.003,
}


def graph_of(name, parameters=None):
    entry = ZOO[name]
    draft = entry.draw({**entry.parameters, **(parameters or {})}, 0, sampled=False)
    return build_graph(model_from_bytes(encode(assemble(draft)), name)), draft


@pytest.mark.parametrize("name", ROUNDING)
def test_published_macs_and_parameters(name):
    entry = ZOO[name]
    graph, draft = graph_of(name)
    macs = graph.macs
    if name in EXACT:
        assert macs == EXACT[name]
    if name == "googlenet":
        # The paper's table counts the first convolution as a 7 x 1 and a 1 x 7 pass of 2.7 K weights.
        macs += 112**2 * (14 * 3 * 64 - 49 * 3 * 64)
    assert macs == pytest.approx(entry.published_macs, rel=ROUNDING[name])
    assert draft.n_parameters == pytest.approx(entry.published_parameters, rel=0.03)


def test_googlenet_modules_as_in_the_papers_table():
    graph, _ = graph_of("googlenet")
    # Without 5a: the table's 54 M are not what its own numbers of filters give (51.1 M).
    published = {"3a": 128, "3b": 304, "4a": 73, "4b": 88, "4c": 100, "4d": 119, "4e": 170, "5b": 71}
    for module, millions in published.items():
        macs = sum(layer.macs for layer in graph.layers if layer.name.startswith(f"inception_{module}/"))
        assert macs / 1e6 == pytest.approx(millions, abs=1.0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert_encoder", {}),
        (
            "bert_encoder",
            {"hidden": 60, "sequence": 7, "layers": 3, "heads": 5, "intermediate": 11, "vocab": 9},
        ),
        ("unet", {}),
        ("unet", {"size": 32, "base": 3, "depth": 2, "classes": 5}),
        ("streaming_lstm", {}),
        ("streaming_lstm", {"steps": 3, "features": 5, "units": 7, "layers": 3, "classes": 2}),
        ("two_stream", {}),
        ("two_stream", {"size": 50, "base": 5, "classes": 7}),
    ],
)
def test_formulas(name, parameters):
    graph, _ = graph_of(name, parameters)
    assert graph.macs == ZOO[name].macs({**ZOO[name].parameters, **parameters})


def test_users_case_of_bert():
    """H = 768, S = 128, L = 4, A = 8, I = 3072: 4 layers of 931 M."""
    graph, _ = graph_of("bert_encoder")
    hidden, sequence, inner = 768, 128, 3072
    per_layer = 4 * sequence * hidden**2 + 2 * sequence**2 * hidden + 2 * sequence * hidden * inner
    assert per_layer == 931_135_488
    assert graph.macs == 4 * per_layer


def test_state_and_skips_are_seen():
    assert graph_of("streaming_lstm")[0].stateful
    assert not graph_of("unet")[0].stateful
    graph, _ = graph_of("unet", {"size": 32, "base": 2, "depth": 3})
    longest = max(user - maker for maker, user in graph.edges)
    assert longest > len(graph.layers) / 2


def test_two_inputs_and_two_outputs():
    graph, _ = graph_of("two_stream", {"size": 32})
    assert (len(graph.inputs), len(graph.outputs)) == (2, 2)
