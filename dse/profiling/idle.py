"""How much slower a stage is that had to wait: idle cores cool down.

A stage that waits for the bottleneck finds caches, clock and threads colder than in a tight loop; one
user saw 95 instead of 25 microseconds.  Costs are those of a tight loop, as the bottleneck sees them.
What waiting adds is measured on the whole model: runs after a pause as long as the run itself (so at
half duty) in turns with runs without a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import median

N_TURNS, N_RUNS = 6, 3
SHORTEST_PAUSE_NS, LONGEST_PAUSE_NS = 200_000, 20_000_000


@dataclass(frozen=True, slots=True)
class IdleEffect:
    """Times of a model with and without a pause before every run.

    Parameters
    ----------
    pause_ns
        Length of the pauses.
    tight_ns, paused_ns
        Raw samples.
    """

    pause_ns: int
    tight_ns: tuple[int, ...]
    paused_ns: tuple[int, ...]

    @property
    def factor(self) -> float:
        """How many times longer a run takes after a pause."""
        return median(self.paused_ns) / max(1, median(self.tight_ns))

    @property
    def utilisation(self) -> float:
        """Share of the time in which the core worked between the pauses."""
        busy = median(self.paused_ns)
        return busy / (busy + self.pause_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the form for the journal and the conditions of a cost table."""
        return {
            "factor": round(self.factor, 4),
            "utilisation": round(self.utilisation, 4),
            "pause_ns": self.pause_ns,
            "tight_ns": list(self.tight_ns),
            "paused_ns": list(self.paused_ns),
        }


def measure_idle(worker: SlotWorker, name: str, estimate_ns: int) -> IdleEffect | None:
    """Measure the effect of waiting on a loaded model; None when the slot can not run it.

    Parameters
    ----------
    worker
        The slot's process.
    name
        Of the model.
    estimate_ns
        About how long it runs.
    """
    pause_ns = min(LONGEST_PAUSE_NS, max(SHORTEST_PAUSE_NS, estimate_ns))
    tight: list[int] = []
    paused: list[int] = []
    for _ in range(N_TURNS):
        for kept, pause in ((tight, 0), (paused, pause_ns)):
            found, refused = worker.time([(name, 1, N_RUNS)], pause_ns=pause)
            if refused:
                return None
            kept.extend(found[name])
    return IdleEffect(pause_ns, tuple(tight), tuple(paused))
