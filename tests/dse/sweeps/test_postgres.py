"""PostgreSQL as the store and as Optuna's storage, killed, resumed, stopped in the middle."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from dse.sweeps.address import store_address
from dse.sweeps.definition import read_sweep
from dse.sweeps.store import Store
from tests.dse.sweeps.conftest import assert_ended_once
from tests.dse.sweeps.services import Postgres, wait_for

BUDGET = 200
STUDY = f"""
optuna:
  budget: {BUDGET}
  storage: store
  fields:
    search.max_lanes: {{choices: [1, 2, 3, null]}}
    seed: {{low: 0, high: 10000}}
"""


@pytest.fixture(scope="module")
def postgres():
    server = Postgres()
    yield server
    server.end()


@pytest.fixture
def place(lab, postgres):
    """A lab whose sweeps use the server; the password is in the environment only."""
    lab.env["SWEEP_PASSWORD"] = os.environ["SWEEP_PASSWORD"] = postgres.password
    yield lab
    del os.environ["SWEEP_PASSWORD"]


def store_line(postgres: Postgres) -> str:
    return f"store: {{url: '{postgres.url}', password_env: SWEEP_PASSWORD}}\n"


def rows(path) -> list[dict]:
    sweep = read_sweep(path)
    store = Store(store_address(sweep))
    try:
        return list(store.rows(sweep.name))
    finally:
        store.close()


def n_trials(postgres: Postgres) -> dict[str, int]:
    with postgres.connect() as connection:
        if connection.execute("SELECT to_regclass('trials')").fetchone() == (None,):
            return {}
        return dict(connection.execute("SELECT state::text, count(*) FROM trials GROUP BY state").fetchall())


@pytest.mark.slow
def test_a_budget_of_200_is_exactly_200_over_kills_and_two_drivers(place, postgres):
    path = place.write(
        store_line(postgres) + STUDY, "study.yaml", cluster="cluster: {kind: local, workers: 4}"
    )
    draw = random.Random(11)
    for _ in range(2):  # killed at two places, with trials in every state
        process = place.start(path, start_new_session=True)
        start = sum(n_trials(postgres).values())
        goal = start + draw.randint(20, 50)
        wait_for(lambda goal=goal: sum(n_trials(postgres).values()) >= goal, "trials", 200)
        time.sleep(draw.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    killed = n_trials(postgres)
    assert sum(killed.values()) < BUDGET
    # Where jobs run does not change the sweep: two drivers share the rest.
    path.write_text(path.read_text().replace("workers: 4", "workers: 2"))
    processes = [place.start("resume", path), place.start("resume", path)]
    for process in processes:
        _, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
    assert n_trials(postgres) == {"COMPLETE": BUDGET}
    found = rows(path)
    assert [row["position"] for row in found] == list(range(BUDGET))
    assert {row["status"] for row in found} == {"done"}
    again = place.json("resume", path)
    assert (again["ended_before"], again["done"]) == (BUDGET, BUDGET)
    assert n_trials(postgres) == {"COMPLETE": BUDGET}
    with postgres.connect() as connection:  # every value is that of the trial's own job
        stored = connection.execute(
            "SELECT t.number, v.value FROM trials t JOIN trial_values v USING (trial_id) ORDER BY t.number"
        ).fetchall()
    assert stored == [(row["position"], row["throughput_hz"]) for row in found]


@pytest.mark.slow
def test_a_server_that_goes_away_in_the_middle_costs_no_job(place, postgres):
    path = place.write(
        store_line(postgres) + f"grid: {{seed: [{', '.join(map(str, range(60)))}]}}", "cut.yaml"
    )
    process = place.start(path)
    wait_for(lambda: _n_done(path) >= 5, "finished jobs")
    postgres.stop()
    time.sleep(3)
    assert process.poll() is None
    postgres.start()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = rows(path)
    assert [row["status"] for row in found] == ["done"] * 60
    for row in found:
        assert_ended_once(row)
    assert postgres.password not in err


def _n_done(path) -> int:
    try:
        return sum(row["status"] == "done" for row in rows(path))
    except Exception:
        return 0


@pytest.mark.slow
def test_the_password_is_nowhere(place, postgres):
    path = place.write(store_line(postgres) + "grid: {seed: [0]}", "secret.yaml")
    out, err = place.dse(path)
    status, _ = place.dse("status", path)
    assert "sweeper:***@127.0.0.1" in status
    for text in (out, err, status):
        assert postgres.password not in text
    with postgres.connect() as connection:
        for table in ("dse_sweeps", "dse_jobs", "dse_drivers", "dse_members"):
            found = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - names above
            assert postgres.password not in str(found)
    for file in place.folder.rglob("*"):
        if file.is_file():
            assert postgres.password.encode() not in file.read_bytes()
    os.environ["SWEEP_PASSWORD"] = "wrong"  # noqa: S105
    _, err = place.dse("status", path, code=2)
    assert "password authentication failed" in err
