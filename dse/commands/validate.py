"""``dse validate``: measure the mapping of an earlier run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from dse.commands.options import output_options, trace_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse validate runs/face
  dse validate runs/face --repeats 20 --seconds 2
  dse validate runs/face --mapping edited.yaml --trace chrome
"""


@click.command(epilog=EPILOG, short_help="Measure the mapping of an earlier run again.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path), help="A mapping.yaml, instead of the run's own.")
@click.option("--repeats", type=click.IntRange(min=1), help="Rounds [as in the run].")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Of one plan in one round.")
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="So often at most, until the machine is as fast as in the run.",
)
@trace_options
@output_options
def validate(
    terminal: Terminal,
    run_dir: Path,
    mapping: Path | None,
    repeats: int | None,
    seconds: float | None,
    tries: int,
    traces: tuple[str, ...],
    annotate: bool,
) -> None:
    """Check outputs and measure the mapping in folder RUN_DIR again, beside the baselines.

    Tells the mapping stage by stage, with errors of the prediction and where cores wait.  Where a plan
    that is not under test shows that the machine is more than 5 % faster or slower than it was in the run,
    everything is measured again; where that does not help, the result is marked as drifted.  Writes
    validation.json and validation.html into the folder, and with --trace validation_trace.pftrace or .json.
    """
    from dse.record import results_json
    from dse.reports.console import bold, plain, result_text
    from dse.reports.validation import validation_lines
    from dse.revalidate import Request, validate, validated

    with terminal.progress() as progress:
        request = Request(run_dir, mapping, repeats, seconds, traces, annotate or None, tries)
        result = validate(request, progress)
    data = {**results_json(result), "run_dir": str(result.run_dir)}
    text = result_text(replace(result, run_dir=None), bold if terminal.colour else plain)
    lines = [text, *validation_lines(result, validated(result)), "", f"Report: {run_dir / 'validation.html'}"]
    terminal.result("\n".join(lines), data)
