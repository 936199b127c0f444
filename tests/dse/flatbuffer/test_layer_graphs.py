"""Layers, tensors, groups and keys on small graphs made for the purpose."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_models import Draft, chain

from dse.flatbuffer.cut import extract, live_tensors, possible_cuts, split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.flatbuffer.records import Options, Quantization


def test_chains_of_constants_belong_to_each_of_their_users():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    half = main.constant("half", np.eye(4), "FLOAT16")
    wide = main.tensor("wide", (4, 4))
    main.op("DEQUANTIZE", (half,), (wide,), "DequantizeOptions")
    order = main.constant("order", [1, 0], "INT32")
    turned = main.tensor("turned", (4, 4))
    main.op("TRANSPOSE", (wide, order), (turned,), "TransposeOptions")
    a, b = main.tensor("a", (1, 4)), main.tensor("b", (1, 4))
    main.op("FULLY_CONNECTED", (x, turned, -1), (a,), "FullyConnectedOptions")
    main.op("FULLY_CONNECTED", (a, wide, -1), (b,), "FullyConnectedOptions")
    unused = main.tensor("unused", (4, 4))
    main.op("NEG", (wide,), (unused,), "NegOptions")
    main.inputs, main.outputs = (x,), (b,)
    file = draft.file()
    graph = build_graph(file)
    assert [layer.operators for layer in graph.layers] == [(0, 1, 2), (0, 3)]
    assert [layer.constants for layer in graph.layers] == [(half, order), (half,)]
    assert graph.tensors[wide].kind == graph.tensors[turned].kind == "constant"
    assert graph.edges == ((0, 1),)
    assert graph.weight_bytes == 32 + 8
    for stage in split(file, graph, [[0], [1]]).stages:
        names = {t.name for t in model_from_bytes(stage.data).model.subgraphs[0].tensors}
        assert "half" in names
        assert "unused" not in names


def test_a_prepared_constant_that_leaves_the_model_is_a_layer(runner):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (2,))
    half = main.constant("half", [1.5, 2.5], "FLOAT16")
    wide = main.tensor("wide", (2,))
    main.op("DEQUANTIZE", (half,), (wide,), "DequantizeOptions")
    y = main.elementwise("ADD", (x, wide), "y", "AddOptions")
    main.inputs, main.outputs = (x,), (wide, y)
    file = draft.file()
    graph = build_graph(file)
    assert [layer.operators for layer in graph.layers] == [(0,), (0, 1)]
    pieces = split(file, graph, [[1], [0]])
    frames = [(np.array([1.0, 2.0], np.float32),)]
    # Not with XNNPACK, which gives zeros for such an output even of the whole model.
    ((wide_out, y_out),) = runner.run_split(pieces, frames, builtin=True)
    assert wide_out.tolist() == [1.5, 2.5]
    assert y_out.tolist() == [2.5, 4.5]


def test_random_operators_are_no_constants():
    draft = Draft()
    main = draft.main
    shape = main.constant("shape", [2], "INT32")
    noise = main.tensor("noise", (2,))
    main.op("RANDOM_UNIFORM", (shape,), (noise,), "RandomOptions", {"seed": 1})
    y = main.elementwise("NEG", (noise,), "y", "NegOptions")
    main.outputs = (y,)
    graph = build_graph(draft.file())
    assert [layer.op for layer in graph.layers] == ["RANDOM_UNIFORM", "NEG"]
    assert graph.layers[0].inputs == ()


def test_odd_graphs(runner):
    """An unused input, an input handed through, a constant output, a tensor used twice, a scalar."""
    draft = Draft()
    main = draft.main
    x, unused, through = main.tensor("x", ()), main.tensor("unused", (3,)), main.tensor("through", (2,))
    doubled = main.elementwise("ADD", (x, x), "doubled", "AddOptions")
    negative = main.elementwise("NEG", (doubled,), "negative", "NegOptions")
    constant = main.constant("constant", [7.0])
    main.inputs, main.outputs = (x, unused, through), (doubled, through, negative, constant)
    file = draft.file()
    graph = build_graph(file)
    assert graph.layers[0].inputs == (x,)
    assert graph.tensors[x].n_bytes == 4
    pieces = split(file, graph, [[0], [1]])
    assert [[t.name for t in stage.inputs] for stage in pieces.stages] == [["x"], ["through", "doubled"]]
    assert [[t.name for t in stage.outputs] for stage in pieces.stages] == [
        ["doubled"],
        ["through", "negative", "constant"],
    ]
    frames = [tuple(np.float32(v) for v in (3.0, [1, 2, 3], [4, 5]))]
    for whole in (runner.run(bytes(file.data), frames), runner.run_split(pieces, frames)):
        assert [np.asarray(array).tolist() for array in whole[0]] == [6.0, [4, 5], -6.0, [7]]


def test_an_output_that_is_used_inside_too(runner):
    draft = chain(3)
    middle = draft.main.operators[1].outputs[0]
    draft.main.outputs = (*draft.main.outputs, middle)
    file = draft.file()
    graph = build_graph(file)
    assert live_tensors(graph, (0, 1)) == (graph.inputs, (middle,))
    assert live_tensors(graph, (0, 1, 2)) == (graph.inputs, graph.outputs)
    pieces = split(file, graph, [[0, 1], [2]])
    frames = [(np.ones((1, 8), np.float32),)]
    expected, got = runner.run(bytes(file.data), frames), runner.run_split(pieces, frames)
    assert all(np.array_equal(a, b) for a, b in zip(expected[0], got[0], strict=True))


def test_zero_sized_tensors_are_no_fault():
    draft = Draft()
    main = draft.main
    x, empty = main.tensor("x", (1, 4)), main.tensor("empty", (0, 4))
    y, axis = main.tensor("y", (1, 4)), {"axis": 0}
    main.op("CONCATENATION", (x, empty), (y,), "ConcatenationOptions", axis)
    main.inputs, main.outputs = (x,), (y,)
    file = draft.file()
    assert file.warnings == ()
    graph = build_graph(file)
    assert graph.layers[0].inputs == (x,)
    assert graph.tensors[empty].n_bytes == 0
    extract(file, graph, [0])


def test_dynamic_dimensions_are_marked():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4), shape_signature=(-1, 4))
    y = main.elementwise("NEG", (x,), "y", "NegOptions")
    main.inputs, main.outputs = (x,), (y,)
    tensors = build_graph(draft.file()).tensors
    assert (tensors[x].dynamic, tensors[y].dynamic) == (True, False)


def test_names_that_are_no_text_survive():
    draft = Draft()
    main = draft.main
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    x = main.tensor(odd, (2,))
    y = main.elementwise("NEG", (x,), None, "NegOptions")
    main.inputs, main.outputs = (x,), (y,)
    file = draft.file()
    graph = build_graph(file)
    assert graph.tensors[x].name == "caf\N{REPLACEMENT CHARACTER}"
    assert graph.layers[0].name == f"tensor_{y}"
    assert b"caf\xe9\0" in bytes(extract(file, graph, [0]).data)


def test_shared_buffers_stay_shared():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    first = main.constant("w", np.ones((4, 4)))
    again = main.tensor("w again", (4, 4), buffer=main.tensors[first].buffer)
    at = x
    for number, weights in enumerate((first, again)):
        out = main.tensor(f"y{number}", (1, 4))
        main.op("FULLY_CONNECTED", (at, weights, -1), (out,), "FullyConnectedOptions")
        at = out
    main.inputs, main.outputs = (x,), (at,)
    file = draft.file()
    part = model_from_bytes(extract(file, build_graph(file), [0, 1]).data).model
    assert sum(1 for buffer in part.buffers if buffer.data) == 1


def test_blockwise_scales_are_renumbered_and_shipped():
    draft = Draft()
    main = draft.main
    spare = main.tensor("spare", (9,))
    x = main.tensor("x", (1, 32))
    first = main.elementwise("NEG", (x,), "first", "NegOptions")
    scales = main.constant("scales", np.full((4, 1), 0.5), "FLOAT16")
    details = Options("BlockwiseQuantization", {"scales": scales, "block_size": 32})
    weights = main.stored("w", (4, 32), bytes(64), "INT4", quantization=Quantization(details=details))
    y = main.tensor("y", (1, 4))
    main.op("FULLY_CONNECTED", (first, weights, -1), (y,), "FullyConnectedOptions", version=14)
    main.inputs, main.outputs = (x, spare), (y,)
    file = draft.file()
    graph = build_graph(file)
    assert set(graph.layers[1].constants) == {scales, weights}
    assert graph.layers[1].weight_bytes == 8 + 64
    part = model_from_bytes(extract(file, graph, [1]).data).model
    tensors = part.subgraphs[0].tensors
    (kept,) = (t for t in tensors if t.name == "w")
    assert tensors[kept.quantization.details.get("scales")].name == "scales"


# Keys ----------------------------------------------------------------------------------------------


def keys(draft):
    return [layer.key for layer in build_graph(draft.file()).layers]


def test_equal_layers_have_equal_keys_whatever_their_weights():
    draft = chain(6, 8)
    found = keys(draft)
    # Odd layers have an activation, so two kinds.
    assert len(set(found)) == 2
    assert found[0] == found[2] == found[4]
    assert found == keys(chain(6, 8))
    assert set(found).isdisjoint(keys(chain(6, 9)))


def changed_tensor(draft, index, **fields):
    draft.main.tensors[index] = dataclasses.replace(draft.main.tensors[index], **fields)


@pytest.mark.parametrize("what", ["options", "version", "bias", "quantisation axis", "zero point"])
def test_what_changes_the_cost_changes_the_key(what):
    one, other = chain(1), chain(1)
    operator = other.main.operators[0]
    if what == "options":
        options = Options("FullyConnectedOptions", {"fused_activation_function": 3})
        other.main.operators[0] = dataclasses.replace(operator, builtin_options=options)
    elif what == "version":
        other.codes[0] = dataclasses.replace(other.codes[0], version=2)
    elif what == "bias":
        other.main.operators[0] = dataclasses.replace(operator, inputs=(*operator.inputs[:2], -1))
    else:
        wide = what == "quantisation axis"
        changed_tensor(one, 1, quantization=Quantization(scale=(0.5,), zero_point=(0,)))
        scale = (0.5,) * 8 if wide else (0.5,)
        changed_tensor(
            other, 1, quantization=Quantization(scale=scale, zero_point=(0 if wide else 3,) * len(scale))
        )
    assert keys(one) != keys(other)


def test_scales_do_not_change_the_key_but_steering_constants_do():
    one, other = chain(1), chain(1)
    changed_tensor(one, 1, quantization=Quantization(scale=(0.5,), zero_point=(0,)))
    changed_tensor(other, 1, quantization=Quantization(scale=(0.25,), zero_point=(0,)))
    assert keys(one) == keys(other)

    def transposed(order):
        draft = Draft()
        x = draft.main.tensor("x", (4, 4, 4))
        y = draft.main.tensor("y", (4, 4, 4))
        draft.main.op(
            "TRANSPOSE", (x, draft.main.constant("order", order, "INT32")), (y,), "TransposeOptions"
        )
        draft.main.inputs, draft.main.outputs = (x,), (y,)
        return keys(draft)

    assert transposed([0, 2, 1]) == transposed([0, 2, 1])
    assert transposed([0, 2, 1]) != transposed([2, 1, 0])


def test_keys_look_into_subgraphs():
    def calling(op, table):
        draft = Draft()
        main, body = draft.main, draft.body()
        body.inputs = (body.tensor("in", (4,)),)
        body.outputs = (body.elementwise(op, body.inputs, "out", table),)
        x, y = main.tensor("x", (4,)), main.tensor("y", (4,))
        main.op("CALL", (x,), (y,), "CallOptions", {"subgraph": 1})
        main.inputs, main.outputs = (x,), (y,)
        return keys(draft)

    assert calling("NEG", "NegOptions") == calling("NEG", "NegOptions")
    assert calling("NEG", "NegOptions") != calling("ABS", "AbsOptions")


def test_a_layer_keeps_its_key_when_it_is_extracted():
    file = chain(4).file()
    graph = build_graph(file)
    for layer in graph.layers:
        part = build_graph(model_from_bytes(extract(file, graph, [layer.index]).data))
        assert [found.key for found in part.layers] == [layer.key]
    assert possible_cuts(graph) == (1, 2, 3)
