"""What an optimum would gain: cheaper layers, more cores, more memory, each with the best mapping then.

Shows which layer or resource holds the answer back, and what a change there is worth.  A cheaper
layer may move stages and lanes, so every question is a search of its own; nearly all are spared:

- The throughput bound of the changed problem says what no mapping exceeds.  Where a known mapping
  reaches it (often that nothing is gained at all), that is the answer.
- For the goal throughput ``solvers.cheaper_layers`` says what ``lanes`` and ``interval_dp`` would find.
- Mappings whose units hold several pieces are made even again (``solvers.rebalance``).
- One frame takes no less than before minus what the layer saves, if it took as little as possible.
- A change that gains nothing when it is largest gains nothing when it is smaller, and the mapping
  that is best for the largest change is a good one for the smaller changes.

All changes are looked at in this way first, so that an answer that has to end early says something of
every layer; then what is left open is searched, what promises most first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from solvers.asker import Asker, Topic
from solvers.changes import Change, Resource, cheaper, cheaper_layer, more_of_resources
from solvers.errors import InfeasibleError, ProblemError
from solvers.gains import (
    Known,
    LayerGain,
    Questions,
    ResourceGain,
    Step,
    WhatIf,
)
from solvers.limits import Limits
from solvers.mapping import Mapping, Solution
from solvers.problem import Problem
from solvers.registry import solve

__all__ = [
    "Known",
    "LayerGain",
    "Questions",
    "Resource",
    "ResourceGain",
    "Step",
    "WhatIf",
    "cheaper",
    "what_if",
]

WhatIfProgress = Callable[[int, int], None]


def what_if(
    problem: Problem,
    solver: str = "lanes",
    limits: Limits | None = None,
    questions: Questions | None = None,
    base: Solution | None = None,
    progress: WhatIfProgress | None = None,
) -> WhatIf:
    """Ask what the optimum would gain from each change.

    Parameters
    ----------
    problem
        What is mapped.
    solver
        Name in the registry, for every search.
    limits
        ``time_s`` is for all changes together: searches that promise most come first, and what is
        not reached is marked.  Without that, the same seed gives the same answer.  A change that can
        gain no more than ``gap`` beyond what is found is not searched.
    questions
        Defaults to ``Questions()``.
    base
        The optimum, if it is known already.
    progress
        Called with (topics done, topics in all).

    Raises
    ------
    InfeasibleError
        The problem has no mapping to start from (proved, or none found).
    ProblemError
        A layer that is asked for does not exist.
    """
    limits, questions = limits or Limits(), questions or Questions()
    asked = tuple(range(problem.n_layers)) if questions.layers is None else questions.layers
    if any(not 0 <= layer < problem.n_layers for layer in asked):
        raise ProblemError(f"layers {asked} are asked for, there are {problem.n_layers}")
    base = base or solve(problem, solver, limits)
    if base.mapping is None or base.evaluation is None:
        raise InfeasibleError(f"no mapping to start from: {base.reason}")
    asker = Asker(problem, solver, limits, base.mapping, base)
    topics = _topics(problem, base.mapping, sorted(set(asked)), questions)
    asker.prepare()
    n_done = 0

    def tell() -> None:
        nonlocal n_done
        n_done += 1
        try:
            if progress is not None:
                progress(n_done, len(topics))
        except KeyboardInterrupt:
            asker.interrupted = True

    for topic in topics:
        asker.look(topic)
        if topic.settled:
            tell()
    left = [topic for topic in topics if not topic.settled]
    for topic in sorted(left, key=lambda topic: (topic.resource is None, -topic.promise)):
        asker.search(topic)
        tell()
    layers = [LayerGain(t.layer, t.slots, tuple(t.steps)) for t in topics if t.layer is not None]
    resources = [
        ResourceGain(t.resource, t.cluster, tuple(t.steps)) for t in topics if t.resource is not None
    ]
    return WhatIf(
        base,
        tuple(
            sorted(layers, key=lambda found: (*(-step.gain for step in reversed(found.steps)), found.layer))
        ),
        tuple(sorted(resources, key=lambda found: -found.gain)),
        not asker.cut_short,
        asker.n_searches,
        asker.interrupted,
    )


def _topics(problem: Problem, mapping: Mapping, layers: list[int], questions: Questions) -> list[Topic]:
    topics = []
    if questions.resources:
        for resource, cluster, changes in more_of_resources(problem, questions.memory_factors):
            made = tuple(partial(_itself, change) for change in changes)
            topics.append(Topic(made, resource=resource, cluster=cluster))
    stages = [stage for lane in mapping.lanes for stage in lane.stages]
    slots_of: list[set[int]] = [set() for _ in range(problem.n_layers)]
    for stage in stages:
        for layer in stage.layers:
            slots_of[layer].add(stage.slot)
    # Large layers may gain most, so they come first: time may end.
    cost = problem.cost_ns
    layers = sorted(layers, key=lambda layer: -int(cost[layer, sorted(slots_of[layer])].max()))
    for layer in layers:
        slots = tuple(sorted(slots_of[layer]))
        made = tuple(
            partial(cheaper_layer, problem, layer, slots, share)
            for share in sorted(set(questions.reductions))
        )
        topics.append(Topic(made, layer=layer, slots=slots))
    return topics


def _itself(change: Change) -> Change:
    return change
