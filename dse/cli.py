"""The command line: commands, exit codes and error messages.

Exit codes: 0 done, 1 the work failed, 2 bad input or usage, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Sequence
from types import FrameType

import click

import dse
from dse.commands import COMMANDS
from dse.commands.terminal import INTERRUPTED
from dse.errors import DseError

EPILOG = """\b
Examples:
  dse run --model face.tflite       find and measure the best mapping on this machine
  dse run configs/quickstart.yaml   the same, with every setting in a file
  dse inspect face.tflite           what is in a model
"""


class _InOrder(click.Group):
    """Lists commands in the order of their use, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 90},
)
@click.version_option(dse.__version__, prog_name="dse")
def cli() -> None:
    """Find, prove and measure the best way to run a .tflite model on a chip with unlike cores."""


for _command in COMMANDS:
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments
        Without the program's name; ``sys.argv`` when None.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Idle threads of numpy's matrix library spin: beside a measurement they disturb it, and on a
    # machine that is busy they make small products ten times slower.  numpy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    handlers = {signal.SIGTERM: _interrupt, signal.SIGHUP: _hang_up}
    # Who is started by nohup lives on when the terminal is closed.
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        return _run(arguments)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(arguments: Sequence[str]) -> int:
    try:
        outcome = cli.main(list(arguments), prog_name="dse", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except (KeyboardInterrupt, click.Abort):
        _say(
            "\ndse: interrupted. What was measured is kept in the cache and in the run folder; "
            "the same command again goes on from there."
        )
        return INTERRUPTED
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) went away: not an error of ours; keep Python quiet at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        code, text = _explain(error)
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        _say(text)
        return code


def _explain(error: Exception) -> tuple[int, str]:
    """Return exit code and message of an error."""
    from solvers.errors import SolverError

    if isinstance(error, DseError):
        faults = getattr(error, "faults", ())
        text = str(error) if len(faults) <= 1 else f"{len(faults)} faults:\n{error}"
        return error.exit_code, f"dse: {text}"
    if isinstance(error, SolverError):
        return 1, f"dse: {error}"
    if isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return 1, f"dse: {what}"
    return 1, (
        f"dse: internal error: {type(error).__name__}: {error}\n"
        "This is a fault of dse, not of your input. Run the same command with --debug and report the trace."
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _hang_up(signum: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C; the terminal has gone, so what is said to it must not fail."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it may come from the shell and from the kernel
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
