"""``dse merge``: several models as one file."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse merge segmentation.tflite detection.tflite --out both.tflite
  dse merge hand=hand.tflite gesture=embedder.tflite --out both.tflite \\
      --link hand/Identity=gesture/hand --reshape
"""


@click.command(epilog=EPILOG, short_help="Write several models as one workload.")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option(
    "--link", "links", multiple=True, metavar="NAME/OUTPUT=NAME/INPUT", help="One model feeds another."
)
@click.option("--reshape", is_flag=True, help="Links may join other shapes with the same number of elements.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME/INPUT=1x224x224x3", help="Size of an open input."
)
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The new .tflite file.")
@output_options
def merge(
    terminal: Terminal,
    models: tuple[str, ...],
    links: tuple[str, ...],
    reshape: bool,
    shapes: tuple[str, ...],
    out: Path,
) -> None:
    """Write MODELs that run once per frame as one model, for inspect, split, extract and any runtime.

    Layers and tensors get the model's name in front. 'dse run --model A --model B' does the same by itself.
    """
    import tempfile

    from dse.config import experiment_for_models
    from dse.files import write_bytes
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model
    from dse.reports.summary import summarise, summary_json, summary_text
    from dse.workloads import open_source

    if not out.resolve().parent.is_dir():
        raise click.UsageError(f"--out {out}: there is no folder {out.parent}")
    wanted = experiment_for_models(models, links, shapes=shapes, reshape=reshape)
    with tempfile.TemporaryDirectory(prefix="dse-merge-") as folder:
        write_bytes(out, open_source(wanted.model, Path(folder)).data)
    file = read_model(out)
    summary = summarise(file, build_graph(file))
    terminal.result(summary_text(summary), summary_json(summary))
