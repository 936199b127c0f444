"""``dse export --to armnn``: stages that Arm NN takes, a runner for pyarmnn, command lines."""

from __future__ import annotations

import shlex
from pathlib import Path

from dse.deploy.armnn.operators import VERSION, unsupported_layers
from dse.deploy.armnn.stages import acceptable
from dse.deploy.support import describe
from dse.deploy.target import Deployment, Manual, Order, Target
from dse.errors import InputError
from dse.files import write_text
from dse.pipeline.plan import StagePlan
from dse.placement import PlacedStage

_HERE = Path(__file__).parent
_RUNNERS = (_HERE / "run_armnn.py", _HERE.parent / "linux" / "run.py")
_ON_LITERT = "litert_stages.txt"


class ArmNN(Target):
    """Arm NN with its own parser; stages that it can not run may stay in LiteRT."""

    name = "armnn"
    summary = f"Arm NN (parser of {VERSION}): a runner for pyarmnn, command lines for ExecuteNetwork"

    def check(self, order: Order) -> None:
        """Refuse stages with layers that Arm NN does not run, models with state, and accelerators."""
        super().check(order)
        if order.graph.stateful:
            raise InputError(
                f"{order.graph.name} keeps state between frames, which Arm NN's parser does not take: "
                "export it to another target"
            )
        if not order.graph.inputs:
            raise InputError(f"{order.graph.name} has no inputs, and the runner feeds frames through them")
        wanted = {
            layer
            for lane in order.mapping.lanes
            for stage in lane.stages
            if not _on_litert(order, stage)
            for layer in stage.layers
        }
        reasons = unsupported_layers(order.file, order.graph, sorted(wanted))
        if reasons:
            raise InputError(
                f"{order.graph.name}: Arm NN can not run {len(reasons)} of {len(wanted)} layers:\n"
                f"{describe(order.graph, reasons)}\n"
                "To leave these to LiteRT, search again with 'search: {supported_by: {CLUSTER: armnn}}': the "
                "borders of stages then keep them off CLUSTER, and stages elsewhere stay in LiteRT"
            )

    def stage_bytes(self, name: str, data: bytes) -> bytes:
        """Return the stage with its constants worked out (half precision, sparse, quantised)."""
        return acceptable(data)

    def write(self, deployment: Deployment) -> Manual:
        """Write the runner and a command line for each stage."""
        folder, order = deployment.folder, deployment.order
        for path in _RUNNERS:
            write_text(folder / path.name, path.read_text(encoding="utf-8"))
        scripts = folder / "execute_network"
        scripts.mkdir()
        executables = [path.name for path in _RUNNERS]
        on_litert = []
        for at, (placed, planned) in enumerate(zip(order.mapping.lanes, deployment.plan.lanes, strict=True)):
            for number, (stage, files) in enumerate(zip(placed.stages, planned.stages, strict=True)):
                # Not the stage's name: an edited mapping may hold anything.
                place = f"lane{at}.stage{number}"
                if _on_litert(order, stage):
                    on_litert.append(place)
                    continue
                script = scripts / f"{place}.sh"
                write_text(script, _script(place, stage, files, deployment.relative(files.model_path)))
                executables.append(deployment.relative(script))
        if on_litert:
            write_text(folder / _ON_LITERT, "".join(f"{place}\n" for place in on_litert))
        return Manual(_USAGE + (_LITERT_NOTE if on_litert else ""), tuple(executables))


def _on_litert(order: Order, stage: PlacedStage) -> bool:
    """Whether a stage was never meant for Arm NN: the search kept Arm NN to other clusters."""
    wanted = {cluster for cluster, runtime in order.supported_by.items() if runtime == ArmNN.name}
    return bool(wanted) and stage.cluster not in wanted


def _script(place: str, stage: PlacedStage, files: StagePlan, path: str) -> str:
    """Return the command line of a stage, pinned."""
    cores = ",".join(str(core) for core in stage.cores)
    names = [shlex.quote(",".join(port.name for port in side)) for side in (files.inputs, files.outputs)]
    shapes = ":".join(",".join(str(size) for size in port.shape) for port in files.inputs)
    lines = [
        "#!/bin/sh",
        f"# Stage {place} (layers {stage.span}) alone, on cores {cores}, in Arm NN's own program.",
        "# More options go through, for example: -d input.txt, -I 100 (versions from 21.05 on), -e",
        'here=$(cd "$(dirname "$0")/.." && pwd) || exit 1',
        f'exec taskset -c {cores} "${{EXECUTE_NETWORK:-ExecuteNetwork}}" \\',
        f'    -c "${{BACKEND:-CpuAcc}}" -f tflite-binary -m "$here"/{shlex.quote(path)} \\',
        f'    -i {names[0]} -s {shapes} -o {names[1]} "$@"',
    ]
    return "\n".join(lines) + "\n"


_USAGE = f"""\
## Run it with pyarmnn

Python 3.9 or newer with pyarmnn and numpy. Nothing else is needed.

```sh
python3 run_armnn.py --verify         # checksums, and outputs of every lane against the reference
python3 run_armnn.py --frames 200     # frames per second, latency, time of each stage
```

Every stage is a process on its own cores, as `plan.txt` says: it pins itself before Arm NN is loaded,
so that all threads of the backend stay there, and hands frames on through a pipe. `--backends
CpuAcc,CpuRef` (the default) says what to run on; what was found is told. Arm NN {VERSION} takes as many
threads as it likes; they share the cores of their stage. What to expect, above, was found with LiteRT's
kernels; those of Arm NN take times of their own.

## One stage alone, with ExecuteNetwork

`execute_network/laneN.stageN.sh` runs a stage in Arm NN's own program, pinned with `taskset`: for its profile
(`-e`) and for boards without pyarmnn. `EXECUTE_NETWORK` names the program, `BACKEND` the backend
(CpuAcc).

## Notes

- Half-precision, sparse and quantised constants in the stage files were converted to what Arm NN's
  parser takes; the outputs are the same.
- The stages were checked against the operators that Arm NN {VERSION} runs correctly; later versions
  take more.
"""

_LITERT_NOTE = """\
- Stages in `litert_stages.txt` are on clusters that the search kept Arm NN away from: they run in
  LiteRT, which needs the package ai-edge-litert.
"""
