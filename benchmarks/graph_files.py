"""Readers of published cost tables other than the device-placement inputs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import networkx as nx
import numpy as np

from solvers.problem import Flow, Problem, Slot

NS_PER_MS = 1_000_000
NODE = re.compile(
    r"^(?P<name>\S+) -- .* -- forward_compute_time=(?P<forward>[\d.]+), .*activation_size=(?P<size>[\d.]+)"
)
EDGE = re.compile(r"^\t(?P<source>\S+) -- (?P<target>\S+)$")
THREAD_EXPONENT = 0.8
"""Made-up speed-up of t threads: t to this power."""


def read_pipedream(path: Path, sizes: tuple[int, ...], ratios: tuple[float, ...], seed: int = 0) -> Problem:
    """Read a PipeDream profile and make up unlike clusters from its one column.

    Parameters
    ----------
    path
        Lines of nodes, then tab-indented edges.
    sizes
        Cores per cluster.
    ratios
        How much slower one core of each cluster is than the measured device.
    seed
        Layers prefer one cluster or the other by up to 20 %, drawn with this seed.

    Raises
    ------
    ValueError
        A line is neither a node nor an edge.
    """
    forward: dict[str, float] = {}
    size: dict[str, int] = {}
    graph = nx.DiGraph()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        node, edge = NODE.match(line), EDGE.match(line)
        if node is not None:
            forward[node["name"]] = float(node["forward"])
            size[node["name"]] = int(float(node["size"]))
            graph.add_node(node["name"])
        elif edge is not None:
            graph.add_edge(edge["source"], edge["target"])
        elif line.strip():
            raise ValueError(f"{path}:{number}: expected a node or an edge, got {line[:60]!r}")
    order = list(nx.lexicographical_topological_sort(graph))
    index = {name: number for number, name in enumerate(order)}
    rng = np.random.default_rng(seed)
    slots = tuple(Slot(c, threads) for c, n in enumerate(sizes) for threads in range(1, n + 1))
    base = np.array([forward[name] for name in order]) * NS_PER_MS
    taste = rng.uniform(0.8, 1.2, (len(order), len(sizes)))
    cost = np.stack(
        [base * ratios[s.cluster] * taste[:, s.cluster] / s.threads**THREAD_EXPONENT for s in slots], axis=1
    )
    flows = tuple(
        Flow(n, tuple(sorted(index[other] for other in graph.successors(name))), size[name])
        for n, name in enumerate(order)
        if graph.out_degree(name)
    )
    return Problem(np.rint(cost).astype(np.int64), np.ones(cost.shape, np.bool_), slots, sizes, flows)


def read_bettertogether(path: Path, condition: str) -> Problem:
    """Read the phone table: one core-set per processor, one lane.

    Parameters
    ----------
    path
        CSV with columns stage, processor, condition, mean_ms.
    condition
        ``isolated`` or ``loaded``.

    Raises
    ------
    ValueError
        No row has that condition.
    """
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["condition"] == condition]
    if not rows:
        raise ValueError(f"{path}: no row has the condition {condition!r}")
    processors = sorted({row["processor"] for row in rows})
    n_stages = 1 + max(int(row["stage"]) for row in rows)
    cost = np.zeros((n_stages, len(processors)), np.int64)
    supported = np.zeros(cost.shape, np.bool_)
    for row in rows:
        place = int(row["stage"]), processors.index(row["processor"])
        cost[place] = round(float(row["mean_ms"]) * NS_PER_MS)
        supported[place] = True
    return Problem(
        cost,
        supported,
        tuple(Slot(cluster, 1) for cluster in range(len(processors))),
        (1,) * len(processors),
        tuple(Flow(n, (n + 1,), 0) for n in range(n_stages - 1)),
        max_lanes=1,
    )
