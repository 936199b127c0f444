"""``dse doctor``: what works on this machine."""

from __future__ import annotations

import textwrap

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

EPILOG = """\b
Examples:
  dse doctor
  dse doctor --json | jq '.checks[] | select(.status != "ok")'
"""
MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
WIDTH = 80


@click.command(epilog=EPILOG, short_help="Check what works on this machine.")
@output_options
def doctor(terminal: Terminal) -> int:
    """Check what works on this machine: runtime, affinity, clocks, temperature, other load.

    Ends with exit code 1 when something that measuring needs does not work.
    """
    from dse.doctor import examine

    checks = examine()
    lines = []
    for check in checks:
        lines += _wrap(check.found, f"{MARKS[check.status]}  {check.name:<12} ")
        if check.advice:
            lines += _wrap(check.advice, " " * 19 + "-> ")
    failed = [check.name for check in checks if check.status == "fail"]
    warned = [check.name for check in checks if check.status == "warn"]
    lines += ["", *_wrap(_verdict(failed, warned), "")]
    data = {
        "ok": not failed,
        "checks": [
            {"name": c.name, "status": c.status, "found": c.found, "advice": c.advice} for c in checks
        ],
    }
    terminal.result("\n".join(lines), data)
    return 1 if failed else 0


def _verdict(failed: list[str], warned: list[str]) -> str:
    if failed:
        return f"Measuring does not work here: {', '.join(failed)}. Search and prediction do."
    if warned:
        return f"Measuring works; numbers may be doubtful: {', '.join(warned)}."
    return "All is well."


def _wrap(text: str, head: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
