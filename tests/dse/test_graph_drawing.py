"""Drawings hold every layer and every edge, and nothing that breaks their format."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from dse.errors import InputError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import Layer, LayerGraph, Tensor
from dse.graph_drawing import graph_dot, graph_svg

NASTY = 'a"b\\c<d>&\n{é}'


def make_graph(edges, n, name="test"):
    """Layer i makes tensor i + 1; tensor 0 is the input, the last one the output."""
    tensors = tuple(
        Tensor(i, f"{NASTY}{i}" if i == 1 else f"t{i}", "float32", (2, i), 8 * i, "activation")
        for i in range(n + 1)
    )
    layers = tuple(
        Layer(i, f"l{i}", "ADD", (i,), tuple(t for t, user in edges if user == i), (i + 1,), (), 0, 1, 0, "k")
        for i in range(n)
    )
    return LayerGraph(name, layers, tensors, (0,), (n,))


@pytest.fixture(
    params=["x_if_while", "mediapipe__hand_landmark_lite", "pymicro_wakeword__alexa", "basic_pitch__nmp"]
)
def graph(request, corpus):
    return build_graph(read_model(corpus / "models" / f"{request.param}.tflite"))


def svg_root(text):
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


def rows(root):
    return [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.find("{*}rect") is not None]


def test_dot_has_every_layer_and_edge(graph):
    text = graph_dot(graph)
    drawn = {(int(a), int(b)) for a, b in re.findall(r"^  l(\d+) -> l(\d+) ", text, re.M)}
    assert drawn == set(graph.edges)
    assert {int(n) for n in re.findall(r"^  l(\d+) \[label", text, re.M)} == set(range(len(graph.layers)))


def test_dot_draws_stages_as_clusters(graph):
    half = len(graph.layers) // 2
    text = graph_dot(graph, [range(half), range(half, len(graph.layers))])
    assert text.count("subgraph cluster_") == 2
    assert text.count("{") == text.count("}")


def test_svg_has_a_row_for_every_layer_input_and_output(graph):
    root = svg_root(graph_svg(graph, [range(len(graph.layers))]))
    assert len(rows(root)) == len(graph.layers) + len(graph.inputs) + len(graph.outputs)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_names_can_hold_anything():
    graph = make_graph([(0, 0), (1, 1), (1, 2)], 3, name=NASTY)
    titles = [title.text for title in svg_root(graph_svg(graph)).iter("{http://www.w3.org/2000/svg}title")]
    assert any(NASTY in title for title in titles if title)
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', graph_dot(graph))
    assert 'a\\"b\\\\c<d>&\\n{é}' in strings[0]
    assert graph_dot(graph).count("\n") == len(graph_dot(graph).splitlines())


def lanes(graph):
    """Return (lane x, first y, last y) of each wire beside the rows."""
    found = []
    for path in svg_root(graph_svg(graph)).iter("{http://www.w3.org/2000/svg}path"):
        match = re.fullmatch(r"M\d+ (\d+)H(\d+)V(\d+)", path.get("d"))
        if match:
            found.append((int(match[2]), int(match[1]), int(match[3])))
    return found


def test_wires_beside_the_rows_never_share_a_lane_at_one_height(graph):
    by_lane = {}
    for x, top, bottom in lanes(graph):
        by_lane.setdefault(x, []).append((top, bottom))
    for spans in by_lane.values():
        for (_, bottom), (top, _) in pairwise(sorted(spans)):
            assert bottom <= top


def test_a_chain_needs_no_lanes_and_a_skip_needs_one():
    chain = make_graph([(0, 0), (1, 1), (2, 2)], 3)
    assert lanes(chain) == []
    skip = make_graph([(0, 0), (1, 1), (1, 2), (2, 2)], 3)
    assert len(lanes(skip)) == 1


def test_unknown_layers_are_refused():
    with pytest.raises(InputError, match="stage 0: there is no layer 7"):
        graph_svg(make_graph([(0, 0)], 1), [[7]])
