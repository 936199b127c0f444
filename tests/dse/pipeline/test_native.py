"""The loop in C: the same results as the loop in Python, clean under the sanitizers, never required."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dse.errors import InputError
from dse.pipeline import native
from dse.pipeline.native import structures
from dse.pipeline.supervise import Pipeline

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
SOURCE = Path(native.__file__).parent
STRESS = Path(__file__).parent / "stage_loop_stress.c"
NAPS = Path(__file__).parent / "stage_loop_naps.c"


@pytest.fixture
def shapes(tiny, cores):
    """Lanes of compiled stages: alone, in a row, sharing cores, with a tensor that skips a stage."""
    first, second = cores
    return {
        "whole": tiny.plan([tiny.whole((first,))]),
        "three on one core": tiny.chain(first, first, first),
        "first and last share": tiny.chain(first, second, first),
        "two lanes": tiny.plan(
            [tiny.whole((first,))], [tiny.stage(n, (second,)) for n in range(3)], name="lanes"
        ),
    }


@needs_compiler
@pytest.mark.parametrize("shape", ["whole", "three on one core", "first and last share", "two lanes"])
def test_both_loops_give_every_frame_its_own_outputs(tiny, shapes, shape):
    plan, frames = shapes[shape], tiny.frames(7)
    for loop in ("native", "python"):
        with Pipeline(plan, frames, loop=loop) as pipeline:
            assert set(pipeline.loops) == {loop}
            for got in pipeline.collect(50):
                for number, (outputs,) in enumerate(got):
                    np.testing.assert_array_equal(outputs, tiny.expected(frames[number % 7]))
            for run in pipeline.run(n_frames=500):
                assert run.n_frames == 500
                assert (np.diff(run.stamps, axis=2) >= 0).all()
                assert (np.diff(run.stamps[:, :, 0], axis=0) > 0).all()


@needs_compiler
def test_one_frame_at_a_time(tiny, cores):
    with Pipeline(tiny.chain(*cores, cores[0]), tiny.frames(3), loop="native") as pipeline:
        (run,) = pipeline.run(n_frames=100, in_flight=1)
    left, entered = run.stamps[:, :, 3].max(axis=1), run.stamps[:, :, 0].min(axis=1)
    assert (entered[1:] >= left[:-1]).all()


@needs_compiler
def test_a_run_of_a_time_ends_with_whole_frames(tiny, cores):
    with Pipeline(tiny.chain(*cores, cores[1]), tiny.frames(3), loop="native") as pipeline:
        for _ in range(20):
            (run,) = pipeline.run(seconds=0.02)
            assert run.n_frames > 0
            assert (run.stamps > 0).all()


def test_stages_in_the_interpreter_take_the_loop_in_python(tiny, cores):
    plan = tiny.chain(*cores, cores[0])
    with Pipeline(plan, tiny.frames(1), engine="interpreter") as pipeline:
        assert pipeline.loops == ("python",)
    with (
        pytest.raises(InputError, match=r"loop 'native' can not be had: stage 0, .*not run through"),
        Pipeline(plan, tiny.frames(1), engine="interpreter", loop="native"),
    ):
        pass


def test_no_compiler_is_no_fault(tiny, cores, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path / "cache"))
    plan = tiny.chain(*cores, cores[0])
    with Pipeline(plan, tiny.frames(1)) as pipeline:
        assert pipeline.loops == ("python",)
    with pytest.raises(InputError, match="no C compiler was found"), Pipeline(plan, loop="native"):
        pass


def test_an_unknown_loop_is_refused(tiny, cores):
    with (
        pytest.raises(InputError, match="expected one of auto, native, python"),
        Pipeline(tiny.chain(*cores, cores[0]), loop="fast"),
    ):
        pass


def built(program: Path, source: Path, *flags: str) -> Path:
    """Compile a program that uses the loop."""
    strict = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SOURCE}"]
    subprocess.run(["cc", *strict, *flags, "-o", program, source, SOURCE / "stage_loop.c"], check=True)
    return program


@needs_compiler
@pytest.mark.parametrize(
    ("work_ns", "patience", "most"),
    [
        pytest.param(400_000, 1, 200, id="long rests: naps"),
        pytest.param(60_000, 2, 240, id="short rests: one wake for two frames"),
        pytest.param(60_000, 4, 140, id="short rests: one wake for four frames"),
    ],
)
def test_a_stage_behind_a_slower_one_is_seldom_woken(tmp_path, work_ns, patience, most):
    program = built(tmp_path / "naps", NAPS)
    told = []
    for _ in range(8):  # a busy machine makes rests irregular
        command = [program, str(work_ns), str(patience)]
        told.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found = re.fullmatch(r"400 of 400 frames, woken (\d+) times\n", told[-1])
        assert found, told[-1]
        if int(found[1]) < most:
            return
    pytest.fail(f"woken too often every time: {told}")


@needs_compiler
@pytest.mark.parametrize("flag", ["thread", "address,undefined"])
@pytest.mark.slow
def test_random_graphs_under_the_sanitizers(tmp_path, flag):
    program = built(tmp_path / "stress", STRESS, f"-fsanitize={flag}")
    naps = built(tmp_path / "naps", NAPS, f"-fsanitize={flag}")
    for work_ns, patience in ("400000", "1"), ("60000", "1"), ("60000", "4"):
        subprocess.run(["setarch", "-R", str(naps), work_ns, patience], timeout=100, check=True)
    done = subprocess.run(
        ["setarch", "-R", str(program), "60"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "60 graphs, every frame right\n"


@needs_compiler
def test_a_library_of_other_structures_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path))
    monkeypatch.setattr(structures, "VERSION", 99)
    structures.load_library.cache_clear()
    try:
        with pytest.raises(native.NativeUnavailableError, match="have sizes"):
            structures.load_library()
    finally:
        structures.load_library.cache_clear()
