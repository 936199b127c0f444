"""Who reads, writes and initialises which state, through handles and subgraphs."""

from __future__ import annotations

import pytest
from small_models import Draft

from dse.errors import CutError
from dse.flatbuffer.cut import check_cut, extract, possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.flatbuffer.state import is_initialiser, operator_effects


def handle(body, name):
    tensor = body.tensor(f"handle/{name}", (), "RESOURCE")
    body.op("VAR_HANDLE", (), (tensor,), "VarHandleOptions", {"shared_name": name})
    return tensor


def read(body, source, name):
    out = body.tensor(name, (1, 2))
    body.op("READ_VARIABLE", (source,), (out,), "ReadVariableOptions")
    return out


def assign(body, target, value):
    body.op("ASSIGN_VARIABLE", (target, value), (), "AssignVariableOptions")


def variable(name):
    return ("VAR_HANDLE", "", name)


def looping_model(*, write):
    """A WHILE that takes a handle along; its body reads the variable, and writes it on request."""
    draft = Draft()
    main, cond, body = draft.main, draft.body(), draft.body()
    for graph in (cond, body):
        graph.inputs = (graph.tensor("value", (1, 2)), graph.tensor("h", (), "RESOURCE"))
    go = cond.tensor("go", (), "BOOL")
    cond.op("REDUCE_ANY", (cond.inputs[0],), (go,), "ReducerOptions")
    cond.outputs = (go,)
    old = read(body, body.inputs[1], "old")
    new = body.elementwise("ADD", (body.inputs[0], old), "new", "AddOptions")
    if write:
        assign(body, body.inputs[1], new)
    body.outputs = (new, body.inputs[1])
    x = main.tensor("x", (1, 2))
    h = handle(main, "v")
    out, h_out = main.tensor("out", (1, 2)), main.tensor("h_out", (), "RESOURCE")
    main.op(
        "WHILE", (x, h), (out, h_out), "WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    )
    middle = main.elementwise("NEG", (out,), "middle", "NegOptions")
    after = read(main, h_out, "after")
    last = main.elementwise("ADD", (middle, after), "last", "AddOptions")
    main.inputs, main.outputs = (x,), (last,)
    return draft


@pytest.mark.parametrize("write", [False, True])
def test_handles_are_followed_through_loops(write):
    file = looping_model(write=write).file()
    effects = operator_effects(file.model)
    assert [effect.reads for effect in effects[:2]] == [frozenset({variable("v")})] * 2
    assert effects[1].writes == (frozenset({variable("v")}) if write else frozenset())
    graph = build_graph(file)
    assert [layer.op for layer in graph.layers] == ["WHILE", "NEG", "READ_VARIABLE", "ADD"]
    # The handle that the loop gives out can not cross a cut, whether something is written or not.
    assert [layer.group for layer in graph.layers] == [0, None, 0, None]
    assert graph.stateful == write
    assert possible_cuts(graph) == (3,)
    expected = "variable 'v'" if write else "a resource handle"
    with pytest.raises(CutError, match=f"layers 0, 2 share {expected}"):
        split(file, graph, [[0, 1], [2, 3]])


def test_an_unknown_operator_may_write_what_it_gets():
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 2))
    h = handle(main, "v")
    y = main.tensor("y", (1, 2))
    main.op("CUSTOM:Mystery", (x, h), (y,))
    z = read(main, h, "z")
    out = main.elementwise("ADD", (y, z), "out", "AddOptions")
    main.inputs, main.outputs = (x,), (out,)
    graph = build_graph(draft.file())
    assert [layer.group for layer in graph.layers] == [0, 0, None]
    assert graph.stateful


def test_hash_tables_that_are_only_looked_up_are_copied():
    draft = Draft()
    main, init = draft.main, draft.body()
    options = {"table_id": 7, "key_dtype": 5, "value_dtype": 4}
    main.op("CALL_ONCE", (), (), "CallOnceOptions", {"init_subgraph_index": 1})
    tables = [body.tensor("table", (1,), "RESOURCE") for body in (main, init)]
    for body, table in zip((main, init), tables, strict=True):
        body.op("HASHTABLE", (), (table,), "HashtableOptions", options)
    keys = init.stored("keys", (1,), b"\1\0\0\0\x0c\0\0\0\x0d\0\0\0a", "STRING")
    values = init.constant("values", [5], "INT64")
    init.op("HASHTABLE_IMPORT", (tables[1], keys, values), (), "HashtableImportOptions")
    default = main.constant("default", [0], "INT64")
    words = main.tensor("words", (1,), "STRING")
    found = []
    for number in range(2):
        found.append(main.tensor(f"found{number}", (1,), "INT64"))
        main.op("HASHTABLE_FIND", (tables[0], words, default), (found[-1],), "HashtableFindOptions")
    main.inputs, main.outputs = (words,), tuple(found)
    file = draft.file()
    assert is_initialiser(file.model, file.model.subgraphs[0].operators[0])
    graph = build_graph(file)
    assert [(layer.op, layer.group, layer.operators) for layer in graph.layers] == [
        ("HASHTABLE_FIND", None, (0, 1, 2)),
        ("HASHTABLE_FIND", None, (0, 1, 3)),
    ]
    for stage in split(file, graph, [[0], [1]]).stages:
        part = model_from_bytes(stage.data)
        assert [layer.key for layer in build_graph(part).layers] == [graph.layers[0].key]
        assert len(part.model.subgraphs) == 2


