"""``dse run``: from a model to a measured mapping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dse.commands.options import experiment_options, output_options, quote, trace_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.config import Experiment

EPILOG = """\b
Examples:
  dse run configs/quickstart.yaml
  dse run --model face.tflite
  dse run --model seg=segmentation.tflite --model face=detection.tflite
  dse run --model face.tflite --trace perfetto --trace chrome
  dse run --model face.tflite --set search.goal=latency --output /tmp/runs
"""


@click.command(epilog=EPILOG, short_help="Find, prove and measure the best mapping of a model.")
@experiment_options
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder of the run folders [runs].")
@click.option("--name", "-n", help="Name of the run folder [name of CONFIG or of the model].")
@click.option("--no-measure", is_flag=True, help="Search only: run no plan.")
@trace_options
@output_options
def run(
    terminal: Terminal,
    load: Callable[..., Experiment],
    output: Path | None,
    name: str | None,
    no_measure: bool,
    traces: tuple[str, ...],
    annotate: bool,
) -> None:
    """Find, prove and measure the best mapping of a model.

    Reads the model, measures its layers on every kind of core, searches exactly, cuts the model,
    runs the best plans and the baselines as real pipelines, and leaves a run folder with a report.
    """
    settings = []
    if output is not None:
        settings.append(f"output={quote(str(output))}")
    if name is not None:
        settings.append(f"name={quote(name)}")
    if no_measure:
        settings.append("measure.enabled=false")
    if traces:
        settings.append(f"measure.traces=[{', '.join(traces)}]")
    if annotate:
        settings.append("measure.annotate=true")
    experiment = load(*settings)

    from dse import explore
    from dse.record import results_json
    from dse.reports.console import bold, plain, result_text

    with terminal.progress() as progress:
        result = explore.run(experiment, progress)
    data = {**results_json(result), "run_dir": str(result.run_dir)}
    terminal.result(result_text(result, bold if terminal.colour else plain), data)
