"""Whether the machine is as fast as it was in an earlier run: a prediction made then holds for that speed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dse.placement import PlacedMapping
from dse.record import mapping_json
from dse.results import PlanResult, Speed

MOST_CHANGE = 0.05
"""A machine that is faster or slower by more has drifted."""


def earlier_rates(folder: Path) -> dict[str, float]:
    """Return the measured frames per second of every plan of a run, by ``key_of`` its mapping.

    Nothing where the run measured nothing, or its results can not be read.
    """
    try:
        plans = json.loads((folder / "results.json").read_text(encoding="utf-8"))["plans"]
        return {
            _key(plan["mapping"]): float(plan["measured"]["throughput_hz"])
            for plan in plans
            if plan["measured"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def key_of(mapping: PlacedMapping) -> str:
    """Return the same text for the same stages on the same cores."""
    return _key(mapping_json(mapping))


def speed_since(
    before: Mapping[str, float], plans: Sequence[PlanResult], tested: PlacedMapping
) -> Speed | None:
    """Compare the fastest plan that was measured both times and is not the one under test.

    The plan under test can not be its own judge: where it runs slower than predicted, that may be the
    machine's fault or the prediction's.

    Returns
    -------
    Speed or None
        None where no such plan was measured both times.
    """
    judges = [
        (plan.measured.throughput_hz, before[key_of(plan.mapping)], plan.name)
        for plan in plans
        if plan.measured and plan.mapping.signature != tested.signature and key_of(plan.mapping) in before
    ]
    if not judges:
        return None
    now, then, name = max(judges)
    return Speed(name, now / then - 1)


def drifted(speed: Speed | None) -> bool:
    """Whether predictions made in the earlier run are for another speed."""
    return speed is not None and abs(speed.change) > MOST_CHANGE


def _key(mapping: Any) -> str:
    lanes = [[{**stage, "name": ""} for stage in lane] for lane in mapping]
    return json.dumps(lanes, sort_keys=True)
