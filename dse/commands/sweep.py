"""``dse sweep``: thousands of searches on one machine or many, restartable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dse.commands.options import output_options
from dse.commands.terminal import Terminal

if TYPE_CHECKING:
    from dse.sweeps.definition import SweepFile
    from dse.sweeps.running import Summary

EPILOG = """\b
Examples:
  dse sweep configs/sweep.yaml                     run what has not ended yet
  dse sweep status configs/sweep.yaml              how far it is, what failed and why
  dse sweep results configs/sweep.yaml --where search.goal=throughput --pareto throughput_hz,memory_bytes
  dse sweep resume configs/sweep.yaml              go on after a kill
  dse sweep retry --failed configs/sweep.yaml      run the failed jobs again
  dse sweep cancel configs/sweep.yaml              stop it, wherever it runs
"""
FILE = click.Path(path_type=Path)


class _WithDefault(click.Group):
    """``dse sweep FILE`` means ``dse sweep run FILE``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in ("--fail-fast", "--json", "--quiet", "-q", "--debug"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_WithDefault, epilog=EPILOG, short_help="Run a study of many searches, on one machine or many."
)
def sweep() -> None:
    """Run a study of many searches, on one machine or many: dse sweep FILE.

    FILE expands into jobs. Each is run once; its figures are a row in a database (SQLite or
    PostgreSQL). After a kill, 'resume' runs only what is missing.
    """


def _read(file: Path) -> SweepFile:
    from dse.sweeps.definition import read_sweep

    return read_sweep(file)


def _run(terminal: Terminal, file: Path, **how: bool) -> int:
    from dse.sweeps.running import run_sweep

    definition = _read(file)
    with terminal.progress() as progress:
        summary = run_sweep(definition, progress=progress, **how)
    terminal.result(_summary_text(summary, file), _summary_json(summary))
    return 1 if summary.counts.failed else 0


def _summary_json(summary: Summary) -> dict[str, Any]:
    counts = summary.counts
    return {
        "sweep": summary.name,
        "total": counts.total,
        "done": counts.done,
        "failed": counts.failed,
        "waiting": counts.waiting,
        "running": counts.running,
        "ended_before": summary.n_before,
        **({"notes": list(summary.notes)} if summary.notes else {}),
    }


def _summary_text(summary: Summary, file: Path) -> str:
    counts = summary.counts
    before = f", {summary.n_before} of them before" if summary.n_before else ""
    text = f"{summary.name}: {counts.done} of {counts.total} jobs done{before}"
    if counts.failed:
        text += f", {counts.failed} failed: see 'dse sweep status {file}'"
    return "\n".join([text, *summary.notes, f"The figures: dse sweep results {file}"])


@sweep.command(
    "run", epilog="Example: dse sweep run configs/sweep.yaml", short_help="Run what has not ended."
)
@click.argument("file", type=FILE)
@click.option("--fail-fast", is_flag=True, help="End at the first job that fails.")
@output_options
def run(terminal: Terminal, file: Path, fail_fast: bool) -> int:
    """Expand FILE and run the jobs that have not ended yet."""
    return _run(terminal, file, fail_fast=fail_fast)


@sweep.command(
    "resume", epilog="Example: dse sweep resume configs/sweep.yaml", short_help="Go on after a kill."
)
@click.argument("file", type=FILE)
@click.option("--fail-fast", is_flag=True, help="End at the first job that fails.")
@output_options
def resume(terminal: Terminal, file: Path, fail_fast: bool) -> int:
    """Run what is missing, without expanding FILE again; failed jobs stay failed."""
    return _run(terminal, file, resume=True, fail_fast=fail_fast)


@sweep.command(
    "retry",
    epilog="Example: dse sweep retry --failed configs/sweep.yaml",
    short_help="Run failed jobs again.",
)
@click.argument("file", type=FILE)
@click.option(
    "--failed", is_flag=True, required=True, help="The jobs that failed (there are no others to retry)."
)
@click.option("--fail-fast", is_flag=True, help="End at the first job that fails.")
@output_options
def retry(terminal: Terminal, file: Path, failed: bool, fail_fast: bool) -> int:
    """Run the failed jobs again, and whatever else is missing."""
    return _run(terminal, file, retry_failed=failed, fail_fast=fail_fast)


