"""A synthetic run result with every feature that a report must show."""

from __future__ import annotations

import random
from dataclasses import replace

from dse.costs import Cost, CostTable, WholeCost
from dse.graph import Layer, LayerGraph, Tensor
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Link, Platform
from dse.results import Measured, PlanResult, Predicted, Proof, RunResult, StageNumbers


def make_graph(n_layers: int = 24, name: str = "tiny_net") -> LayerGraph:
    tensors = tuple(
        Tensor(
            n, f"net/block_{n}/out", "float32", (1, 28, 28, 16), 50_176, "input" if n == 0 else "activation"
        )
        for n in range(n_layers + 1)
    )
    layers = tuple(
        Layer(
            index=n,
            name=f"net/block_{n + 1}/out",
            op=("CONV_2D", "DEPTHWISE_CONV_2D", "ADD")[n % 3],
            operators=(n,),
            inputs=(n,),
            outputs=(n + 1,),
            constants=(),
            macs=None if n % 3 == 2 else 1_000_000 * (n + 1),
            element_ops=None,
            weight_bytes=4096 * n,
            key=f"k{n}",
        )
        for n in range(n_layers)
    )
    return LayerGraph(name, layers, tensors, (0,), (n_layers,))


PLATFORM = Platform(
    "board",
    (
        Cluster("big", (4, 5, 6), capacity=1024, max_hz=2_400_000_000),
        Cluster("LITTLE", (0, 1, 2, 3), capacity=430, max_hz=1_800_000_000),
    ),
    (Link("big", "LITTLE", 40_000, 4_000_000_000),),
)


def make_costs(graph: LayerGraph, platform: Platform, source: str = "extracted") -> CostTable:
    draw = random.Random(1)
    rows = []
    for layer in graph.layers:
        work = draw.randint(100_000, 900_000)
        row = []
        for slot in platform.slots:
            speed = (1.0 if slot.cluster == "big" else 0.4) * slot.threads**0.8
            median = round(work / speed)
            row.append(
                Cost(median, tuple(round(median * draw.uniform(0.97, 1.05)) for _ in range(6)), source)
            )
        if layer.index == 5:
            row[-1] = Cost(None, (), source, "operator refused")
        rows.append(tuple(row))
    n_slots = len(platform.slots)
    return CostTable(
        "ab" * 32, graph.name, platform.name, platform.slots, tuple(rows), (8_000,) * n_slots,
        (WholeCost(9_000_000, (9_000_000, 9_100_000)),) + (None,) * (n_slots - 1),
        conditions={"runtime": "LiteRT 2.3.0", "governor": {"0": "schedutil"}, "steal": 0.012, "kernels": "default"},
    )  # fmt: skip


def make_plan(
    name: str,
    role: str,
    lanes: list[list[tuple[tuple[int, ...], str, tuple[int, ...]]]],
    hz: float,
    measured_hz: float | None = None,
    violations: tuple[str, ...] = (),
) -> PlanResult:
    placed = PlacedMapping(
        tuple(
            PlacedLane(
                tuple(
                    PlacedStage(f"lane{a}.stage{b}", layers, cluster, len(cores), cores)
                    for b, (layers, cluster, cores) in enumerate(stages)
                )
            )
            for a, stages in enumerate(lanes)
        )
    )
    period = len(lanes) * 1e9 / hz
    stages = tuple(
        StageNumbers(
            stage.name,
            round(period * (1 - 0.17 * number)),
            round(period * (1 - 0.17 * number)) - 30_000 * number,
            30_000 * number,
            0,
            *(
                (
                    round(period * (1.05 - 0.15 * number)),
                    round(period * (1.05 - 0.15 * number)) - 45_000 * number,
                    45_000 * number,
                    0,
                    20_000,
                    0.9,
                )
                if measured_hz
                else ()
            ),
        )
        for lane in placed.lanes
        for number, stage in enumerate(lane.stages)
    )
    depth = max(len(lane) for lane in lanes)
    measured = None
    if measured_hz is not None:
        samples = tuple(measured_hz * f for f in (0.96, 0.99, 1.0, 1.01, 1.03))
        measured = Measured(
            measured_hz, samples, round(period * depth * 1.6), round(period * depth * 1.8),
            round(period * depth * 2.1), round(period * depth), 31_000_000, False,
        )  # fmt: skip
    return PlanResult(
        name, role, placed, Predicted(hz, round(period * depth), 24_000_000 * len(lanes), None, violations),
        stages, measured,
    )  # fmt: skip


def make_result(
    *, measured: bool = True, n_layers: int = 24, name: str = "tiny_net", platform: Platform = PLATFORM
) -> RunResult:
    graph = make_graph(n_layers, name)
    whole = tuple(range(n_layers))
    a, b = n_layers // 2, n_layers * 3 // 4

    def hz(value: float) -> float | None:
        return value if measured else None

    plans = (
        make_plan("best single pipeline = best found", "candidate",
                  [[(whole[:a], "big", (4, 5)), (whole[a:b], "big", (6,)), (whole[b:], "LITTLE", (0, 1, 2, 3))]],
                  118.2, hz(111.5)),
        make_plan("best mix of lanes", "candidate",
                  [[(whole, "big", (4, 5, 6))], [(whole, "LITTLE", (0, 1, 2, 3))]], 121.0, hz(107.3)),
        make_plan("plan 1", "candidate",
                  [[(whole[:b], "big", (4, 5, 6)), (whole[b:], "LITTLE", (0, 1, 2, 3))]], 97.0, hz(95.0)),
        make_plan("whole, 3 big", "baseline", [[(whole, "big", (4, 5, 6))]], 84.1, hz(86.9)),
        make_plan("copies, 3 x 1 big + 4 x 1 LITTLE", "baseline",
                  [[(whole, "big", (c,))] for c in (4, 5, 6)] + [[(whole, "LITTLE", (c,))] for c in range(4)],
                  82.0, hz(70.2)),
        make_plan("whole, 4 LITTLE", "baseline", [[(whole, "LITTLE", (0, 1, 2, 3))]], 37.0, hz(36.0)),
        make_plan("whole, 1 big", "baseline", [[(whole, "big", (4,))]], 33.1, hz(34.0)),
    )  # fmt: skip
    return RunResult(
        graph, platform, make_costs(graph, platform, "extracted" if measured else "analytic"),
        Proof("interval_dp", "optimal", "lanes of contiguous cuts of the given orders", 125.4, 0.036, 81_000_000),
        plans, 0,
        "Layers 18-23 lose least on LITTLE cores, so the pipeline keeps both clusters busy where copies leave "
        "the LITTLE cluster as the slower lane.",
        ("the machine was disturbed during 1 of 5 rounds (steal time 3 %)",),
        "3 stages give the outputs of the whole model, bit for bit (8 frames)",
    )  # fmt: skip


def make_nasty() -> RunResult:
    """Names that try to break out of HTML, SVG, scripts and terminals."""
    evil = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}\x1b[31m"
    result = make_result(name=evil)
    graph = result.graph
    layers = tuple(replace(layer, name=f"{evil}{layer.index}", op=f"CUSTOM:{evil}") for layer in graph.layers)
    clusters = tuple(replace(c, name=f"<b>{c.name}") for c in PLATFORM.clusters)
    plan = result.plans[0]
    return replace(
        result,
        graph=replace(graph, layers=layers),
        platform=replace(PLATFORM, name=evil, clusters=clusters),
        plans=(replace(plan, name=evil), *result.plans[1:]),
        reason=evil,
        warnings=(evil,),
        output_check=evil,
    )
