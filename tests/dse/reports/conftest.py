"""Fixtures of the report tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic_result import make_nasty, make_result

from dse.results import RunResult


@pytest.fixture
def result_of() -> Callable[..., RunResult]:
    return make_result


@pytest.fixture
def nasty() -> RunResult:
    return make_nasty()
