"""Orders of bundles for the tests of Arm's libraries: any model, cut into stages, on the cores that are here."""

from __future__ import annotations

import os
from pathlib import Path

from dse.deploy.target import Order
from dse.flatbuffer.cut import possible_cuts, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Platform
from dse.zoo.registry import build_file

# Small forms of well-known networks.  Emulated processors are slow: so are the images.
ZOO = {
    "mobilenet_v1": {"size": 32, "width": 25, "classes": 10},
    "mobilenet_v2": {"size": 32, "width": 25, "classes": 10},
    "squeezenet": {"size": 47, "classes": 10},
    "resnet50": {"size": 32, "classes": 10},
}


def cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def zoo_model(folder: Path, name: str) -> Path:
    path = folder / f"{name}.tflite"
    build_file(name, path, ZOO[name])
    return path


def order(path: Path, *, n_stages: int = 1, n_lanes: int = 1, threads: int = 1, **fields) -> Order:
    """Cut at even places; each lane has cores of its own, its stages share them."""
    file = read_model(path)
    graph = build_graph(file)
    cuts = possible_cuts(graph)
    places = sorted({cuts[len(cuts) * number // n_stages] for number in range(1, n_stages)})
    here = cores()
    lanes = tuple(
        PlacedLane(
            tuple(
                PlacedStage(
                    f"lane{lane}.stage{number}",
                    layers,
                    "cpu",
                    threads,
                    here[lane * threads : (lane + 1) * threads],
                )
                for number, layers in enumerate(stages_at(graph, places))
            )
        )
        for lane in range(n_lanes)
    )
    platform = Platform("here", (Cluster("cpu", here),))
    return Order("test", file, graph, platform, PlacedMapping(lanes), **fields)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
