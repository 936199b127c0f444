"""``dse inspect``: what is in a model."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse inspect face.tflite
  dse inspect face.tflite --layers
  dse inspect face.tflite --cuts
  dse inspect face.tflite --json | jq .macs
"""


@click.command(epilog=EPILOG, short_help="Show what is in a model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--layers", is_flag=True, help="Show every layer.")
@click.option("--cuts", is_flag=True, help="Show what a cut after each layer would send over.")
@output_options
def inspect(terminal: Terminal, model: Path, layers: bool, cuts: bool) -> None:
    """Show layers, arithmetic, weights, inputs and outputs of MODEL, and what is unusual about it."""
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model
    from dse.reports.summary import cuts_json, cuts_text, layers_text, summarise, summary_json, summary_text

    file = read_model(model)
    graph = build_graph(file)
    summary = summarise(file, graph)
    text = summary_text(summary)
    if layers:
        text += "\n\n" + layers_text(graph)
    if cuts:
        text += "\n\n" + cuts_text(graph)
    data = summary_json(summary, layers=layers)
    terminal.result(text, {**data, "cuts": cuts_json(graph)} if cuts else data)
