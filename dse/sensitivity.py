"""What the answer of a search would gain from cheaper layers, more cores or more memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from dse import explore
from dse.config import Experiment
from dse.platforms import Slot
from dse.problems import unplace
from dse.progress import Progress, SilentProgress
from dse.results import RunResult
from solvers.evaluate import evaluate
from solvers.limits import Limits
from solvers.mapping import Family, Solution, Status
from solvers.what_if import WhatIf, what_if

QUICK_SOLVER = "lanes"
"""Used where the experiment leaves the choice open: nearly all of its answers need no search."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Gains over the answer of a search, and the slots that they name by number."""

    found: WhatIf
    slots: tuple[Slot, ...]


def search_what_if(
    experiment: Experiment, progress: Progress | None = None
) -> tuple[RunResult, Sensitivity | None]:
    """Search as ``explore.search`` does, then ask what the answer would gain from each change.

    The time of the experiment (``search.time_s``) is granted once more for the questions that take a
    search; those that promise most come first.  Ctrl-C ends them with what is known by then; after
    Ctrl-C in the search itself nothing is asked (None).

    Raises
    ------
    DseError
        As ``explore.search``.
    """
    progress = progress or SilentProgress()
    result = explore.search(experiment, progress)
    if result.proof.interrupted:
        return result, None
    with tempfile.TemporaryDirectory(prefix="dse-what-if-") as work:
        subject = explore.load(experiment, Path(work))
        problem, slots, _ = explore.make_problem(subject, result.costs)
    mapping = unplace(result.best.mapping, result.platform, slots)
    proof = result.proof
    known = (Status(proof.status), Family(proof.family))
    base = Solution(proof.solver, *known, mapping, evaluate(problem, mapping), proof.bound_hz)
    solver = experiment.search.solver
    with progress.task("asking what if", 1) as task:
        found = what_if(
            problem,
            QUICK_SOLVER if solver == "auto" else solver,
            Limits(experiment.search.time_s, experiment.search.gap, seed=experiment.seed),
            base=base,
            progress=lambda _, total: task.advance(1 / total),
        )
    return result, Sensitivity(found, slots)
