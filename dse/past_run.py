"""Reading back the folder of a finished run: what its plan was, and what each layer costs in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dse.costs import CostTable
from dse.errors import InputError
from dse.graph import LayerGraph
from dse.mapping_file import parse_span
from dse.platforms import Slot
from dse.profiling.analytic import traffic_bytes
from dse.results import RESULTS_FORMAT, RESULTS_VERSION

LAYERS_NAME = "layers.json"
LAYERS_FORMAT = "tflite-dse layers"
LAYERS_VERSION = 1


@dataclass(frozen=True, slots=True)
class PastLayer:
    """A layer of a run.

    Parameters
    ----------
    name, op, key, network
        As in the layer graph; ``network`` is empty for a plain model.
    macs, weight_bytes
        As in the layer graph.
    moved_bytes
        Weights, inputs and outputs: what is read and written for a frame where nothing stays in caches.
    time_ns
        Of one frame in the run's plan, its mean over the lanes by their rates.
    slots
        Where it runs in that plan.
    """

    name: str
    op: str
    key: str
    network: str
    macs: int | None
    weight_bytes: int
    moved_bytes: int
    time_ns: int
    slots: tuple[str, ...]


@dataclass(frozen=True)
class PastRun:
    """A finished run and one of its plans.

    Parameters
    ----------
    folder
        Where it was read.
    model, model_hash, platform, plan
        What was run, where, and the plan's name.
    mapping
        The plan in one line for people.
    measured
        Whether the plan was measured.
    layers
        In execution order.
    figures
        ``throughput_hz``, ``latency_ns``, ``full_latency_ns``, ``memory_bytes``, ``cut_bytes``,
        ``missed_bytes`` as far as they are known.
    caution
        What a reader must know about the figures, or empty.
    """

    folder: Path
    model: str
    model_hash: str
    platform: str
    plan: str
    mapping: str
    measured: bool
    layers: tuple[PastLayer, ...]
    figures: dict[str, float]
    caution: str = ""


def layers_json(graph: LayerGraph) -> dict[str, Any]:
    """Return ``layers.json``: what later comparisons need to know of each layer."""
    network_of = {layer: network.name for network in graph.networks for layer in network.layers}
    return {
        "format": LAYERS_FORMAT,
        "version": LAYERS_VERSION,
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "key": layer.key,
                "network": network_of.get(layer.index, ""),
                "macs": layer.macs,
                "weight_bytes": layer.weight_bytes,
                "moved_bytes": traffic_bytes(graph, layer),
                "inputs": [[tensor, graph.tensors[tensor].n_bytes] for tensor in layer.inputs],
                "outputs": [[tensor, graph.tensors[tensor].n_bytes] for tensor in layer.outputs],
            }
            for layer in graph.layers
        ],
    }


def read_run(folder: Path, plan: str | None = None) -> PastRun:
    """Read a run folder.

    Parameters
    ----------
    folder
        Of a finished run.
    plan
        Name of one of its plans; by default its answer.

    Raises
    ------
    InputError
        It is no folder of a finished run, a file is missing or damaged, the files do not belong
        together, or there is no such plan; the message names the file.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: expected the folder of a run, there is no such folder")
    results = _load(folder / "results.json", RESULTS_FORMAT, RESULTS_VERSION)
    status = results.get("status")
    if status != "done":
        raise InputError(
            f"{folder}: expected a finished run, this one has status {status!r}: {results.get('error')}"
        )
    costs = CostTable.from_json(_json(folder / "costs.json"), str(folder / "costs.json"))
    data = _load(folder / LAYERS_NAME, LAYERS_FORMAT, LAYERS_VERSION)
    where = folder / "results.json"
    try:
        return _run(folder, results, costs, data["layers"], plan)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{where}: damaged ({type(error).__name__}: {error})") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path.parent}: not the folder of a finished run of this version ({path.name} is missing); "
            "run it again"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: can not be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: not JSON: {error}") from None


def _load(path: Path, form: str, version: int) -> dict[str, Any]:
    data = _json(path)
    if not isinstance(data, dict) or data.get("format") != form:
        raise InputError(f"{path}: expected a {form!r} file (field 'format')")
    if data.get("version") != version:
        raise InputError(f"{path}: version {data.get('version')!r}, expected {version}")
    return data


@dataclass(frozen=True, slots=True)
class _Stage:
    name: str
    layers: tuple[int, ...]
    slot: Slot
    busy_ns: int
    compute_ns: int


