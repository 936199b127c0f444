"""Tiny models whose outputs tell which frame they belong to, and plans that run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dse.flatbuffer import records
from dse.flatbuffer.encode import encode
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan

ADD, MUL, FULLY_CONNECTED = 0, 18, 9
SIZE = 8


def port(tensor: int, name: str, size: int = SIZE) -> Port:
    return Port(tensor, name, "float32", (1, size), 4 * size)


def write_stage(
    path: Path,
    inputs: Sequence[str],
    operators: Sequence[tuple[int, tuple[str, str | float], str]],
    outputs: Sequence[str],
    size: int = SIZE,
) -> Path:
    """Write a model of element-wise operators: (code, (tensor, tensor or constant), result)."""
    names: list[str] = list(inputs)
    tensors = [records.Tensor(shape=(1, size), type=0, name=name, has_rank=True) for name in inputs]
    buffers = [records.Buffer()]
    body = []
    codes = sorted({code for code, _, _ in operators})
    for code, arguments, result in operators:
        indices = []
        for argument in arguments:
            if isinstance(argument, float):
                buffers.append(records.Buffer(np.full((1, size), argument, np.float32).tobytes()))
                tensors.append(
                    records.Tensor((1, size), 0, len(buffers) - 1, f"constant_{len(names)}", has_rank=True)
                )
                names.append(f"constant_{len(names)}")
                indices.append(len(names) - 1)
            else:
                indices.append(names.index(argument))
        tensors.append(records.Tensor(shape=(1, size), type=0, name=result, has_rank=True))
        names.append(result)
        options = records.Options("AddOptions" if code == ADD else "MulOptions", {})
        body.append(
            records.Operator(codes.index(code), tuple(indices), (len(names) - 1,), builtin_options=options)
        )
    graph = records.SubGraph(
        tuple(tensors),
        tuple(names.index(name) for name in inputs),
        tuple(names.index(name) for name in outputs),
        tuple(body),
        "main",
    )
    model = records.Model((graph,), tuple(records.OperatorCode(code) for code in codes), tuple(buffers))
    path.write_bytes(encode(model))
    return path


@dataclass(frozen=True)
class Tiny:
    """y = ((x + 1) * 2 + 3x): a diamond whose last stage gets a tensor that skips the middle one."""

    folder: Path
    size: int = SIZE
    x: Port = field(init=False)
    y: Port = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", port(0, "x", self.size))
        object.__setattr__(self, "y", port(4, "y", self.size))

    def stage(self, number: int, cores: tuple[int, ...]) -> StagePlan:
        a, b, c = (port(n, name, self.size) for n, name in ((1, "a"), (2, "b"), (3, "c")))
        ins, body, outs = (
            ([self.x], [(ADD, ("x", 1.0), "a"), (MUL, ("x", 3.0), "b")], [a, b]),
            ([a], [(MUL, ("a", 2.0), "c")], [c]),
            ([b, c], [(ADD, ("c", "b"), "y")], [self.y]),
        )[number]
        path = self.folder / f"stage{number}.tflite"
        if not path.exists():
            write_stage(path, [p.name for p in ins], body, [p.name for p in outs], self.size)
        return StagePlan(f"stage {number}", path, "cpu", cores, len(cores), tuple(ins), tuple(outs))

    def whole(self, cores: tuple[int, ...] = (0,)) -> StagePlan:
        path = self.folder / "whole.tflite"
        if not path.exists():
            body = [
                (ADD, ("x", 1.0), "a"),
                (MUL, ("x", 3.0), "b"),
                (MUL, ("a", 2.0), "c"),
                (ADD, ("c", "b"), "y"),
            ]
            write_stage(path, ["x"], body, ["y"], self.size)
        return StagePlan("whole", path, "cpu", cores, len(cores), (self.x,), (self.y,))

    def plan(self, *lanes: Sequence[StagePlan], name: str = "tiny") -> PipelinePlan:
        return PipelinePlan(name, tuple(LanePlan(tuple(stages)) for stages in lanes), (self.x,), (self.y,))

    def chain(self, *cores: int, name: str = "three stages") -> PipelinePlan:
        return self.plan([self.stage(n, (core,)) for n, core in enumerate(cores)], name=name)

    def frames(self, n: int) -> list[tuple[np.ndarray]]:
        ramp = np.arange(self.size, dtype=np.float32)[None, :]
        return [(ramp + 10 * number,) for number in range(n)]

    def expected(self, frame: tuple[np.ndarray]) -> np.ndarray:
        return (frame[0] + 1) * 2 + 3 * frame[0]


@pytest.fixture
def stage_writer() -> Callable[..., Path]:
    """``write_stage``: tests can not import from this file, there are several of its name."""
    return write_stage


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return Tiny(tmp_path)


@pytest.fixture
def cores() -> tuple[int, ...]:
    """Two cores that this process may use; tests that need two skip where there is one."""
    found = tuple(sorted(os.sched_getaffinity(0)))[:2]
    if len(found) < 2:
        pytest.skip("needs two cores")
    return found


@pytest.fixture(autouse=True)
def nothing_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], None]:
    """Every test of this folder: no child process and no temporary file may be left behind."""
    import tempfile

    import psutil

    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def check() -> None:
        left = {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert not left, f"child processes left behind: {left}"
        assert not list(folder.iterdir()), f"temporary files left behind: {list(folder.iterdir())}"

    yield check  # type: ignore[misc]
    check()
