"""The few calls a kubelet makes to its API server, and a local copy of what it watches.

On aiohttp directly: these are plain JSON objects of half a dozen kinds, and the client library's
typed models would cost four times the memory of the whole kubelet.
"""

import asyncio
import base64
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Object = dict[str, Any]
"""A Kubernetes object or a part of one, as JSON has it."""

log = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_WATCH_SECONDS = 290
_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class ApiError(Exception):
    """The API server refused a call: `status` is the HTTP code, `reason` its one-word cause."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason


class Unreachable(Exception):
    """The API server did not answer."""


class Api:
    """Calls to one API server with one identity. Use as an async context manager."""

    def __init__(self, server: str, token: str, ca: bytes) -> None:
        self.server = server
        self.ca = ca
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Api":
        """Reads a kubeconfig as `credentials.write_kubeconfig` writes it: all of it inline."""
        config = yaml.safe_load(path.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca = base64.b64decode(cluster["certificate-authority-data"])
        return cls(cluster["server"], user["token"], ca)

    async def __aenter__(self) -> "Api":
        context = ssl.create_default_context(cadata=self.ca.decode())
        self._session = aiohttp.ClientSession(
            self.server,
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            headers={"Authorization": f"Bearer {self._token}", "User-Agent": "tidegate-kubelet"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Object:
        return await self._call("GET", path, parameters=parameters)

    async def create(self, path: str, body: Object) -> Object:
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Object, kind: str = MERGE_PATCH) -> Object:
        return await self._call("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, body: Object) -> Object:
        return await self._call("DELETE", path, body=body)

    async def watch(
        self, path: str, parameters: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """(type, object) of each event, until the server ends the watch."""
        query = {**parameters, "watch": "1", "timeoutSeconds": str(_WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_SECONDS + 30)
        async with self._http.get(path, params=query, timeout=timeout) as answer:
            await _raise_for_status(answer)
            buffer = bytearray()
            async for chunk in answer.content.iter_any():
                buffer += chunk
                while (end := buffer.find(b"\n")) >= 0:
                    event = json.loads(bytes(buffer[:end]))
                    del buffer[: end + 1]
                    yield event["type"], event["object"]

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside its context"
        return self._session

    async def _call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        try:
            async with self._http.request(
                method,
                path,
                params=parameters,
                data=data,
                headers={"Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(total=15),
            ) as answer:
                await _raise_for_status(answer)
                result: Object = await answer.json()
                return result
        except _FAILURES as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error


async def _raise_for_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 400:
        return
    try:
        said = json.loads(await answer.text())
    except ValueError:
        said = {}
    raise ApiError(answer.status, said.get("reason", ""), said.get("message", ""))


class Informer:
    """A copy of a collection, kept by list and watch.

    `on_change(object, deleted)` is called for every object that is new, different or gone, also for
    what went away while the API server could not be reached: each list is compared with the copy.
    `synced` is set after the first list was delivered.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        on_change: Callable[[Object, bool], None],
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.synced = asyncio.Event()
        self._api = api
        self._path = path
        self._on_change = on_change
        self._parameters = dict(parameters or {})

    async def run(self) -> None:
        """Follows the collection for ever; failures are retried after at most two seconds."""
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                while True:
                    version = await self._watch(version)
            except (ApiError, Unreachable, ValueError, *_FAILURES) as error:
                expired = isinstance(error, ApiError) and error.status == 410
                if not expired:
                    wait = _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]
                    if failures == 0:
                        log.warning("watching %s: %s; trying again", self._path, error)
                    failures += 1
                    await asyncio.sleep(wait)

    async def _list(self) -> str:
        answer = await self._api.get(self._path, self._parameters)
        seen = {item["metadata"]["uid"]: item for item in answer["items"]}
        for uid in self.objects.keys() - seen.keys():
            self._on_change(self.objects.pop(uid), True)
        for uid, item in seen.items():
            self._store(uid, item)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """One watch from `version` to its end; the version to go on from."""
        parameters = {
            **self._parameters,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
        }
        async with contextlib.aclosing(self._api.watch(self._path, parameters)) as events:
            async for kind, item in events:
                if kind == "ERROR":
                    raise ApiError(item.get("code", 500), item.get("reason", ""), "watch error")
                version = item["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self.objects.pop(item["metadata"]["uid"], None)
                    self._on_change(item, True)
                elif kind != "BOOKMARK":
                    self._store(item["metadata"]["uid"], item)
        return version

    def _store(self, uid: str, item: Object) -> None:
        known = self.objects.get(uid)
        version = item["metadata"]["resourceVersion"]
        if known is None or known["metadata"]["resourceVersion"] != version:
            self.objects[uid] = item
            self._on_change(item, False)