def _run(
    folder: Path, results: dict[str, Any], costs: CostTable, rows: Sequence[dict[str, Any]], name: str | None
) -> PastRun:
    name = str(results["winner"]) if name is None else name
    plans = {str(plan["name"]): plan for plan in results["plans"]}
    # Equal plans share an entry: 'copies, 2 x 1 cpu = best mix'.
    names = {part: whole for whole in reversed(plans) for part in (*whole.split(" = "), whole)}
    if name not in names:
        raise InputError(f"{folder}: there is no plan {name!r}; it has {', '.join(map(repr, plans))}")
    name = names[name]
    plan = plans[name]
    n_layers = len(rows)
    if len(costs.costs) != n_layers or results["model"]["n_layers"] != n_layers:
        raise InputError(
            f"{folder}: its files do not belong together: {LAYERS_NAME} has {n_layers} layers, costs.json "
            f"{len(costs.costs)}, results.json {results['model']['n_layers']}"
        )
    lanes = _lanes(plan, n_layers, folder)
    times, slots = _times(lanes, costs)
    measured = plan["measured"]
    layers = tuple(
        PastLayer(
            name=str(row["name"]),
            op=str(row["op"]),
            key=str(row["key"]),
            network=str(row["network"]),
            macs=None if row["macs"] is None else int(row["macs"]),
            weight_bytes=int(row["weight_bytes"]),
            moved_bytes=int(row["moved_bytes"]),
            time_ns=round(times[number]),
            slots=slots[number],
        )
        for number, row in enumerate(rows)
    )
    return PastRun(
        folder=folder,
        model=str(results["model"]["name"]),
        model_hash=str(results["model"]["sha256"]),
        platform=str(results["platform"]["name"]),
        plan=name,
        mapping=_mapping_text(lanes),
        measured=measured is not None,
        layers=layers,
        figures={**_figures(plan), "cut_bytes": _cut_bytes(lanes, rows)},
        caution="other work disturbed its measurement" if measured and measured["disturbed"] else "",
    )


def _mapping_text(lanes: Sequence[Sequence[_Stage]]) -> str:
    counts = Counter(" > ".join(str(stage.slot) for stage in lane) for lane in lanes)
    return " | ".join(text if n == 1 else f"{n} x ({text})" for text, n in counts.items())


def _figures(plan: dict[str, Any]) -> dict[str, float]:
    real = plan["measured"]
    found: dict[str, Any] = {
        "throughput_hz": (real or plan["predicted"])["throughput_hz"],
        "latency_ns": real["empty_latency_ns"] if real else plan["predicted"]["latency_ns"],
        "full_latency_ns": real["latency_ns"] if real else None,
        "memory_bytes": (real or plan["predicted"])["memory_bytes"],
        "missed_bytes": ((real or {}).get("diagnosis") or {}).get("memory_bytes"),
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def _lanes(plan: dict[str, Any], n_layers: int, folder: Path) -> list[list[_Stage]]:
    numbers = {stage["name"]: stage for stage in plan["stages"]}
    lanes = []
    for lane in plan["mapping"]:
        stages = []
        for stage in lane:
            layers = parse_span(str(stage["layers"]))
            if layers is None:
                raise ValueError(f"layers {stage['layers']!r} of {stage['name']}")
            own = numbers[stage["name"]]
            busy, compute = (
                own[f"measured_{kind}_ns"]
                if own[f"measured_{kind}_ns"] is not None
                else own[f"predicted_{kind}_ns"]
                for kind in ("busy", "compute")
            )
            slot = Slot(str(stage["cluster"]), int(stage["threads"]), stage.get("kernels", "default"))
            stages.append(_Stage(str(stage["name"]), layers, slot, max(1, int(busy)), int(compute)))
        if sorted(layer for stage in stages for layer in stage.layers) != list(range(n_layers)):
            raise InputError(
                f"{folder}: its files do not belong together: a lane of {plan['name']!r} does not hold "
                f"each of the {n_layers} layers once"
            )
        lanes.append(stages)
    if not lanes:
        raise ValueError("the plan has no lane")
    return lanes


def _rates(lanes: Sequence[Sequence[_Stage]]) -> list[float]:
    rates = [1 / max(stage.busy_ns for stage in lane) for lane in lanes]
    return [rate / sum(rates) for rate in rates]


def _times(lanes: Sequence[Sequence[_Stage]], costs: CostTable) -> tuple[list[float], list[tuple[str, ...]]]:
    """Divide each stage's time by the layers' costs; returns times and slots by layer."""
    table = costs.calibrated_ns
    times = [0.0] * len(table)
    slots: list[dict[str, None]] = [{} for _ in table]
    for lane, rate in zip(lanes, _rates(lanes)):
        for stage in lane:
            if stage.slot not in costs.slots:
                raise ValueError(f"costs.json has no slot {str(stage.slot)!r}")
            column = costs.slots.index(stage.slot)
            own = {layer: table[layer][column] or 0 for layer in stage.layers}
            total = sum(own.values())
            for layer, value in own.items():
                part = value / total if total else 1 / len(own)
                times[layer] += rate * stage.compute_ns * part
                slots[layer][str(stage.slot)] = None
    return times, [tuple(found) for found in slots]


def _cut_bytes(lanes: Sequence[Sequence[_Stage]], rows: Sequence[dict[str, Any]]) -> float:
    """Bytes that stages receive from other stages for a frame, mean over the lanes by their rates."""
    total = 0.0
    for lane, rate in zip(lanes, _rates(lanes)):
        made = {
            int(t): n for n, s in enumerate(lane) for layer in s.layers for t, _ in rows[layer]["outputs"]
        }
        for number, stage in enumerate(lane):
            received = {
                int(tensor): int(size)
                for layer in stage.layers
                for tensor, size in rows[layer]["inputs"]
                if made.get(int(tensor), number) != number
            }
            total += rate * sum(received.values())
    return total


def layer_json(layer: PastLayer | None) -> dict[str, Any] | None:
    """Return a layer as plain data."""
    return None if layer is None else asdict(layer)
