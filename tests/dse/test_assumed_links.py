"""What hand-overs cost on a described board that nobody measured."""

from __future__ import annotations

import dataclasses

import pytest

from dse import explore
from dse.config import load_experiment
from dse.costs import Cost, link_from_json, link_json
from dse.platforms import ASSUMED_SETUP_NS, Link, assumed_links
from dse.profiling.reuse import Known
from dse.progress import SilentProgress

BOARD = """
model: {zoo: mobilenet_v2, parameters: {size: 96}}
platform:
  name: two plus two
  clusters:
    - {name: LITTLE, cores: 0-1, macs_per_s: 7.2e9, bytes_per_s: 4e9}
    - {name: big, cores: 2-3, macs_per_s: 18.9e9, bytes_per_s: 8e9}
LINES
search: {time_s: 1, max_lanes: 1, candidates: 1}
"""


@pytest.fixture
def searched(tmp_path):
    def search(lines=""):
        path = tmp_path / "x.yaml"
        path.write_text(BOARD.replace("LINES", lines))
        return explore.search(load_experiment(path))

    return search


def test_pieces_cost_where_nobody_tells(searched):
    result = searched()
    assert result.costs.links == assumed_links(result.platform)
    assert any("hand-over costs is assumed (5 us and 10 GB/s)" in text for text in result.warnings)
    assert len(result.best.mapping.stages) <= 16  # of 66 layers, on four cores
    for stage in result.best.stages[1:]:
        assert stage.predicted_receive_ns > ASSUMED_SETUP_NS
    free = searched("  hand_over: {setup_ns: 0}")
    assert not any("assumed" in text for text in free.warnings)
    assert all(stage.predicted_receive_ns == 0 for stage in free.best.stages)


def test_stated_links_stay_as_they_are(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(BOARD.replace("LINES", "  links: [{source: big, target: LITTLE, setup_ns: 0}]"))
    subject = explore.load(load_experiment(path), tmp_path, SilentProgress())
    costs = explore.find_costs(subject, SilentProgress())
    assert costs.links == (Link("big", "LITTLE", 0, None),)
    problem, _, _ = explore.make_problem(subject, costs)
    assert not problem.setup.any()


def test_assumed_links_are_never_taken_for_known_ones(searched):
    result = searched()
    costs, platform = result.costs, result.platform
    assert tuple(link_from_json(link_json(link)) for link in costs.links) == costs.links
    measured = dataclasses.replace(costs, costs=((Cost(1_000),) * len(costs.slots),) * len(costs.costs))
    assert Known((measured,)).links(platform) == ()
    told = tuple(dataclasses.replace(link, assumed=False) for link in costs.links)
    assert Known((dataclasses.replace(measured, links=told),)).links(platform) == told
