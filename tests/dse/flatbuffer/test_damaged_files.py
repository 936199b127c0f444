"""Every kind of damage gives one clear error that says what, where and why."""

from __future__ import annotations

import dataclasses
import struct
import zipfile

import pytest
from small_models import Draft, chain

from dse.errors import ModelError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.flatbuffer.records import (
    Buffer,
    Metadata,
    Operator,
    OperatorCode,
    Options,
    Quantization,
    SignatureDef,
    TensorMap,
)
from dse.flatbuffer.schema import builtin, schema


class Walk:
    """Finds byte positions of fields, knowing nothing but the flatbuffer format."""

    def __init__(self, data):
        self.data = data

    def u32(self, at):
        return struct.unpack_from("<I", self.data, at)[0]

    def root(self):
        return self.u32(0)

    def vtable(self, table):
        return table - struct.unpack_from("<i", self.data, table)[0]

    def field(self, table, name, at):
        """Return the position of a field inside a table."""
        (field,) = (f for f in schema().tables[table].fields if f.name == name)
        slot = field.slot + (1 if field.type.kind == "union" else 0)
        (entry,) = struct.unpack_from("<H", self.data, self.vtable(at) + 4 + 2 * slot)
        assert entry
        return at + entry

    def target(self, table, name, at):
        """Return the position that an offset field leads to."""
        position = self.field(table, name, at)
        return position + self.u32(position)

    def element(self, table, name, at, index=0):
        """Return the position of a table in a vector."""
        position = self.target(table, name, at) + 4 + 4 * index
        return position + self.u32(position)

    def subgraph(self):
        return self.element("Model", "subgraphs", self.root())

    def operator(self, index=0):
        return self.element("SubGraph", "operators", self.subgraph(), index)

    def tensor(self, index=0):
        return self.element("SubGraph", "tensors", self.subgraph(), index)

    def put(self, at, value, code="<I"):
        struct.pack_into(code, self.data, at, value)


def identifier(w):
    w.data[4:8] = b"TFL2"


def root_offset(w):
    w.put(0, 0x7FFFFFFF)


def vtable_outside(w):
    w.put(w.root(), -0x7000000, "<i")


def vtable_size_odd(w):
    w.put(w.vtable(w.operator()), 7, "<H")


def vtable_too_long(w):
    w.put(w.vtable(w.operator()), 0xFFFE, "<H")


def field_outside_file(w):
    at = w.vtable(w.tensor())
    w.put(at + 4, 0xFFFF, "<H")


def vector_length(w):
    w.put(w.target("SubGraph", "tensors", w.subgraph()), 0xFFFFFFF0)


def numbers_length(w):
    w.put(w.target("Operator", "inputs", w.operator()), 0x40000000)


def offset_zero(w):
    w.put(w.field("Model", "subgraphs", w.root()), 0)


def offset_outside(w):
    w.put(w.field("Tensor", "name", w.tensor()), 0x7FFFFFF0)


def string_unterminated(w):
    at = w.target("Tensor", "name", w.tensor())
    w.data[at + 4 + w.u32(at)] = 65


def string_length(w):
    w.put(w.target("Tensor", "name", w.tensor()), 0x7FFFFFFF)


def vtable_as_a_table(w):
    # The operator's offset leads into the middle of its own data.
    at = w.target("SubGraph", "operators", w.subgraph()) + 4
    w.put(at, w.u32(at) + 3)


