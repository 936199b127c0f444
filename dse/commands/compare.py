"""``dse compare``: what a change of the model or of its mapping gained."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse compare runs/face runs/face-2
  dse compare runs/face runs/face_pruned --layers --html compare.html
  dse compare runs/face runs/face --plan-before 'whole, 1 cpu'
"""


@click.command(epilog=EPILOG, short_help="Compare two runs layer by layer.")
@click.argument("before", type=click.Path(path_type=Path), metavar="RUN_A")
@click.argument("after", type=click.Path(path_type=Path), metavar="RUN_B")
@click.option("--plan-before", metavar="NAME", help="A plan of RUN_A [its answer].")
@click.option("--plan-after", metavar="NAME", help="A plan of RUN_B [its answer].")
@click.option("--layers", is_flag=True, help="Show every layer, not only those that changed most.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write one HTML page.")
@output_options
def compare(
    terminal: Terminal,
    before: Path,
    after: Path,
    plan_before: str | None,
    plan_after: str | None,
    layers: bool,
    page: Path | None,
) -> None:
    """Tell what RUN_B gained over RUN_A: time, throughput, latency and bytes moved, layer by layer.

    The runs may be of different models (layers are aligned by name, then by order and kind) or of one
    model with other mappings.
    """
    if page is not None and not page.resolve().parent.is_dir():
        raise click.UsageError(f"--html {page}: there is no folder {page.parent}")

    from dse.comparing import compare
    from dse.files import write_text
    from dse.past_run import read_run
    from dse.reports.comparison import comparison_html, comparison_json, comparison_text

    found = compare(read_run(before, plan_before), read_run(after, plan_after))
    if page is not None:
        write_text(page, comparison_html(found))
        terminal.say(f"page: {page}")
    terminal.result(comparison_text(found, every=layers), comparison_json(found))
