"""``dse inspect``: what is in a model."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import model_options, output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse inspect face.tflite
  dse inspect face.tflite --layers
  dse inspect face.tflite --cuts
  dse inspect face.tflite --svg face.svg
  dse inspect 'hands.task!hand_detector.tflite' --shape input_1=1x192x192x3
  dse inspect face.tflite --json | jq .macs
"""


@click.command(epilog=EPILOG, short_help="Show what is in a model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--layers", is_flag=True, help="Show every layer.")
@click.option("--cuts", is_flag=True, help="Show what a cut after each layer would send over.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the layers into this file.")
@click.option("--dot", type=click.Path(path_type=Path), help="The same for Graphviz.")
@model_options
@output_options
def inspect(
    terminal: Terminal, model: Path, layers: bool, cuts: bool, svg: Path | None, dot: Path | None
) -> None:
    """Show layers, arithmetic, weights, inputs and outputs of MODEL, and what is unusual about it."""
    from dse.files import write_text
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model
    from dse.graph_drawing import graph_dot, graph_svg
    from dse.reports.summary import cuts_json, cuts_text, layers_text, summarise, summary_json, summary_text

    file = read_model(model)
    graph = build_graph(file)
    summary = summarise(file, graph)
    text = summary_text(summary)
    if layers:
        text += "\n\n" + layers_text(graph)
    if cuts:
        text += "\n\n" + cuts_text(graph)
    for path, draw in ((svg, graph_svg), (dot, graph_dot)):
        if path is not None:
            write_text(path, draw(graph))
            text += f"\n\n{path}  the layers, drawn"
    data = summary_json(summary, layers=layers)
    terminal.result(text, {**data, "cuts": cuts_json(graph)} if cuts else data)