BYTE_FAULTS = {
    identifier: r"byte 4, Model: expected the file identifier b'TFL3', got b'TFL2'",
    root_offset: r"byte \d+, Model: a table of 4 bytes would end beyond the file, which has \d+ bytes",
    vtable_outside: r"Model: a vtable of 4 bytes would end beyond",
    vtable_size_odd: r"Model\.subgraphs\[0\]\.operators\[0\]: a vtable's size must be even and at least 4, got 7",
    vtable_too_long: r"Model\.subgraphs\[0\]\.operators\[0\]: a vtable of 65534 bytes would end beyond",
    field_outside_file: r"Model\.subgraphs\[0\]\.tensors\[0\]\.shape: an offset of 4 bytes would end beyond",
    vector_length: r"Model\.subgraphs\[0\]\.tensors: a vector of 4294967280 offsets of \d+ bytes would end",
    numbers_length: r"operators\[0\]\.inputs: a vector of 1073741824 numbers of 4294967296 bytes would end",
    offset_zero: r"Model\.subgraphs: an offset is 0",
    offset_outside: r"tensors\[0\]\.name: a string length of 4 bytes would end beyond",
    string_unterminated: r"tensors\[0\]\.name: a string does not end with a zero byte",
    string_length: r"tensors\[0\]\.name: a string with its closing zero of \d+ bytes would end beyond",
    vtable_as_a_table: r"byte \d+, Model\.subgraphs\[0\]",
}


@pytest.mark.parametrize("fault", BYTE_FAULTS, ids=lambda fault: fault.__name__)
def test_damaged_bytes(fault):
    walk = Walk(chain(2).data())
    fault(walk)
    with pytest.raises(ModelError, match=BYTE_FAULTS[fault]):
        model_from_bytes(walk.data)


def test_unknown_field_is_noted_and_not_written():
    data = chain(1).data()
    facts = schema()
    # Let the reader know one slot less than the file has.
    table = facts.tables["FullyConnectedOptions"]
    facts.tables["FullyConnectedOptions"] = dataclasses.replace(table, fields=(), n_slots=0)
    try:
        file = model_from_bytes(data)
        assert file.warnings == (
            "FullyConnectedOptions slot 0 is newer than the schema known here: read, but not cut",
        )
        graph = build_graph(file)
        assert graph.layers[0].op == "FULLY_CONNECTED"
        with pytest.raises(ModelError, match="FullyConnectedOptions: field 'slot 0' is newer than"):
            encode(file.model)
    finally:
        facts.tables["FullyConnectedOptions"] = table


def test_unknown_union_type_is_noted_and_not_written():
    walk = Walk(chain(1).data())
    at = walk.operator()
    (entry,) = struct.unpack_from("<H", walk.data, walk.vtable(at) + 4 + 2 * 3)
    walk.data[at + entry] = 250
    file = model_from_bytes(walk.data)
    assert file.warnings == (
        "BuiltinOptions type 250 is newer than the schema known here: read, but not cut",
    )
    build_graph(file)
    with pytest.raises(ModelError, match="BuiltinOptions type 250 is newer than the schema known here"):
        encode(file.model)


@pytest.mark.parametrize("n", range(0, 400, 7))
def test_cut_short_anywhere(n):
    data = chain(2).data()
    with pytest.raises(ModelError):
        model_from_bytes(data[:n])


