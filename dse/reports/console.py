"""The result on a terminal: a table of at most 80 columns and the few sentences that matter."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from dse.elsewhere import elsewhere
from dse.networks import span_of
from dse.placement import PlacedStage
from dse.reports.diagnosis import diagnosis_lines
from dse.reports.network_report import network_lines, network_view
from dse.reports.wording import (
    first_name,
    format_share,
    gain,
    labels,
    latency_ns,
    price_of_wishes,
    proof_text,
    refusal,
    rounds_text,
    says_shape,
    shape,
)
from dse.results import PlanResult, RunResult, StageNumbers
from dse.units import NS_PER_MS, format_hz, format_ns

WIDTH = 80
MAX_ROWS = 20
MAX_OTHERS = 2
MAX_ELSEWHERE = 4
BROKEN = "refused"

Style = Callable[[str], str]


def plain(text: str) -> str:
    """Leave a text as it is."""
    return text


def bold(text: str) -> str:
    """Show a text in bold on a terminal."""
    return f"\033[1m{text}\033[0m"


def result_text(result: RunResult, highlight: Style = plain) -> str:
    """Write the final table, the winning mapping and what to know about them.

    Parameters
    ----------
    result
        Of a run.
    highlight
        Applied to the winner's line (see ``bold``); must not change the visible width.

    Returns
    -------
    str
        Lines of at most 80 columns (a long path excepted), without a line break at the end.
    """
    lines = _table(result, highlight)
    lines += ["", *_mapping(result), *(shorten(line, WIDTH) for line in network_lines(result))]
    marks = labels(result)
    notes = [
        *([f"Mind: {', '.join(marks)}."] if marks else []),
        f"Bound: {proof_text(result.proof)}.",
        *([f"Why: {result.reason}"] if result.reason else []),
        *([f"Networks: {view.summary}"] if (view := network_view(result)) is not None else []),
        *([f"Rounds: {rounds_text(result)}."] if rounds_text(result) else []),
        *diagnosis_lines(result),
        *([f"Outputs: {result.output_check}"] if result.output_check else []),
        *_refusals(result),
        *(f"Warning: {warning}" for warning in result.warnings),
        *_elsewhere(result),
    ]
    lines.append("")
    for note in notes:
        lines += _wrap(note)
    if result.run_dir is not None:
        lines.append(
            f"Report: {printable(str(result.run_dir / 'report.html'))}"
        )  # whole, so that it can be copied
    return "\n".join(lines)


def _elsewhere(result: RunResult) -> list[str]:
    """What slots do not run and what ran elsewhere than asked, the first few."""
    found = [f"Elsewhere: {entry}." for entry in elsewhere(result.costs)]
    if result.best.measured is not None:
        found = [*(f"Elsewhere: {text}." for text in result.best.measured.fallbacks), *found]
    more = [f"Elsewhere: {len(found) - MAX_ELSEWHERE} more entries in the report."]
    return found[:MAX_ELSEWHERE] + (more if len(found) > MAX_ELSEWHERE else [])


def _refusals(result: RunResult) -> list[str]:
    broken = [plan for plan in result.plans if not plan.feasible]
    if not broken:
        return []
    count = f"{len(broken)} plan{' breaks' if len(broken) == 1 else 's break'} a limit or a pin"
    first = f"{first_name(broken[0])}: {refusal(broken[0])}"
    price = price_of_wishes(result)
    return [f"Refused: {count}, for example {first}.", *([price] if price else [])]


def _wrap(text: str, indent: str = "  ") -> list[str]:
    text = printable(" ".join(text.split())).replace(
        " %", "\u00a0%"
    )  # a number and its percent sign stay together
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in lines]


def shown_plans(result: RunResult) -> list[int]:
    """Return the indices of the plans in the table, in order.

    The answer, what it is compared with (whole models, copies, best pipeline, best mix) and what was
    measured; of the other candidates only the best few.
    """
    order = range(len(result.plans))
    keep = [n for n in order if n == result.winner or result.plans[n] is result.best_baseline]
    keep += [n for n in order if result.plans[n].measured is not None or not result.plans[n].is_numbered]
    keep = list(dict.fromkeys(keep))[:MAX_ROWS]
    others = [n for n in order if n not in keep and result.plans[n].is_numbered]
    return sorted(keep + others[: max(0, min(MAX_OTHERS, MAX_ROWS - len(keep)))])


def _table(result: RunResult, highlight: Style) -> list[str]:
    measured = any(plan.measured is not None for plan in result.plans)
    shown = shown_plans(result)
    heads = [
        "plan",
        "stages",
        "cores",
        "pred.",
        *(["meas.", "error"] if measured else []),
        "ms",
        *(["mJ"] if result.goal == "energy" else []),
        "MiB",
        "gain",
    ]
    rows = [_row(result.plans[number], result, measured) for number in shown]
    widths = [max(len(head), *(len(row[n]) for row in rows)) for n, head in enumerate(heads)]
    room = WIDTH - 3 - sum(width + 1 for width in widths[1:])
    widths[0] = min(max(widths[0], 10), room)
    lines = [
        f"{shorten(result.graph.name, 38)} on {shorten(result.platform.name, 37)}",
        f"{'pred., meas.' if measured else 'pred.'}: frames/s    ms: one frame alone    MiB: memory",
        f"gain in {result.goal} over the best plan without search (*)  stages: lanes x depth",
        "",
        _line("   ", heads, widths),
    ]
    best_baseline = result.best_baseline
    for number, row in zip(shown, rows):
        plan = result.plans[number]
        mark = f"{'>' if number == result.winner else ' '}{'*' if plan is best_baseline else ' '} "
        line = _line(mark, row, widths)
        lines.append(highlight(line) if number == result.winner else line)
        if number != result.winner and not says_shape(plan):
            lines.append(shorten(f"     {shape(plan.mapping, result.graph)}", WIDTH))
    hidden = len(result.plans) - len(shown)
    if hidden:
        lines.append(f"  ... and {hidden} more in the report")
    return lines


def _row(plan: PlanResult, result: RunResult, measured: bool) -> list[str]:
    lanes = plan.mapping.lanes
    deepest = max(len(lane.stages) for lane in lanes)
    real = plan.measured
    memory_bytes = real.memory_bytes if real and real.memory_bytes else plan.predicted.memory_bytes
    return [
        plan.name,
        f"{len(lanes)}x{deepest}",
        str(len(plan.mapping.cores)),
        format_hz(plan.predicted.throughput_hz),
        *([format_hz(real.throughput_hz) if real else "-", format_share(plan.error)] if measured else []),
        _digits(latency_ns(plan) / NS_PER_MS),
        *([_energy_mj(plan)] if result.goal == "energy" else []),
        _digits(memory_bytes / 2**20),
        format_share(gain(plan, result)) if plan.feasible else BROKEN,
    ]


def fitting_name(name: str, width: int) -> str:
    """Leave out the last of several names of one plan until the rest fits."""
    while len(name) > width and " = " in name:
        name = name.rpartition(" = ")[0]
    return name


def _digits(value: float) -> str:
    """Write a number with about three digits and no exponent."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _energy_mj(plan: PlanResult) -> str:
    return "?" if plan.predicted.energy_nj is None else _digits(plan.predicted.energy_nj / 1e6)


