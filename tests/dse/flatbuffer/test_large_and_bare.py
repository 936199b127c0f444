"""Files above 2 GB, and machines without the runtime."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from small_models import Draft, chain

from dse.errors import ModelError
from dse.flatbuffer import encode as encoding
from dse.flatbuffer.cut import extract, split
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes, read_model
from dse.flatbuffer.records import Buffer, Options

FAR = 3 << 30


def test_weights_beyond_two_gigabytes_in_a_sparse_file(tmp_path, monkeypatch, runner):
    """The second layer's weights lie at 3 GB; the file takes no room on the disk."""
    draft = chain(3, 4)
    model = draft.model()
    far = model.subgraphs[0].operators[1].inputs[1]
    far_buffer = model.subgraphs[0].tensors[far].buffer
    content = bytes(model.buffers[far_buffer].data)
    tables = encoding.model_tables(model)
    buffers = list(tables.fields["buffers"])
    buffers[far_buffer] = Options("Buffer", {"offset": FAR, "size": len(content)})
    tables.fields["buffers"] = tuple(buffers)
    path = tmp_path / "far.tflite"
    with path.open("wb") as stream:
        stream.write(encoding.encode_tables(tables))
        stream.seek(FAR)
        stream.write(content)
    assert path.stat().st_size > FAR
    assert path.stat().st_blocks * 512 < 1 << 20
    file = read_model(path)
    assert bytes(file.model.buffers[far_buffer].data) == content
    graph = build_graph(file)
    pieces = split(file, graph, [[0], [1], [2]])
    assert all(len(stage.data) < 4096 for stage in pieces.stages)
    frames = [(np.arange(4, dtype=np.float32)[None],)]
    expected = runner.run(draft.data(), frames)
    got = runner.run_split(pieces, frames)
    assert np.array_equal(expected[0][0], got[0][0])
    with path.open("r+b") as stream:
        stream.truncate(FAR)
    with pytest.raises(ModelError, match=rf"bytes {FAR} to {FAR + len(content)} lie beyond the end"):
        read_model(path)


def test_what_does_not_fit_inside_is_written_behind(monkeypatch, runner):
    """A flatbuffer ends at 2 GB; here the border is lowered so that the test needs no such memory."""
    model = chain(3, 64).model()
    monkeypatch.setattr(encoding, "_MAX_INSIDE_BYTES", 30_000)
    written = model_from_bytes(encode(model))
    assert all(buffer.external for buffer in written.model.buffers if buffer.data)
    small = extract(written, build_graph(written), [1])
    # A third of it fits inside again.
    assert not any(buffer.external for buffer in model_from_bytes(small.data).model.buffers)
    frames = [(np.ones((1, 64), np.float32),)]
    monkeypatch.undo()
    assert np.array_equal(runner.run(written.data, frames)[0][0], runner.run(encode(model), frames)[0][0])


def test_encoding_does_not_grow_its_memory():
    """The builder starts large enough: growing would double the memory of a large model."""
    import flatbuffers

    draft = Draft()
    main = draft.main
    x = main.tensor("x" * 50, (1, 4))
    for number in range(300):
        x = main.dense(x, f"some/rather/long/name/of/a/tensor/{number}", 4, seed=number)
    main.inputs, main.outputs = (0,), (x,)
    model = draft.model()
    model = dataclasses.replace(model, buffers=(*model.buffers, Buffer(bytes(1 << 20))))

    def grow(self):
        pytest.fail("the estimate was too small")

    original = flatbuffers.Builder.GrowByteBuffer
    flatbuffers.Builder.GrowByteBuffer = grow
    try:
        for external in (False, True):
            assert len(encode(model, external=external)) > 1 << 20
    finally:
        flatbuffers.Builder.GrowByteBuffer = original


BARE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ai_edge_litert", "tflite", "tensorflow"}:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
from pathlib import Path
from dse.cutting import split_model
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
n = len(build_graph(read_model(Path(sys.argv[1]))).layers)
for path in split_model(Path(sys.argv[1]), [str(n // 2 - 1)], Path(sys.argv[2])).files:
    build_graph(read_model(path))
print(n)
"""


def test_reading_and_cutting_need_no_runtime(corpus, tmp_path):
    path = corpus / "models" / "mediapipe__hand_landmark_lite.tflite"
    command = [sys.executable, "-c", BARE, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "65\n"
    assert sorted(found.name for found in (tmp_path / "out").iterdir()) == [
        "layers-0-31.tflite",
        "layers-32-64.tflite",
        "manifest.json",
    ]
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for stage in told["stages"]:
        assert (tmp_path / "out" / stage["file"]).stat().st_size == stage["bytes"]
