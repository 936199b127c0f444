"""The child process that runs jobs, one after the other: ``python -m dse.sweeps.executor``.

It keeps parsed models and cost tables, so that jobs of one sweep share them.  A crash in native code,
a limit on memory or time, or a kill ends this process and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from dse.config import Experiment, build_experiment
from dse.costs import CostTable
from dse.devices.serving import serve
from dse.errors import DseError, InputError
from dse.files import write_json, write_text
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.mapping_file import MappingFile, write_mapping
from dse.progress import Progress, SilentProgress
from dse.record import results_json
from dse.results import RunResult
from dse.sweeps.board_lock import machine
from dse.sweeps.identity import Fingerprints, code_version, model_files
from dse.sweeps.outcome import FILE, LOG, Outcome, figures, log_tail, outcome_text, read_outcome
from solvers.errors import SolverError

V = TypeVar("V")

KEPT_MODELS = 8
KEPT_TABLES = 64


class _Kept(Generic[V]):
    """The values used last, by key."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._values: OrderedDict[str, V] = OrderedDict()

    def get(self, key: str, make: Callable[[], V]) -> V:
        if key not in self._values:
            value = make()
            self._values[key] = value
            while len(self._values) > self._n_most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


class _JobLog(SilentProgress):
    """Writes what is said into the job's log."""

    def __init__(self, folder: Path) -> None:
        self._stream = (folder / LOG).open("a", encoding="utf-8", buffering=1)

    def log(self, message: str) -> None:
        """Write one line with the time; a full disk does not end the job."""
        with contextlib.suppress(OSError):
            self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    @contextmanager
    def native(self) -> Iterator[None]:
        """Let what native code prints go to the log as well."""
        kept = os.dup(2)
        os.dup2(self._stream.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._stream.close()


class Executor:
    """Runs jobs in this process."""

    def __init__(self) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="dse-sweep-"))
        self._models: _Kept[tuple[ModelFile, LayerGraph]] = _Kept(KEPT_MODELS)
        self._tables: _Kept[CostTable] = _Kept(KEPT_TABLES)

    def close(self) -> None:
        """Remove what was written for this process only."""
        shutil.rmtree(self._work, ignore_errors=True)

    def job(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one job and return its outcome; a job that was done before is not run again."""
        folder = Path(request["run_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as lock:
            # Whoever ran this job before may still be at it: its driver was killed, it was not.
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = read_outcome(folder, request["key"])
            if before is not None:
                return {"outcome": before}
            log = _JobLog(folder)
            try:
                outcome = self._attempt(request, folder, log)
                if outcome["status"] == "done":
                    _write_down(outcome, folder, log)
            finally:
                log.close()
            return {"outcome": outcome}

    def _attempt(self, request: dict[str, Any], folder: Path, log: _JobLog) -> Outcome:
        start_s = time.time()
        outcome: Outcome = {
            "key": request["key"],
            "code": code_version(),
            "host": socket.gethostname(),
            "worker": request["worker"],
            "started_s": start_s,
            "error": None,
        }
        log.log(f"job {request['key']} on {outcome['host']}, worker {request['worker']}: start")
        try:
            with log.native(), machine(alone=request["board"] is not None):
                outcome["started_s"] = time.time()
                try:
                    _check_code(request["code"])
                    result = self._result(request, folder, log)
                finally:
                    outcome["finished_s"] = time.time()
            outcome |= {**figures(result), "status": "done"}
        except (DseError, SolverError, OSError) as error:
            outcome |= {"status": "failed", "error": str(error)}
            log.log(f"failed: {error}")
        except Exception as error:
            outcome |= {"status": "failed", "error": f"internal error: {type(error).__name__}: {error}"}
            log.log("failed:\n" + traceback.format_exc())
        outcome.setdefault("finished_s", time.time())
        outcome["wall_s"] = outcome["finished_s"] - outcome["started_s"]
        outcome["log_tail"] = log_tail(folder, *(() if outcome["status"] == "failed" else (3,)))
        return outcome

    def _result(self, request: dict[str, Any], folder: Path, log: Progress) -> RunResult:
        # Only now, so that the child answers quickly when nothing is left to do.
        from dse import explore

        experiment = build_experiment(
            json.loads(request["config"]),
            lambda path, key: "the job's experiment",
            base=Path("/"),
            default_name="job",
            origin="sweep",
        )
        if request["mode"] == "run":
            _check_file(experiment, request["model_sha256"])
            return explore.run(replace(experiment, output=folder, name="run"), log)
        file, graph = self._model(experiment, request["model_sha256"])
        subject = explore.join(experiment, file, graph)
        result = explore.search_subject(subject, self._costs(subject, log), log)
        try:
            write_json(folder / "results.json", results_json(result))
            content = MappingFile.of(graph, file.sha256, result.platform.name, result.best.mapping, {})
            write_mapping(folder / "mapping.yaml", content)
        except OSError as error:  # the job is done all the same: its figures go into the store
            log.log(f"results.json or mapping.yaml could not be written: {error.strerror}")
        return result

    def _model(self, experiment: Experiment, sha256: str) -> tuple[ModelFile, LayerGraph]:
        from dse.workloads import open_source

        def read() -> tuple[ModelFile, LayerGraph]:
            _check_file(experiment, sha256)
            folder = Path(tempfile.mkdtemp(dir=self._work))
            file = open_source(experiment.model, folder, cache=experiment.cache_dir)
            return file, build_graph(file)

        return self._models.get(f"{experiment.model!r} {sha256}", read)

    def _costs(self, subject: Any, log: Progress) -> CostTable:
        from dse import explore

        section = subject.experiment.profile
        parts = (subject.file.sha256, subject.platform, section, subject.experiment.variants)
        if section.refresh:
            return explore.find_costs(subject, log)
        return self._tables.get(
            repr((*parts, subject.experiment.seed)), lambda: explore.find_costs(subject, log)
        )


def _write_down(outcome: Outcome, folder: Path, log: Progress) -> None:
    """Make a job's end last: from here on it is not run again."""
    try:
        write_text(folder / FILE, outcome_text(outcome))
    except OSError as error:  # it still goes back to the driver, which writes it into the store
        log.log(f"{FILE} could not be written: {error.strerror}")
    log.log(f"done: {outcome['mapping']}, {outcome['throughput_hz']:g} frames/s")


def _check_code(wanted: str) -> None:
    """Refuse to run with other code than the sweep was started with."""
    own = code_version()
    if wanted not in ("", own, own.partition("+")[0]):
        raise InputError(
            f"this worker has dse {own}, the sweep was started with {wanted}: install the same everywhere, "
            "or write 'code: any'"
        )


def _check_file(experiment: Experiment, sha256: str) -> None:
    """Refuse a model that is not the one the sweep was started with."""
    found = Fingerprints().model(experiment.model)
    if found != sha256:
        paths = ", ".join(str(path) for path in model_files(experiment.model))
        raise InputError(
            f"{paths}: sha256 {found[:12]}... here, {sha256[:12]}... where the sweep was started: "
            "the file changed or differs between hosts; start the sweep again"
        )


def main() -> None:
    """Answer jobs until standard input closes."""
    executor = Executor()
    serve({"job": executor.job}, executor.close)


if __name__ == "__main__":
    main()
