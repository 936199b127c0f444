"""A folder with a tiny model, in which sweeps run as a user would run them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dse.cli import main
from dse.sweeps.address import StoreAddress, sqlalchemy_url
from dse.sweeps.definition import read_sweep
from dse.sweeps.store import Store
from tests.dse.flatbuffer.small_models import chain

ROOT = Path(__file__).resolve().parents[3]

PLATFORM = """
    name: board
    clusters:
      - {name: LITTLE, cores: 0-1, macs_per_s: 1.0e+6, bytes_per_s: 1.0e+6}
      - {name: big, cores: 2-3, macs_per_s: 2.5e+6, bytes_per_s: 2.5e+6}
"""
BASE = f"""
base:
  model: tiny.tflite
  platform:{PLATFORM}
  profile: {{method: analytic}}
  search: {{solver: interval_dp, candidates: 1}}
  measure: {{enabled: false}}
"""


class Lab:
    """A folder for sweeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tiny.tflite").write_bytes(bytes(chain(3).data()))
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "TFLITE_DSE_CACHE": str(folder / "cache")}

    def write(self, text: str, name: str = "study.yaml", base: str = BASE, cluster: str = "") -> Path:
        path = self.folder / name
        cluster = cluster or "cluster: {kind: local, workers: 2}"
        path.write_text(f"{base}{text}\noutput: {self.folder / 'runs'}\n{cluster}\n")
        return path

    def start(self, *arguments: object, **more) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dse", "sweep", *map(str, arguments)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def dse(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """Run ``dse sweep ...`` in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(["sweep", *map(str, arguments)])
        assert found == code, f"{out.getvalue()}\n{err.getvalue()}"
        assert "Traceback" not in err.getvalue()
        return out.getvalue(), err.getvalue()

    def json(self, *arguments: object, code: int = 0):
        return json.loads(self.dse(*arguments, "--json", code=code)[0])

    @contextlib.contextmanager
    def store(self, path: Path):
        """Look into the default store of a sweep."""
        sweep = read_sweep(path)
        file = sweep.output / "results.db"
        file.parent.mkdir(parents=True, exist_ok=True)
        store = Store(StoreAddress(sqlalchemy_url(f"sqlite:///{file}", "test"), file))
        store.create()
        try:
            yield store
        finally:
            store.close()

    def rows(self, path: Path) -> list[dict]:
        with self.store(path) as store:
            return list(store.rows(read_sweep(path).name))


def assert_ended_once(row: dict) -> None:
    """The row is that of the one attempt whose end was written down; nothing ran to the end after it."""
    folder = Path(row["run_dir"])
    outcome = json.loads((folder / "outcome.json").read_text())
    for name in ("key", "host", "worker", "started_s", "finished_s", "throughput_hz"):
        assert outcome[name] == row[name]
    # A kill may come between the end and this line; the line comes only after the end.
    assert len(re.findall(r"^\S+ \S+ done: ", (folder / "log.txt").read_text(), re.MULTILINE)) <= 1


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)
