"""MACs against counting by hand in loops, and against arithmetic done by numpy."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import Draft, chain

from dse.flatbuffer import element_ops
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.macs import Call, Work, operator_work
from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import schema

small = st.integers(1, 4)


def work(name, inputs, outputs, **options):
    return operator_work(Call(name, Options("", options), tuple(inputs), tuple(outputs)))


def count(*ranges):
    """Count the innermost steps of nested loops."""
    return sum(1 for _ in itertools.product(*(range(n) for n in ranges)))


@given(small, small, small, small, small, small, st.integers(1, 3))
def test_convolution_counts_each_product(batch, height, width, c_in, c_out, kernel, groups):
    filters = (c_out * groups, kernel, kernel, c_in)
    data, out = (batch, 9, 9, c_in * groups), (batch, height, width, c_out * groups)
    loops = count(batch, height, width, c_out * groups, kernel, kernel, c_in)
    assert work("CONV_2D", [data, filters, (c_out * groups,)], [out]).macs == loops


@given(small, small, small, small, small)
def test_depthwise_counts_each_product(height, width, channels, kernel_h, kernel_w):
    out = (1, height, width, channels)
    got = work("DEPTHWISE_CONV_2D", [(1, 9, 9, channels), (1, kernel_h, kernel_w, channels), None], [out])
    assert got.macs == count(height, width, channels, kernel_h, kernel_w)


@given(small, small, small, small, small)
def test_transposed_convolution_counts_each_scattered_product(height, width, c_in, c_out, kernel):
    filters, data = (c_out, kernel, kernel, c_in), (1, height, width, c_in)
    loops = count(height, width, c_in, c_out, kernel, kernel)
    out = (1, 2 * height, 2 * width, c_out)
    assert work("TRANSPOSE_CONV", [(4,), filters, data], [out]).macs == loops
    assert work("CUSTOM:Convolution2DTransposeBias", [data, filters, (c_out,)], [out]).macs == loops


@given(small, small, small, small)
def test_three_dimensional_convolutions(size, c_in, c_out, kernel):
    loops = count(size, size, size, c_in, c_out, kernel, kernel, kernel)
    data, out = (1, size, size, size, c_in), (1, size, size, size, c_out)
    assert work("CONV_3D", [data, (kernel, kernel, kernel, c_in, c_out)], [out]).macs == loops
    assert work("CONV_3D_TRANSPOSE", [(5,), (kernel, kernel, kernel, c_out, c_in), data], [out]).macs == loops


@given(small, small, small, small, st.booleans(), st.booleans())
def test_matrix_products(batch, rows, inner, columns, adj_x, adj_y):
    left = (batch, inner, rows) if adj_x else (batch, rows, inner)
    right = (batch, columns, inner) if adj_y else (batch, inner, columns)
    out = (batch, rows, columns)
    loops = count(batch, rows, inner, columns)
    assert work("BATCH_MATMUL", [left, right], [out], adj_x=adj_x, adj_y=adj_y).macs == loops
    assert work("FULLY_CONNECTED", [(batch, rows, inner), (columns, inner), None], [out]).macs == loops
    dimensions = {"lhs_contracting_dimensions": (1 if adj_x else 2,), "rhs_contracting_dimensions": (1,)}
    assert work("STABLEHLO_DOT_GENERAL", [left, right], [out], **dimensions).macs == loops


def lstm_inputs(batch, steps, features, cells, *, cifg=False, peephole=False, projection=0):
    units = projection or cells
    shapes = [(batch, steps, features)]
    shapes += [(cells, features)] * 4 + [(cells, units)] * 4
    shapes += [(cells,)] * 3 if peephole else [None] * 3
    shapes += [(cells,)] * 4
    shapes += [(units, cells) if projection else None, None]
    shapes += [(batch, units), (batch, cells)] + [None] * 4
    if cifg:
        shapes[1] = shapes[5] = shapes[12] = None
        shapes[9] = None
    return shapes


@pytest.mark.parametrize("cifg", [False, True])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("projection", [0, 3])
def test_lstm_counts_gates_peepholes_and_projection(cifg, peephole, projection):
    batch, steps, features, cells = 2, 5, 7, 4
    gates = 3 if cifg else 4
    units = projection or cells
    each = gates * cells * (features + units)
    each += (gates - 1) * cells if peephole else 0
    each += projection * cells
    shapes = lstm_inputs(batch, steps, features, cells, cifg=cifg, peephole=peephole, projection=projection)
    got = work("UNIDIRECTIONAL_SEQUENCE_LSTM", shapes, [(batch, steps, units)])
    assert got.macs == batch * steps * each


def test_other_recurrent_operators():
    batch, steps, features, cells = 2, 5, 7, 4
    one_way = features * cells + cells * cells
    data = (batch, steps, features)
    simple = [data, (cells, features), (cells, cells), (cells,), (batch, cells)]
    assert (
        work("UNIDIRECTIONAL_SEQUENCE_RNN", simple, [(batch, steps, cells)]).macs == batch * steps * one_way
    )
    both = [*simple, *simple[1:]]
    assert (
        work("BIDIRECTIONAL_SEQUENCE_RNN", both, [(batch, steps, cells)] * 2).macs
        == 2 * batch * steps * one_way
    )
    one_step = [(batch, features), *simple[1:]]
    assert work("RNN", one_step, [(batch, cells)]).macs == batch * one_way
    lstm = lstm_inputs(batch, steps, features, cells)
    directions = [*lstm[:18], *lstm[1:18], *[(batch, cells)] * 4, None, *[None] * 8]
    got = work("BIDIRECTIONAL_SEQUENCE_LSTM", directions, [(batch, steps, cells)] * 2)
    assert got.macs == 2 * work("UNIDIRECTIONAL_SEQUENCE_LSTM", lstm, [(batch, steps, cells)]).macs
    basic = [(batch, features), (batch, cells), (4 * cells, features + cells), (4 * cells,), (batch, cells)]
    assert work("LSTM", basic, [(batch, cells)] * 4).macs == batch * 4 * cells * (features + cells)
    filters, memory = 6, 3
    svdf = [(batch, features), (filters, features), (filters, memory), None, (batch, filters * memory)]
    assert work("SVDF", svdf, [(batch, filters)]).macs == batch * filters * (features + memory)


def test_element_operations():
    shape = (1, 4, 4, 2)
    assert work("ADD", [shape, shape], [shape]) == Work(0, 32)
    assert work("ADD", [shape, shape], [shape], fused_activation_function=1) == Work(0, 64)
    assert work("RESHAPE", [shape, (2,)], [(32,)]) == Work(0, 0)
    assert work("MAX_POOL_2D", [shape], [(1, 2, 2, 2)], filter_width=2, filter_height=2) == Work(0, 32)
    assert work("MEAN", [shape, (2,)], [(1, 2)]) == Work(0, 32)
    assert work("SPLIT", [(), shape], [(1, 4, 2, 2)] * 2) == Work(0, 0)
    assert work("TOPK_V2", [(9,), ()], [(3,), (3,)]) == Work(0, None)


@pytest.mark.parametrize("name", ["CUSTOM:Mine", "BUILTIN_999", "IF", "WHILE"])
def test_unknown_is_none_and_not_zero(name):
    assert work(name, [(1, 4)], [(1, 4)]) == Work(None, None)


@pytest.mark.parametrize("name", ["CONV_2D", "FULLY_CONNECTED", "LSTM", "SVDF", "STABLEHLO_CONVOLUTION"])
def test_shapes_that_make_no_sense_are_unknown(name):
    for inputs in ([], [()], [(1,), ()], [None, None, None]):
        assert work(name, inputs, [(1, 2)]).macs is None


def test_every_builtin_operator_is_classified_once():
    from dse.flatbuffer import macs

    known = [
        set(macs._MACS),
        set(macs._ELEMENT_OPS),
        element_ops.MOVES,
        element_ops.NO_COUNT,
        set(element_ops.PER_OUTPUT),
        set(element_ops.PER_INPUT),
    ]
    for one, other in itertools.combinations(known, 2):
        assert not one & other
    names = set(schema().enums["BuiltinOperator"].values())
    assert {n for n in set().union(*known) if not n.startswith("CUSTOM:")} <= names
    # Only operators whose work depends on data, other operators or unknown code have no formula.
    assert names - set().union(*known) == {
        "CUSTOM",
        "DELEGATE",
        "PLACEHOLDER_FOR_GREATER_OP_CODES",
        "CALL",
        "IF",
        "WHILE",
        "STABLEHLO_CUSTOM_CALL",
        "STABLEHLO_REDUCE",
        "STABLEHLO_REDUCE_WINDOW",
        "STABLEHLO_SCATTER",
        "STABLEHLO_WHILE",
        "STABLEHLO_CASE",
        "STABLEHLO_COMPOSITE",
        "REDUCE_WINDOW",
    }


def test_a_called_subgraph_counts_as_its_operators():
    draft = Draft()
    main, body = draft.main, draft.body()
    body.inputs = (body.tensor("in", (1, 8)),)
    body.outputs = (body.dense(body.inputs[0], "inner", 16),)
    x, y = main.tensor("x", (1, 8)), main.tensor("y", (1, 16))
    main.op("CALL", (x,), (y,), "CallOptions", {"subgraph": 1})
    main.inputs, main.outputs = (x,), (y,)
    (layer,) = build_graph(draft.file()).layers
    assert (layer.macs, layer.element_ops) == (128, 16)


def test_totals_add_up():
    graph = build_graph(chain(3, 8).file())
    assert graph.macs == 3 * 64
    assert graph.weight_bytes == 3 * 4 * (64 + 8)
    assert math.prod(graph.tensors[graph.outputs[0]].shape) == 8
