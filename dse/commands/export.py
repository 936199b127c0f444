"""``dse export``: a bundle that runs a mapping without this product."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse export runs/face --to linux
  dse export runs/face --to android -o face-bundle --force
  dse export runs/face --to armnn
  dse export runs/face --to linux --mapping edited.yaml
"""


@click.command(epilog=EPILOG, short_help="Make a bundle that runs the answer on the product.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, metavar="TARGET", help="linux, android, armnn, arm-compute.")
@click.option("--mapping", type=click.Path(path_type=Path), help="A mapping.yaml, instead of the run's own.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Folder of the bundle [RUN_DIR-TARGET]."
)
@click.option("--force", is_flag=True, help="Replace a bundle that is there.")
@output_options
def export(
    terminal: Terminal, run_dir: Path, target: str, mapping: Path | None, output: Path | None, force: bool
) -> None:
    """Turn the mapping in folder RUN_DIR into a bundle that needs nothing of this product.

    The bundle holds the stages, the mapping, checksums, a README made for it, inputs and outputs to
    check with, and what runs the stages on the target. The same run gives the same bytes.
    """
    from dse.export import Request, export

    with terminal.progress() as progress:
        made = export(Request(run_dir, target, mapping, output, force), progress)
    files = sorted(
        path.relative_to(made.folder).as_posix() for path in made.folder.rglob("*") if path.is_file()
    )
    data = {"bundle": str(made.folder), "target": target, "files": files}
    terminal.result(f"{made.folder}: {len(files)} files for {target}; see its README.md", data)
