"""What it costs a stage to receive a tensor that another core has just written.

A pipeline of pinned threads hands tensors over through a queue, and the receiver copies them into
its own inputs.  The receiver's time is what counts against its period: a busy stage finds the
frame waiting, so waking it up is reported separately (it only adds to the latency of a frame).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

N_IN_FLIGHT = 8
BURST_BYTES = 8 << 20
N_ROUNDS = 9


def measure_handover(producer: int, consumer: int, sizes: list[int]) -> dict[str, Any]:
    """Measure hand-overs between two cores (which may be the same).

    Parameters
    ----------
    producer, consumer
        Core numbers.
    sizes
        Tensor sizes in bytes.

    Returns
    -------
    dict
        ``receive_ns``: per size a list of samples, the time to take a waiting tensor from the
        queue and copy it; ``wake_ns``: samples of the time from putting something into an empty
        queue until the sleeping consumer has it.
    """
    # This thread may be pinned to cores of another cluster: both ends get threads of their own.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {producer, consumer})
    try:
        return {
            "receive_ns": [[n, _receive_samples(producer, consumer, n)] for n in sizes],
            "wake_ns": _wake_samples(producer, consumer),
        }
    finally:
        os.sched_setaffinity(0, before)


def _receive_samples(producer: int, consumer: int, n_bytes: int) -> list[int]:
    import numpy as np

    n_buffers = max(1, min(N_IN_FLIGHT, BURST_BYTES // max(1, n_bytes)))
    tensors = [np.zeros(max(1, n_bytes), np.uint8) for _ in range(n_buffers)]
    inputs = np.zeros(max(1, n_bytes), np.uint8)
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    written, taken = threading.Barrier(2), threading.Barrier(2)
    samples: list[int] = []

    def produce() -> None:
        os.sched_setaffinity(threading.get_native_id(), {producer})
        for i in range(N_ROUNDS):
            for tensor in tensors:
                tensor.fill(i)
                waiting.put(tensor)
            written.wait()
            taken.wait()

    def consume() -> None:
        os.sched_setaffinity(threading.get_native_id(), {consumer})
        for _ in range(N_ROUNDS):
            written.wait()
            for _ in tensors:
                start = time.perf_counter_ns()
                np.copyto(inputs, waiting.get())
                samples.append(time.perf_counter_ns() - start)
            taken.wait()

    _run_both(produce, consume)
    return samples[n_buffers:]  # the first round touches fresh memory


def _wake_samples(producer: int, consumer: int, n: int = 40) -> list[int]:
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()
    samples: list[int] = []

    def produce() -> None:
        os.sched_setaffinity(threading.get_native_id(), {producer})
        for _ in range(n):
            time.sleep(0.0005)  # the consumer has gone to sleep by then
            there.put(time.perf_counter_ns())
            back.get()

    def consume() -> None:
        os.sched_setaffinity(threading.get_native_id(), {consumer})
        for _ in range(n):
            sent = there.get()
            samples.append(time.perf_counter_ns() - sent)
            back.put(0)

    _run_both(produce, consume)
    return samples


def _run_both(produce: Any, consume: Any) -> None:
    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
