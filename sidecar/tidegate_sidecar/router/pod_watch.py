"""The pods of a pool as their cluster knows them: LIST, then WATCH, by label.

Theory of operation. A LIST is the truth as of its ``resourceVersion``; a WATCH tells what changed
since. It is asked for :data:`WATCH_SECONDS` at a time and then begun anew where it ended, so that
one that has gone silent is noticed soon. Where the server no longer knows that version (410), or
anything fails, all is listed again, with a growing pause between the tries. Meanwhile the last list
stays: pods do not stop because the API server is away, and each pod's own word (:mod:`.pods`) tells
of those that do.

A pod is one to send requests to while it is Ready, has an address and is not being deleted. Its
ports are those that its containers name ``http`` (tenants) and ``admin``.

The client is aiohttp, which is here anyway; no library of Kubernetes' is as small. Token and
certificate are read for each request and each LIST: a kubelet renews them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from tidegate.scheduling.contracts import MAIN_GROUP, ContractError, ServingPod
from tidegate.scheduling.contracts.pod_list import GROUP_LABEL
from tidegate_sidecar.flags import SettingsError

log = logging.getLogger("tidegate.router")

Json = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_SECONDS = 60
_ANSWER_SECONDS = 15.0
_RETRY_BASE_SECONDS = 0.2
_RETRY_HIGHEST_SECONDS = 5.0
_GONE = 410


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and how to ask it about one namespace."""

    url: str
    namespace: str
    token: Path | None = None
    certificate: Path | None = None
    """Of the authority that signed the server's."""

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Self:
        """As a pod is told by its kubelet; SettingsError where this is no pod."""
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise SettingsError(
                "pods_selector: this is no pod of a cluster (KUBERNETES_SERVICE_HOST and _PORT are "
                "not set); use --pods with a file"
            )
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingsError(f"pods_selector: no account of the cluster's: {error}") from None
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", namespace, folder / "token", folder / "ca.crt")

    def headers(self) -> dict[str, str]:
        """Who asks."""
        if self.token is None:
            return {}
        return {"Authorization": f"Bearer {self.token.read_text(encoding='utf-8').strip()}"}


class _Stale(Exception):
    """The server does not know the version that was watched from any more."""


class PodWatch:
    """The pods with these labels; ``follow`` is the loop that keeps it true."""

    def __init__(self, api: ApiServer, selector: str) -> None:
        self._api = api
        self._url = f"{api.url}/api/v1/namespaces/{api.namespace}/pods"
        self._selector = selector
        self._pods: dict[str, ServingPod] = {}
        self._taken: tuple[ServingPod, ...] | None = None
        self._listed = False
        self._version = ""
        self._failures = 0

    def take(self) -> Sequence[ServingPod] | None:
        """See :class:`~tidegate_sidecar.router.pod_sources.PodSource`."""
        pods = tuple(self._pods[name] for name in sorted(self._pods))
        if not self._listed or pods == self._taken:
            return None
        self._taken = pods
        return pods

    async def follow(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                async with self._session() as session:
                    await self._list(session)
                    while True:
                        await self._watch(session)
                        self._failures = 0
            except _Stale:
                log.info("the pods are listed anew: the watch was too far behind")
            except Exception as error:  # whatever it is: a list of before is better than none
                if not self._failures:
                    reason = str(error) or type(error).__name__
                    log.warning("pods are not watched, so all stay as they were: %s", reason)
            delay = min(_RETRY_HIGHEST_SECONDS, _RETRY_BASE_SECONDS * 2.0 ** min(self._failures, 9))
            self._failures += 1
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    def _session(self) -> aiohttp.ClientSession:
        certificate = self._api.certificate
        trusted = None if certificate is None else ssl.create_default_context(cafile=certificate)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted if trusted is not None else True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_ANSWER_SECONDS, sock_read=_ANSWER_SECONDS
            ),
            raise_for_status=True,
        )

    async def _list(self, session: aiohttp.ClientSession) -> None:
        asked = {"labelSelector": self._selector}
        async with session.get(self._url, params=asked, headers=self._api.headers()) as answer:
            found = json.loads(await answer.read())
        pods = (_serving(pod) for pod in found["items"])
        self._pods = {pod.name: pod for pod in pods if pod is not None}
        self._version = found["metadata"]["resourceVersion"]
        self._listed = True

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Until the server ends it, which is no failure."""
        asked = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=_ANSWER_SECONDS, sock_read=WATCH_SECONDS + _ANSWER_SECONDS
        )
        try:
            async with session.get(
                self._url, params=asked, headers=self._api.headers(), timeout=silence
            ) as answer:
                async for event in _events(answer.content):
                    self._take_in(event)
        except aiohttp.ClientResponseError as error:
            if error.status == _GONE:
                raise _Stale from None
            raise

    def _take_in(self, event: Json) -> None:
        obj = event["object"]
        if event["type"] == "ERROR":
            if obj.get("code") == _GONE:
                raise _Stale
            raise ValueError(f"the API server ended the watch: {obj.get('message')}")
        if event["type"] != "BOOKMARK":
            pod = None if event["type"] == "DELETED" else _serving(obj)
            if pod is None:
                self._pods.pop(obj["metadata"]["name"], None)
            else:
                self._pods[pod.name] = pod
        self._version = obj["metadata"]["resourceVersion"]
        self._failures = 0


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Json]:
    """One a line; a pod may be longer than the lines that aiohttp reads."""
    begun = b""
    async for piece in content.iter_any():
        *lines, begun = (begun + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _serving(pod: Json) -> ServingPod | None:
    """The pod as one to send requests to; None: it is none now."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    address = status.get("podIP")
    if conditions.get("Ready") != "True" or metadata.get("deletionTimestamp") or not address:
        return None
    containers = pod["spec"]["containers"]
    ports = {p.get("name"): p["containerPort"] for c in containers for p in c.get("ports") or ()}
    if not ports.keys() >= {"http", "admin"}:
        return None
    host = f"[{address}]" if ":" in address else address
    try:
        return ServingPod(
            metadata["name"],
            f"http://{host}:{ports['http']}",
            f"http://{host}:{ports['admin']}",
            (metadata.get("labels") or {}).get(GROUP_LABEL, MAIN_GROUP),
        )
    except ContractError:
        return None
