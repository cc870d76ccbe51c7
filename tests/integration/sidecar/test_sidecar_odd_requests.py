"""Odd bodies and heads over a raw socket, before the fake engine: never a 500, never a hang.

Each goes to a sidecar and to a router before it. They run on a loop of their own, in a thread, so
that hypothesis drives them from outside. A 5xx is only right where nobody but us or the engine is
to blame, which here nobody is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_engine import engine_in_process
from support.odd_json import BODIES, GENERATING, odd_bodies
from support.router_fleet import router_before, write_secrets
from support.sidecar import ALICE, KEYS, policy_document, sidecar_under_test

pytestmark = pytest.mark.integration

MODEL = "test-model"
LIMITS = {"max_body_bytes": 100_000}
BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
AUTHORIZATION = f"Authorization: Bearer {KEYS[ALICE]}".encode()


class Served:
    """A sidecar and a router on a loop and in a thread of its own, with the oracle at its end."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.ports: tuple[int, int]
        """Of the router and the sidecar."""

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # told to the test's own thread
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        secrets = write_secrets(self._folder / "identity-keys", token_hex(32))
        policy = policy_document(
            model={"name": MODEL, "task": "Embed" if self._flags else "Generate"},
            tier={"output": {"default_tokens": 4, "max_tokens": 64}},
        )
        async with (
            engine_in_process(*self._flags, "--fake-time-scale", "0.01") as engine,
            sidecar_under_test(
                self._folder, engine, policy=policy, pool_identity_keys=secrets, **LIMITS
            ) as sidecar,
            router_before(self._folder, sidecar, secrets, **LIMITS) as router,
        ):
            self.ports = router.port, sidecar.sidecar.port
            self._ready.set()
            await self._stop.wait()
            outcomes = sidecar.outcomes()
            for ended in (outcomes, router.edge.ended):
                assert not {"engine_failed", "no_engine"} & set(ended), ended

    def speak(self, data: bytes, patience_seconds: float = 20.0) -> list[bytes]:
        """What comes back from each; once nothing did for so long, the client hangs up."""
        with contextlib.ExitStack() as stack:
            connections = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
                for port in self.ports
            ]
            for connection in connections:
                connection.sendall(data)
            return [heard(connection, patience_seconds) for connection in connections]


def heard(connection: socket.socket, patience_seconds: float) -> bytes:
    connection.settimeout(patience_seconds)
    told = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while piece := connection.recv(65_536):
            told += piece
    return told


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Before an engine that generates."""
    with Served(tmp_path_factory.mktemp("generating")) as served:
        yield served


@pytest.fixture(scope="module")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Before an engine that pools."""
    with Served(tmp_path_factory.mktemp("pooling"), "--runner", "pooling") as served:
        yield served


def head(path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: x", AUTHORIZATION, b"Connection: close"]
    lines += [b"Content-Type: application/json", b"Content-Length: %d" % length]
    return b"\r\n".join([*lines, b"", b""])


def status_of(told: bytes) -> int:
    return int(told.split(b" ", 2)[1])


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_served_or_refused(generating: Served, pooling: Served, path: str) -> None:
    served = generating if path in GENERATING else pooling

    @BOUNDED
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        body = json.dumps(data.draw(odd_bodies(path, MODEL))).encode()
        both = served.speak(head(path, len(body)) + body)
        for told in both:
            status = status_of(told)
            assert status in (200, 400, 404, 413), told[:500]
            if status != 200:
                error = json.loads(told.partition(b"\r\n\r\n")[2])["error"]
                assert set(error) == {"message", "type", "param", "code"}
        assert len({status_of(told) for told in both}) == 1, both

    check()


NAMES = st.sampled_from(
    [
        b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"Expect", b"Authorization",
        b"x-tidegate-priority", b"x-tidegate-deadline-ms", b"Connection", b"Content-Type", b"Host",
        b"traceparent", b"x-request-id", b"Upgrade", b"x", b"", b"a b", b"\xff",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        b"chunked", b"gzip", b"identity", b"0", b"-1", b"99999999999999999999", b"100-continue",
        AUTHORIZATION[15:], b"application/json", b"5", b"1e3", b"close", b"x, y",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"websocket", b"\xe4\xbd\xa0", b"\x00",
    ]
)  # fmt: skip
LINES = st.tuples(NAMES, WORDS | st.binary(max_size=20))
ENDS = st.sampled_from([b"\r\n", b"\n", b"\r", b""])


@settings(BOUNDED, max_examples=40)
@given(
    method=st.sampled_from([b"POST", b"GET", b"PUT", b"HEAD", b"OPTIONS", b"post", b"", b"\x00"]),
    path=st.sampled_from(
        [b"/v1/chat/completions", b"/v1/models", b"/tokenize", b"/", b"*", b"/v1/models/%00", b"//"]
    ),
    lines=st.lists(LINES, max_size=5),
    ends=ENDS,
    body=st.sampled_from([b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"\x00" * 10]),
    authorized=st.booleans(),
)
def test_a_head_is_served_or_refused(
    generating: Served,
    method: bytes,
    path: bytes,
    lines: list[tuple[bytes, bytes]],
    ends: bytes,
    body: bytes,
    authorized: bool,
) -> None:
    given_lines: list[Any] = [name + b": " + value for name, value in lines]
    if authorized:
        given_lines.append(AUTHORIZATION)
    data = (ends or b"\r\n").join([method + b" " + path + b" HTTP/1.1", *given_lines, b"", b""])
    for told in generating.speak(data + body, patience_seconds=0.1):
        assert not told or status_of(told) < 500, told[:500]
