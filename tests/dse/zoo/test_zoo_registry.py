"""The register: names, parameters, faults, and the same bytes for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import InputError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.reader import read_model
from dse.zoo import ZOO, build, build_file, resolve
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
        from dse.zoo.assemble import assemble

        signature = assemble(entry.draw(entry.parameters, 0, sampled=False)).signature_defs[0]
        for maps in (signature.inputs, signature.outputs):
            assert len({item.name for item in maps}) == len(maps)
