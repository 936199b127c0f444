"""Keeping the other cores busy with the model itself, so that costs under load can be measured.

Isolated times mislead: cores share memory, caches and power, and slow each other down by up to a
factor of two (formulation, "Costs under load").
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from dse.errors import DeviceError
from dse.platforms import Platform, Slot
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker

_NAME = "load"


class Background:
    """One process per core that can run the whole model over and over.

    Parameters
    ----------
    path
        The model.
    platform
        Its CPU cores get a process each.
    options
        Seed, time-out.
    folder
        For log files.

    Raises
    ------
    DeviceError
        The model does not run on one of the cores.
    """

    def __init__(self, path: Path, platform: Platform, options: ProfileOptions, folder: Path) -> None:
        self._workers: dict[int, SlotWorker] = {}
        self._busy: set[int] = set()
        with ExitStack() as stack:
            for cluster in platform.clusters:
                if cluster.is_accelerator:
                    continue
                for core in cluster.core_ids:
                    slot = Slot(cluster.name, 1)
                    worker = stack.enter_context(
                        SlotWorker(slot, [core], folder / f"load{core}.log", options)
                    )
                    loaded = worker.load(_NAME, path)
                    if isinstance(loaded, str):
                        raise DeviceError(f"{path}: can not be used as load on core {core}: {loaded}")
                    self._workers[core] = worker
            self._stack = stack.pop_all()

    def surround(self, cores: Collection[int]) -> None:
        """Keep all cores busy but these, which are left alone."""
        for core, worker in self._workers.items():
            if core in cores and core in self._busy:
                worker.calm()
                self._busy.discard(core)
        for core, worker in self._workers.items():
            if core not in cores and core not in self._busy:
                worker.busy(_NAME)
                self._busy.add(core)

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A process in the middle of a run would keep the polite way out waiting.
        for worker in self._workers.values():
            worker.kill()
        self._stack.close()
