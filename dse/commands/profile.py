"""``dse profile``: what each layer costs on each slot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dse.commands.options import experiment_options, output_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.config import Experiment

EPILOG = """\b
Examples:
  dse profile --model face.tflite
  dse profile configs/quickstart.yaml --output costs.json
"""


@click.command(epilog=EPILOG, short_help="Measure what each layer costs on each kind of core.")
@experiment_options
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the cost table to this file.")
@click.option("--layers", is_flag=True, help="Show every layer, not only the costliest.")
@output_options
def profile(terminal: Terminal, load: Callable[..., Experiment], output: Path | None, layers: bool) -> None:
    """Measure (or predict) what each layer costs on each slot.

    What is measured is kept in the cache; an interrupted profile goes on where it stopped.
    """
    if output is not None and not output.resolve().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no folder {output.parent}")
    experiment = load()

    from dse import explore
    from dse.files import write_json
    from dse.reports.costs import costs_text

    with terminal.progress() as progress:
        subject, table = explore.profile(experiment, progress)
    if output is not None:
        write_json(output, table.to_json())
        terminal.say(f"cost table: {output}")
    terminal.result(costs_text(subject.graph, table, every=layers), table.to_json())
