"""``dse export --to arm-compute``: a program on the Arm Compute Library, and its weights."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np

from dse.deploy.arm_compute.translate import TRANSLATIONS, StageCode, stage_code, unsupported_layers
from dse.deploy.plan_text import escape
from dse.deploy.support import describe
from dse.deploy.target import Deployment, Manual, Order, Target
from dse.errors import InputError
from dse.files import write_bytes, write_text

LIBRARY = "20.08"
_OWN = (
    "CMakeLists.txt",
    "bundle.cpp",
    "bundle.hpp",
    "lanes.cpp",
    "lanes.hpp",
    "main.cpp",
    "net.cpp",
    "net.hpp",
)
_OF_THE_C_RUNNER = ("files.c", "files.h", "litert.h", "plan.c", "plan.h")
_HERE = Path(__file__).parent
_HEAD = """\
// The stages of {model} on the graph API of the Arm Compute Library, made by tflite-dse.
// Values lie as in the .tflite file (channels last); the library names dimensions fastest first.
#include "net.hpp"

using namespace arm_compute;
using namespace arm_compute::graph;
using namespace arm_compute::graph::frontend;

namespace {{

"""


class ArmCompute(Target):
    """Generates C++ for each stage; weights are .npy files beside it."""

    name = "arm-compute"
    summary = f"C++ on the graph API of the Arm Compute Library {LIBRARY}, weights as .npy files"

    def check(self, order: Order) -> None:
        """Refuse operators and types that the graph API does not express, state, and accelerators."""
        super().check(order)
        if order.graph.stateful:
            raise InputError(
                f"{order.graph.name} keeps state between frames, which graphs of the Arm Compute Library "
                "do not: export it to another target"
            )
        for index in order.graph.outputs:
            if order.graph.tensors[index].kind == "constant":
                name = order.graph.tensors[index].name
                raise InputError(
                    f"{order.graph.name}: its output {name!r} is a constant, which no graph computes"
                )
        reasons = unsupported_layers(order.file, order.graph)
        if reasons:
            raise InputError(
                f"{order.graph.name}: {len(reasons)} of its {len(order.graph.layers)} layers can not be put "
                f"into the graph API of the Arm Compute Library:\n{describe(order.graph, reasons)}\n"
                f"Supported operators, in float32: {', '.join(sorted(TRANSLATIONS))}"
            )

    def write(self, deployment: Deployment) -> Manual:
        """Write sources and weights."""
        source, weights = deployment.folder / "source", deployment.folder / "weights"
        source.mkdir()
        weights.mkdir()
        paths = [_HERE / "source" / name for name in _OWN]
        paths += [_HERE.parent / "native" / name for name in _OF_THE_C_RUNNER]
        for path in paths:
            write_text(source / path.name, path.read_text(encoding="utf-8"))
        codes = _codes(deployment)
        write_text(source / "graphs.cpp", graphs_source(deployment.order.graph.name, codes))
        arrays = {name: values for code in codes.values() for name, values in code.arrays.items()}
        for name, values in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, values, version=(1, 0), allow_pickle=False)
            write_bytes(weights / name, content.getvalue())
        return Manual(_USAGE)


def _codes(deployment: Deployment) -> dict[str, StageCode]:
    """Return the code of each stage file."""
    order, found = deployment.order, dict[str, StageCode]()
    for lane in deployment.content.mapping.lanes:
        for stage in lane.stages:
            file = deployment.content.files[stage.name]
            if file not in found:
                name = f"build_{len(found)}_{re.sub('[^A-Za-z0-9]+', '_', stage.span)}"
                found[file] = stage_code(order.file, order.graph, stage.layers, name)
    return found


def graphs_source(model: str, codes: dict[str, StageCode]) -> str:
    """Return ``graphs.cpp``.

    Parameters
    ----------
    model
        Name of the model.
    codes
        Code by stage file, as ``plan.txt`` names it.
    """
    functions = "\n".join(code.code for code in codes.values())
    table = "".join(f"    {{{_text(file)}, {code.name}}},\n" for file, code in codes.items())
    return (
        f"{_HEAD.format(model=escape(model).replace('??', '?%3F'))}{functions}\n}}  // namespace\n\n"
        f"const std::vector<StageGraph> graphs = {{\n{table}}};\n"
    )


def _text(text: str) -> str:
    """Write a text as C++ does, whatever is in it."""
    raw = text.encode("utf-8", "surrogateescape")
    return (
        '"'
        + "".join(chr(b) if (b < 0x80 and chr(b).isalnum()) or b in b"/._-+" else f"\\{b:03o}" for b in raw)
        + '"'
    )


_USAGE = f"""\
## Build

`source/` is a C++14 program on the graph API of the Arm Compute Library {LIBRARY} (Debian and Ubuntu:
`libarm-compute-dev`). On the board:

    cmake -S source -B build && cmake --build build

Or on another machine, against the library of the board's system:

    aarch64-linux-gnu-gcc -O2 -c source/plan.c source/files.c
    aarch64-linux-gnu-g++ -std=c++14 -O2 source/*.cpp plan.o files.o -o pipeline \\
        -larm_compute_graph -larm_compute -larm_compute_core -lpthread

`source/graphs.cpp` is the model: a function for each stage. The rest is the same in every bundle.
To measure the whole model without stages, export a mapping of one stage.

## Check and measure

    build/pipeline . --verify        # every lane on the reference frames; exit code 1 when outputs differ
    build/pipeline . --frames 200    # time of each stage, latency, frames per second

The program first checks `SHA256SUMS` (`--no-sums` leaves it out), runs the reference frames through
every lane, and says which cores each thread may use. `--no-pin` leaves the cores to the system.
What to expect, above, was found with LiteRT's kernels; this library's take times of their own.

## Cores

The library has one scheduler for a whole process. The program registers one that hands each request to
a pool of the stage that asks, so every stage has its own threads on its own cores, as `plan.txt` says:
the stage's thread is the first of them. All lanes and stages run in this one process at the same time.

## Notes

- All values are 32-bit floats; half-precision, sparse and quantised constants were converted.
- The graph API knows no dilated convolutions: their weights are written out with zeros.
- RESIZE_BILINEAR is two matrix products: the library's own layer differs at the border.
- A multiplication and an addition by constants per channel became one batch normalisation, which the
  library merges into a convolution in front of it.
"""