def model_of_shared_tables(what, n, size):
    """A file whose root has n offsets to one buffer, or whose subgraph has n offsets to one tensor."""
    import flatbuffers

    builder = flatbuffers.Builder(1 << 16)

    def table(slots, *entries):
        builder.StartObject(slots)
        for slot, value in entries:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return builder.EndObject()

    def offsets(one, count):
        builder.StartVector(4, count, 4)
        for _ in range(count):
            builder.PrependUOffsetTRelative(one)
        return builder.EndVector()

    if what == "buffers":
        vector = builder.CreateByteVector(bytes(size))
    else:
        builder.StartVector(4, size, 4)
        for _ in range(size):
            builder.PrependInt32(1)
        vector = builder.EndVector()
    buffers = offsets(table(3, (0, vector)) if what == "buffers" else table(3), n if what == "buffers" else 1)
    tensors = offsets(
        table(11, (0, vector)) if what == "tensors" else table(11), n if what == "tensors" else 1
    )
    subgraphs = offsets(table(6, (0, tensors)), 1)
    builder.StartObject(10)
    builder.PrependUint32Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(2, subgraphs, 0)
    builder.PrependUOffsetTRelativeSlot(4, buffers, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    return builder.Output()


@pytest.mark.parametrize(("what", "size"), [("tensors", 200), ("buffers", 1 << 20)])
def test_a_small_file_can_not_make_large_output(what, size):
    """20,000 offsets to one table: a tensor of rank 200, or a buffer of a megabyte."""
    model_from_bytes(model_of_shared_tables(what, 3, size))
    with pytest.raises(
        ModelError, match="more tables and numbers than a file of this size can sensibly hold"
    ):
        model_from_bytes(model_of_shared_tables(what, 20_000, size))


# Faults in what the tables say --------------------------------------------------------------------


def broken(change):
    """A two-layer chain with one record changed."""
    model = chain(2).model()
    return change(model)


def with_tensor(model, index, **fields):
    main = model.subgraphs[0]
    tensors = list(main.tensors)
    tensors[index] = dataclasses.replace(tensors[index], **fields)
    return with_main(model, tensors=tuple(tensors))


def with_operator(model, index, **fields):
    operators = list(model.subgraphs[0].operators)
    operators[index] = dataclasses.replace(operators[index], **fields)
    return with_main(model, operators=tuple(operators))


def with_main(model, **fields):
    main = dataclasses.replace(model.subgraphs[0], **fields)
    return dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))


def with_call(model, subgraph):
    code = OperatorCode(builtin("CALL"))
    call = Operator(2, (0,), (3,), Options("CallOptions", {"subgraph": subgraph}))
    model = dataclasses.replace(
        model, operator_codes=(*model.operator_codes, OperatorCode(builtin("ABS")), code)
    )
    return with_main(model, operators=(call, *model.subgraphs[0].operators[1:]))


def scales(index):
    return Quantization(details=Options("BlockwiseQuantization", {"scales": index, "block_size": 32}))