def test_an_initialiser_that_reads_another_variable_is_a_layer():
    draft = Draft()
    main, init = draft.main, draft.body()
    main.op("CALL_ONCE", (), (), "CallOnceOptions", {"init_subgraph_index": 1})
    first, second = handle(init, "first"), handle(init, "second")
    assign(init, second, read(init, first, "old"))
    x = main.tensor("x", (1, 2))
    y = main.elementwise("ADD", (x, read(main, handle(main, "second"), "now")), "y", "AddOptions")
    main.inputs, main.outputs = (x,), (y,)
    file = draft.file()
    assert not is_initialiser(file.model, file.model.subgraphs[0].operators[0])
    graph = build_graph(file)
    assert [(layer.op, layer.group) for layer in graph.layers] == [
        ("CALL_ONCE", 0),
        ("READ_VARIABLE", 0),
        ("ADD", None),
    ]


def test_two_calls_of_a_body_with_state_stay_together():
    draft = Draft()
    main, body = draft.main, draft.body()
    body.inputs = (body.tensor("in", (1, 3)),)
    weights = body.constant("w", [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    state = body.tensor("state", (1, 3), is_variable=True)
    out = body.tensor("out", (1, 3))
    body.op(
        "RNN", (body.inputs[0], weights, weights, body.constant("b", [0.0] * 3), state), (out,), "RNNOptions"
    )
    body.outputs = (out,)
    at = x = main.tensor("x", (1, 3))
    for number in range(3):
        called = main.tensor(f"called{number}", (1, 3))
        if number == 1:
            main.op("ABS", (at,), (called,), "AbsOptions")
        else:
            main.op("CALL", (at,), (called,), "CallOptions", {"subgraph": 1})
        at = called
    main.inputs, main.outputs = (x,), (at,)
    file = draft.file()
    graph = build_graph(file)
    assert [layer.group for layer in graph.layers] == [0, None, 0]
    assert graph.stateful
    assert possible_cuts(graph) == ()
    with pytest.raises(CutError, match="can not be cut at any position"):
        split(file, graph, [[0], [1, 2]])
    assert len(model_from_bytes(extract(file, graph, [0]).data).model.subgraphs) == 2


def test_different_state_makes_different_groups():
    draft = Draft()
    main = draft.main
    at = x = main.tensor("x", (1, 2))
    for name in ("a", "b"):
        h = handle(main, name)
        at = main.elementwise("ADD", (at, read(main, h, f"old_{name}")), f"sum_{name}", "AddOptions")
        assign(main, h, at)
    main.inputs, main.outputs = (x,), (at,)
    graph = build_graph(draft.file())
    assert [layer.group for layer in graph.layers] == [0, None, 0, 1, None, 1]
    assert graph.shared == ("variable 'a'", "variable 'b'")


def streaming_graph(n=4):
    """All variables are read first and written where they are used, as converters do."""
    draft = Draft()
    main = draft.main
    at = main.tensor("x", (1, 2))
    main.inputs = (at,)
    handles = [handle(main, f"v{number}") for number in range(n)]
    old = [read(main, h, f"old{number}") for number, h in enumerate(handles)]
    for number in range(n):
        at = main.elementwise("ADD", (at, old[number]), f"sum{number}", "AddOptions")
        assign(main, handles[number], at)
        at = main.elementwise("NEG", (at,), f"neg{number}", "NegOptions")
    main.outputs = (at,)
    return build_graph(draft.file())


def test_readers_that_only_later_layers_need_move_behind_the_cut():
    graph = streaming_graph(3)
    names = [layer.op[:4] for layer in graph.layers]
    assert names == ["READ"] * 3 + ["ADD", "ASSI", "NEG"] * 3
    # Before the first sum only readers stand; between a sum and its write nothing can be cut.
    assert possible_cuts(graph) == (5, 6, 8, 9, 11)
    assert stages_at(graph, [6, 9]) == ((0, 3, 4, 5), (1, 6, 7, 8), (2, 9, 10, 11))
    check_cut(graph, stages_at(graph, [6, 9]))
    with pytest.raises(
        CutError,
        match=r"share variable 'v1'.* are after layer 4 .*after layer 5 .*after layer 7 .*after layer 8",
    ):
        check_cut(graph, [range(7), range(7, 12)])


def test_moving_is_the_least_that_is_needed():
    graph = streaming_graph(4)
    n = len(graph.layers)
    for position in range(1, n):
        before, after = stages_at(graph, [position])
        assert sorted(before + after) == list(range(n))
        assert set(range(position, n)) <= set(after)
        if before:
            check_cut(graph, [before, after])
        moved = [layer for layer in after if layer < position]
        for layer in moved:  # none of them could have stayed alone
            members = [m.index for m in graph.layers if m.group == graph.layers[layer].group is not None]
            needed = {graph.producer.get(tensor) for tensor in graph.layers[layer].inputs}
            assert set(members) & set(after) - {layer} or needed & set(after)
