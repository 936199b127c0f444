"""``plan.txt``: what runs where and what is handed over, one fact a line, for runners.

The runners of bundles must not need a YAML parser, and two readers of half a YAML would disagree
sooner or later.  So they read this file; its second line binds it to its ``mapping.yaml``::

    tflite-dse plan 1
    mapping SHA256                              of mapping.yaml
    model NAME
    stateful no                                 or yes: frames depend on earlier ones
    queue 2                                     frames that may wait in front of a stage
    input KEY TYPE SHAPE BYTES NAME             of the model, in its order
    output KEY TYPE SHAPE BYTES NAME
    tolerance ABSOLUTE                          of each output, in their order
    lane                                        begins a lane; its stages follow
    stage NAME THREADS CORES KERNELS FILE       CORES such as 4,5; KERNELS default, builtin or reference
    takes KEY TYPE SHAPE BYTES NAME             inputs of that stage, in its file's order
    gives KEY TYPE SHAPE BYTES NAME             outputs

Equal keys are the same tensor.  SHAPE is ``1x224x224x3``, or ``-`` for a single value.  Fields are
separated by one space; in names and files every byte that is not a printable ASCII character, and
``%``, is written as ``%XX``; an empty name is ``%``.
"""

from __future__ import annotations

from dse.pipeline.plan import PipelinePlan, Port

HEADER = "tflite-dse plan 1"


def plan_text(
    plan: PipelinePlan,
    files: dict[str, str],
    *,
    mapping_sha256: str,
    model: str,
    queue_depth: int,
    tolerances: tuple[float, ...],
) -> str:
    """Return the text.

    Parameters
    ----------
    plan
        The stages.
    files
        File by stage name, relative to the bundle.
    mapping_sha256
        Of the bundle's ``mapping.yaml``.
    model
        Name of the model.
    queue_depth
        Frames that may wait in front of a stage.
    tolerances
        Per output of the model.
    """
    lines = [
        HEADER,
        f"mapping {mapping_sha256}",
        f"model {escape(model)}",
        f"stateful {'yes' if plan.stateful else 'no'}",
        f"queue {queue_depth}",
        *(_port("input", port) for port in plan.inputs),
        *(_port("output", port) for port in plan.outputs),
        *(f"tolerance {value:.9g}" for value in tolerances),
    ]
    for lane in plan.lanes:
        lines.append("lane")
        for stage in lane.stages:
            cores = ",".join(str(core) for core in sorted(stage.cores))
            how = f"{stage.threads} {cores} {stage.kernels}"
            lines.append(f"stage {escape(stage.name)} {how} {escape(files[stage.name])}")
            lines += [_port("takes", port) for port in stage.inputs]
            lines += [_port("gives", port) for port in stage.outputs]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Write a name as one field."""
    # Names from a model file may hold bytes that are not UTF-8.
    raw = text.encode("utf-8", "surrogateescape")
    safe = "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x25 else f"%{byte:02X}" for byte in raw)
    return safe or "%"


def _port(word: str, port: Port) -> str:
    shape = "x".join(str(size) for size in port.shape) or "-"
    return f"{word} {port.tensor} {port.dtype} {shape} {port.n_bytes} {escape(port.name)}"
