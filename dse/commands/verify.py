"""``dse verify``: check a bundle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse verify runs/face-linux
  dse verify face-bundle --files-only
"""


@click.command(epilog=EPILOG, short_help="Check the files and outputs of a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--files-only", is_flag=True, help="Checksums only; run nothing.")
@output_options
def verify(terminal: Terminal, bundle: Path, files_only: bool) -> None:
    """Check the checksums of BUNDLE, and its outputs against its reference, on this machine."""
    from dse.deploy.check import check_bundle

    found = check_bundle(bundle, run=not files_only)
    text = f"{found.n_files} files are as they were exported"
    if found.n_frames:
        text += f"; every lane gives the reference outputs of {found.n_frames} frames"
    terminal.result(text, {"bundle": str(bundle), **asdict(found)})
