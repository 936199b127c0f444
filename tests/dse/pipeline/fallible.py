"""A chain of three real stages that pass numbers on, but fail or stall on numbers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dse.flatbuffer import records
from dse.flatbuffer.encode import encode
from dse.flatbuffer.schema import builtin
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan

INT32, BOOL = 2, 6
FAILS, STALLS = 1000, 2000
_OPTIONS = {
    "EQUAL": "EqualOptions",
    "CAST": "CastOptions",
    "GATHER": "GatherOptions",
    "MUL": "MulOptions",
    "ADD": "AddOptions",
    "LESS": "LessOptions",
    "WHILE": "WhileOptions",
}


class _Graph:
    def __init__(self, buffers: list[records.Buffer], codes: list[records.OperatorCode]) -> None:
        self._buffers, self._codes = buffers, codes
        self.tensors: list[records.Tensor] = []
        self.operators: list[records.Operator] = []

    def tensor(self, name: str, kind: int = INT32, buffer: int = 0) -> int:
        self.tensors.append(records.Tensor((1,), kind, buffer, name, has_rank=True))
        return len(self.tensors) - 1

    def constant(self, name: str, value: int) -> int:
        self._buffers.append(records.Buffer(np.array([value], np.int32).tobytes()))
        return self.tensor(name, buffer=len(self._buffers) - 1)

    def op(self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **options: int) -> int:
        code = records.OperatorCode(builtin(name))
        if code not in self._codes:
            self._codes.append(code)
        table = records.Options(_OPTIONS[name], options)
        self.operators.append(
            records.Operator(self._codes.index(code), inputs, outputs, builtin_options=table)
        )
        return outputs[0]

    def done(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> records.SubGraph:
        return records.SubGraph(tuple(self.tensors), inputs, outputs, tuple(self.operators), "main")


def _model(number: int, x_name: str, y_name: str) -> bytes:
    """y = x; GATHER refuses an index for FAILS + number, WHILE counts to 2^31 for STALLS + number."""
    buffers, codes = [records.Buffer()], []
    main, condition, body = (_Graph(buffers, codes) for _ in range(3))
    x = main.tensor(x_name)

    def hit(value: int) -> int:
        same = main.op("EQUAL", (x, main.constant(f"v{value}", value)), (main.tensor(f"is{value}", BOOL),))
        number = main.tensor(f"hit{value}")
        return main.op("CAST", (same,), (number,), in_data_type=BOOL, out_data_type=INT32)

    zero = main.constant("zero", 0)
    looked_up = main.op("GATHER", (zero, hit(FAILS + number)), (main.tensor("nothing"),))
    most = main.constant("most", 2**31 - 1)
    limit = main.op("MUL", (hit(STALLS + number), most), (main.tensor("limit"),))
    counted, same_limit = main.tensor("counted"), main.tensor("same_limit")
    main.op("WHILE", (zero, limit), (counted, same_limit), cond_subgraph_index=1, body_subgraph_index=2)
    both = main.op("ADD", (looked_up, counted), (main.tensor("both"),))
    y = main.op("ADD", (x, both), (main.tensor(y_name),))

    count, end = condition.tensor("count"), condition.tensor("end")
    less = condition.op("LESS", (count, end), (condition.tensor("less", BOOL),))
    now, still = body.tensor("count"), body.tensor("end")
    more = body.op("ADD", (now, body.constant("one", 1)), (body.tensor("more"),))
    graphs = (
        main.done((x,), (y,)),
        condition.done((count, end), (less,)),
        body.done((now, still), (more, still)),
    )
    return encode(records.Model(graphs, tuple(codes), tuple(buffers)))


@dataclass(frozen=True)
class Fallible:
    """The chain; frames are single numbers, and outputs the same numbers."""

    folder: Path

    def plan(self, *cores: int) -> PipelinePlan:
        names = ("t0", "t1", "t2", "t3")
        ports = [Port(n, name, "int32", (1,), 4) for n, name in enumerate(names)]
        stages = []
        for number, core in enumerate(cores):
            path = self.folder / f"fallible{number}.tflite"
            path.write_bytes(_model(number, names[number], names[number + 1]))
            ins, outs = (ports[number],), (ports[number + 1],)
            stages.append(StagePlan(f"stage {number}", path, "cpu", (core,), 1, ins, outs))
        return PipelinePlan("fallible", (LanePlan(tuple(stages)),), (ports[0],), (ports[3],))


def frame(value: int) -> tuple[np.ndarray]:
    return (np.array([value], np.int32),)
