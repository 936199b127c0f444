"""How a profile is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dse.errors import ConfigError
from dse.platforms import Slot
from dse.profiling.stats import mean, median

Load = Literal["isolated", "loaded"]
Method = Literal["auto", "in_situ", "extracted"]


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a measured profile.

    Parameters
    ----------
    precision
        Wanted half-width of the 95 % confidence interval of a median, relative to the median.
    budget_s
        Time for measuring; what has not reached the precision by then is kept with the precision
        it has.  Every layer is measured at least once, however small the budget.
    min_rounds, max_rounds
        Visits per layer and slot.  Fewer than six visits have no 95 % interval.
    visit_ns
        A visit repeats a layer until about this much time is spent (at most 16 times).
    seed
        Decides input values and the order of visits.
    method
        ``in_situ``: by the runtime's profiler inside the whole model; ``extracted``: each layer as
        a model of its own; ``auto``: in situ, and extracted what is not resolved there.
    load
        ``isolated``: nothing else runs; ``loaded``: all cores outside of the slot run the model too,
        one copy on each, as in a mapping that uses the whole machine.
    links
        Whether hand-overs between clusters are measured.
    timeout_s
        A worker that is silent for longer is ended and the layer marked.
    refresh
        Ignore and replace what the cache holds.
    time_shared
        Clusters whose cores are slow because a program takes time from them (an emulation).  There
        waiting does not disturb, and times are means: the median of a layer that is shorter than the
        slices between two interruptions knows nothing of them, that of a longer one all.

    Raises
    ------
    ConfigError
        A value makes no sense; all faults at once.
    """

    precision: float = 0.03
    budget_s: float = 10.0
    min_rounds: int = 6
    max_rounds: int = 60
    visit_ns: int = 2_000_000
    seed: int = 0
    method: Method = "auto"
    load: Load = "isolated"
    links: bool = True
    timeout_s: float = 60.0
    refresh: bool = False
    time_shared: frozenset[str] = frozenset()

    def typical(self, slot: Slot) -> Callable[[Sequence[int]], int]:
        """Return what sums up several samples: the median, on time-shared cores the mean."""
        return mean if slot.cluster in self.time_shared else median

    def __post_init__(self) -> None:
        rules = (
            (0 < self.precision < 1, f"precision: expected a share between 0 and 1, got {self.precision}"),
            (self.budget_s >= 0, f"budget_s: expected seconds >= 0, got {self.budget_s}"),
            (self.min_rounds >= 1, f"min_rounds: expected at least 1, got {self.min_rounds}"),
            (
                self.max_rounds >= self.min_rounds,
                f"max_rounds: expected at least min_rounds ({self.min_rounds}), got {self.max_rounds}",
            ),
            (self.visit_ns > 0, f"visit_ns: expected nanoseconds > 0, got {self.visit_ns}"),
            (self.timeout_s > 0, f"timeout_s: expected seconds > 0, got {self.timeout_s}"),
            (
                self.load in ("isolated", "loaded"),
                f"load: expected 'isolated' or 'loaded', got {self.load!r}",
            ),
            (
                self.method in ("auto", "in_situ", "extracted"),
                f"method: expected 'auto', 'in_situ' or 'extracted', got {self.method!r}",
            ),
        )
        faults = [text for holds, text in rules if not holds]
        if faults:
            raise ConfigError([f"profile options: {fault}" for fault in faults])