# The chain: tensors x, w, b, dense_0, w, b, dense_1.
CONTENT_FAULTS = {
    "version": (lambda m: dataclasses.replace(m, version=2), "schema version must be 3, got 2"),
    "no subgraph": (lambda m: dataclasses.replace(m, subgraphs=()), "there is no subgraph"),
    "tensor's buffer": (
        lambda m: with_tensor(m, 1, buffer=99),
        r"main subgraph, tensor 1 \('dense_0/weights'\) refers to buffer 99, there are 5",
    ),
    "negative dimension": (lambda m: with_tensor(m, 0, shape=(1, -5)), r"tensor 0 .*: dimension -5 in shape"),
    "huge shape": (lambda m: with_tensor(m, 0, shape=(1 << 30, 1 << 30)), r"tensor 0 .* needs \d+ bytes"),
    "constant too small": (
        lambda m: with_tensor(m, 1, shape=(8, 80)),
        r"float32 \[8, 80\] needs 2560 bytes, buffer 1 has 256",
    ),
    "operator code": (
        lambda m: with_operator(m, 1, opcode_index=7),
        "main subgraph, operator 1 refers to operator code 7, there are 1",
    ),
    "operator input": (
        lambda m: with_operator(m, 1, inputs=(3, 77, 5)),
        r"operator 1 \(FULLY_CONNECTED\), inputs\[1\] refers to tensor 77, there are 7",
    ),
    "negative input": (lambda m: with_operator(m, 1, inputs=(3, -2, 5)), r"inputs\[1\] refers to tensor -2"),
    "operator output": (lambda m: with_operator(m, 1, outputs=(7,)), r"outputs\[0\] refers to tensor 7"),
    "intermediate": (
        lambda m: with_operator(m, 1, intermediates=(9,)),
        r"intermediates\[0\] refers to tensor 9",
    ),
    "made twice": (
        lambda m: with_operator(m, 1, outputs=(3,)),
        "tensor 3 is made by operator 0 and again by 1",
    ),
    "input made": (
        lambda m: with_operator(m, 1, outputs=(0,)),
        "tensor 0 is an input and also made by operator 1",
    ),
    "constant written": (
        lambda m: with_operator(m, 1, outputs=(2,)),
        r"operator 1 \(FULLY_CONNECTED\) writes tensor 2, which is a constant",
    ),
    "wrong order": (
        lambda m: with_main(m, operators=m.subgraphs[0].operators[::-1]),
        "operator 0 uses tensor 3, which only operator 1 makes",
    ),
    "circle": (
        lambda m: with_operator(m, 0, inputs=(6, 1, 2)),
        "operator 0 uses tensor 6, which only operator 1",
    ),
    "own output": (
        lambda m: with_operator(m, 0, inputs=(3, 1, 2)),
        "operator 0 uses tensor 3, which only operator 0",
    ),
    "graph input": (lambda m: with_main(m, inputs=(70,)), r"main subgraph, inputs\[0\] refers to tensor 70"),
    "graph output": (
        lambda m: with_main(m, outputs=(-1,)),
        r"main subgraph, outputs\[0\] refers to tensor -1",
    ),
    "subgraph": (lambda m: with_call(m, 4), r"operator 0 \(CALL\) refers to subgraph 4, there are 1"),
    "recursion": (lambda m: with_call(m, 0), "subgraph 0 runs itself through subgraph 0"),
    "control flow without options": (
        lambda m: with_operator(with_call(m, 0), 0, builtin_options=None),
        r"operator 0 \(CALL\): its options, which name the subgraph to run, are missing",
    ),
    "custom without name": (
        lambda m: dataclasses.replace(m, operator_codes=(OperatorCode(builtin("CUSTOM")),)),
        r"operator_codes\[0\]: a custom operator needs a name",
    ),
    "scale tensor": (
        lambda m: with_tensor(m, 1, quantization=scales(50)),
        r"tensor 1 .*quantization.scales refers to tensor 50",
    ),
    "metadata": (
        lambda m: dataclasses.replace(m, metadata=(Metadata("x", 31),)),
        r"metadata\[0\] refers to buffer 31",
    ),
    "signature's subgraph": (
        lambda m: dataclasses.replace(m, signature_defs=(SignatureDef((), (), "s", 3),)),
        "signature 's' refers to subgraph 3, there are 1",
    ),
    "signature's tensor": (
        lambda m: dataclasses.replace(m, signature_defs=(SignatureDef((TensorMap("a", 44),), (), "s"),)),
        "signature 's', input 'a' refers to tensor 44",
    ),
    "sparsity": (
        lambda m: with_tensor(m, 1, sparsity=Options("SparsityParameters", {"traversal_order": (0, 0)})),
        "sparsity has 2 traversal entries and 0 dimensions for rank 2",
    ),
    "sparse axes": (
        lambda m: with_tensor(
            m,
            1,
            sparsity=Options(
                "SparsityParameters",
                {"traversal_order": (0, 5), "dim_metadata": (Options("DimensionMetadata", {}),) * 2},
            ),
        ),
        "not a valid set of axes",
    ),
    "sparse without indices": (
        lambda m: with_tensor(
            m,
            1,
            sparsity=Options(
                "SparsityParameters",
                {
                    "traversal_order": (0, 1),
                    "dim_metadata": (Options("DimensionMetadata", {"format": 1}),) * 2,
                },
            ),
        ),
        "sparse dimension 0 lacks its segments or indices",
    ),
}


@pytest.mark.parametrize("fault", CONTENT_FAULTS)
def test_inconsistent_content(fault):
    change, message = CONTENT_FAULTS[fault]
    with pytest.raises(ModelError, match=f"^model: inconsistent model: .*{message}"):
        model_from_bytes(encode(broken(change)))


