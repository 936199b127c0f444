"""``dse split``: cut a model into stage files."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import model_options, output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse split face.tflite --at 20 --at 41 --out stages
  dse split face.tflite --at conv2d_7/Relu --out stages --verify
  dse split face.tflite --mapping runs/face/mapping.yaml --out stages
"""


@click.command(epilog=EPILOG, short_help="Cut a model into stage files.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--at", multiple=True, metavar="LAYER", help="Cut after this layer (number, name or tensor name)."
)
@click.option("--mapping", type=click.Path(path_type=Path), help="Take the stages of a mapping.yaml instead.")
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="A new or empty folder.")
@click.option("--verify", is_flag=True, help="Run whole and stages on the same inputs and compare.")
@model_options
@output_options
def split(
    terminal: Terminal, model: Path, at: tuple[str, ...], mapping: Path | None, out: Path, verify: bool
) -> None:
    """Cut MODEL into stage files that are complete models themselves."""
    from dse.cutting import split_model
    from dse.units import format_bytes

    outcome = split_model(model, at, out, mapping=mapping, verify=verify)
    lines = [f"{path}  {format_bytes(path.stat().st_size)}" for path in outcome.files]
    lines.append(f"{out / 'manifest.json'}  how they connect")
    if outcome.check is not None:
        lines.append(str(outcome.check))
    data = {
        "files": [str(path) for path in outcome.files],
        "manifest": outcome.manifest,
        "check": None if outcome.check is None else str(outcome.check),
    }
    terminal.result("\n".join(lines), data)
