"""Running models of the zoo in the real runtime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dse.flatbuffer.encode import encode
from dse.zoo.assemble import assemble

CHILD = Path(__file__).with_name("litert_child.py")


@pytest.fixture
def run_draft(tmp_path):
    """Function (draft, frames, stream=False) -> per frame the list of outputs."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("the runtime (ai-edge-litert) is not installed")

    def run(draft, frames, *, stream=False):
        model, given, answers = tmp_path / "m.tflite", tmp_path / "in.npz", tmp_path / "out.npz"
        model.write_bytes(encode(assemble(draft)))
        named = {f"f{f}_{i}": value for f, frame in enumerate(frames) for i, value in enumerate(frame)}
        np.savez(given, **named)
        mode = "stream" if stream else "reset"
        command = [sys.executable, str(CHILD), str(model), str(given), str(answers), mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        found = np.load(answers)
        return [[found[f"f{f}_{i}"] for i in range(len(draft.outputs))] for f in range(len(frames))]

    return run
