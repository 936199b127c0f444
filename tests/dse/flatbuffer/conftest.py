"""Fixtures of the flatbuffer tests."""

from __future__ import annotations

import pytest
from running import ModelRunner


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """Runs models in a child process; skips where LiteRT is not installed."""
    pytest.importorskip("ai_edge_litert")
    running = ModelRunner(tmp_path_factory.mktemp("runner"))
    yield running
    running.close()
