"""A small Android debug daemon for the real adb client: shell and push, without shell_v2.

Protocol: AOSP ``packages/modules/adb`` (``protocol.txt``, ``SYNC.TXT``).  Like devices without the
feature ``shell_v2`` it can not tell a command's exit code.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from pathlib import Path

VERSION, MAX_DATA = 0x01000001, 1 << 18
BANNER = b"device::ro.product.name=test;ro.product.model=Test;ro.product.device=test;features=cmd\0"


class Daemon:
    """Serves one client after another on a free port until it is closed."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.commands: list[str] = []
        self.pushed: list[str] = []
        self.damage = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=_Client(self, client).run, daemon=True).start()

    def shell(self, command: str) -> bytes:
        self.commands.append(command)
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._env,
            check=False,
        )
        return done.stdout

    def store(self, name: str, mode: int, data: bytes) -> None:
        self.pushed.append(name)
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:-1] + b"?" if self.damage and name.endswith(".tflite") else data)
        path.chmod(mode & 0o777)


class _Client:
    def __init__(self, daemon: Daemon, connection: socket.socket) -> None:
        self._daemon = daemon
        self._connection = connection
        self._streams: dict[int, tuple[int, bytearray]] = {}
        self._n_streams = 0

    def run(self) -> None:
        try:
            while True:
                command, one, two, size, _, _ = struct.unpack("<4s5I", self._read(24))
                self._take(command, one, two, self._read(size))
        except (OSError, EOFError):
            self._connection.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def _send(self, command: bytes, one: int, two: int, data: bytes = b"") -> None:
        number = struct.unpack("<I", command)[0]
        head = struct.pack("<4s5I", command, one, two, len(data), sum(data) & 0xFFFFFFFF, number ^ 0xFFFFFFFF)
        self._connection.sendall(head + data)

    def _take(self, command: bytes, one: int, two: int, data: bytes) -> None:
        if command == b"CNXN":
            self._send(b"CNXN", VERSION, MAX_DATA, BANNER)
        elif command == b"OPEN":
            self._n_streams += 1
            mine, service = self._n_streams, data.rstrip(b"\0").decode()
            self._send(b"OKAY", mine, one)
            if service.startswith("shell:"):
                text = self._daemon.shell(service.removeprefix("shell:"))
                for at in range(0, len(text), 4096):
                    self._send(b"WRTE", mine, one, text[at : at + 4096])
                self._send(b"CLSE", mine, one)
            elif service == "sync:":
                self._streams[mine] = (one, bytearray())
            else:
                self._send(b"CLSE", 0, one)
        elif command == b"WRTE":
            theirs, buffer = self._streams[two]
            self._send(b"OKAY", two, theirs)
            buffer += data
            self._sync(two, theirs, buffer)
        elif command == b"CLSE" and two in self._streams:
            del self._streams[two]
            self._send(b"CLSE", two, one)

    def _sync(self, mine: int, theirs: int, buffer: bytearray) -> None:
        """Work on whole requests; a file comes as SEND, some DATA and DONE."""
        while len(buffer) >= 8:
            word, size = struct.unpack("<4sI", buffer[:8])
            if word == b"SEND":
                end, name = 8 + size, bytes(buffer[8 : 8 + size]).decode()
                content = b""
                while len(buffer) >= end + 8:
                    part, length = struct.unpack("<4sI", buffer[end : end + 8])
                    if part == b"DONE":
                        path, _, mode = name.rpartition(",")
                        self._daemon.store(path, int(mode), content)
                        del buffer[: end + 8]
                        self._send(b"WRTE", mine, theirs, struct.pack("<4sI", b"OKAY", 0))
                        break
                    if len(buffer) < end + 8 + length:
                        return
                    content += bytes(buffer[end + 8 : end + 8 + length])
                    end += 8 + length
                else:
                    return
            elif word == b"STAT":
                if len(buffer) < 8 + size:
                    return
                path = Path(bytes(buffer[8 : 8 + size]).decode())
                status = path.stat() if path.exists() else None
                facts = (status.st_mode, status.st_size, int(status.st_mtime)) if status else (0, 0, 0)
                del buffer[: 8 + size]
                self._send(b"WRTE", mine, theirs, struct.pack("<4s3I", b"STAT", *facts))
            else:  # QUIT
                del buffer[:]
                self._streams.pop(mine, None)
                self._send(b"CLSE", mine, theirs)
