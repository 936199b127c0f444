"""Workers for a sweep: on this machine, on a batch system, over SSH, on Kubernetes, or already there."""

from __future__ import annotations

import importlib
import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dse.config.sweep import BATCH_SYSTEMS, ClusterSection
from dse.detection import cpu_quota
from dse.errors import DseError, InputError, MissingExtraError
from dse.sweeps.address import EXTRA, filled_in
from dse.sweeps.task import close_children

_JOBQUEUE = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
    "htcondor": "HTCondorCluster",
}


_LOUD = ("distributed", "asyncio", "tornado")
CONNECT_S = 20.0
"""To connect to a scheduler, also anew."""
LOST_S = 5.0
"""Before a worker that does not come in is asked for in the batch system."""


class ClusterError(DseError):
    """The workers can not be started, or their scheduler is gone."""


@dataclass
class Workers:
    """A Dask cluster that runs jobs.

    Parameters
    ----------
    client
        Connected to the scheduler.
    wanted
        Workers that this sweep asks for; 0 when they are not ours.
    cluster
        What started them, or None.
    has_dashboard
        Whether Dask's dashboard is on.
    kind
        Of the cluster.
    """

    client: Any
    wanted: int = 0
    cluster: Any = None
    has_dashboard: bool = False
    kind: str = "local"
    _n_slots: int = field(default=0, init=False)
    _missing: dict[Any, float] = field(default_factory=dict, init=False)

    @property
    def n_slots(self) -> int:
        """Jobs that can run at a time, as of the last ``look``."""
        return self._n_slots

    @property
    def dashboard(self) -> str | None:
        """Address of Dask's dashboard, when it is on."""
        if not self.has_dashboard:
            return None
        try:
            return str((self.cluster if self.cluster is not None else self.client).dashboard_link) or None
        except (AttributeError, KeyError, ValueError):
            return None

    def look(self) -> Mapping[str, int]:
        """Return threads by worker.

        Raises
        ------
        ClusterError
            The scheduler does not answer.
        """
        with self.talking():
            threads: dict[str, int] = dict(self.client.nthreads())
        self._n_slots = sum(threads.values())
        return threads

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Turn the errors of a scheduler that is gone into one that a person understands."""
        from distributed.client import FutureCancelledError

        try:
            yield
        except (OSError, TimeoutError, ValueError, FutureCancelledError) as error:
            raise ClusterError(self.lost(error)) from None

    def lost(self, error: BaseException | None = None) -> str:
        """Say that the scheduler is gone, and what next."""
        reason = f" ({error})" if error is not None and str(error) else ""
        return (
            f"the Dask scheduler does not answer any more{reason}. Finished jobs are kept: "
            "'dse sweep resume' goes on from there"
        )

    def keep_up(self, n_jobs_left: int) -> None:
        """Ask for new workers in the place of those that were lost; fewer when little is left to do."""
        if self.cluster is None or not self.wanted or not hasattr(self.cluster, "scale"):
            return
        if hasattr(self.cluster, "job_cls"):
            self._replace_lost()
        self.cluster.scale(min(self.wanted, max(1, n_jobs_left)))

    def _replace_lost(self) -> None:
        """Forget jobs of the batch system that are gone without ever having become workers.

        Dask replaces workers that it knew; one that was killed before it came in, it waits for.
        """
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        seen = [str(worker["name"]) for worker in workers]
        now = time.monotonic()
        for name, job in list(self.cluster.workers.items()):
            if any(there == str(name) or there.startswith(f"{name}-") for there in seen):
                self._missing.pop(name, None)
                continue
            if now - self._missing.setdefault(name, now) < LOST_S or not batch_job_is_gone(
                self.kind, job.job_id
            ):
                continue
            del self._missing[name]
            job.status = load_dask().core.Status.closed
            self.cluster.loop.add_callback(self.cluster.workers.pop, name, None)

    def boards(self) -> frozenset[str]:
        """Return the resources of all workers."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return frozenset(name for worker in workers for name in worker.get("resources", {}))


