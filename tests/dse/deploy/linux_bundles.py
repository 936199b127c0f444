"""Bundles for Linux of small models, and the two runners as a user calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ai_edge_litert

from dse.deploy.bundle import write_bundle
from dse.deploy.linux.target import Linux
from dse.deploy.native import write_sources
from dse.deploy.target import Order
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Platform
from dse.zoo.registry import build_file

LIBRARY = Path(ai_edge_litert.__file__).parent / "libLiteRt.so"
MANY = tuple(range(1024))
"""Cores of a described platform, more than any machine here has."""


def small_model(folder: Path) -> Path:
    path = folder / "small.tflite"
    build_file("mobilenet_v2", path, {"size": 32, "width": 25, "classes": 10})
    return path


def make_order(path: Path, lanes: Sequence[Sequence[tuple[float, int]]], name: str = "small") -> Order:
    """Order a bundle: each stage is the share of the layers at which it ends, and its core."""
    file = read_model(path)
    graph = build_graph(file)
    n_layers = len(graph.layers)
    placed = []
    for number, stages in enumerate(lanes):
        begin, members = 0, []
        for at, (share, core) in enumerate(stages):
            end = round(share * n_layers)
            members.append(
                PlacedStage(f"lane{number}.stage{at}", tuple(range(begin, end)), "cpu", 1, (core,))
            )
            begin = end
        placed.append(PlacedLane(tuple(members)))
    return Order(name, file, graph, Platform("here", (Cluster("cpu", MANY),)), PlacedMapping(tuple(placed)))


def make_bundle(folder: Path, order: Order) -> Path:
    write_bundle(Linux(), order, folder)
    return folder


def build_runner(folder: Path, *settings: str) -> Path:
    """Build the native runner; returns the folder of the programs."""
    write_sources(folder / "native")
    build = folder / "build"
    configure = ["cmake", "-S", str(folder / "native"), "-B", str(build), *settings]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr
    return build


@dataclass(frozen=True)
class Runner:
    """How a user starts a runner on a bundle."""

    kind: str
    program: Path | None = None

    def command(self, bundle: Path, *arguments: object) -> list[str]:
        start = [sys.executable, str(bundle / "run.py")]
        if self.program is not None:
            start = [str(self.program), "--bundle", str(bundle), "--library", str(LIBRARY)]
        return [*start, *map(str, arguments)]

    def start(self, bundle: Path, *arguments: object, **more) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": ""}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command(bundle, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, env=env, **more
        )

    def run(
        self, bundle: Path, *arguments: object, code: int = 0, data: bytes = b"", **more
    ) -> tuple[bytes, str]:
        """Run to the end; returns standard output and standard error."""
        process = self.start(bundle, *arguments, **more)
        out, err = process.communicate(data, timeout=120)
        text = err.decode(errors="replace")
        assert process.returncode == code, f"exit code {process.returncode}: {text}"
        assert "Traceback" not in text and "Sanitizer" not in text, text
        return out, text
