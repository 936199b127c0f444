"""A bounded run of the fuzzer; ``benchmarks/fuzz_reader.py`` makes the full one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).resolve().parents[3] / "benchmarks" / "fuzz_reader.py"


def test_damaged_files_give_clean_results_or_clean_errors(corpus):
    """In a process of its own, because it limits its memory."""
    command = [sys.executable, str(FUZZER), "--models", str(corpus / "models"), "--n", "800", "--jobs", "1"]
    done = subprocess.run(
        [*command, "--max-file-bytes", "60000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert "'works'" in done.stdout
    assert "'ModelError'" in done.stdout
