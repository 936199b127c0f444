"""The sweeps in ``configs/``: they expand, and the published kind of study holds what it says."""

from __future__ import annotations

import pytest

from dse.config import load_experiment
from dse.explore import search
from dse.sweeps.definition import read_sweep
from dse.sweeps.expansion import Expander
from tests.dse.sweeps.conftest import ROOT


@pytest.mark.parametrize(("name", "n_jobs"), [("sweep.yaml", 15), ("sweep_big_little.yaml", 24)])
def test_they_expand(name, n_jobs):
    assert len(list(Expander(read_sweep(ROOT / "configs" / name)).jobs())) == n_jobs


@pytest.mark.slow
def test_networks_on_big_little_pipeline_and_mix(lab):
    """One network of the study: its columns are the plans of one search, and in the order they must be."""
    text = (ROOT / "configs" / "sweep_big_little.yaml").read_text()
    head, rest = text.split("grid:\n  model:\n")
    network = "    - {zoo: squeezenet}\n"
    assert network in rest
    path = lab.folder / "study.yaml"
    text = f"{head}grid:\n  model:\n{network}\nlist:{rest.split('list:')[1]}"
    path.write_text(text.replace("platforms/", f"{ROOT}/configs/platforms/"))
    (row,) = lab.json(path) and lab.json("results", path, "--pivot", "label,throughput_hz")
    little, big, pipeline, mix = (
        float(row[name]) for name in ("4 LITTLE", "4 big", "best single pipeline", "best mix")
    )
    assert little < big < pipeline <= mix
    whole = lab.folder / "one.yaml"
    whole.write_text(
        f"model: {{zoo: squeezenet}}\nplatform: {ROOT}/configs/platforms/hikey970.yaml\n"
        "profile: {method: analytic}\nmeasure: {enabled: false}\n"
    )
    plans = {plan.name: plan.predicted.throughput_hz for plan in search(load_experiment(whole)).plans}
    assert big == pytest.approx(plans["whole, 4 big"], rel=1e-3)
    assert little == pytest.approx(plans["whole, 4 LITTLE"], rel=1e-3)
    assert pipeline == pytest.approx(plans["best pipeline"], rel=1e-3)
    assert mix == pytest.approx(max(plans.values()), rel=1e-3)