@sweep.command("cancel", epilog="Example: dse sweep cancel configs/sweep.yaml", short_help="Stop a sweep.")
@click.argument("file", type=FILE)
@output_options
def cancel(terminal: Terminal, file: Path) -> None:
    """Ask every process that runs the sweep to stop; finished jobs stay."""
    from dse.sweeps.running import open_store

    definition = _read(file)
    with open_store(definition, quick=True) as store:
        if not store.has_sweep(definition.name):
            raise click.UsageError(f"the store has no sweep {definition.name!r}")
        store.cancel(definition.name)
        living = [driver for driver, alive in store.drivers(definition.name) if alive]
    where = ", ".join(f"process {driver.pid} on {driver.host}" for driver in living)
    terminal.result(
        f"{definition.name}: asked to stop" + (f" ({where})" if where else "; nothing runs it at the moment"),
        {"sweep": definition.name, "drivers": [{"host": d.host, "pid": d.pid} for d in living]},
    )


@sweep.command(
    "status", epilog="Example: dse sweep status configs/sweep.yaml", short_help="How far a sweep is."
)
@click.argument("file", type=FILE)
@click.option(
    "--failures", "n_shown", type=click.IntRange(0), default=5, show_default=True, help="Failed jobs to show."
)
@output_options
def status(terminal: Terminal, file: Path, n_shown: int) -> None:
    """Show how far a sweep is, who works on it, and the last words of the jobs that failed."""
    from dse.sweeps.running import open_store
    from dse.sweeps.status import read_status, status_text

    definition = _read(file)
    with open_store(definition, quick=True) as store:
        found = read_status(store, definition, n_shown)
    terminal.result(status_text(found), found)


@sweep.command(
    "results",
    epilog="""\b
Examples:
  dse sweep results configs/sweep.yaml --where status=done --pareto throughput_hz,memory_bytes
  dse sweep results configs/sweep.yaml --pivot label,throughput_hz --markdown
  dse sweep results configs/sweep.yaml --csv figures.csv --parquet figures.parquet
""",
    short_help="The figures of the jobs.",
)
@click.argument("file", type=FILE)
@click.option(
    "--where", "conditions", multiple=True, metavar="FIELD=VALUE", help="Only such jobs (also != < <= > >=)."
)
@click.option(
    "--pareto", "axes", metavar="X,Y", help="Mark the jobs that none beats in all of these figures."
)
@click.option("--front-only", is_flag=True, help="With --pareto: only those.")
@click.option("--pivot", metavar="FIELD,FIGURE", help="One column per value of FIELD.")
@click.option("--markdown", "as_markdown", is_flag=True, help="With --pivot: a Markdown table.")
@click.option("--csv", "csv_file", type=FILE, help="Also write a CSV file.")
@click.option("--parquet", "parquet_file", type=FILE, help="Also write a Parquet file.")
@output_options
def results(
    terminal: Terminal,
    file: Path,
    conditions: Sequence[str],
    axes: str | None,
    front_only: bool,
    pivot: str | None,
    as_markdown: bool,
    csv_file: Path | None,
    parquet_file: Path | None,
) -> None:
    """Print, filter and export the figures of the jobs."""
    from dse.reports.console import bold, plain
    from dse.sweeps import results as tables
    from dse.sweeps.running import open_store

    if front_only and axes is None:
        raise click.UsageError("--front-only needs --pareto X,Y")
    definition = _read(file)
    with open_store(definition, quick=True) as store:
        fields = store.fields(definition.name)
        tests = [tables.condition(text, fields) for text in conditions]
        rows = [row for row in store.rows(definition.name) if all(test(row) for test in tests)]
    if axes is not None:
        tables.mark_front(rows, [axis.strip() for axis in axes.split(",")])
        rows = [row for row in rows if row[tables.FRONT] or not front_only]
    table = tables.Table(fields, tuple(rows))
    if csv_file is not None:
        tables.write_csv(csv_file, table)
    if parquet_file is not None:
        tables.write_parquet(parquet_file, table)
    style = bold if terminal.colour else plain
    if pivot is not None:
        across, comma, figure = pivot.partition(",")
        if not comma:
            raise click.UsageError("--pivot: expected FIELD,FIGURE, for example label,throughput_hz")
        header, cells = tables.pivot(table, across.strip(), figure.strip())
        text = tables.markdown(header, cells) if as_markdown else tables.columns_text(header, cells, style)
        terminal.result(text, [dict(zip(header, line, strict=True)) for line in cells])
        return
    terminal.result(tables.results_text(table, style), tables.to_json(table))
