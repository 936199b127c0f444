"""A real Slurm and a real PostgreSQL, started from nothing on the loopback, ended without a trace."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SLURM_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
KillWait=2
OverTimeLimit=0
NodeName=big0 NodeHostname={host} NodeAddr=127.0.0.1 Port={big_port} CPUs=2 RealMemory=4000 Feature=big
NodeName=lit0 NodeHostname={host} NodeAddr=127.0.0.1 Port={little_port} CPUs=2 RealMemory=4000 Feature=LITTLE
PartitionName=main Nodes=big0,lit0 Default=YES MaxTime=INFINITE State=UP
"""


def needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the daemons are started as root")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what: str, timeout_s: float = 60.0):
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"no {what} within {timeout_s} s"
        time.sleep(0.1)


class Daemons:
    """Child processes that are ended in the reverse order."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []

    def start(self, *command: object, log: Path, **more) -> subprocess.Popen:
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                **more,
            )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Slurm:
    """Two named nodes on this host."""

    def __init__(self, folder: Path) -> None:
        needs("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
        needs_root()
        self.folder = folder
        self.daemons = Daemons()
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            SLURM_CONF.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.geteuid()).pw_name,
                control_port=free_port(),
                big_port=free_port(),
                little_port=free_port(),
            )
        )
        self.daemons.start(
            "munged",
            "--foreground",
            "--force",
            *(
                f"--{name}={folder}/munge.{name.partition('-')[0]}"
                for name in ("socket", "key-file", "pid-file")
            ),
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
            log=folder / "munged.out",
        )
        wait_for((folder / "munge.socket").exists, "munge socket")
        self.daemons.start("slurmctld", "-D", "-c", log=folder / "slurmctld.out", env=self.env)
        for node in ("big0", "lit0"):
            (folder / f"spool-{node}").mkdir()
            self.daemons.start("slurmd", "-D", "-N", node, log=folder / f"{node}.out", env=self.env)
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", "two idle nodes")

    def run(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=30, check=False
        ).stdout

    def job_ids(self) -> list[str]:
        """Jobs that run."""
        return self.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()

    def end(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", "--full")
            time.sleep(0.5)
        self.daemons.end()
        self._end_steps()

    def _end_steps(self) -> None:
        """Batch steps outlive the daemons: end those of this cluster."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"SLURM_CONF={self.folder}/".encode() in (path / "environ").read_bytes():
                    comm = (path / "comm").read_text().strip()
                    if comm in ("slurmstepd", "slurm_script", "python", "python3", "dask"):
                        os.kill(int(path.name), signal.SIGKILL)


class Postgres:
    """A server of its own with one user, who has a password."""

    password = "not-to-be-seen-anywhere"  # noqa: S105 - of a server that lives for one test

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        initdb = shutil.which("initdb") or (found[-1] if found else None)
        if initdb is None:
            pytest.skip("not installed: postgresql")
        self.bin = Path(initdb).parent
        # pytest's folders can not be entered by the user that the server has to run as.
        self.folder, self.port = Path(tempfile.mkdtemp(prefix="dse-postgres-")), free_port()
        self.daemons = Daemons()
        self.user = "postgres" if os.geteuid() == 0 else None  # initdb refuses root
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.data.mkdir()
        if self.user:
            shutil.chown(self.data, self.user)
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        subprocess.run(
            [
                self.bin / "initdb",
                "-D",
                self.data,
                "-U",
                "sweeper",
                "--pwfile",
                secret,
                "-A",
                "scram-sha-256",
                "-N",
            ],
            check=True,
            capture_output=True,
            **self._as_user(),
        )
        self.start()

    def _as_user(self) -> dict:
        return {"user": self.user, "cwd": self.data} if self.user else {"cwd": self.data}

    def start(self) -> None:
        self.server = self.daemons.start(
            self.bin / "postgres",
            *("-D", self.data, "-p", self.port, "-h", "127.0.0.1", "-k", self.data),
            *("-c", "fsync=off", "-c", "max_connections=60"),
            log=self.folder / "postgres.log",
            **self._as_user(),
        )
        wait_for(self._answers, "PostgreSQL")

    def stop(self) -> None:
        """At once, as when its machine loses power."""
        self.server.send_signal(signal.SIGQUIT)
        self.server.wait(20)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self):
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="sweeper",
            password=self.password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    @property
    def url(self) -> str:
        return f"postgresql://sweeper@127.0.0.1:{self.port}/postgres"

    def end(self) -> None:
        self.daemons.end()
        shutil.rmtree(self.folder)