def _line(mark: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    first = shorten(fitting_name(cells[0], widths[0]), widths[0])
    rest = " ".join(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))
    return f"{mark}{first.ljust(widths[0])} {rest}".rstrip()


def printable(text: str) -> str:
    """Replace control characters, so that a name from a file can not steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shorten(text: str, width: int) -> str:
    """Cut a text in the middle, where names differ least."""
    text = printable(text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :] if width > 1 else "…"[:width]


def _mapping(result: RunResult) -> list[str]:
    """Show the winning mapping, stage by stage; the bottleneck of each lane is marked."""
    best = result.best
    numbers = {stage.name: stage for stage in best.stages}
    lanes = best.mapping.lanes
    groups: dict[tuple[tuple[tuple[int, ...], str, int], ...], list[int]] = {}
    for number, lane in enumerate(lanes):
        key = tuple((stage.layers, stage.cluster, stage.threads) for stage in lane.stages)
        groups.setdefault(key, []).append(number)
    heads = ["lane", "layers", "on", "cores", "predicted", "measured", ""]
    rows = []
    for members in groups.values():
        stages = lanes[members[0]].stages
        slowest = max(range(len(stages)), key=lambda place: _busy_ns(numbers.get(stages[place].name)))
        for place, stage in enumerate(stages):
            cores = [stage_cores(lanes[member].stages[place]) for member in members]
            rows.append(
                [
                    format_cores(members) if place == 0 else "",
                    shorten(span_of(result.graph, stage.layers), 40 if result.graph.networks else 18),
                    shorten(stage.slot, 14),
                    shorten(" | ".join(cores), 18),
                    *_times(numbers.get(stage.name)),
                    "<- slowest" if place == slowest and len(stages) > 1 else "",
                ]
            )
    if all(row[5] == "-" for row in rows):
        heads, rows = [*heads[:5], ""], [[*row[:5], row[6]] for row in rows]
    widths = [max(len(row[n]) for row in [heads, *rows]) for n in range(len(heads))]
    title = f"The winner: {shorten(best.name, WIDTH - 12)}"
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in [heads, *rows]]
    return [title, *(shorten(f"  {line}".rstrip(), WIDTH) for line in text)]


def _busy_ns(numbers: StageNumbers | None) -> int:
    if numbers is None:
        return 0
    return numbers.predicted_busy_ns if numbers.measured_busy_ns is None else numbers.measured_busy_ns


def _times(numbers: StageNumbers | None) -> tuple[str, str]:
    if numbers is None:
        return "-", "-"
    measured_ns = numbers.measured_busy_ns
    return format_ns(numbers.predicted_busy_ns), "-" if measured_ns is None else format_ns(measured_ns)


def stage_cores(stage: PlacedStage) -> str:
    """Write the cores of a stage; of one on an accelerator those that drive it."""
    if stage.device == "cpu":
        return format_cores(stage.cores)
    return f"host {format_cores(stage.host_cores)}" if stage.host_cores else "any"


def format_cores(numbers: Sequence[int]) -> str:
    """Write numbers shortly, for example ``0-3,6``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
