"""Sends one request and measures it: the only place that touches the network."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import orjson

from tidegate.load.errors import LoadError
from tidegate.load.sample import Sample, SampleState
from tidegate.load.sse import AnswerReader, EventParser, error_code, usage_of
from tidegate.load.wire import WireRequest

MAX_CONNECTIONS = 20_000
_RESERVED_FILES = 256
_CONNECT_TIMEOUT_SECONDS = 30.0
_KEEPALIVE_SECONDS = 2.0
"""Below the 5 s after which uvicorn closes an idle connection: no POST into a closing one."""
_REFUSED_STATUSES = frozenset({503, 504})


def connection_limit() -> int:
    """Raise the soft limit of open files to the hard one; how many connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _RESERVED_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    files = wanted if soft == resource.RLIM_INFINITY else soft
    return max(16, min(MAX_CONNECTIONS, files - _RESERVED_FILES))


def checked_endpoint(url: str) -> str:
    """The base URL without a trailing slash or ``/v1``; :class:`LoadError` where it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise LoadError(f"endpoint {url!r}: expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1")


class HttpClient:
    """Connections to one endpoint, at most ``limit`` at once; more wait here (as send lag)."""

    def __init__(self, endpoint: str, clock: Callable[[], float], limit: int) -> None:
        self._endpoint = checked_endpoint(endpoint)
        self._clock = clock
        self._slots = asyncio.Semaphore(limit)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
            headers={"User-Agent": "tidegate-load"},
        )

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def check_reachable(self) -> None:
        """:class:`LoadError` where nothing answers, before anything is measured."""
        limit = aiohttp.ClientTimeout(total=_CONNECT_TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"{self._endpoint}/v1/models", timeout=limit):
                pass
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LoadError(f"cannot reach {self._endpoint}: {_kind(error)}") from None

    async def send(self, request: WireRequest, sample: Sample) -> None:
        """Send and settle the sample; cancellation leaves it in flight, for the run to settle."""
        async with self._slots:
            sample.sent = self._clock()
            try:
                await self._exchange(request, sample)
            except (aiohttp.ClientError, OSError, TimeoutError, LoadError) as error:
                if sample.state is SampleState.IN_FLIGHT:
                    sample.end(SampleState.FAILED, self._clock(), _kind(error))

    async def _exchange(self, request: WireRequest, sample: Sample) -> None:
        async with self._session.post(
            self._endpoint + request.path,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                await self._read_error(response, sample)
            elif request.stream:
                await self._read_stream(response, sample)
            else:
                self._read_answer(await response.read(), sample)

    async def _read_stream(self, response: aiohttp.ClientResponse, sample: Sample) -> None:
        if response.content_type != "text/event-stream":
            sample.end(SampleState.FAILED, self._clock(), "not_a_stream")
            return
        parser, answer = EventParser(), AnswerReader()
        async for chunk in response.content.iter_any():
            for data in parser.feed(chunk):
                if answer.read(data):
                    if sample.first_token is None:
                        sample.first_token = self._clock()
                    sample.output_tokens = answer.token_events
        if answer.usage is not None:
            sample.prompt_tokens, sample.output_tokens = answer.usage
        now = self._clock()
        if answer.error is not None:
            sample.end(SampleState.FAILED, now, answer.error)
        elif not answer.done:
            sample.end(SampleState.FAILED, now, "stream_cut_short")
        else:
            if sample.first_token is None:  # an answer of no visible text
                sample.first_token = now
            sample.end(SampleState.OK, now)

    def _read_answer(self, body: bytes, sample: Sample) -> None:
        now = self._clock()
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            sample.end(SampleState.FAILED, now, "malformed_answer")
            return
        if (usage := usage_of(answer)) is not None:
            sample.prompt_tokens, sample.output_tokens = usage
        sample.end(SampleState.OK, now)

    async def _read_error(self, response: aiohttp.ClientResponse, sample: Sample) -> None:
        sample.retry_after_seconds = _retry_after(response)
        reason = response.headers.get("x-tidegate-dropped-reason", "")[:64]
        if not reason:
            try:
                body = orjson.loads(await response.read())
                reason = error_code(body.get("error") if isinstance(body, dict) else None) or ""
            except orjson.JSONDecodeError:
                pass
        refused = 400 <= response.status < 500 or response.status in _REFUSED_STATUSES
        state = SampleState.REFUSED if refused else SampleState.FAILED
        sample.end(state, self._clock(), reason or f"http_{response.status}")


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def _kind(error: BaseException) -> str:
    """A short name of what broke; never the server's words, which could quote a prompt."""
    if isinstance(error, LoadError):
        return "endless_line"
    if isinstance(error, TimeoutError):
        return "connect_timeout"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "unknown_host"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connection_refused" if error.errno in (111, 61) else "connect_failed"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError):
        return "disconnected"
    return "protocol_error"
