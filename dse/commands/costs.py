"""``dse costs``: cost tables from other tools' profiles, and tables put together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.costs import CostTable
    from dse.profiling.importers import Imported

IMPORT_EPILOG = """\b
Examples:
  dse costs import profile.csv --from benchmark_model --model face.tflite --slot "4 big" -o big4.json
  dse costs import armnn.json --from armnn --model face.tflite --slot "1 LITTLE" -o little.json
  dse costs import times.csv --from csv --model face.tflite --slot "1 gpu" -o gpu.json \\
      --column time="Avg ms" --column name=Layer
"""
MERGE_EPILOG = """\b
Examples:
  dse costs merge big4.json little.json -o board.json
  dse profile merge big4.json little.json -o board.json     (the same)
  dse search --model face.tflite --platform board.yaml --set profile.costs=board.json
"""
LEARN_EPILOG = """\b
Example:
  dse costs learn --example a.tflite=a.json --example b.tflite=b.json --example c.tflite=c.json \\
      --model new.tflite -o new.json
"""


@click.group(short_help="Cost tables: import profiles, merge tables, learn from them.")
def costs() -> None:
    """Make cost tables of what other tools measured, put tables together, and learn from them."""


@costs.command("import", epilog=IMPORT_EPILOG)
@click.argument("profile", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "tool",
    required=True,
    type=click.Choice(["benchmark_model", "benchmark_model_proto", "armnn", "csv"]),
    help="What wrote the profile.",
)
@click.option(
    "--model", "-m", required=True, type=click.Path(path_type=Path), help="The profiled .tflite file."
)
@click.option("--slot", required=True, metavar="'N CLUSTER'", help="On what the model ran, e.g. '4 big'.")
@click.option("--platform-name", default="imported", show_default=True, help="For people.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="KEY=COLUMN",
    help="For csv: time, unit (ns, us, ms, s), name, operator, kind, delimiter.",
)
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The cost table.")
@output_options
def import_(
    terminal: Terminal,
    profile: Path,
    tool: str,
    model: Path,
    slot: str,
    platform_name: str,
    columns: tuple[str, ...],
    output: Path,
) -> None:
    """Read a profile of another tool as the costs of one slot.

    Rows are aligned with layers by number, name, then order and kind. A time that stands for many
    layers is never spread over them: those layers have no cost on this slot, and the reason is told.
    """
    from dse.files import write_json
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model
    from dse.profiling.importers import table_of

    place = _slot(slot)
    file = read_model(model)
    graph = build_graph(file)
    found = _read(tool, profile, file.model, graph, columns)
    table = table_of(graph, found, place, model_hash=file.sha256, platform_name=platform_name)
    write_json(output, table.to_json())
    _tell(terminal, table, output, found)


@click.command(epilog=MERGE_EPILOG)
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The merged table.")
@output_options
def merge(terminal: Terminal, tables: tuple[Path, ...], output: Path) -> None:
    """Put the columns of several cost tables of one model side by side.

    A slot that occurs again replaces the earlier column.
    """
    from dse.costs import read_cost_table
    from dse.files import write_json
    from dse.profiling.importers import merge_tables

    merged = merge_tables([read_cost_table(path) for path in tables])
    write_json(output, merged.to_json())
    _tell(terminal, merged, output, None)


costs.add_command(merge)


@costs.command(epilog=LEARN_EPILOG)
@click.option(
    "--example",
    "examples",
    multiple=True,
    required=True,
    metavar="MODEL=COSTS",
    help="A .tflite file and its measured cost table; at least three models for a validation.",
)
@click.option("--model", "-m", required=True, type=click.Path(path_type=Path), help="The model to predict.")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The predicted table.")
@output_options
def learn(terminal: Terminal, examples: tuple[str, ...], model: Path, output: Path) -> None:
    """Predict a model's costs from the measured costs of other models on the same machine.

    Tells how far such predictions were off for each example when it was left out, and which layers
    are unlike all examples. Needs scikit-learn: pip install 'tflite-dse[learned]'.
    """
    from dse.costing import learned_costs
    from dse.files import write_json
    from dse.flatbuffer.layers import build_graph
    from dse.flatbuffer.reader import read_model

    file = read_model(model)
    table = learned_costs(file, build_graph(file), list(map(example_paths, examples)))
    write_json(output, table.to_json())
    told = {"validation": table.conditions["validation"], "outside": table.conditions["outside_range"]}
    lines = [f"cost table: {output} (predicted)"]
    for slot, found in told["validation"].items():
        lines.append(
            f"{slot}: no validation with fewer than three models"
            if found is None
            else f"{slot}: {found['layer_error']:.0%} off per layer, {found['model_error']:.0%} per model"
            f" ({found['n_models']} models, each left out once)"
        )
    lines += [f"outside of the examples: {line}" for line in told["outside"]]
    terminal.result("\n".join(lines), {"output": str(output), **told})


def example_paths(text: str) -> tuple[Path, Path]:
    """Split ``MODEL=COSTS``."""
    model, sign, table = text.rpartition("=")
    if not sign or not model:
        raise click.UsageError(f"--example: expected MODEL=COSTS such as a.tflite=a.json, got {text!r}")
    return Path(model), Path(table)


def _read(tool: str, profile: Path, model: Any, graph: Any, columns: tuple[str, ...]) -> Imported:
    from dse.profiling import importers
    from dse.profiling.importers.generic import columns_from_text

    if tool == "csv":
        return importers.read_csv(profile, graph, columns_from_text(columns))
    if columns:
        raise click.UsageError(f"--column is for --from csv, not for {tool}")
    if tool == "armnn":
        return importers.read_armnn(profile, graph)
    if tool == "benchmark_model_proto":
        return importers.read_benchmark_proto(profile, model, graph)
    return importers.read_benchmark_csv(profile, model, graph)


def _slot(text: str) -> Any:
    from dse.platforms import parse_slot

    slot = parse_slot(text)
    if slot is None:
        raise click.UsageError(
            f"--slot: expected threads and cluster such as '4 big' or '4 big builtin', got {text!r}"
        )
    return slot


def _tell(terminal: Terminal, table: CostTable, output: Path, found: Imported | None) -> None:
    unresolved = list(found.unresolved) if found is not None else []
    n_known = [sum(row[i].median_ns is not None for row in table.costs) for i in range(len(table.slots))]
    lines = [f"cost table: {output}"]
    for slot, known in zip(table.slots, n_known, strict=True):
        lines.append(f"{slot}: {known} of {len(table.costs)} layers have a cost")
    lines += [f"not resolved: {line}" for line in unresolved]
    data = {
        "output": str(output),
        "slots": [str(slot) for slot in table.slots],
        "layers": len(table.costs),
        "layers_with_cost": n_known,
        "unresolved": unresolved,
    }
    terminal.result("\n".join(lines), data)
