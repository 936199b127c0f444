"""Models inside ZIP bundles."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
from small_models import chain

from dse.errors import ModelError
from dse.flatbuffer.bundles import list_members
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import map_file, read_model

MODELS = {f"m{n}.tflite": bytes(chain(n).data()) for n in (1, 2, 3)}


def bundle(members, method=zipfile.ZIP_STORED, front=b""):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return front + stream.getvalue()


@pytest.fixture
def write(tmp_path):
    def write_file(data, name="all.task"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write_file


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("front", [b"", b"\0\0"])
def test_members_are_listed_and_picked(write, method, front):
    path = write(bundle({**MODELS, "labels.txt": b"cat"}, method, front))
    members = list_members(map_file(path), str(path))
    assert {member.name: bytes(member.data) for member in members} == MODELS
    for n in (1, 2, 3):
        file = read_model(path.with_name(f"all.task!m{n}.tflite"))
        assert len(build_graph(file).layers) == n
        assert file.name == f"m{n}"
        assert bytes(file.data) == MODELS[f"m{n}.tflite"]


def test_a_bundle_of_several_asks_which(write):
    path = write(bundle(MODELS))
    with pytest.raises(
        ModelError, match=r"this is a bundle; give one of the models in it:\n  .*all\.task!m1\.tflite\n"
    ):
        read_model(path)
    with pytest.raises(ModelError, match=r"no single model in it is 'm9\.tflite'; give one of"):
        read_model(path.with_name("all.task!m9.tflite"))


def test_a_bundle_of_one_needs_no_choice(write):
    path = write(bundle({"only.tflite": MODELS["m2.tflite"], "notes.txt": b"n"}))
    assert read_model(path).name == "only"


def test_nested_bundles(write):
    inner = bundle({"deep.tflite": MODELS["m3.tflite"]}, front=b"\0\0")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = write(bundle({"inner.task": inner, "m1.tflite": MODELS["m1.tflite"]}, method))
        assert [m.name for m in list_members(map_file(path), "x")] == ["inner.task!deep.tflite", "m1.tflite"]
        for wanted in ("inner.task!deep.tflite", "deep.tflite"):
            assert len(build_graph(read_model(path.with_name(f"all.task!{wanted}"))).layers) == 3


def test_bundles_can_not_nest_for_ever(write):
    data = bundle({"m.tflite": MODELS["m1.tflite"]})
    for _ in range(6):
        data = bundle({"more.zip": data})
    with pytest.raises(ModelError, match="nested more than 4 deep"):
        read_model(write(data))


def test_a_member_becomes_a_file_that_the_runtime_can_open(write, tmp_path):
    path = write(bundle(MODELS))
    file = read_model(path.with_name("all.task!m2.tflite"))
    assert not file.on_disk
    out = tmp_path / "out"
    out.mkdir()
    copy = file.in_folder(out)
    assert copy.on_disk
    assert copy.path == out / "m2.tflite"
    assert copy.sha256 == file.sha256
    assert copy.in_folder(tmp_path) is copy


def test_a_bomb_is_refused(write):
    path = write(bundle({"bomb.tflite": bytes(200 << 20)}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ModelError, match=r"says that it unpacks from \d+ to 209715200 bytes"):
        read_model(path)


def test_other_faults(write):
    with pytest.raises(ModelError, match=r"without any \.tflite file in it"):
        read_model(write(bundle({"labels.txt": b"cat"})))
    with pytest.raises(ModelError, match="damaged bundle"):
        read_model(write(bundle(MODELS)[:-30]))
    path = write(MODELS["m1.tflite"], "plain.tflite")
    with pytest.raises(ModelError, match="expected a bundle with 'x' in it, this is not a ZIP file"):
        read_model(path.with_name("plain.tflite!x"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_bundles_give_clean_errors(write, method):
    sound = bundle({"inner.task": bundle(MODELS), "m1.tflite": MODELS["m1.tflite"]}, method)
    rng = random.Random(7)
    outcomes = set()
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 2, 8))):
            tail = rng.random() < 0.7  # the directory is at the end
            at = rng.randrange(len(data) - 400, len(data)) if tail else rng.randrange(len(data))
            data[at] = rng.randrange(256)
        path = write(bytes(data))
        try:
            read_model(path.with_name("all.task!m1.tflite"))
            outcomes.add("works")
        except ModelError:
            outcomes.add("error")
    assert outcomes == {"works", "error"}