def batch_job_is_gone(kind: str, job_id: str | None) -> bool:
    """Ask the batch system whether a job has ended; False where we can not ask (only Slurm is asked)."""
    if kind != "slurm" or job_id is None:
        return False
    try:
        answer = subprocess.run(
            ["squeue", "-h", "-j", str(job_id), "-o", "%i"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    unknown = answer.returncode == 0 or "Invalid job id" in answer.stderr
    return unknown and not answer.stdout.strip()


def usable_cores() -> int:
    """Return how many cores this process may use: affinity mask, control group, Slurm's allocation."""
    n_cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None:
        n_cores = min(n_cores, max(1, math.floor(quota)))
    granted = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
    if granted and granted.isdigit() and int(granted) > 0:
        n_cores = min(n_cores, int(granted))
    return n_cores


def load_dask() -> Any:
    """Return the package ``distributed``.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError(f"sweeps need the package distributed: {EXTRA}") from None


@contextmanager
def open_workers(section: ClusterSection, boards: frozenset[str], attempts: int) -> Iterator[Workers]:
    """Start workers, or connect to those that are there, for the time of a ``with`` block.

    Parameters
    ----------
    section
        Which.
    boards
        Boards that the jobs want; on this machine the one worker that has each is ours to declare.
    attempts
        How often a job may lose its worker.

    Raises
    ------
    MissingExtraError, ClusterError, InputError
    """
    distributed = load_dask()
    import dask

    dashboard = _dashboard(section)
    settings = {
        "distributed.scheduler.allowed-failures": attempts,
        # No worker holds jobs that another could begin.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.deploy.lost-worker-timeout": "5s",
        "distributed.admin.tick.limit": "1h",
        # Dask's notes on what every task did grow by some kilobytes per job.
        "distributed.admin.log-length": 100,
        "distributed.admin.low-level-log-length": 100,
        "distributed.comm.timeouts.connect": f"{CONNECT_S:g}s",
    }
    with dask.config.set(settings), _quiet():
        cluster = None
        wanted = section.workers or usable_cores()
        try:
            if section.kind == "scheduler":
                patience_s = min(section.patience_s, CONNECT_S)
                client = distributed.Client(section.address, security=_security(section), timeout=patience_s)
                wanted = 0
            else:
                cluster = _cluster(section, wanted, boards, dashboard)
                client = distributed.Client(cluster, security=_security(section))
        except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
            if cluster is not None:
                cluster.close()
            raise _explained(section, error) from None
        try:
            has_dashboard = section.dashboard is not False
            ours = 0 if section.kind == "local" else wanted  # threads of this process need no replacing
            yield Workers(client, ours, cluster, has_dashboard, section.kind)
        finally:
            client.close(timeout=10)
            if cluster is not None:
                cluster.close(timeout=20)
            close_children()  # those of workers in this process


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's own messages away: what a user has to know is said by the errors of this module."""
    names = {*_LOUD, *logging.root.manager.loggerDict}
    # Those below have levels of their own.
    loggers = [logging.getLogger(n) for n in names if n.partition(".")[0] in _LOUD]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _dashboard(section: ClusterSection) -> str:
    """Return the address of Dask's dashboard; nobody else reaches it when it was not asked for."""
    if section.dashboard is False:
        return "127.0.0.1:0"
    if section.kind not in ("kubernetes", "scheduler"):
        _package("bokeh", "bokeh", "pip install 'tflite-dse[dashboard]'")
    return ":8787" if section.dashboard is True else section.dashboard


def _explained(section: ClusterSection, error: Exception) -> DseError:
    where = f"cluster: {section.kind}" + (f" {section.address}" if section.address else "")
    if isinstance(error, TypeError) or "unexpected keyword" in str(error):
        # What follows the first sentence quotes all options, secrets too.
        first = str(error).partition(". ")[0]
        return InputError(f"{where}: an option that this kind of cluster does not take: {first}")
    return ClusterError(f"{where}: {type(error).__name__}: {error}")


def _security(section: ClusterSection) -> Any:
    if section.security is None:
        return None
    given = section.security
    missing = [path for path in (given.ca_file, given.cert, given.key) if not path.is_file()]
    if missing:
        raise InputError(f"cluster.security: expected a file, got {str(missing[0])!r}: no such file")
    return load_dask().security.Security(
        tls_ca_file=str(given.ca_file),
        tls_client_cert=str(given.cert),
        tls_client_key=str(given.key),
        tls_scheduler_cert=str(given.cert),
        tls_scheduler_key=str(given.key),
        tls_worker_cert=str(given.cert),
        tls_worker_key=str(given.key),
        require_encryption=given.require_encryption,
    )


def _cluster(section: ClusterSection, wanted: int, boards: frozenset[str], dashboard: str) -> Any:
    options = filled_in(section.options, "cluster.options")
    resources = {str(name): float(number) for name, number in section.resources.items()}
    if section.kind == "local":
        return _local(wanted, {**dict.fromkeys(boards, 1.0), **resources}, dashboard, options)
    if section.kind in BATCH_SYSTEMS:
        return _batch_system(section, wanted, resources, dashboard, options)
    if section.kind == "ssh":
        return _ssh(section, resources, dashboard, options)
    return _kubernetes(wanted, resources, options)


def _local(n_workers: int, resources: dict[str, float], dashboard: str, options: dict[str, Any]) -> Any:
    """Start workers as threads of this process: every job runs in a child process of its own."""
    settings = {"silence_logs": "ERROR", "memory_limit": 0, **options}
    cluster = load_dask().LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address=dashboard,
        resources=resources,
        **settings,
    )
    # One worker has the boards of this machine, so jobs that measure do not wait in several.
    plain = {name: value for name, value in cluster.new_spec["options"].items() if name != "resources"}
    cluster.new_spec = {**cluster.new_spec, "options": plain}
    cluster.scale(n_workers)
    return cluster


def _batch_system(
    section: ClusterSection,
    wanted: int,
    resources: dict[str, float],
    dashboard: str,
    options: dict[str, Any],
) -> Any:
    jobqueue = _package("dask_jobqueue", "dask-jobqueue", EXTRA)
    options = {"cores": 1, "processes": 1, "memory": "2GB", "silence_logs": "ERROR", **options}
    # Threads of one worker share its memory, not its child processes: one thread per job.
    scheduler = {"dashboard_address": dashboard, **options.pop("scheduler_options", {})}
    extra = list(options.pop("worker_extra_args", []))
    if resources:
        extra += ["--resources", _resource_text(resources)]
    cluster = getattr(jobqueue, _JOBQUEUE[section.kind])(
        scheduler_options=scheduler, worker_extra_args=extra, security=_security(section), **options
    )
    cluster.scale(wanted)
    return cluster


def _ssh(
    section: ClusterSection, resources: dict[str, float], dashboard: str, options: dict[str, Any]
) -> Any:
    _package("asyncssh", "asyncssh", EXTRA)
    worker = {"nthreads": 1, **options.pop("worker_options", {})}
    if resources:
        worker["resources"] = resources
    scheduler = {"dashboard_address": dashboard, **options.pop("scheduler_options", {})}
    return load_dask().SSHCluster(
        list(section.hosts),
        worker_options=worker,
        scheduler_options=scheduler,
        security=_security(section),
        **options,
    )


def _kubernetes(wanted: int, resources: dict[str, float], options: dict[str, Any]) -> Any:
    operator = _package("dask_kubernetes.operator", "dask-kubernetes", "pip install 'tflite-dse[kubernetes]'")
    if resources:
        options = {"worker_command": ["dask-worker", "--resources", _resource_text(resources)], **options}
    return operator.KubeCluster(n_workers=wanted, **options)


def _resource_text(resources: Mapping[str, float]) -> str:
    return ",".join(f"{name}={number:g}" for name, number in resources.items())


def _package(module: str, name: str, install: str) -> Any:
    # dask-jobqueue sets a handler of its own on import, which would end the program at Ctrl-C.
    handler = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(f"cluster: this needs the package {name}: {install}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
