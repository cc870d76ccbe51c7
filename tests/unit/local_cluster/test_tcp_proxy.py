"""The Service forwarder keeps every byte, also those that come before its backend has answered."""

import asyncio
import resource
from asyncio import selector_events

import pytest

from tidegate.local_cluster.kubelet.tcp_proxy import (
    TcpProxy,
    _Client,
    _Side,
    allow_open_files,
)


class SlowProxy(TcpProxy):
    """Connects only after the client's bytes were read."""

    def __init__(self, port: int) -> None:
        super().__init__(lambda: [("127.0.0.1", port)])
        self.may_connect = asyncio.Event()

    async def connect(self, client: _Client) -> _Side | None:
        await self.may_connect.wait()
        return await super().connect(client)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"echo:" + await reader.read())
    writer.close()


@pytest.mark.parametrize("half_closed_early", [True, False])
async def test_bytes_read_before_the_backend_is_there_reach_it(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int, half_closed_early: bool
) -> None:
    """Python 3.11.2 reads on although reading was paused in connection_made."""
    monkeypatch.setattr(
        selector_events._SelectorSocketTransport, "pause_reading", lambda self: None
    )
    read = asyncio.Event()
    data_received = _Client.data_received

    def heard(self: _Client, data: bytes) -> None:
        data_received(self, data)
        read.set()

    monkeypatch.setattr(_Client, "data_received", heard)
    backend = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = SlowProxy(backend.sockets[0].getsockname()[1])
    await proxy.listen("127.0.0.1", unused_tcp_port)
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    async with asyncio.timeout(10):
        writer.write(b"early ")
        await read.wait()
        if half_closed_early:
            writer.write_eof()
            await asyncio.sleep(0)
        proxy.may_connect.set()
        if not half_closed_early:
            writer.write(b"late")
            writer.write_eof()
        answer = await reader.read()
    assert answer == b"echo:early " + (b"" if half_closed_early else b"late")
    writer.close()
    await writer.wait_closed()
    await proxy.close()
    backend.close()
    await backend.wait_closed()


def test_more_clients_than_a_shell_allows_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        allow_open_files()
        raised, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert unchanged == hard
    assert raised == (1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))
