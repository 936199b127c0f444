from __future__ import annotations

import builtins
import dataclasses
import random
from typing import Any

import pytest

from dse.costs import Cost, CostTable
from dse.errors import InputError, MissingExtraError
from dse.graph import Layer, LayerGraph, Tensor
from dse.platforms import Slot
from dse.profiling.learned import Example, Predictor, examples_of, numbers_of, validate

pytest.importorskip("sklearn")
ONE = Slot("cpu", 1)


def graph(name: str, sizes: list[tuple[str, int]]) -> LayerGraph:
    """A chain of layers of (operator, channels); convolutions on an 8 x 8 image."""
    tensors = [Tensor(0, "in", "float32", (1, 8, 8, 4), 1024, "activation")]
    layers = []
    for i, (op, channels) in enumerate(sizes):
        tensors.append(Tensor(i + 1, f"t{i}", "float32", (1, 8, 8, channels), 256 * channels, "activation"))
        before = tensors[i].shape[-1]
        macs = 64 * channels * before if op == "CONV_2D" else None
        weights = 4 * channels * before if macs else 0
        layers.append(
            Layer(
                i,
                f"t{i}",
                op,
                (i,),
                (i,),
                (i + 1,),
                (),
                macs,
                None if macs else 64 * channels,
                weights,
                f"{name}{i}",
            )
        )
    return LayerGraph(name, tuple(layers), tuple(tensors), (0,), (len(sizes),))


def truth(model: LayerGraph, layer: Layer) -> int:
    """A machine with known costs."""
    traffic = sum(model.tensors[t].n_bytes for t in (*layer.inputs, *layer.outputs)) + layer.weight_bytes
    return 2000 + (layer.macs or 0) // 8 + traffic // 4 + (3000 if layer.op == "SOFTMAX" else 0)


def measured(model: LayerGraph) -> CostTable:
    costs = tuple((Cost(truth(model, layer), (truth(model, layer),)),) for layer in model.layers)
    return CostTable("h", model.name, "p", (ONE,), costs, (0,), (None,))


def models(n: int, seed: int = 0) -> list[LayerGraph]:
    draw = random.Random(seed)
    return [
        graph(
            f"m{i}",
            [
                (draw.choice(["CONV_2D", "CONV_2D", "ADD", "SOFTMAX"]), draw.choice([4, 8, 16, 32, 64, 128]))
                for _ in range(25)
            ],
        )
        for i in range(n)
    ]


def known(n: int) -> list[Example]:
    return [example for model in models(n) for example in examples_of(model, measured(model), ONE)]


def test_known_machine_is_learned() -> None:
    found = validate(known(6))
    assert found is not None
    assert (found.n_models, found.n_layers) == (6, 150)
    assert found.layer_error < 0.05
    assert found.model_error < 0.05


def test_prediction_of_another_model_and_of_a_larger_one() -> None:
    predictor = Predictor({ONE: known(6)}, platform_name="board")
    new = models(1, seed=9)[0]
    table = predictor.predict(new)
    assert not table.measured
    assert table.platform_name == "board"
    for layer, row in zip(new.layers, table.costs, strict=True):
        assert row[0].source == "learned"
        assert row[0].median_ns == pytest.approx(truth(new, layer), rel=0.3)
    assert predictor.outside(new) == ()
    assert table.conditions["validation"]["1 cpu"]["layer_error"] < 0.05
    large = graph("large", [("CONV_2D", 512), ("CONV_2D", 512)])
    assert any("macs" in line for line in predictor.outside(large))
    assert predictor.predict(large).conditions["outside_range"]
    # Outside of the examples the fitted line carries on, trees alone would stop.
    cost = predictor.predict(large).costs[1][0].median_ns
    assert cost == pytest.approx(truth(large, large.layers[1]), rel=0.5)


def test_variants_are_left_out_together_and_helpers_are_never_asked() -> None:
    examples = known(4)
    variants = [dataclasses.replace(e, family="f") if e.model in ("m0", "m1") else e for e in examples]
    found = validate(variants, [dataclasses.replace(e, model="helper") for e in examples])
    assert found is not None
    assert (found.n_models, found.n_layers) == (4, 100)
    assert validate([dataclasses.replace(e, family="one") for e in examples]) is None, "one family, no test"


def test_unknown_operator_is_told() -> None:
    predictor = Predictor({ONE: known(3)})
    assert predictor.outside(graph("x", [("TANH", 8)])) == ("t0: no example of TANH",)


def test_layers_without_a_cost_of_their_own_teach_nothing() -> None:
    model = models(1)[0]
    costs = [(Cost(None, reason="unsupported"),), (Cost(0, (), "in_situ", "inside another"),)]
    costs += [(Cost(5, (5,)),)] * (len(model.layers) - 2)
    table = CostTable("h", "m", "p", (ONE,), tuple(costs), (0,), (None,))
    assert len(examples_of(model, table, ONE)) == len(model.layers) - 2


def test_numbers_are_finite_and_grow_with_the_layer() -> None:
    small, large = graph("a", [("CONV_2D", 8)]), graph("a", [("CONV_2D", 80)])
    assert all(
        a <= b
        for a, b in zip(numbers_of(small, small.layers[0]), numbers_of(large, large.layers[0]), strict=True)
    )


def test_too_little_to_learn_from() -> None:
    assert validate(known(2)) is None
    for nothing in ({}, {ONE: []}):
        with pytest.raises(InputError, match="no measured layers"):
            Predictor(nothing)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"tflite-dse\[learned\]"):
        Predictor({ONE: known(1)})