def test_circle_through_two_subgraphs():
    draft = chain(1)
    for number, other in ((1, 2), (2, 1)):
        body = draft.body()
        body.inputs = body.outputs = (body.tensor(f"t{number}", (1,)),)
        made = body.tensor("made", (1,))
        body.op("CALL", body.inputs, (made,), "CallOptions", {"subgraph": other})
    with pytest.raises(ModelError, match="subgraph 1 runs itself through subgraph 2"):
        draft.file()


def test_deeply_nested_subgraphs_are_refused():
    draft = chain(1)
    for number in range(1, 300):
        body = draft.body()
        body.inputs = (body.tensor("in", (1,)),)
        body.outputs = (body.tensor("out", (1,)),)
        if number < 299:
            body.op("CALL", body.inputs, body.outputs, "CallOptions", {"subgraph": number + 1})
    with pytest.raises(ModelError, match="call each other more than 64 deep"):
        draft.file()


def test_undefined_tensor_is_a_warning():
    model = with_operator(chain(2).model(), 1, inputs=(3, 4, 5, 7))
    undefined = dataclasses.replace(model.subgraphs[0].tensors[0], name="never made")
    model = with_main(model, tensors=(*model.subgraphs[0].tensors, undefined))
    file = model_from_bytes(encode(model))
    assert file.warnings == ("main subgraph: a tensor is used that nothing makes; its content is undefined",)
    assert build_graph(file).tensors[7].kind == "constant"


def test_data_behind_the_end_of_the_file():
    data = chain(1).data(external=True)
    with pytest.raises(ModelError, match=r"buffers\[\d\]: bytes \d+ to \d+ lie beyond the end.*cut short"):
        model_from_bytes(data[:-1])


def test_values_that_do_not_fit_are_refused_when_written():
    model = with_tensor(chain(1).model(), 0, shape=(1 << 40,))
    with pytest.raises(ModelError, match=r"Tensor\.shape: values do not fit i32"):
        encode(model)
    model = with_operator(chain(1).model(), 0, opcode_index=-1)
    with pytest.raises(ModelError, match=r"Operator: -1 in slot 0 does not fit u32"):
        encode(model)


# Files that are no models ------------------------------------------------------------------------


def test_missing_file_lists_its_neighbours(tmp_path):
    (tmp_path / "right.tflite").write_bytes(b"x")
    with pytest.raises(
        ModelError, match=r"wrong\.tflite: there is no such file; in that folder: right\.tflite"
    ):
        read_model(tmp_path / "wrong.tflite")
    with pytest.raises(ModelError, match="there is no such file"):
        read_model(tmp_path / "no folder" / "wrong.tflite")


def test_empty_file(tmp_path):
    (tmp_path / "empty.tflite").touch()
    with pytest.raises(ModelError, match="this one is empty"):
        read_model(tmp_path / "empty.tflite")


def test_folder(tmp_path):
    (tmp_path / "inside.tflite").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"this is a folder; models in it: inside\.tflite"):
        read_model(tmp_path)


def test_other_content(tmp_path):
    (tmp_path / "text.tflite").write_text("not a model, but long enough to look at\n")
    with pytest.raises(ModelError, match="expected the file identifier b'TFL3'"):
        read_model(tmp_path / "text.tflite")


