"""The self-contained report of a run: one HTML file, no network, no scripts.

Names of models, tensors and devices come from files of strangers: everything is escaped by the
template engine, control characters are replaced, and the page forbids scripts and any loading.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dse
from dse.elsewhere import elsewhere
from dse.files import write_text
from dse.reports.console import printable
from dse.reports.cost_table import cost_view
from dse.reports.diagnosis import diagnosis_rows, machine_facts
from dse.reports.network_report import CORE_HEADS, HEADS, network_view
from dse.reports.plan_chart import plan_chart
from dse.reports.strip import strips
from dse.reports.timeline import timeline
from dse.reports.wording import (
    answer,
    cores_text,
    first_name,
    format_energy,
    format_share,
    gain,
    labels,
    latency_ns,
    measured_earlier,
    price_of_wishes,
    proof_text,
    shape,
)
from dse.results import RunResult, score
from dse.units import format_bytes, format_count, format_hz, format_ns

TEMPLATES = Path(__file__).parent / "templates"
MAX_OPEN_LAYERS = 40


def write_report(path: Path, result: RunResult) -> None:
    """Write ``report.html`` atomically."""
    write_text(path, report_html(result, written=time.strftime("%Y-%m-%d %H:%M:%S %z")))


def render(template: str, **values: Any) -> str:
    """Fill one of the templates; every text is escaped, control characters are replaced."""
    import jinja2
    from markupsafe import Markup

    def clean(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(format_ns=format_ns, format_bytes=format_bytes, format_count=format_count)
    return environment.get_template(template).render(**values)


def report_html(result: RunResult, written: str = "") -> str:
    """Return the report as one HTML page.

    Parameters
    ----------
    result
        Of a run.
    written
        Date and time for the foot of the page.
    """
    return render(
        "report.html.j2",
        result=result,
        graph=result.graph,
        platform=result.platform,
        proof=result.proof,
        best=result.best,
        answer=answer(result),
        tiles=_tiles(result),
        labels=labels(result),
        best_name=first_name(result.best),
        best_shape=shape(result.best.mapping, result.graph),
        best_cores=cores_text(result.best.mapping),
        chart=plan_chart(result),
        timeline=timeline(result),
        strips=strips(result),
        networks=network_view(result),
        network_heads=HEADS,
        core_heads=CORE_HEADS,
        diagnosis=diagnosis_rows(result),
        machine_facts=machine_facts(result.best),
        costs=cost_view(result),
        elsewhere=[
            *(result.best.measured.fallbacks if result.best.measured else ()),
            *map(str, elsewhere(result.costs)),
        ],
        open_costs=len(result.graph.layers) <= MAX_OPEN_LAYERS,
        price=price_of_wishes(result),
        proof_text=proof_text(result.proof),
        earlier=measured_earlier(result),
        conditions=flatten(result.costs.conditions),
        version=dse.__version__,
        written=written,
    )


def _tiles(result: RunResult) -> list[tuple[str, str, str]]:
    """Return the figures on top: value, unit, what it is."""
    best = result.best
    real = best.measured
    latency = format_ns(latency_ns(best)).split(" ")
    memory = format_bytes(
        real.memory_bytes if real and real.memory_bytes else best.predicted.memory_bytes
    ).split(" ")
    kind = "measured" if real else "predicted"
    tiles = [(format_hz(score(best)), "frames/s", kind)]
    if real:
        off = format_share(best.error)
        tiles.append((format_hz(best.predicted.throughput_hz), "frames/s", f"predicted ({off})"))
    share = gain(best, result)
    if best is result.best_baseline:
        tiles.append(("0", "%", "to gain over the best plan without search: it is that plan"))
    elif share is not None:
        value, _, unit = format_share(share).partition(" ")
        tiles.append((value, unit, f"in {result.goal} over the best plan without search"))
    tiles.append((latency[0], latency[1], f"for one frame alone, {kind}"))
    if best.predicted.energy_nj is not None:
        energy = format_energy(best.predicted.energy_nj).split(" ")
        tiles.append((energy[0], energy[1], "energy of a frame, predicted"))
    tiles.append((memory[0], memory[1], "memory"))
    if result.proof.gap is not None:
        tiles.append((f"{result.proof.gap * 100:.1f}", "%", "gap to the bound (prediction)"))
    return tiles


def flatten(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested conditions into pairs of name and text."""
    found: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            found += flatten(value, f"{name}: ") if len(value) <= 8 else [(name, f"{len(value)} entries")]
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value[:12])) + (", ..." if len(value) > 12 else "")
            found.append((name, text or "none"))
        else:
            found.append((name, "unknown" if value is None else str(value)))
    return found
