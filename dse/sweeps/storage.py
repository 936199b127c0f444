"""Whether files can be kept where they are to be kept: tried before anything is run.

Databases and journals in files need locks.  Network file systems often grant locks that lock
nothing, and then the file is damaged in the middle of a sweep.  So another process takes a lock
here, and this one looks whether it is kept out.

References
----------
"How To Corrupt An SQLite Database File", https://sqlite.org/howtocorrupt.html, section 2.1; "Write-Ahead
Logging", https://sqlite.org/wal.html (not over a network file system).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dse.errors import InputError
from dse.files import read_text

NETWORK_KINDS = frozenset(
    """
    nfs nfs4 cifs smb smb2 smb3 smbfs ncpfs afs 9p ceph lustre gpfs beegfs glusterfs ocfs2 gfs2 orangefs
    pvfs2 panfs wekafs virtiofs davfs fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse
    fuse.rclone fuse.juicefs fuse.mfs fuse.davfs2
    """.split()  # noqa: SIM905 - a list of names
)

# Takes a lock of the named kind, says whether it was got, and holds it until its input closes.
_HOLDER = """
import fcntl, sys
kind, path = sys.argv[1:]
take = fcntl.flock if kind == "flock" else fcntl.lockf
with open(path, "r+") as file:
    try:
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("got", flush=True)
    except BlockingIOError:
        print("kept out", flush=True)
    except OSError as error:
        print(f"refused: {error.strerror}", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Storage:
    """What a folder's file system is.

    Parameters
    ----------
    kind
        Of the file system, as the kernel names it.
    is_network
        Whether other hosts may see it.
    """

    kind: str
    is_network: bool


def file_system(path: Path, mounts: str | None = None) -> str:
    """Return the kind of the file system that holds a path, or ``unknown``.

    Parameters
    ----------
    mounts
        Content of ``/proc/self/mountinfo``; read when None.
    """
    text = read_text(Path("/proc/self/mountinfo")) if mounts is None else mounts
    path = path.resolve()
    best, kind = -1, "unknown"
    for line in (text or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


def probe(folder: Path) -> Storage:
    """Try a folder: write, rename, lock, and be kept out by another process's lock.

    Raises
    ------
    InputError
        It can not be used for a database, a journal or run folders; says what is wrong and what
        to do.
    """
    kind = file_system(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".probe-")
        os.close(handle)
    except OSError as error:
        raise InputError(f"{folder}: can not be written ({error.strerror}); choose another output") from None
    path = Path(name)
    moved = path.with_suffix(".moved")
    try:
        path.write_bytes(b"probe")
        path.replace(moved)
        if moved.read_bytes() != b"probe":
            raise InputError(
                f"{folder} (a file system of kind {kind}): a file that was written reads differently"
            )
        for lock in ("flock", "lockf"):
            _try_lock(folder, moved, lock, kind)
    except OSError as error:
        raise InputError(
            f"{folder} (a file system of kind {kind}): {error.strerror}; choose another output"
        ) from None
    finally:
        path.unlink(missing_ok=True)
        moved.unlink(missing_ok=True)
    return Storage(kind, kind in NETWORK_KINDS)


def _try_lock(folder: Path, path: Path, lock: str, kind: str) -> None:
    holders = []
    try:
        said = []
        for _ in range(2):
            holder = subprocess.Popen(
                [sys.executable, "-c", _HOLDER, lock, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            holders.append(holder)
            assert holder.stdout is not None  # noqa: S101 - we asked for a pipe
            said.append(holder.stdout.readline().strip())
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
    if said == ["got", "kept out"]:
        return
    both = said == ["got", "got"]
    problem = "two processes got one lock at once" if both else f"{lock}: {said[-1] or 'no answer'}"
    raise InputError(
        f"{folder}: locks do not work on this file system (kind {kind}; {problem}), so a SQLite database or "
        "a journal would be damaged. Put 'output' and 'store' on a local disk, or use PostgreSQL "
        "(store: postgresql://user@host/database)"
    )
