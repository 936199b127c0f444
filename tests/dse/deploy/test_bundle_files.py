"""What every bundle holds, whoever it is for: the same bytes, whole or not at all, never over something else."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linux_bundles import make_bundle, make_order, small_model

from dse import yaml_io
from dse.deploy.bundle import write_bundle
from dse.deploy.check import check_bundle
from dse.deploy.checksums import check_sums
from dse.deploy.linux import run as runner
from dse.deploy.linux.target import Linux
from dse.deploy.plan_text import escape
from dse.deploy.registry import TARGETS
from dse.deploy.target import Deployment, Manual, Order, Target
from dse.errors import InputError, MismatchError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.reader import model_from_bytes
from dse.mapping_file import read_mapping
from dse.mapping_schema import mapping_schema


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (data, stat.S_IMODE(status.st_mode), int(status.st_mtime))
    return found


@pytest.fixture
def order(tmp_path, two_cores) -> Order:
    one, two = two_cores
    return make_order(small_model(tmp_path), [[(0.5, one), (1.0, two)]])


class Bare(Target):
    """Nothing of its own."""

    name = "bare"
    summary = "for tests"

    def write(self, deployment: Deployment) -> Manual:
        return Manual("## Use it\n\nSomehow.")


def test_the_common_files(chain):
    listed = set(check_sums(chain))
    for name in ("README.md", "mapping.yaml", "mapping.schema.json", "plan.txt", "signatures.json"):
        assert name in listed
    assert sum(name.startswith("stages/") for name in listed) == 3
    assert {path.relative_to(chain).as_posix() for path in chain.rglob("*") if path.is_file()} == {
        *listed,
        "SHA256SUMS",
    }
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=chain, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    content = read_mapping(chain / "mapping.yaml")
    assert [stage.name for stage in content.mapping.stages] == [f"lane0.stage{n}" for n in range(3)]
    assert all((chain / file).is_file() for file in content.files.values())


def test_the_readme_says_what_runs_where_and_how_it_was_measured(chain):
    text = (chain / "README.md").read_text()
    for part in (
        "| 0 | lane0.stage1 |",
        "layers-",
        "`reference/` holds 4 frames",
        "run.py --verify",
        "cmake",
    ):
        assert part in text
    assert "{" not in text.split("## Run it with Python")[1].split("```")[0], "a place that was not filled"


def test_signatures_name_the_tensors_of_the_uncut_model(chain):
    found = json.loads((chain / "signatures.json").read_text())
    assert [tensor["shape"] for tensor in found["inputs"]] == [[1, 32, 32, 3]]
    assert [tensor["shape"] for tensor in found["outputs"]] == [[1, 10]]


def test_original_signatures_are_kept(corpus, tmp_path, two_cores):
    model = corpus / "models" / "x_if_while.tflite"
    bundle = tmp_path / "bundle"
    write_bundle(Bare(), make_order(model, [[(1.0, two_cores[0])]]), bundle)
    found = json.loads((bundle / "signatures.json").read_text())["signatures"]
    assert [signature["key"] for signature in found] == ["serving_default"]
    assert sorted(found[0]["outputs"].values()) == [0, 1, 2]


@pytest.mark.parametrize("fixture", ["chain", "lanes"])
def test_mappings_fit_their_schema(request, fixture):
    bundle = request.getfixturevalue(fixture)
    schema = json.loads((bundle / "mapping.schema.json").read_text())
    assert schema == mapping_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    data = yaml_io.load(bundle / "mapping.yaml").data
    jsonschema.validate(data, schema)
    data["lanes"][0]["stages"][0]["layers"] = "5-"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


@pytest.mark.parametrize("target", [Linux(), TARGETS["android"]], ids=lambda target: target.name)
def test_equal_orders_give_equal_bytes(order, tmp_path, target):
    for name in ("one", "two"):
        write_bundle(target, order, tmp_path / name)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    assert {mode for _, mode, _ in one.values()} <= {0o644, 0o755}


def test_a_bundle_is_never_overwritten_unasked(order, tmp_path):
    bundle = make_bundle(tmp_path / "bundle", order)
    before = contents(bundle)
    with pytest.raises(InputError, match=r"already there.*--force"):
        write_bundle(Linux(), order, bundle)
    assert contents(bundle) == before
    write_bundle(Bare(), order, bundle, force=True)
    assert "run.py" not in contents(bundle)
    assert "Somehow." in (bundle / "README.md").read_text()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_force_replaces_bundles_only(order, tmp_path, what):
    place = tmp_path / "precious"
    if what == "folder":
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
    elif what == "file":
        place.write_text("years of work")
    else:
        bundle = make_bundle(tmp_path / "bundle", order)
        place.symlink_to(bundle)
    with pytest.raises(InputError, match="not a bundle"):
        write_bundle(Linux(), order, place, force=True)
    assert place.exists()


class Failing(Bare):
    """Fails while its files are written."""

    def write(self, deployment: Deployment) -> Manual:
        (deployment.folder / "half").write_text("...")
        raise KeyboardInterrupt


class Refusing(Bare):
    """Refuses beforehand."""

    def check(self, order: Order) -> None:
        raise InputError("PRELU is not known there")


class Damaging(Bare):
    """Changes weights."""

    def stage_bytes(self, name: str, data: bytes) -> bytes:
        model = model_from_bytes(data, "changed").model
        sizes = [len(buffer.data or b"") for buffer in model.buffers]
        largest = sizes.index(max(sizes))
        buffers = list(model.buffers)
        weights = np.frombuffer(buffers[largest].data, np.float32)
        buffers[largest] = replace(buffers[largest], data=(weights * 1.1).tobytes())
        return bytes(encode(replace(model, buffers=tuple(buffers))))


@pytest.mark.parametrize(
    ("target", "error"),
    [(Failing(), KeyboardInterrupt), (Refusing(), InputError), (Damaging(), MismatchError)],
)
def test_what_fails_leaves_nothing(order, tmp_path, target, error):
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(error):
        write_bundle(target, order, tmp_path / "bundle")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_two_exports_at_once_leave_one_whole_bundle(order, tmp_path):
    outcomes = []

    def attempt(name: str) -> None:
        try:
            write_bundle(Bare(), replace(order, name=name), tmp_path / "bundle")
            outcomes.append("done")
        except InputError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("done") == 1, outcomes
    check_sums(tmp_path / "bundle")


def test_stages_on_accelerators_are_refused_where_they_can_not_run(order):
    stage = order.mapping.lanes[0].stages[0]
    odd = replace(order.mapping.lanes[0], stages=(replace(stage, device="gpu", cluster="GPU"),))
    for target in (Linux(), TARGETS["android"]):
        with pytest.raises(InputError, match="accelerators"):
            target.check(replace(order, mapping=replace(order.mapping, lanes=(odd,))))


def test_the_product_checks_bundles_too(chain, tmp_path):
    found = check_bundle(chain)
    assert found.n_frames == 4
    assert all(worst <= 1 for worst in found.worst)
    bundle = Path(shutil.copytree(chain, tmp_path / "copy"))
    for path in sorted(bundle.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            with pytest.raises(InputError):
                check_bundle(bundle, run=False)
            path.write_bytes(data)
    check_bundle(bundle, run=False)


def test_sums_name_files_of_the_bundle_only(chain, tmp_path):
    bundle = Path(shutil.copytree(chain, tmp_path / "copy"))
    sums = bundle / "SHA256SUMS"
    for name in ("/etc/passwd", "../secret"):
        sums.write_text(f"{'0' * 64}  {name}\n")
        with pytest.raises(InputError, match="file of the bundle"):
            check_sums(bundle)


@settings(max_examples=200)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_name_survives_in_a_plan(name):
    field = escape(name)
    assert " " not in field
    assert "\n" not in field
    assert field.isascii()
    assert runner.unescape(field) == name
