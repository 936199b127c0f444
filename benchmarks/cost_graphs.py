"""Solve published cost graphs with known optima: ``python -m benchmarks.cost_graphs PATH...``.

Reads the JSON files of the device-placement inputs of Tarnawski et al. (NeurIPS 2020): k identical
accelerators, CPUs beside them, and tensors that are copied out by the sending and in by every
receiving accelerator.  Prints objective, bound, status, wall time and peak memory per file.

A CSV file is a table of stages on the processors of a phone (``benchmarks.graph_files``): its means while
the other processors are busy are solved for one stage per processor, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from benchmarks.graph_files import read_bettertogether
from solvers.errors import SolverError
from solvers.limits import Limits, SearchState
from solvers.mapping import Mapping, Status
from solvers.problem import Flow, Problem, Slot
from solvers.registry import solve

NS_PER_UNIT = 1_000_000
ACCELERATOR, CPU = 0, 1


@dataclass(frozen=True)
class CostGraph:
    """A file: the problem for contiguous plans, and the exact latencies to score a plan with.

    Parameters
    ----------
    name
        Stem of the file.
    problem
        Layers in a topological order; classes of nodes that share a device are colocated.
    latency
        float64 (layers, 2): on an accelerator and on a CPU, in the file's unit.
    flow_cost
        float64 (layers,): moving a layer's output, in the file's unit.
    colour
        Class of each layer.
    """

    name: str
    problem: Problem
    latency: np.ndarray
    flow_cost: np.ndarray
    colour: tuple[int, ...]


def read(path: Path) -> CostGraph:
    """Read one file.

    Raises
    ------
    ValueError
        It is not such a file.
    """
    data: Any = json.loads(path.read_text())
    if not isinstance(data, dict) or "nodes" not in data or "edges" not in data:
        raise ValueError(f"{path}: expected an object with 'nodes' and 'edges'")
    graph = nx.DiGraph()
    graph.add_nodes_from(node["id"] for node in data["nodes"])
    graph.add_edges_from((edge["sourceId"], edge["destId"]) for edge in data["edges"])
    order = list(nx.lexicographical_topological_sort(graph))
    index = {node: number for number, node in enumerate(order)}
    by_id = {node["id"]: node for node in data["nodes"]}
    nodes = [by_id[name] for name in order]
    latency = np.array([[node["fpgaLatency"], node["cpuLatency"]] for node in nodes])
    flow_cost = np.zeros(len(nodes))
    for edge in data["edges"]:
        flow_cost[index[edge["sourceId"]]] = edge["cost"]
    flows = tuple(
        Flow(
            number,
            tuple(sorted(index[other] for other in graph.successors(name))),
            round(float(flow_cost[number]) * NS_PER_UNIT),
        )
        for number, name in enumerate(order)
        if graph.out_degree(name)
    )
    classes: dict[int, list[int]] = {}
    colour = []
    for number, node in enumerate(nodes):
        mark = node.get("colorClass")
        colour.append(-1 - number if mark is None else int(mark))
        classes.setdefault(colour[-1], []).append(number)
    problem = Problem(
        cost_ns=np.rint(latency * NS_PER_UNIT).astype(np.int64),
        supported=np.array([[bool(node["supportedOnFpga"]), True] for node in nodes]),
        slots=(Slot(ACCELERATOR, 1), Slot(CPU, 1)),
        cluster_sizes=(int(data["maxFPGAs"]), int(data["maxCPUs"])),
        flows=flows,
        bandwidth_bytes_per_s=np.array([[1e9, np.inf], [1e9, np.inf]]),
        send_setup_ns=(0, 0),
        send_bandwidth_bytes_per_s=(1e9, float("inf")),
        free_within_unit=True,
        colocated=tuple(tuple(members) for members in classes.values() if len(members) > 1),
        max_lanes=1,
    )
    return CostGraph(path.stem, problem, latency, flow_cost, tuple(colour))


def score(graph: CostGraph, mapping: Mapping) -> float:
    """Return the largest load of a one-lane mapping in the file's unit, from its exact latencies."""
    device_of: dict[int, int] = {}
    cluster_of: dict[int, int] = {}
    for stage in mapping.lanes[0].stages:
        cluster_of[stage.unit] = graph.problem.slots[stage.slot].cluster
        for layer in stage.layers:
            device_of[layer] = stage.unit
    load = dict.fromkeys(cluster_of, 0.0)
    for layer, device in device_of.items():
        load[device] += float(graph.latency[layer, cluster_of[device]])
    for flow in graph.problem.flows:
        assert flow.producer is not None
        source = device_of[flow.producer]
        others = {device_of[user] for user in flow.consumers} - {source}
        for device in {source, *others} if others else ():
            if cluster_of[device] == ACCELERATOR:
                load[device] += float(graph.flow_cost[flow.producer])
    return max(load.values())


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    file: str
    layers: int
    objective: float
    bound: float
    status: str
    found_s: float
    wall_s: float
    peak_mib: float


def run(path: Path, time_limit_s: float, solver: str, seed: int = 0) -> Row:
    """Read, solve and score one file."""
    start = time.monotonic()
    graph = None if path.suffix == ".csv" else read(path)
    problem = read_bettertogether(path, "loaded") if graph is None else graph.problem
    improved: list[tuple[float, float]] = []

    def note(state: SearchState) -> None:
        if state.evaluation is None:
            return
        period_ns = 1e9 / state.evaluation.throughput_hz
        if not improved or period_ns < improved[-1][1]:
            improved.append((state.elapsed_s, period_ns))

    workers = len(os.sched_getaffinity(0))
    limits = Limits(time_s=time_limit_s, seed=seed, workers=workers, progress=note)
    solution = solve(problem, solver, limits)
    wall = time.monotonic() - start
    if solution.mapping is None or solution.evaluation is None or solution.bound_hz is None:
        raise SolverError(f"{solution.status.value}: {solution.reason}")
    if graph is None:
        objective = solution.evaluation.lanes[0].period_ns / NS_PER_UNIT
    else:
        objective = score(graph, solution.mapping)
    proved = solution.status is Status.OPTIMAL
    return Row(
        path.stem,
        problem.n_layers,
        objective,
        objective if proved else 1e9 / solution.bound_hz / NS_PER_UNIT,
        f"{solution.status.value}, {solution.family.name.lower()}",
        improved[-1][0] if improved else wall,
        wall,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="JSON or CSV files, or folders of JSON files")
    parser.add_argument("--contiguous", action="store_true", help="only convex stages, one per device")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    given = parser.parse_args(arguments)
    solver = "ideal_dp" if given.contiguous else "assignment"
    files = [f for p in given.paths for f in (sorted(p.glob("*.json")) if p.is_dir() else [p])]
    if not given.json:
        print(
            f"{'file':34} {'layers':>6} {'objective':>10} {'bound':>10} {'status':20} "
            f"{'found s':>8} {'s':>7} {'MiB':>6}"
        )
    for path in files:
        try:
            row = run(path, given.time_limit, solver, given.seed)
        except (OSError, ValueError, KeyError, SolverError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        if given.json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            print(
                f"{row.file:34} {row.layers:6d} {row.objective:10.4f} {row.bound:10.4f} {row.status:20} "
                f"{row.found_s:8.2f} {row.wall_s:7.2f} {row.peak_mib:6.0f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
