"""Random graphs with everything odd in them, cut in random stages: the pieces give what the whole gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cutting import random_stages
from running import difference
from small_models import Draft

from dse.flatbuffer.cut import live_tensors, split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.manifest import manifest
from dse.flatbuffer.reader import model_from_bytes

UNARY = {"NEG": "NegOptions", "ABS": "AbsOptions", "TANH": None, "RELU": None}
BINARY = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "MAXIMUM": "MaximumMinimumOptions"}
SHAPE = (1, 4)


def random_model(seed):
    """Skips, tensors used twice, folded constants, shared weights, variables, odd inputs and outputs."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    draft = Draft()
    main = draft.main
    inputs = [main.tensor(f"in{n}", SHAPE) for n in range(rng.randint(1, 3))]
    half = main.constant("half", numbers.normal(0, 1, SHAPE), "FLOAT16")
    wide = main.tensor("wide", SHAPE)
    main.op("DEQUANTIZE", (half,), (wide,), "DequantizeOptions")
    turned = main.elementwise("NEG", (wide,), "turned", "NegOptions")
    shared = main.constant("shared weights", numbers.normal(0, 0.5, (4, 4)))
    alive = list(inputs)
    if rng.random() < 0.5:
        alive.append(counting(draft))
    for n in range(rng.randint(4, 14)):
        kind = rng.random()
        if kind < 0.3:
            op = rng.choice(list(UNARY))
            new = main.elementwise(op, (rng.choice(alive[-4:]),), f"t{n}", UNARY[op])
        elif kind < 0.7:
            op = rng.choice(list(BINARY))
            pair = (rng.choice(alive[-3:]), rng.choice([*alive, wide, turned]))
            new = main.elementwise(op, pair, f"t{n}", BINARY[op])
        elif kind < 0.85:
            new = main.tensor(f"t{n}", SHAPE)
            bias = rng.choice([-1, main.constant(f"b{n}", numbers.normal(0, 1, 4))])
            main.op("FULLY_CONNECTED", (rng.choice(alive), shared, bias), (new,), "FullyConnectedOptions")
        else:
            axis = main.constant(f"axis{n}", 1, "INT32")
            parts = [main.tensor(f"t{n}_{k}", (1, 2)) for k in range(2)]
            main.op("SPLIT", (axis, rng.choice(alive)), parts, "SplitOptions", {"num_splits": 2})
            new = main.tensor(f"t{n}", SHAPE)
            main.op("CONCATENATION", parts[::-1], (new,), "ConcatenationOptions", {"axis": 1})
        alive.append(new)
    made = alive[len(inputs) :]
    outputs = {alive[-1], *rng.sample(made, rng.randint(0, min(2, len(made))))}
    if rng.random() < 0.3:
        outputs.add(inputs[0])  # handed through
    main.inputs, main.outputs = inputs, rng.sample(sorted(outputs), len(outputs))
    return draft


def counting(draft):
    """Add a variable that grows by one in every frame; return what it held before."""
    main, init = draft.main, draft.body()
    handles = []
    for body in (main, init):
        handles.append(body.tensor("counter", (), "RESOURCE"))
    main.op("CALL_ONCE", (), (), "CallOnceOptions", {"init_subgraph_index": 1})
    names = {"shared_name": "counter"}
    main.op("VAR_HANDLE", (), (handles[0],), "VarHandleOptions", names)
    init.op("VAR_HANDLE", (), (handles[1],), "VarHandleOptions", names)
    init.op("ASSIGN_VARIABLE", (handles[1], init.constant("zero", [[0.5] * 4])), (), "AssignVariableOptions")
    old = main.tensor("old", SHAPE)
    main.op("READ_VARIABLE", (handles[0],), (old,), "ReadVariableOptions")
    new = main.elementwise("ADD", (old, main.constant("one", [[1.0] * 4])), "new", "AddOptions")
    main.op("ASSIGN_VARIABLE", (handles[0], new), (), "AssignVariableOptions")
    return old


@pytest.mark.parametrize("seed", range(40))
def test_random_stages_of_random_graphs(seed, runner):
    file = random_model(seed).file()
    graph = build_graph(file)
    numbers = np.random.default_rng(seed)
    frames = [tuple(numbers.normal(0, 1, SHAPE).astype(np.float32) for _ in graph.inputs) for _ in range(3)]
    expected = runner.run(bytes(file.data), frames, builtin=True)
    for n_stages in (1, 2, 3, 4):
        stages = random_stages(graph, n_stages, seed)
        if stages is None:
            continue
        pieces = split(file, graph, stages)
        assert difference(expected, runner.run_split(pieces, frames, builtin=True)) == 0
        check_manifest(graph, pieces, manifest(pieces))


def check_manifest(graph, pieces, told):
    """Every input comes from somewhere earlier, every output goes where it is needed, nothing is extra."""
    produced = {}
    for number, stage in enumerate(told["stages"]):
        for tensor in stage["inputs"]:
            if tensor["from"] == "model":
                assert tensor["tensor"] in graph.inputs
            else:
                assert produced[tensor["tensor"]] == tensor["from"] < number
        for tensor in stage["outputs"]:
            produced[tensor["tensor"]] = number
            users = [
                other
                for other, later in enumerate(told["stages"])
                if other != number and tensor["tensor"] in [t["tensor"] for t in later["inputs"]]
            ]
            assert tensor["to"] == users or tensor["tensor"] in graph.inputs
            assert users or tensor["model_output"]
    assert [t["tensor"] for t in told["outputs"]] == list(graph.outputs)
    for stage in pieces.stages:
        assert live_tensors(graph, stage.layers) == (
            tuple(t.tensor for t in stage.inputs),
            tuple(t.tensor for t in stage.outputs),
        )
        part = model_from_bytes(stage.data)
        assert part.warnings == ()
        assert len(build_graph(part).layers) == len(stage.layers)
