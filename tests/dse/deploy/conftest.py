"""Paths to helpers that other folders of tests share."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "flatbuffer"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from linux_bundles import Runner, build_runner, make_bundle, make_order, small_model


@pytest.fixture(scope="session")
def two_cores() -> tuple[int, int]:
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("needs two cores")
    return found[0], found[1]


@pytest.fixture(scope="session")
def chain(tmp_path_factory, two_cores) -> Path:
    """A bundle of one lane: three stages, the first and the last take turns on a core."""
    folder, (one, two) = tmp_path_factory.mktemp("chain"), two_cores
    order = make_order(small_model(folder), [[(0.3, one), (0.7, two), (1.0, one)]])
    return make_bundle(folder / "bundle", order)


@pytest.fixture(scope="session")
def lanes(tmp_path_factory, two_cores) -> Path:
    """A bundle of two lanes of one stage."""
    folder = tmp_path_factory.mktemp("lanes")
    order = make_order(small_model(folder), [[(1.0, core)] for core in two_cores])
    return make_bundle(folder / "bundle", order)


@pytest.fixture(scope="session")
def native(tmp_path_factory) -> Path:
    """The folder with the programs of the native runner."""
    for program in ("cmake", "cc"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    return build_runner(tmp_path_factory.mktemp("native"), "-DCMAKE_C_FLAGS=-Werror")


@pytest.fixture(params=["python", "native"])
def runner(request) -> Runner:
    if request.param == "python":
        return Runner("python")
    return Runner("native", request.getfixturevalue("native") / "run")
