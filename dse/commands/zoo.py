"""``dse zoo``: well-known architectures with seeded random weights."""

from __future__ import annotations

from pathlib import Path

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

LIST_EPILOG = """\b
Example:
  dse zoo list
"""
BUILD_EPILOG = """\b
Examples:
  dse zoo build mobilenet_v2 mobilenet.tflite
  dse zoo build bert_encoder bert.tflite --set layers=2 --set hidden=128 --set heads=2
"""


@click.group(short_help="Build well-known architectures as .tflite files.")
def zoo() -> None:
    """Build well-known architectures as .tflite files, without any download."""


@zoo.command("list", epilog=LIST_EPILOG)
@output_options
def list_(terminal: Terminal) -> None:
    """List the architectures and their parameters."""
    from dse.units import format_count
    from dse.zoo import ZOO

    lines = []
    for entry in ZOO.values():
        macs = "" if entry.published_macs is None else f" ({format_count(entry.published_macs)} MACs)"
        lines += [f"{entry.name}: {entry.description}{macs}", f"  from {entry.source}"]
        lines += [
            f"  {f'{key}={setting.default}':<18} {setting.meaning} ({setting.low} to {setting.high})"
            for key, setting in entry.settings.items()
        ]
        lines.append("")
    data = [
        {
            "name": entry.name,
            "description": entry.description,
            "source": entry.source,
            "published_macs": entry.published_macs,
            "published_parameters": entry.published_parameters,
            "parameters": {
                key: {
                    "default": setting.default,
                    "low": setting.low,
                    "high": setting.high,
                    "meaning": setting.meaning,
                }
                for key, setting in entry.settings.items()
            },
        }
        for entry in ZOO.values()
    ]
    terminal.result("\n".join(lines).rstrip(), data)


@zoo.command(epilog=BUILD_EPILOG)
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--set", "-s", "settings", multiple=True, metavar="KEY=NUMBER", help="A parameter, see 'list'.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the weights.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@output_options
def build(
    terminal: Terminal, name: str, path: Path, settings: tuple[str, ...], seed: int, force: bool
) -> None:
    """Write architecture NAME to PATH, with seeded random weights."""
    parameters = dict(_parameter(setting) for setting in settings)
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists; use --force to replace it")

    from dse.units import format_bytes
    from dse.zoo import build_file

    build_file(name, path, parameters, seed)
    n_bytes = path.stat().st_size
    terminal.result(
        f"{path}: {name}, {format_bytes(n_bytes)}",
        {"path": str(path), "name": name, "parameters": parameters, "seed": seed, "n_bytes": n_bytes},
    )


def _parameter(text: str) -> tuple[str, int]:
    key, _, value = text.partition("=")
    try:
        return key.strip(), int(value)
    except ValueError:
        raise click.UsageError(f"--set {text}: expected key=whole number, for example layers=2") from None
