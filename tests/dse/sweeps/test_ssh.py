"""A sweep over SSH, through a real server on the loopback."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.dse.sweeps.services import Daemons, free_port, needs, needs_root, wait_for

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/sshd.pid
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
"""


@pytest.fixture
def server(tmp_path):
    needs("sshd", "ssh-keygen")
    needs_root()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = free_port()
    (tmp_path / "sshd_config").write_text(CONFIG.format(port=port, folder=tmp_path))
    Path("/run/sshd").mkdir(exist_ok=True)
    daemons = Daemons()
    log = tmp_path / "sshd.log"
    daemons.start(shutil.which("sshd"), "-D", "-e", "-f", tmp_path / "sshd_config", log=log)
    wait_for(lambda: "Server listening" in log.read_text(), "SSH server")
    yield port, tmp_path / "user_key"
    daemons.end()


@pytest.mark.slow
def test_jobs_run_over_ssh(lab, server):
    port, key = server
    cluster = f"""
cluster:
  kind: ssh
  hosts: [127.0.0.1, 127.0.0.1, 127.0.0.1]
  options:
    connect_options: {{port: {port}, known_hosts: null, client_keys: ['{key}'], username: {getpass.getuser()}}}
    worker_options: {{local_directory: '{lab.folder}'}}
"""
    path = lab.write("grid: {seed: [0, 1, 2, 3, 4, 5]}", cluster=cluster)
    assert lab.json(path)["done"] == 6
    workers = {row["worker"] for row in lab.rows(path)}
    assert 1 <= len(workers) <= 2
    assert all(worker.startswith("tcp://") for worker in workers)  # not threads of this process
