"""The register: names, parameters, faults, and the same bytes for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.errors import InputError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.zoo import ZOO, build, build_file, resolve
from dse.zoo.assemble import assemble
from dse.zoo.registry import draw

TINY_BERT = {"hidden": 16, "sequence": 6, "layers": 2, "heads": 2, "intermediate": 32, "vocab": 20}


def constants(draft):
    return {tensor.name: tensor.constant for tensor in draft.tensors if tensor.constant is not None}


def test_unknown_name_lists_what_there_is():
    with pytest.raises(InputError, match=r"'mobilenet'.*mobilenet_v2.*bert_encoder"):
        build("mobilenet")


def test_unknown_parameter_lists_what_there_is():
    with pytest.raises(InputError, match=r"'hiden'.*hidden, sequence, layers"):
        build("bert_encoder", {"hiden": 3})


@pytest.mark.parametrize("name", ZOO)
def test_values_just_out_of_range_are_refused_with_the_range(name):
    for key, setting in ZOO[name].settings.items():
        for value in (setting.low - 1, setting.high + 1):
            with pytest.raises(InputError, match=rf"{key} must be between {setting.low} and"):
                resolve(name, {key: value})


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_values_that_are_no_whole_numbers_are_refused(value):
    with pytest.raises(InputError, match="whole number"):
        resolve("bert_encoder", {"layers": value})


def test_defaults_are_in_range_and_described():
    for name, entry in ZOO.items():
        assert entry.name == name
        assert resolve(name)[1] == entry.parameters
        assert entry.source
        assert entry.macs_source
        assert (entry.published_macs is None) != (entry.macs is None)


def test_heads_must_divide_hidden():
    with pytest.raises(InputError, match="hidden = 16 must be a multiple of heads = 3"):
        build("bert_encoder", {**TINY_BERT, "heads": 3})


def test_unet_size_must_halve():
    with pytest.raises(InputError, match="multiple of 2\\^depth = 16"):
        build("unet", {"size": 40, "depth": 4})


def test_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed"):
        build("bert_encoder", TINY_BERT, seed=-1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("bert_encoder", TINY_BERT), ("mobilenet_v2", {"size": 64, "width": 35}), ("two_stream", {"size": 32})],
)
def test_same_seed_same_bytes(name, parameters):
    first, again = (encode(build(name, parameters, seed=7)) for _ in range(2))
    assert first == again
    assert first != encode(build(name, parameters, seed=8))


def test_a_layer_keeps_its_weights_when_layers_are_added():
    two, three = (constants(draw("bert_encoder", {**TINY_BERT, "layers": n})) for n in (2, 3))
    assert set(two) < set(three)
    for name, values in two.items():
        np.testing.assert_array_equal(values, three[name])


def test_no_two_weights_are_alike():
    matrices = [value for value in constants(draw("bert_encoder", TINY_BERT)).values() if value.ndim == 2]
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)


def test_statistics_do_not_reach_the_last_digits():
    """Another order of additions (here: another number of BLAS threads would do) changes no byte."""
    from dse.zoo.arithmetic import round_statistic

    values = np.random.default_rng(0).normal(size=10_000)
    noisy = values * (1 + 1e-14 * np.random.default_rng(1).normal(size=10_000))
    np.testing.assert_array_equal(round_statistic(values), round_statistic(noisy))
    np.testing.assert_allclose(round_statistic(values), values, rtol=2**-12)


def test_build_file_writes_a_sound_file(tmp_path):
    path = tmp_path / "model.tflite"
    build_file("bert_encoder", path, TINY_BERT)
    file = read_model(path)
    assert file.warnings == ()
    assert [tensor.name for tensor in file.model.signature_defs[0].inputs] == ["input_ids"]
    assert list(tmp_path.iterdir()) == [path]


def test_build_file_needs_a_folder(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        build_file("bert_encoder", tmp_path / "nowhere" / "model.tflite", TINY_BERT)


def test_signature_names_are_unique():
    for name in ("two_stream", "bert_encoder"):
        entry = ZOO[name]
        signature = assemble(entry.draw(entry.parameters, 0, sampled=False)).signature_defs[0]
        for maps in (signature.inputs, signature.outputs):
            assert len({item.name for item in maps}) == len(maps)


@st.composite
def choices(draw_from, name):
    """Parameters near the small end of their ranges that fit together."""
    chosen = {}
    for key, setting in ZOO[name].settings.items():
        chosen[key] = draw_from(st.integers(setting.low, min(setting.high, setting.low + 9)))
    if name == "unet":
        chosen["depth"] = min(chosen["depth"], 4)
        chosen["size"] = 16 * draw_from(st.integers(1, 3))
    if "heads" in chosen:
        chosen["hidden"] = chosen["heads"] * draw_from(st.integers(2, 5))
    return chosen


@pytest.mark.parametrize(
    "name", [name for name in ZOO if name not in ("alexnet", "resnet50", "inception_v3")]
)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_parameters_give_a_sound_file(name, data):
    parameters = data.draw(choices(name))
    draft = ZOO[name].draw(parameters, data.draw(st.integers(0, 2**40)), sampled=name == "bert_encoder")
    file = model_from_bytes(encode(assemble(draft)), name)
    graph = build_graph(file)
    assert file.warnings == ()
    assert graph.macs > 0
    if ZOO[name].macs:
        assert graph.macs == ZOO[name].macs(parameters)
    if "classes" in parameters:
        assert all(graph.tensors[index].shape[-1] == parameters["classes"] for index in graph.outputs)


def test_weights_beyond_the_limit_are_refused_before_they_are_made():
    huge = {"hidden": 16_384, "intermediate": 65_536, "layers": 96}
    with pytest.raises(InputError, match="larger than 4 GiB"):
        ZOO["bert_encoder"].draw({**ZOO["bert_encoder"].parameters, **huge, "vocab": 1_000_000}, 0)
