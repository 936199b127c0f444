"""The tables of the store (SQLite or PostgreSQL), as SQLAlchemy sees them.

A job has one row, whatever sweeps it belongs to; its key is the hash of its content.  ``members``
says which jobs a sweep has.  ``drivers`` are the processes that hand jobs out; a job that runs names
its driver, so that jobs of a driver that is gone can be told from jobs that run.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

VERSION = 1

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"

metadata = MetaData()

about = Table("dse_about", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

sweeps = Table(
    "dse_sweeps",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("definition", Text, nullable=False),  # the file as JSON; secrets are never in it
    Column("fields", Text, nullable=False),  # what varies
    Column("created_s", Float, nullable=False),
    Column("cancelled", Integer, nullable=False, default=0),
)

members = Table(
    "dse_members",
    metadata,
    Column("sweep", String(100), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("key", String(40), nullable=False),
    Column("label", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Index("dse_members_by_key", "key"),
)

jobs = Table(
    "dse_jobs",
    metadata,
    Column("key", String(40), primary_key=True),
    Column("status", String(10), nullable=False),
    Column("config", Text, nullable=False),
    Column("mode", String(10), nullable=False),
    Column("board", Text),
    Column("model", Text, nullable=False),
    Column("model_sha256", String(64), nullable=False),
    Column("platform", Text, nullable=False),
    Column("run_dir", Text, nullable=False),
    Column("driver", String(64)),
    Column("attempts", Integer, nullable=False, default=0),
    # What is known when it has ended.
    Column("code", String(64)),
    Column("host", Text),
    Column("worker", Text),
    Column("started_s", Float),
    Column("finished_s", Float),
    Column("wall_s", Float),
    Column("winner", Text),
    Column("mapping", Text),
    Column("solver", Text),
    Column("proof", Text),
    Column("throughput_hz", Float),
    Column("predicted_hz", Float),
    Column("measured_hz", Float),
    Column("latency_ns", BigInteger),
    Column("memory_bytes", BigInteger),
    Column("energy_nj", BigInteger),
    Column("bound_hz", Float),
    Column("gap", Float),
    Column("baseline_hz", Float),
    Column("gain", Float),
    Column("n_lanes", Integer),
    Column("n_stages", Integer),
    Column("n_cores", Integer),
    Column("error", Text),
    Column("log_tail", Text),
    Index("dse_jobs_by_status", "status"),
)

drivers = Table(
    "dse_drivers",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("sweep", String(100), nullable=False),
    Column("host", Text, nullable=False),
    Column("boot", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pid_started_s", Float, nullable=False),
    Column("seen_s", Float, nullable=False),
)