def test_weights_in_another_file(tmp_path, monkeypatch):
    """External buffer groups: weights in a file beside the model."""
    from dse.flatbuffer import encode as encoding

    draft = chain(1)
    model = draft.model()
    tables = encoding.model_tables(dataclasses.replace(model, buffers=(Buffer(),) * 3))
    tables.fields["external_buffer_groups"] = (Options("ExternalBufferGroup", {"name": "weights.bin"}),)
    tables.fields["external_buffers"] = tuple(
        Options(
            "ExternalBuffer",
            {"id": n + 1, "group": 0, "offset": 256 * n, "length": len(model.buffers[n + 1].data)},
        )
        for n in range(2)
    )
    graph = tables.fields["subgraphs"][0]
    for n in range(2):
        fields = graph.fields["tensors"][n + 1].fields
        fields.pop("buffer")
        fields["external_buffer"] = n + 1
    monkeypatch.setattr(encoding, "model_tables", lambda _: tables)
    data = encode(model)
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"weights\.bin: there is no such file"):
        read_model(path)
    with pytest.raises(ModelError, match=r"its weights are in another file \('weights\.bin'\)"):
        model_from_bytes(data)
    weights, bias = (bytes(buffer.data) for buffer in model.buffers[1:])
    (tmp_path / "weights.bin").write_bytes(weights.ljust(256, b"\0") + bias)
    file = read_model(path)
    found = [bytes(file.model.buffers[t.buffer].data) for t in file.model.subgraphs[0].tensors[1:3]]
    assert found == [weights, bias]
    tables.fields["external_buffer_groups"][0].fields["name"] = "../weights.bin"
    path.write_bytes(encode(model))
    with pytest.raises(ModelError, match="not a plain file name"):
        read_model(path)


def test_a_zip_behind_the_model_is_allowed(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(1).data())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "cat\ndog\n")
    assert len(build_graph(read_model(path)).layers) == 1


# Small files that ask for much work ---------------------------------------------------------------


def test_nested_calls_are_not_followed_once_per_path():
    """40 bodies, each calling the next one three times with swapped handles: 3^40 paths."""
    draft = Draft()
    main = draft.main
    bodies = [draft.body() for _ in range(40)]
    for number, body in enumerate(bodies):
        body.inputs = (
            body.tensor("h0", (), "RESOURCE"),
            body.tensor("h1", (), "RESOURCE"),
            body.tensor("x", (1,)),
        )
        h0, h1, at = body.inputs
        for _ in range(3):
            out = body.tensor("y", (1,))
            if number + 1 < len(bodies):
                body.op("CALL", (h0, h1, at), (out,), "CallOptions", {"subgraph": number + 2})
            else:
                body.op("ABS", (at,), (out,), "AbsOptions")
            h0, h1, at = h1, h0, out
        body.outputs = (at,)
    handles = []
    for name in ("a", "b"):
        handles.append(main.tensor(name, (), "RESOURCE"))
        main.op("VAR_HANDLE", (), (handles[-1],), "VarHandleOptions", {"shared_name": name})
    x, y = main.tensor("x", (1,)), main.tensor("y", (1,))
    main.op("CALL", (*handles, x), (y,), "CallOptions", {"subgraph": 1})
    main.inputs, main.outputs = (x,), (y,)
    (layer,) = build_graph(draft.file()).layers
    assert layer.element_ops == 3**40
    assert layer.group is None


def test_many_preparing_operators_for_many_layers_are_refused():
    draft = Draft()
    main = draft.main
    at = main.constant("c", [1.0])
    for number in range(1500):
        at = main.elementwise("ABS", (at,), f"c{number}", "AbsOptions")
    x = main.tensor("x", (1,))
    outputs = [main.elementwise("ADD", (x, at), f"y{number}", "AddOptions") for number in range(900)]
    main.inputs, main.outputs = (x,), tuple(outputs)
    with pytest.raises(ModelError, match="depend on more than 1000000 operators that prepare constants"):
        build_graph(draft.file())


def test_overlapping_buffers_behind_the_file_are_not_free():
    model = chain(1).model()
    from dse.flatbuffer import encode as encoding

    tables = encoding.model_tables(model)
    everything = Options("Buffer", {"offset": 2, "size": 1 << 20})
    tables.fields["buffers"] = (*tables.fields["buffers"], *[everything] * 1000)
    data = encoding.encode_tables(tables)
    data += bytes(1 << 20)
    with pytest.raises(ModelError, match=r"buffers\[\d+\]: the buffers overlap and claim far more"):
        model_from_bytes(data)


def test_absurd_ranks_are_refused():
    with pytest.raises(ModelError, match="rank 300, at most 255 is sensible"):
        model_from_bytes(encode(with_tensor(chain(1).model(), 0, shape=(1,) * 300)))
