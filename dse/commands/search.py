"""``dse search``: find the best mapping without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dse.commands.options import experiment_options, output_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.config import Experiment

EPILOG = """\b
Examples:
  dse search configs/bert_pins_hikey970.yaml
  dse search --model face.tflite --set profile.costs=costs.json
"""


@click.command(epilog=EPILOG, short_help="Find the best mapping by prediction only.")
@experiment_options
@output_options
def search(terminal: Terminal, load: Callable[..., Experiment]) -> None:
    """Find and prove the best mapping by prediction; no plan is run.

    Costs come from a saved table (profile.costs), the cache, a prediction, or are measured first.
    """
    experiment = load()

    from dse import explore
    from dse.record import results_json
    from dse.reports.console import bold, plain, result_text

    with terminal.progress() as progress:
        result = explore.search(experiment, progress)
    terminal.result(result_text(result, bold if terminal.colour else plain), results_json(result))
