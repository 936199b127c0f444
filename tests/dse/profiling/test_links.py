from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.pipeline.handover import N_ROUNDS, measure_handovers
from dse.pipeline.supervise import Pipeline
from dse.platforms import Cluster, Platform
from dse.profiling.links import SIZES_BYTES, fit_link, hop_plan, links_from_json, measure_links
from dse.profiling.tiny import doubling_model

CORES = sorted(os.sched_getaffinity(0))


@given(st.integers(0, 10**6), st.integers(10**8, 10**11))
def test_a_straight_line_is_found_again(setup_ns: int, bandwidth: int) -> None:
    points = [(n, round(setup_ns + n * 1e9 / bandwidth)) for n in SIZES_BYTES]
    fit = fit_link("a", "b", points, 5)
    assert fit.link.setup_ns == pytest.approx(setup_ns, rel=0.02, abs=2)
    assert fit.link.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.02)
    assert fit.worst_residual < 0.25  # the rounding of the shortest times


def test_residuals_are_kept() -> None:
    fit = fit_link("a", "b", [(1000, 100), (2000, 260), (3000, 300)], 7, (10, 10, 10))
    data = json.loads(json.dumps(fit.to_json()))
    assert len(data["residuals"]) == 3
    assert max(map(abs, data["residuals"])) == pytest.approx(fit.worst_residual, abs=1e-4)
    assert (data["take_ns"], data["wake_ns"]) == ([10, 10, 10], 7)
    assert links_from_json([data]) == (fit.link,)


def test_hand_over_in_the_lanes_of_the_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "double.tflite"
    path.write_bytes(doubling_model(1 << 18))
    pair = [hop_plan(path, 1 << 18, (core, CORES[-1])) for core in (CORES[0], CORES[-1])]
    taken = {}
    for engine in ("compiled", "interpreter"):
        found = measure_handovers([(pair[0], pair[1])], engine)
        assert len(found["take_ns"][0]) == len(found["read_ns"][0]) == N_ROUNDS
        assert min(found["wake_ns"]) > 0
        taken[engine] = min(found["take_ns"][0])
    # The interpreter copies a mebibyte, the engine that shares memory does not.
    assert 0 < taken["compiled"] < taken["interpreter"]


def test_every_pair_of_clusters(tmp_path: Path) -> None:
    clusters = (Cluster("LITTLE", (CORES[0],)), Cluster("big", (CORES[-1],)))[: len(CORES)]
    platform = Platform("here", clusters, origin="detected")
    fits = measure_links(platform, tmp_path)
    assert [(f.link.source, f.link.target) for f in fits] == [
        (a.name, b.name) for a in clusters for b in clusters
    ]
    for fit in fits:
        assert [n for n, _ in fit.points] == list(SIZES_BYTES)
        assert all(0 < take <= total for take, (_, total) in zip(fit.take_ns, fit.points, strict=True))
    accelerator = dataclasses.replace(platform, clusters=(Cluster("gpu", (99,), kind="gpu"),))
    assert measure_links(accelerator, tmp_path) == ()


def test_doubling_doubles(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "double.tflite"
    path.write_bytes(doubling_model(5))
    frame = (np.arange(5, dtype=np.float32).reshape(1, 5),)
    with Pipeline(hop_plan(path, 5, (CORES[0], CORES[-1])), [frame]) as pipeline:
        ((result,),) = pipeline.map([frame])
    assert np.array_equal(result, 4 * frame[0])
