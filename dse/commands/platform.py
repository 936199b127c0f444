"""``dse platform``: describe this machine, for a platform file."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse platform detect > board.yaml
  dse platform detect --kernels default --kernels builtin
  dse search --model face.tflite --platform board.yaml
"""


@click.group(short_help="Describe this machine as a platform file.")
def platform() -> None:
    """Describe machines: clusters of alike cores, their clocks and caches."""


@platform.command(epilog=EPILOG)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file, not to stdout.")
@click.option(
    "--accelerators",
    type=click.Choice(["auto", "none", "any"]),
    default="auto",
    help="auto: a GPU that the runtime can use; any: also one emulated in software [auto].",
)
@click.option(
    "--kernels",
    type=click.Choice(["default", "builtin", "reference"]),
    multiple=True,
    help="Kernel libraries that make slots of their own; may be repeated [default].",
)
@output_options
def detect(terminal: Terminal, output: Path | None, accelerators: str, kernels: tuple[str, ...]) -> None:
    """Print this machine as a platform file (YAML).

    Only cores that this process may use are listed, and a GPU where a probe finds that the runtime can
    run models on it (why it can not is told on stderr). What the kernel does not tell - power, peak
    arithmetic, bandwidth - can be added by hand; predictions without measuring need the last two.
    """
    from dse.config import platform_data
    from dse.files import write_text
    from dse.machine import WANTED, describe
    from dse.platforms import KERNELS
    from dse.yaml_io import dump

    wanted = next(name for name in WANTED if name == accelerators)
    found, gpu = describe([name for name in KERNELS if name in (kernels or ("default",))], wanted)
    data = platform_data(found)
    for note in (*found.notes, *([f"no GPU: {gpu}"] if gpu else [])):
        terminal.say(f"note: {note}")
    if output is not None:
        write_text(output, dump(data))
        terminal.say(f"platform file: {output}")
        return
    terminal.result(dump(data).rstrip(), data)
