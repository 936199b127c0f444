"""``dse search``: find the best mapping without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dse.commands.options import experiment_options, output_options
from dse.commands.terminal import INTERRUPTED, Terminal

if TYPE_CHECKING:
    from dse.config import Experiment
    from dse.results import RunResult

EPILOG = """\b
Examples:
  dse search configs/bert_pins_hikey970.yaml
  dse search --model face.tflite --set profile.costs=costs.json
  dse search --model face.tflite --what-if
"""


@click.command(epilog=EPILOG, short_help="Find the best mapping by prediction only.")
@experiment_options
@click.option(
    "--what-if",
    "ask",
    is_flag=True,
    help="Also tell what cheaper layers, more cores and more memory would gain, mapped anew, and how "
    "sure that is; searches that this takes have search.time_s once more.",
)
@output_options
def search(terminal: Terminal, load: Callable[..., Experiment], ask: bool) -> int:
    """Find and prove the best mapping by prediction; no plan is run.

    Costs come from a saved table (profile.costs), the cache, a prediction, or are measured first.
    Ctrl-C ends the search with the best found so far (exit code 130); twice ends it without.
    """
    experiment = load()

    from dse import explore
    from dse.record import results_json
    from dse.reports.console import bold, plain, result_text

    if not ask:
        with terminal.progress() as progress:
            result = explore.search(experiment, progress)
        return _show(terminal, result)

    from dse.reports.what_if_report import what_if_json, what_if_text
    from dse.sensitivity import search_what_if

    with terminal.progress() as progress:
        result, sensitivity = search_what_if(experiment, progress)
    if sensitivity is None:
        return _show(terminal, result)
    style = bold if terminal.colour else plain
    found, slots = sensitivity.found, sensitivity.slots
    terminal.result(
        f"{result_text(result, style)}\n\n{what_if_text(result, found, slots)}",
        {**results_json(result), "what_if": what_if_json(result, found, slots)},
    )
    return INTERRUPTED if found.interrupted else 0


def _show(terminal: Terminal, result: RunResult) -> int:
    """Print the result of a search and return the exit code."""
    from dse.record import results_json
    from dse.reports.console import bold, plain, result_text

    interrupted = result.proof.interrupted
    data = results_json(result, "interrupted" if interrupted else "done")
    terminal.result(result_text(result, bold if terminal.colour else plain), data)
    return INTERRUPTED if interrupted else 0
