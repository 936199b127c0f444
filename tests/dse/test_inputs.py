from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import InputError
from dse.graph import Layer, LayerGraph, Tensor
from dse.inputs import STYLES, id_bounds, make_frames


def tensor(index: int, dtype: str, shape: tuple[int, ...], kind: str = "input") -> Tensor:
    return Tensor(index, f"t{index}", dtype, shape, 0, kind)


def layer(index: int, op: str, inputs, outputs, constants=()) -> Layer:
    return Layer(index, f"l{index}", op, (index,), inputs, outputs, constants, None, None, 0, f"k{index}")


def graph(*inputs: Tensor, layers=(), others=()) -> LayerGraph:
    return LayerGraph("g", tuple(layers), (*inputs, *others), tuple(t.index for t in inputs), ())


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPES = ["float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64"]


@given(shape=SHAPES, dtype=st.sampled_from(DTYPES), style=st.sampled_from(STYLES), seed=st.integers(0, 3))
def test_frames_have_the_type_and_shape_of_the_input_and_repeat_with_the_seed(shape, dtype, style, seed):
    model = graph(tensor(0, dtype, shape))
    frames = make_frames(model, 2, seed, style=style)
    for (values,) in frames:
        assert values.shape == shape
        assert values.dtype == np.dtype(dtype)
        if values.dtype.kind in "fc":
            assert np.isfinite(values).all()
    for (one,), (two,) in zip(frames, make_frames(model, 2, seed, style=style)):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
def test_frames_differ_and_images_have_structure(dtype, style):
    frames = make_frames(graph(tensor(0, dtype, (1, 32, 32, 3))), 3, 0, style=style)
    images = [values.astype(float)[0] for (values,) in frames]
    assert not np.array_equal(images[0], images[1])
    if style != "noise":
        spread = images[0].std()
        neighbours = np.abs(np.diff(images[0], axis=0)).mean()
        assert neighbours < 0.5 * spread, "neighbouring pixels are alike"


def test_eight_bit_frames_use_the_range():
    ((values,),) = make_frames(graph(tensor(0, "uint8", (1, 64, 64, 3))), 1, 0)
    assert values.min() < 32
    assert values.max() > 223


TABLE = tensor(5, "float32", (30, 8), "constant")


@pytest.mark.parametrize("op", ["GATHER", "EMBEDDING_LOOKUP"])
def test_identifiers_stay_within_the_table_that_they_index(op):
    ids = tensor(0, "int32", (1, 64))
    flat, as_int, rows = (tensor(n, "int32", (64,), "activation") for n in (1, 2, 3))
    model = graph(
        ids,
        layers=(
            layer(0, "RESHAPE", (0,), (1,)),
            layer(1, "CAST", (1,), (2,)),
            layer(2, op, (2,), (3,), (5,)),
        ),
        others=(flat, as_int, rows, tensor(4, "int32", (), "constant"), TABLE),
    )
    assert id_bounds(model) == {0: 30}
    ((values,),) = make_frames(model, 1, 0)
    assert values.min() >= 0
    assert 2 < values.max() < 30


def test_the_shortest_of_several_tables_counts():
    small = tensor(6, "float32", (4, 8), "constant")
    model = graph(
        tensor(0, "int64", (9,)),
        layers=(layer(0, "GATHER", (0,), (1,), (5,)), layer(1, "GATHER", (0,), (2,), (6,))),
        others=(*(tensor(n, "float32", (9, 8), "activation") for n in (1, 2, 3, 4)), TABLE, small),
    )
    assert id_bounds(model) == {0: 4}


def test_integers_that_index_nothing_are_zero_or_one_and_a_given_bound_wins():
    model = graph(tensor(0, "int32", (100,)))
    ((values,),) = make_frames(model, 1, 0)
    assert set(values.tolist()) == {0, 1}
    ((values,),) = make_frames(model, 1, 0, bounds={0: 1000})
    assert values.max() > 500


@pytest.mark.parametrize("dtype", ["string", "resource", "variant"])
def test_types_without_values_are_refused_by_name(dtype):
    with pytest.raises(InputError, match=f"input 't0': its type is {dtype}"):
        make_frames(graph(tensor(0, dtype, (1,))), 1, 0)


def test_an_unknown_style_is_refused():
    with pytest.raises(InputError, match="smooth, signed"):
        make_frames(graph(tensor(0, "float32", (1,))), 1, 0, style="rough")
