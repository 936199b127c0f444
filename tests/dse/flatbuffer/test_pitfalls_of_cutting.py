"""Faults that users of other tools hit when they read or cut models, each with its own small input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from running import difference, moved
from small_models import Draft, chain

from dse.errors import CutError
from dse.flatbuffer.cut import check_cut, extract, possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.manifest import manifest
from dse.flatbuffer.reader import model_from_bytes
from dse.flatbuffer.records import (
    Buffer,
    Metadata,
    OperatorCode,
    Options,
    SignatureDef,
    TensorMap,
)
from dse.flatbuffer.schema import builtin, schema
from dse.flatbuffer.tables import TableReader
from dse.inputs import make_frames


def halves(file, graph, position):
    return split(file, graph, stages_at(graph, [position]))


def check_all_positions(file, runner, *, n_frames=2, positions=None):
    """Every cut of a model gives exactly what the whole gives; returns the outputs."""
    graph = build_graph(file)
    frames = make_frames(graph, n_frames, 3, style="signed")
    expected = runner.run(bytes(file.data), frames)
    for position in possible_cuts(graph) if positions is None else positions:
        got = runner.run_split(halves(file, graph, position), frames)
        assert difference(expected, got) <= 1e-6, f"cut before layer {position}"
    return expected


# 1 ---------------------------------------------------------------------------------------------


def raw_operator_codes(data):
    root = TableReader(memoryview(data), "test").read_root("Model", b"TFL3")
    return [
        (code.get("deprecated_builtin_code"), code.get("builtin_code")) for code in root.get("operator_codes")
    ]


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [(0, 9, "FULLY_CONNECTED"), (9, 0, "FULLY_CONNECTED"), (9, 9, "FULLY_CONNECTED"), (127, 150, "GELU")],
)
def test_1_operator_code_is_the_larger_of_both_fields(old, new, name, monkeypatch):
    from dse.flatbuffer import tabulate

    draft = chain(1)
    file = draft.file()
    assert raw_operator_codes(draft.data()) == [(9, 9)]

    def both(code):
        return Options("OperatorCode", {"deprecated_builtin_code": old, "builtin_code": new})

    monkeypatch.setattr(tabulate, "_operator_code", both)
    assert build_graph(model_from_bytes(draft.data())).layers[0].op == name
    assert build_graph(file).layers[0].op == "FULLY_CONNECTED"


@pytest.mark.parametrize("number", [0, 9, 126, 127, 128, 209])
def test_1_operator_code_is_written_to_both_fields(number):
    model = chain(1).model()
    model = dataclasses.replace(model, operator_codes=(OperatorCode(number, "x" if number == 32 else None),))
    from dse.flatbuffer.encode import encode

    assert raw_operator_codes(encode(model)) == [(min(number, 127), number)]


# 2 ---------------------------------------------------------------------------------------------


def test_2_left_out_bias_is_no_edge_and_stays_left_out(runner):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 6))
    hidden = main.dense(x, "hidden", 5, bias=False, seed=1)
    out = main.dense(hidden, "out", 4, bias=False, seed=2)
    main.inputs, main.outputs = (x,), (out,)
    file = draft.file()
    graph = build_graph(file)
    assert graph.edges == ((0, 1),)
    assert graph.layers[1].inputs == (hidden,)
    for stage in halves(file, graph, 1).stages:
        (operator,) = model_from_bytes(stage.data).model.subgraphs[0].operators
        assert operator.inputs[2] == -1
    assert moved(check_all_positions(file, runner))


# 3 ---------------------------------------------------------------------------------------------


def test_3_weights_outside_the_flatbuffer(runner):
    inside, outside = chain(3).file(), chain(3).file(external=True)
    assert sum(buffer.external for buffer in outside.model.buffers) == 6
    assert not any(buffer.external for buffer in inside.model.buffers)
    expected = check_all_positions(outside, runner)
    frames = make_frames(build_graph(inside), 2, 3, style="signed")
    assert difference(expected, runner.run(bytes(inside.data), frames)) == 0


def test_3_custom_options_outside_the_flatbuffer(monkeypatch):
    draft = Draft()
    main = draft.main
    x, y = main.tensor("x", (4,)), main.tensor("y", (4,))
    main.inputs, main.outputs = (x,), (y,)
    main.op("CUSTOM:Mine", (x,), (y,))
    plain = draft.data()
    payload = b"some options"
    position = -(-len(plain) // 16) * 16

    def moved_out(operator):
        return Options(
            "Operator",
            {
                "inputs": operator.inputs,
                "outputs": operator.outputs,
                "large_custom_options_offset": position + 64,
                "large_custom_options_size": len(payload),
            },
        )

    from dse.flatbuffer import tabulate

    monkeypatch.setattr(tabulate, "_operator", moved_out)
    data = draft.data()
    assert len(data) <= position + 64
    data += bytes(position + 64 - len(data)) + payload
    monkeypatch.undo()
    file = model_from_bytes(data)
    (operator,) = file.model.subgraphs[0].operators
    assert bytes(operator.custom_options) == payload
    assert operator.custom_options_external
    part = model_from_bytes(extract(file, build_graph(file), [0]).data)
    assert bytes(part.model.subgraphs[0].operators[0].custom_options) == payload


# 4 ---------------------------------------------------------------------------------------------


def test_4_per_axis_quantisation_survives_bit_for_bit(runner):
    draft = Draft()
    main = draft.main
    random = np.random.default_rng(0)
    channels = 4
    scales = random.uniform(0.001, 0.1, channels)
    x = main.tensor("x", (1, 6, 6, channels), "INT8", scale=1 / 256, zero=-3)
    padded = main.elementwise("LOGISTIC", (x,), "logistic")
    main.tensors[padded] = dataclasses.replace(
        main.tensors[padded],
        quantization=dataclasses.replace(main.tensors[x].quantization, scale=(1 / 256,), zero_point=(-128,)),
    )
    weights = main.constant(
        "w", random.integers(-127, 128, (1, 3, 3, channels)), "INT8", scale=scales, axis=3
    )
    bias = main.constant("b", random.integers(-50, 50, (channels,)), "INT32", scale=scales / 256, axis=0)
    y = main.tensor("y", (1, 6, 6, channels), "INT8", scale=0.02, zero=5)
    main.op(
        "DEPTHWISE_CONV_2D",
        (padded, weights, bias),
        (y,),
        "DepthwiseConv2DOptions",
        {"stride_w": 1, "stride_h": 1, "depth_multiplier": 1},
        version=3,
    )
    main.inputs, main.outputs = (x,), (y,)
    file = draft.file()
    assert moved(check_all_positions(file, runner))
    stage = halves(file, build_graph(file), 1).stages[1]
    part = model_from_bytes(stage.data).model
    kept = {tensor.name: tensor for tensor in part.subgraphs[0].tensors}
    for name in ("logistic", "w", "b", "y"):
        (original,) = (t for t in file.model.subgraphs[0].tensors if t.name == name)
        assert kept[name].quantization == original.quantization
    assert kept["w"].quantization.quantized_dimension == 3
    assert [code.version for code in part.operator_codes] == [3]


# 5 ---------------------------------------------------------------------------------------------


def sparse_model():
    """A dense layer whose 4x4 weights are stored in compressed sparse rows."""
    dense = np.zeros((4, 4), np.float32)
    dense[0, 1], dense[2, 0], dense[2, 3], dense[3, 3] = 1.5, -2.0, 0.5, 3.0
    values = dense[dense != 0]
    sparsity = Options(
        "SparsityParameters",
        {
            "traversal_order": (0, 1),
            "dim_metadata": (
                Options("DimensionMetadata", {"format": 0, "dense_size": 4}),
                Options(
                    "DimensionMetadata",
                    {
                        "format": 1,
                        "array_segments": Options("Uint8Vector", {"values": bytes([0, 1, 1, 3, 4])}),
                        "array_indices": Options("Uint8Vector", {"values": bytes([1, 0, 3, 3])}),
                    },
                ),
            ),
        },
    )
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    first = main.elementwise("ABS", (x,), "abs", "AbsOptions")
    packed = main.stored("packed", (4, 4), values.tobytes(), sparsity=sparsity)
    weights = main.tensor("weights", (4, 4))
    main.op("DENSIFY", (packed,), (weights,), "DensifyOptions")
    y = main.tensor("y", (1, 4))
    main.op("FULLY_CONNECTED", (first, weights, -1), (y,), "FullyConnectedOptions")
    main.inputs, main.outputs = (x,), (y,)
    return draft, dense, packed


def test_5_sparse_weights_are_counted_by_their_buffer(runner):
    draft, dense, packed = sparse_model()
    file = draft.file()
    graph = build_graph(file)
    assert [layer.op for layer in graph.layers] == ["ABS", "FULLY_CONNECTED"]
    assert graph.layers[1].operators == (1, 2)
    assert graph.tensors[packed].n_bytes == 16
    assert graph.layers[1].weight_bytes == 16
    check_all_positions(file, runner)
    frames = [(np.array([[1.0, -2.0, 3.0, 4.0]], np.float32),)]
    ((got,),) = runner.run_split(halves(file, graph, 1), frames)
    assert np.array_equal(got, np.abs(frames[0][0]) @ dense.T)
    part = model_from_bytes(halves(file, graph, 1).stages[1].data).model
    (kept,) = (t for t in part.subgraphs[0].tensors if t.name == "packed")
    assert kept.sparsity == file.model.subgraphs[0].tensors[packed].sparsity


# 6 ---------------------------------------------------------------------------------------------


def lstm_model(features=3, cells=4, steps=2):
    draft = Draft()
    main = draft.main
    random = np.random.default_rng(5)
    x = main.tensor("x", (1, steps, features))
    scaled = main.elementwise("TANH", (x,), "tanh")
    inputs = [scaled]
    for number in range(8):
        shape = (cells, features if number < 4 else cells)
        inputs.append(main.constant(f"w{number}", random.normal(0, 0.6, shape)))
    inputs += [-1, -1, -1]
    inputs += [main.constant(f"b{number}", random.normal(0, 0.3, cells)) for number in range(4)]
    inputs += [-1, -1]
    inputs += [main.tensor(f"state{number}", (1, cells), is_variable=True) for number in range(2)]
    inputs += [-1, -1, -1, -1]
    y = main.tensor("y", (1, steps, cells))
    main.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        (y,),
        "UnidirectionalSequenceLSTMOptions",
        {"fused_activation_function": 4},
    )
    flat = main.elementwise("NEG", (y,), "neg", "NegOptions")
    main.inputs, main.outputs = (x,), (flat,)
    return draft


def test_6_lstm_state_is_no_constant(runner):
    file = lstm_model().file()
    graph = build_graph(file)
    assert graph.stateful
    assert [layer.group for layer in graph.layers] == [None, 0, None]
    assert "state0" in graph.shared[0]
    states = [tensor for tensor in graph.tensors if tensor.kind == "variable"]
    assert len(states) == 2
    assert not {tensor.index for tensor in states} & {c for layer in graph.layers for c in layer.constants}
    frames = [make_frames(graph, 1, 3)[0]] * 3
    expected = runner.run(bytes(file.data), frames)
    # The same frame three times gives three answers, so state is really carried.
    assert moved(expected)
    for position in (1, 2):
        assert difference(expected, runner.run_split(halves(file, graph, position), frames)) == 0


# 7 ---------------------------------------------------------------------------------------------


def variable_model(*, initial=(1.0, 2.0)):
    """Adds up its inputs: total = read(v) + x; v = total; out = -abs(read again)."""
    draft = Draft()
    main, init = draft.main, draft.body()
    names = {"container": "", "shared_name": "total"}
    for body in (main, init):
        body.handle = body.tensor("handle", (), "RESOURCE")
    main.op("CALL_ONCE", (), (), "CallOnceOptions", {"init_subgraph_index": 1})
    main.op("VAR_HANDLE", (), (main.handle,), "VarHandleOptions", names)
    init.op("VAR_HANDLE", (), (init.handle,), "VarHandleOptions", names)
    value = init.constant("initial", [initial])
    init.op("ASSIGN_VARIABLE", (init.handle, value), (), "AssignVariableOptions")
    x = main.tensor("x", (1, 2))
    old = main.tensor("old", (1, 2))
    main.op("READ_VARIABLE", (main.handle,), (old,), "ReadVariableOptions")
    total = main.elementwise("ADD", (old, x), "sum", "AddOptions")
    main.op("ASSIGN_VARIABLE", (main.handle, total), (), "AssignVariableOptions")
    squared = main.elementwise("ABS", (total,), "abs", "AbsOptions")
    out = main.elementwise("NEG", (squared,), "neg", "NegOptions")
    main.inputs, main.outputs = (x,), (out,)
    return draft


def test_7_a_resource_stays_in_one_stage_with_its_initialiser(runner):
    file = variable_model().file()
    graph = build_graph(file)
    assert [layer.op for layer in graph.layers] == ["READ_VARIABLE", "ADD", "ASSIGN_VARIABLE", "ABS", "NEG"]
    assert [layer.group for layer in graph.layers] == [0, None, 0, None, None]
    assert graph.stateful
    # CALL_ONCE and VAR_HANDLE come along with whoever needs them.
    assert graph.layers[0].operators == (0, 1, 2)
    for position in (1, 2):
        with pytest.raises(CutError, match=r"layers 0, 2 share variable 'total'.*after layer 2"):
            split(file, graph, [range(position), range(position, 5)])
    assert possible_cuts(graph) == (3, 4)
    outputs = check_all_positions(file, runner, n_frames=3)
    assert moved(outputs)
    first = halves(file, graph, 3).stages[0]
    part = model_from_bytes(first.data)
    assert len(part.model.subgraphs) == 2
    assert build_graph(part).layers[0].group == 0


def test_7_a_variable_that_is_only_read_is_copied(runner):
    draft = variable_model()
    main = draft.main
    assign = builtin("ASSIGN_VARIABLE")
    main.operators = [op for op in main.operators if draft.codes[op.opcode_index].builtin_code != assign]
    file = draft.file()
    graph = build_graph(file)
    assert not graph.stateful
    assert {layer.group for layer in graph.layers} == {None}
    assert moved(check_all_positions(file, runner))


def test_7_initialisers_are_cut_down_to_what_a_stage_uses(runner):
    draft = Draft()
    main, init = draft.main, draft.body()
    main.op("CALL_ONCE", (), (), "CallOnceOptions", {"init_subgraph_index": 1})
    x = main.tensor("x", (1, 2))
    main.inputs, at = (x,), x
    for number in range(2):
        names = {"shared_name": f"v{number}"}
        handle, other = main.tensor(f"h{number}", (), "RESOURCE"), init.tensor(f"h{number}", (), "RESOURCE")
        main.op("VAR_HANDLE", (), (handle,), "VarHandleOptions", names)
        init.op("VAR_HANDLE", (), (other,), "VarHandleOptions", names)
        value = init.constant(f"initial{number}", [[number + 1.0, 5.0]])
        init.op("ASSIGN_VARIABLE", (other, value), (), "AssignVariableOptions")
        old = main.tensor(f"old{number}", (1, 2))
        main.op("READ_VARIABLE", (handle,), (old,), "ReadVariableOptions")
        at = main.elementwise("ADD", (old, at), f"sum{number}", "AddOptions")
        main.op("ASSIGN_VARIABLE", (handle, at), (), "AssignVariableOptions")
    main.outputs = (at,)
    file = draft.file()
    graph = build_graph(file)
    assert [layer.group for layer in graph.layers] == [0, None, 0, 1, None, 1]
    assert possible_cuts(graph) == (3,)
    pieces = halves(file, graph, 3)
    for number, stage in enumerate(pieces.stages):
        part = model_from_bytes(stage.data).model
        assert [t.name for t in part.subgraphs[1].tensors] == [f"h{number}", f"initial{number}"]
    check_all_positions(file, runner, n_frames=3)


# 8 ---------------------------------------------------------------------------------------------


def control_flow_model():
    """Two layers, then WHILE that adds 1 three times, then IF on the sign, then a layer."""
    draft = Draft()
    main, spare, cond, body, then, other = (draft.main, *(draft.body() for _ in range(5)))
    spare.inputs = spare.outputs = (spare.tensor("spare", (1,)),)
    for graph in (cond, body):
        counter, value = graph.tensor("counter", (), "INT32"), graph.tensor("value", (1, 4))
        graph.inputs = (counter, value)
    limit = cond.constant("limit", 3, "INT32")
    less = cond.tensor("less", (), "BOOL")
    cond.op("LESS", (cond.inputs[0], limit), (less,), "LessOptions")
    cond.outputs = (less,)
    step, one = body.constant("step", 1, "INT32"), body.constant("one", [[1.0, 1, 1, 1]])
    added = body.elementwise("ADD", (body.inputs[0], step), "counted", "AddOptions")
    bigger = body.elementwise("ADD", (body.inputs[1], one), "bigger", "AddOptions")
    body.outputs = (added, bigger)
    for graph, op, table in ((then, "NEG", "NegOptions"), (other, "ABS", "AbsOptions")):
        graph.inputs = (graph.tensor("in", (1, 4)),)
        graph.outputs = (graph.elementwise(op, graph.inputs, "out", table),)
    x = main.tensor("x", (1, 4))
    hidden = main.dense(x, "hidden", 4, seed=3)
    zero = main.constant("zero", 0, "INT32")
    count, looped = main.tensor("count", (), "INT32"), main.tensor("looped", (1, 4))
    main.op(
        "WHILE",
        (zero, hidden),
        (count, looped),
        "WhileOptions",
        {"cond_subgraph_index": 2, "body_subgraph_index": 3},
    )
    axis = main.constant("axis", [0, 1], "INT32")
    total = main.tensor("total", ())
    main.op("SUM", (looped, axis), (total,), "ReducerOptions")
    nothing = main.constant("nothing", 0.0)
    positive = main.tensor("positive", (), "BOOL")
    main.op("GREATER", (total, nothing), (positive,), "GreaterOptions")
    chosen = main.tensor("chosen", (1, 4))
    main.op(
        "IF",
        (positive, looped),
        (chosen,),
        "IfOptions",
        {"then_subgraph_index": 4, "else_subgraph_index": 5},
    )
    out = main.dense(chosen, "out", 3, seed=4)
    main.inputs, main.outputs = (x,), (out, count)
    return draft


def test_8_control_flow_is_one_layer_and_takes_its_subgraphs_along(runner):
    file = control_flow_model().file()
    graph = build_graph(file)
    assert [layer.op for layer in graph.layers] == [
        "FULLY_CONNECTED",
        "WHILE",
        "SUM",
        "GREATER",
        "IF",
        "FULLY_CONNECTED",
    ]
    assert graph.layers[1].macs is None
    assert not graph.stateful
    assert moved(check_all_positions(file, runner, n_frames=4))
    first, second = (model_from_bytes(stage.data).model for stage in halves(file, graph, 3).stages)
    # main, condition, body; then main, then, else: nothing else, and renumbered.
    assert len(first.subgraphs) == len(second.subgraphs) == 3
    options = second.subgraphs[0].operators[1].builtin_options
    assert (options.get("then_subgraph_index"), options.get("else_subgraph_index")) == (1, 2)
    assert extract(file, graph, [0]).data.find(b"bigger") < 0


# 9 ---------------------------------------------------------------------------------------------


def test_9_signatures_are_kept_where_they_apply():
    draft = chain(2)
    x, y = draft.main.inputs[0], draft.main.outputs[0]
    middle = draft.main.operators[0].outputs[0]
    signatures = (
        SignatureDef((TensorMap("in", x),), (TensorMap("out", y),), "whole"),
        SignatureDef((TensorMap("in", x),), (TensorMap("half", middle),), "first"),
    )
    draft.main.outputs = (y, middle)
    file = draft.file(signature_defs=signatures)
    assert [s.signature_key for s in file.model.signature_defs] == ["whole", "first"]
    graph = build_graph(file)
    stages = [model_from_bytes(stage.data).model for stage in halves(file, graph, 1).stages]
    assert [[s.signature_key for s in stage.signature_defs] for stage in stages] == [
        ["stage", "first"],
        ["stage"],
    ]
    assert [entry.name for entry in stages[0].signature_defs[1].outputs] == ["half"]


# 10 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
def test_10_every_constant_starts_at_a_multiple_of_16(external):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 3))
    at = x
    for number, units in enumerate((7, 5, 3)):  # biases of 28, 20, 12 bytes
        at = main.dense(at, f"d{number}", units, seed=number)
    main.inputs, main.outputs = (x,), (at,)
    file = draft.file(external=external)
    graph = build_graph(file)
    files = [bytes(file.data), *(bytes(stage.data) for stage in halves(file, graph, 2).stages)]
    for data in files:
        model = model_from_bytes(data).model
        contents = [bytes(buffer.data) for buffer in model.buffers if buffer.data]
        assert contents
        for content in contents:
            assert data.find(content) % 16 == 0
            assert data.count(content) == 1


# 11 --------------------------------------------------------------------------------------------


def test_11_a_tensor_used_by_two_later_stages_is_sent_once_each_under_one_name(runner):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    first = main.dense(x, "first", 4, seed=1)
    second = main.elementwise("ABS", (first,), "second", "AbsOptions")
    third = main.elementwise("MUL", (second, first), "third", "MulOptions")
    main.inputs, main.outputs = (x,), (third,)
    file = draft.file()
    graph = build_graph(file)
    pieces = split(file, graph, [[0], [1], [2]])
    assert [[t.name for t in stage.inputs] for stage in pieces.stages] == [
        ["x"],
        ["first"],
        ["first", "second"],
    ]
    assert [[t.name for t in stage.outputs] for stage in pieces.stages] == [["first"], ["second"], ["third"]]
    told = manifest(pieces)
    assert told["stages"][0]["outputs"][0]["to"] == [1, 2]
    assert [(cut["from"], cut["to"], cut["bytes"]) for cut in told["cuts"]] == [
        (0, 1, 16),
        (0, 2, 16),
        (1, 2, 16),
    ]
    frames = make_frames(graph, 2, 1, style="signed")
    assert difference(runner.run(bytes(file.data), frames), runner.run_split(pieces, frames)) == 0


# 12 --------------------------------------------------------------------------------------------


def test_12_names_survive_even_when_two_tensors_share_one(runner):
    draft = Draft()
    main = draft.main
    x, z = main.tensor("in", (1, 4)), main.tensor("in", (1, 4))
    a = main.dense(x, "same", 4, seed=1)
    b = main.dense(z, "same", 4, seed=2)
    c = main.elementwise("SUB", (b, a), "difference", "SubOptions")
    main.inputs, main.outputs = (z, x), (c, a)
    file = draft.file()
    graph = build_graph(file)
    pieces = split(file, graph, [[0, 1], [2]])
    first = model_from_bytes(pieces.stages[0].data).model
    stage = first.signature_defs[0]
    assert [entry.name for entry in stage.inputs] == [f"in#{z}", f"in#{x}"]
    assert len({entry.name for entry in stage.outputs}) == 2
    assert [t.name for t in pieces.stages[1].inputs] == [f"same#{a}", f"same#{b}"]
    assert {t.name for t in first.subgraphs[0].tensors} >= {"in", "same"}
    frames = make_frames(graph, 2, 1, style="signed")
    expected = runner.run(bytes(file.data), frames)
    got = runner.run_split(pieces, frames)
    assert difference(expected, got) == 0
    assert not np.array_equal(expected[0][0], expected[0][1])
    signature = runner.answer["signatures"]["stage"]
    assert sorted(signature["inputs"]) == sorted(t.name for t in pieces.stages[1].inputs)


# 13 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "target"), [("edgetpu-custom-op", "Edge TPU"), ("ethos-u", "Ethos-U")])
def test_13_a_compiled_model_is_read_but_not_cut(name, target):
    draft = Draft()
    main = draft.main
    x, y = main.tensor("x", (1, 4), "UINT8"), main.tensor("y", (1, 4), "UINT8")
    main.op(f"CUSTOM:{name}", (x,), (y,), custom_options=b"compiled")
    z = main.elementwise("RELU", (y,), "z")
    main.inputs, main.outputs = (x,), (z,)
    graph = build_graph(draft.file())
    assert graph.layers[0].macs is None
    check_cut(graph, [[0, 1]])
    with pytest.raises(CutError, match=f"already compiled for .*{target}.*before compilation"):
        check_cut(graph, [[0], [1]])


# 14 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "n_bytes"),
    [
        ("FLOAT32", (1, 25, 4), 400),
        ("INT8", (1, 25, 4), 100),
        ("FLOAT16", (3,), 6),
        ("INT64", (), 8),
        ("INT4", (3, 3), 5),
        ("INT2", (9,), 3),
        ("UINT4", (1,), 1),
        ("FLOAT32", (0, 7), 0),
        ("COMPLEX128", (2,), 32),
        ("STRING", (2,), 0),
    ],
)
def test_14_sizes_are_bytes_and_not_elements(dtype, shape, n_bytes):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", shape, dtype)
    y = main.elementwise("RESHAPE", (x,), "y", "ReshapeOptions")
    main.inputs, main.outputs = (x,), (y,)
    file = draft.file()
    stage = extract(file, build_graph(file), [0])
    for tensor in (*stage.inputs, *stage.outputs):
        assert (tensor.dtype, tensor.shape, tensor.n_bytes) == (dtype.lower(), shape, n_bytes)


def test_min_runtime_version_and_converter_metadata_are_kept():
    draft = chain(2)
    draft.buffers += [Buffer(b"2.17.0\0\0\0\0\0\0\0\0\0\0"), Buffer(b"labels"), Buffer(b"converted")]
    n = len(draft.buffers)
    metadata = (
        Metadata("min_runtime_version", n - 3),
        Metadata("TFLITE_METADATA", n - 2),
        Metadata("CONVERSION_METADATA", n - 1),
    )
    file = draft.file(metadata=metadata, description="made by a test")
    part = model_from_bytes(extract(file, build_graph(file), [1]).data).model
    assert {entry.name: bytes(part.buffers[entry.buffer].data) for entry in part.metadata} == {
        "min_runtime_version": b"2.17.0\0\0\0\0\0\0\0\0\0\0",
        "CONVERSION_METADATA": b"converted",
    }
    assert part.description == "made by a test"


def test_schema_knows_every_options_table_it_names():
    facts = schema()
    for members in facts.unions.values():
        assert set(members) <= set(facts.tables)
