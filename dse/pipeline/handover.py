"""What handing over a tensor costs in the pipeline itself (``python -m dse.pipeline.handover``).

Two stages joined by one tensor run as a lane, with the engine and the rings that every lane has.
The receiver pays twice: for taking the tensor (with the engine that shares memory next to nothing,
with the interpreter a copy), and for computing on values that lie in the caches of another core.
The second shows when the same two stages run on the receiver's core alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dse.devices.serving import serve
from dse.pipeline.engine import ENGINES, Array, numpy_type
from dse.pipeline.nodes import N_TIMES
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.runner import LaneRunner

N_ROUNDS = 7
N_FRAMES = 40
N_SKIPPED = 6
RECEIVED, COMPUTING, COMPUTED, SENT = range(N_TIMES)


def measure_handovers(pairs: Sequence[tuple[PipelinePlan, PipelinePlan]], engine: str) -> dict[str, Any]:
    """Measure hand-overs, all in turns.

    Parameters
    ----------
    pairs
        Two stages on two cores, and the same stages on the receiver's core alone.
    engine
        Name of the engine, see ``dse.pipeline.engine.ENGINES``.

    Returns
    -------
    dict
        ``take_ns`` and ``read_ns``: per pair a list with one median per round, of the time to take
        the tensor and of what computing takes longer because another core has written the values
        (may be negative: noise); ``wake_ns``: times from the end of the first stage until the
        second one, asleep, begins.
    """
    runners = [tuple(_runner(plan, engine) for plan in pair) for pair in pairs]
    take: list[list[int]] = [[] for _ in pairs]
    read: list[list[int]] = [[] for _ in pairs]
    for _ in range(N_ROUNDS):
        for number, (apart, together) in enumerate(runners):
            far, near = _times(apart), _times(together)
            take[number].append(_median(far[:, 1, COMPUTING] - far[:, 1, RECEIVED]))
            read[number].append(
                _median(far[:, 1, COMPUTED] - far[:, 1, COMPUTING])
                - _median(near[:, 1, COMPUTED] - near[:, 1, COMPUTING])
            )
    alone = _times(runners[0][0], in_flight=1)
    wake = (alone[:, 1, RECEIVED] - alone[:, 0, SENT]).tolist()
    for pair in runners:
        for runner in pair:
            runner.close()
    return {"take_ns": take, "read_ns": read, "wake_ns": wake}


def _runner(plan: PipelinePlan, engine: str) -> LaneRunner:
    frame: tuple[Array, ...] = tuple(np.ones(port.shape, numpy_type(port)) for port in plan.inputs)
    return LaneRunner(plan.lanes[0], plan.inputs, plan.outputs, [frame], engine=ENGINES[engine])


def _times(runner: LaneRunner, in_flight: int | None = None) -> Array:
    """Return time stamps, int64 (frame, stage, stamp), of frames in a full lane."""
    stamps, n_frames = runner.run(n_frames=N_FRAMES, in_flight=in_flight)
    values = np.frombuffer(stamps, np.int64, n_frames * runner.n_stages * N_TIMES)
    return values.reshape(n_frames, runner.n_stages, N_TIMES)[N_SKIPPED:]


def _median(values: Array) -> int:
    return int(np.median(values))


def main() -> None:
    """Answer requests ``measure`` with ``pairs`` (plans in their JSON form) and ``engine``."""

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        pairs = [(PipelinePlan.from_json(a), PipelinePlan.from_json(b)) for a, b in request["pairs"]]
        return measure_handovers(pairs, str(request["engine"]))

    serve({"measure": measure})


if __name__ == "__main__":
    main()
