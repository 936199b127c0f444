"""``dse profile``: what each layer costs on each slot, and tables put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dse.commands.costs import example_paths, merge
from dse.commands.options import experiment_options, output_options, quote
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.config import Experiment

MEASURE = "measure"
LEARNED = "learned"
EPILOG = """\b
Examples:
  dse profile --model face.tflite
  dse profile configs/quickstart.yaml --output costs.json
  dse profile --model face.tflite --method extracted --precision 0.01 --budget-s 60 --refresh
  dse profile --model face.tflite --reuse costs.json --span 0:16 --span conv_7:softmax -o more.json
  dse profile --model face.tflite --predict configs/platforms/hikey970.yaml
  dse profile --model new.tflite --predict board.yaml --predictor learned \\
      --example a.tflite=a.json --example b.tflite=b.json --example c.tflite=c.json
  dse profile merge big4.json little.json -o board.json
"""


class _WithDefault(click.Group):
    """A group whose first command may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault, short_help="Measure what each layer costs on each kind of core.")
def profile() -> None:
    """Measure what each layer costs on each slot, or put such tables together."""


@profile.command(MEASURE, epilog=EPILOG)
@experiment_options
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the cost table to this file.")
@click.option("--layers", is_flag=True, help="Show every layer, not only the costliest.")
@click.option(
    "--method",
    type=click.Choice(["auto", "in_situ", "extracted"]),
    help="Inside the whole model, each layer as a model of its own, or (auto) the second where needed.",
)
@click.option(
    "--load",
    "condition",
    type=click.Choice(["isolated", "loaded", "both"]),
    help="What the other cores do: nothing, the same model, or both measured in turn.",
)
@click.option("--precision", type=float, help="Stop when medians are known to this share, e.g. 0.03.")
@click.option("--budget-s", type=float, help="Time for measuring the layers, in seconds.")
@click.option("--refresh", is_flag=True, help="Measure again what the cache holds.")
@click.option(
    "--reuse",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="COSTS",
    help="A measured cost table that supplies what it can; only the rest is measured.",
)
@click.option(
    "--span", "spans", multiple=True, metavar="FROM:TO", help="Also measure these layers as one stage."
)
@click.option(
    "--predict",
    metavar="PLATFORM.yaml",
    help="Measure nothing: predict for this platform (auto: this machine).",
)
@click.option(
    "--predictor",
    type=click.Choice(["analytic", "learned"]),
    help="From the peaks that the platform's file gives [default], or learned from examples.",
)
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="MODEL=COSTS",
    help="For --predictor learned: a model and its measured cost table.",
)
@output_options
def measure(
    terminal: Terminal,
    load: Callable[..., Experiment],
    output: Path | None,
    layers: bool,
    spans: tuple[str, ...],
    predict: str | None,
    **options: Any,
) -> None:
    """Measure (or predict) what each layer costs on each slot.

    What is measured is kept in the cache; an interrupted profile goes on where it stopped. The
    costs of several tables are put together by 'dse profile merge'.
    """
    if output is not None and not output.resolve().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no folder {output.parent}")
    experiment = load(*_settings(predict, spans, **options))

    from dse import explore
    from dse.files import write_json
    from dse.reports.costs import costs_text

    with terminal.progress() as progress:
        subject, table = explore.profile(experiment, progress, spans)
    if output is not None:
        write_json(output, table.to_json())
        terminal.say(f"cost table: {output}")
    terminal.result(costs_text(subject.graph, table, every=layers), table.to_json())


profile.add_command(merge)


def _settings(
    predict: str | None,
    spans: tuple[str, ...],
    *,
    predictor: str | None,
    method: str | None,
    condition: str | None,
    precision: float | None,
    budget_s: float | None,
    refresh: bool,
    reuse: tuple[Path, ...],
    examples: tuple[str, ...],
) -> list[str]:
    """Return what the options say, as settings of the experiment."""
    given = {"--method": method, "--load": condition, "--refresh": refresh, "--reuse": reuse, "--span": spans}
    measuring = [name for name, value in given.items() if value]
    if predict is not None and measuring:
        raise click.UsageError(f"--predict measures nothing, so {measuring[0]} can not be given beside it")
    if predictor is not None and predict is None:
        raise click.UsageError("--predictor goes with --predict PLATFORM.yaml")
    if bool(examples) != (predictor == LEARNED):
        raise click.UsageError("--predictor learned and --example MODEL=COSTS go together")
    found: dict[str, object] = {
        "method": method,
        "load": condition,
        "precision": precision,
        "budget_s": budget_s,
        "refresh": "true" if refresh else None,
    }
    if reuse:
        found["reuse"] = f"[{', '.join(quote(str(path.absolute())) for path in reuse)}]"
    if predict is not None:
        found["method"] = predictor or "analytic"
    if examples:
        pairs = [example_paths(text) for text in examples]
        members = (
            f"{{model: {quote(str(a.absolute()))}, costs: {quote(str(b.absolute()))}}}" for a, b in pairs
        )
        found["examples"] = f"[{', '.join(members)}]"
    settings = [f"profile.{name}={value}" for name, value in found.items() if value is not None]
    if predict is not None:
        settings.append(f"platform={predict if predict == 'auto' else quote(str(Path(predict).absolute()))}")
    return settings
