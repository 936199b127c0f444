"""``dse platform``: describe this machine, for a platform file."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse platform detect > board.yaml
  dse search --model face.tflite --platform board.yaml
"""


@click.group(short_help="Describe this machine as a platform file.")
def platform() -> None:
    """Describe machines: clusters of alike cores, their clocks and caches."""


@platform.command(epilog=EPILOG)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file, not to stdout.")
@output_options
def detect(terminal: Terminal, output: Path | None) -> None:
    """Print this machine as a platform file (YAML).

    Only cores that this process may use are listed. What the kernel does not tell - power, peak
    arithmetic, bandwidth - can be added by hand; predictions without measuring need the last two.
    """
    from dse.config import platform_data
    from dse.detection import detect_platform
    from dse.files import write_text
    from dse.yaml_io import dump

    found = detect_platform()
    data = platform_data(found)
    for note in found.notes:
        terminal.say(f"note: {note}")
    if output is not None:
        write_text(output, dump(data))
        terminal.say(f"platform file: {output}")
        return
    terminal.result(dump(data).rstrip(), data)
