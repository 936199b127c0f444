"""Predicting layer costs from a platform's peak numbers alone: a roofline per core type.

A layer takes the longer of its arithmetic and its memory traffic [1]_::

    arithmetic = macs / (macs_per_s * efficiency(op) * width(type) * speedup(threads))
               + element_ops / (macs_per_s * ELEMENT_EFFICIENCY * speedup(threads))
    traffic    = (inputs + outputs + weights) / (bytes_per_s * min(threads, MEMORY_CORES))
    cost       = max(arithmetic, traffic) + kernels(op) * dispatch(op, threads)

``speedup`` is Amdahl's law with a fixed serial share.  ``dispatch`` grows with the threads: layers that
move values pay more for waking threads than they gain until they are long, heavy ones gain early.  A
concatenation is a kernel per input.  The constants below are rules of thumb; only what threads cost was
chosen by measurements, of one 16-core server (``benchmarks/predictors.py``): the prediction is for
*ranking* slots and for a first search without hardware.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
   for multicore architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping

from dse.costs import Cost, CostTable
from dse.errors import PlatformError
from dse.graph import Layer, LayerGraph
from dse.platforms import Cluster, Platform
from dse.units import NS_PER_S

# Share of a core's peak that good kernels reach on typical shapes.
EFFICIENCY: Mapping[str, float] = {
    "CONV_2D": 0.6,
    "DEPTHWISE_CONV_2D": 0.25,
    "FULLY_CONNECTED": 0.5,
    "BATCH_MATMUL": 0.5,
    "TRANSPOSE_CONV": 0.4,
    "CONV_3D": 0.4,
}
OTHER_EFFICIENCY = 0.25
ELEMENT_EFFICIENCY = 0.25
# Multiply-accumulates per cycle against 32-bit floats.
WIDTH: Mapping[str, float] = {"int8": 2.0, "uint8": 2.0, "int4": 2.0, "float16": 1.0}
SERIAL_SHARE = 0.05
MEMORY_CORES = 4
DISPATCH_NS = 1_000
# What more than one thread costs a layer, and each further thread: heavy layers, and all others.
HEAVY_WAKE_NS, HEAVY_THREAD_NS = 0, 300
LIGHT_WAKE_NS, LIGHT_THREAD_NS = 8_000, 3_000
KERNEL_PER_INPUT = frozenset({"CONCATENATION", "PACK"})
INVOKE_NS = 5_000


def predict(graph: LayerGraph, platform: Platform) -> CostTable:
    """Predict what each layer costs on each slot.

    Parameters
    ----------
    graph
        The model.
    platform
        Needs ``macs_per_s`` and ``bytes_per_s`` (of one core) on every cluster.

    Returns
    -------
    CostTable
        Without samples, source ``analytic``; the model's hash is empty.

    Raises
    ------
    PlatformError
        A cluster lacks a number; all of them are named.
    """
    missing = [
        f"{cluster.name}.{name}"
        for cluster in platform.clusters
        for name in ("macs_per_s", "bytes_per_s")
        if getattr(cluster, name) is None
    ]
    if missing:
        raise PlatformError(
            f"platform {platform.name!r}: a prediction needs the peak of one core, missing"
            f" {', '.join(missing)}; write them into the platform's YAML file, or measure instead"
        )
    clusters = {cluster.name: cluster for cluster in platform.clusters}
    costs = tuple(
        tuple(
            Cost(predict_layer_ns(graph, layer, clusters[slot.cluster], slot.threads), source="analytic")
            for slot in platform.slots
        )
        for layer in graph.layers
    )
    unknown = [layer.name for layer in graph.layers if layer.macs is None]
    return CostTable(
        model_hash="",
        model_name=graph.name,
        platform_name=platform.name,
        slots=platform.slots,
        costs=costs,
        overhead_ns=tuple(INVOKE_NS for _ in platform.slots),
        whole=tuple(None for _ in platform.slots),
        links=platform.links,
        conditions={
            "method": "analytic",
            "layers_without_macs": unknown,
            "note": "predicted from peak numbers; good for ranking, not for absolute times",
        },
    )


def predict_layer_ns(graph: LayerGraph, layer: Layer, cluster: Cluster, threads: int) -> int:
    """Predict one layer on some cores of a cluster whose peak numbers are known; at least 1 ns."""
    macs_per_s = float(cluster.macs_per_s or 1)
    bytes_per_s = float(cluster.bytes_per_s or 1)
    efficiency = EFFICIENCY.get(layer.op, OTHER_EFFICIENCY)
    peak = macs_per_s * speedup(threads)
    compute_s = (layer.macs or 0) / (peak * efficiency * _width(graph, layer))
    compute_s += (layer.element_ops or 0) / (peak * ELEMENT_EFFICIENCY)
    traffic_s = traffic_bytes(graph, layer) / (bytes_per_s * min(threads, MEMORY_CORES))
    n_kernels = len(layer.inputs) if layer.op in KERNEL_PER_INPUT else 1
    return max(1, round(max(compute_s, traffic_s) * NS_PER_S) + n_kernels * dispatch_ns(layer.op, threads))


def dispatch_ns(op: str, threads: int) -> int:
    """Return what starting a kernel costs, its threads included."""
    heavy = op in EFFICIENCY
    wake_ns = HEAVY_WAKE_NS if heavy else LIGHT_WAKE_NS
    thread_ns = HEAVY_THREAD_NS if heavy else LIGHT_THREAD_NS
    return DISPATCH_NS + (wake_ns if threads > 1 else 0) + (threads - 1) * thread_ns


def speedup(threads: int) -> float:
    """Return Amdahl's speed-up of some threads over one."""
    return 1.0 / (SERIAL_SHARE + (1.0 - SERIAL_SHARE) / threads)


def traffic_bytes(graph: LayerGraph, layer: Layer) -> int:
    """Return the bytes that a layer reads and writes, each tensor once."""
    tensors = {*layer.inputs, *layer.outputs}
    return layer.weight_bytes + sum(graph.tensors[tensor].n_bytes for tensor in tensors)


def _width(graph: LayerGraph, layer: Layer) -> float:
    """Return how much wider than floats the arithmetic is; by the narrowest activation."""
    types = {graph.tensors[tensor].dtype for tensor in (*layer.inputs, *layer.outputs)}
    return max((WIDTH.get(dtype, 1.0) for dtype in types), default=1.0)
