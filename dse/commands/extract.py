"""``dse extract``: a part of a model on its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dse.commands.options import model_options, output_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dse.parting import Values

EPILOG = """\b
Examples:
  dse extract face.tflite --to conv2d_7/Relu --out head.tflite
  dse extract face.tflite --from conv2d_7/Relu --to Identity --out part.tflite --verify
  dse extract face.tflite --to conv2d_7/Relu --out head.tflite --save values.npz
"""


@click.command(epilog=EPILOG, short_help="Write a part of a model, and look at its tensors.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--from", "start", multiple=True, metavar="TENSOR", help="Begin here [the model's inputs].")
@click.option("--to", "end", multiple=True, metavar="TENSOR", help="End here [the model's outputs].")
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The new .tflite file.")
@click.option(
    "--verify", is_flag=True, help="Put the part back in its place and compare with the whole model."
)
@click.option(
    "--save", type=click.Path(path_type=Path), help="Run the part once; its outputs go to this .npz."
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="For --save: values of an input of the part [drawn for the model's inputs].",
)
@model_options
@output_options
def extract(
    terminal: Terminal,
    model: Path,
    start: tuple[str, ...],
    end: tuple[str, ...],
    out: Path,
    verify: bool,
    save: Path | None,
    inputs: tuple[str, ...],
) -> None:
    """Write the part of MODEL between tensors as a model of its own.

    Tensors are named or numbered as in 'dse inspect MODEL --layers'.
    """
    from dse.parting import extract_model, run_part
    from dse.units import format_bytes

    given: dict[str, Path] = {}
    for text in inputs:
        name, equals, path = text.rpartition("=")
        if not equals or not name:
            raise click.UsageError(f"--input {text!r}: expected NAME=FILE.npy")
        given[name] = Path(path)
    if given and save is None:
        raise click.UsageError("--input is for --save")
    part = extract_model(model, start, end, out, verify=verify)
    lines = [f"{part.path}  {len(part.model.layers)} layers, {format_bytes(part.path.stat().st_size)}"]
    for what, tensors in (("input ", part.model.inputs), ("output", part.model.outputs)):
        lines += [f"  {what}  {t.name}  {t.dtype} {'x'.join(map(str, t.shape)) or 'scalar'}" for t in tensors]
    if part.check is not None:
        lines.append(str(part.check))
    saved = {}
    if save is not None:
        saved = run_part(model, part, given)
        _save(save, saved)
        lines.append(f"{save}  " + ", ".join(f"{name}: {_range(value)}" for name, value in saved.items()))
    tensors_json = [
        [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "n_bytes": t.n_bytes} for t in side]
        for side in (part.model.inputs, part.model.outputs)
    ]
    data = {
        "file": str(part.path),
        "layers": list(part.model.layers),
        "inputs": tensors_json[0],
        "outputs": tensors_json[1],
        "check": None if part.check is None else str(part.check),
        "saved": None if save is None else str(save),
    }
    terminal.result("\n".join(lines), data)


def _save(path: Path, values: Values) -> None:
    import io

    import numpy as np

    from dse.files import write_bytes

    stream = io.BytesIO()
    np.savez(stream, **values)  # type: ignore[arg-type]
    write_bytes(path, stream.getvalue())


def _range(value: npt.NDArray[np.generic]) -> str:
    return f"{value.min():.4g} to {value.max():.4g}" if value.size else "empty"
