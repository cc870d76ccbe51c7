"""Probes: how often a container is asked, and when answers change what is believed of it.

`ProbeTally` holds the rule and no time; `ProbeLoop` in the container worker drives it.
"""

import asyncio
import functools
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tidegate.local_cluster.kubelet.api import Object
from tidegate.local_cluster.kubelet.pods import port_number

Execute = Callable[[Sequence[str], float], Awaitable[tuple[int, str]]]
"""(argv, timeout in seconds) -> (exit code, output) of a command inside the container."""


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """The numbers of a probe, with Kubernetes' defaults for what is unset."""

    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    success_threshold: int
    failure_threshold: int
    grace_seconds: float | None

    @classmethod
    def of(cls, probe: Object) -> "ProbeSpec":
        return cls(
            float(probe.get("initialDelaySeconds", 0)),
            float(probe.get("periodSeconds", 10)),
            float(probe.get("timeoutSeconds", 1)),
            int(probe.get("successThreshold", 1)),
            int(probe.get("failureThreshold", 3)),
            probe.get("terminationGracePeriodSeconds"),
        )


@dataclass(slots=True)
class ProbeTally:
    """Counts answers in a row. A verdict comes when a threshold is reached, else None."""

    spec: ProbeSpec
    _last: bool | None = field(default=None, init=False)
    _run: int = field(default=0, init=False)

    def observe(self, ok: bool) -> bool | None:
        self._run = self._run + 1 if ok == self._last else 1
        self._last = ok
        threshold = self.spec.success_threshold if ok else self.spec.failure_threshold
        return ok if self._run >= threshold else None


async def run_handler(
    handler: Object, container: Object, pod_ip: str, execute: Execute, timeout_seconds: float
) -> tuple[bool, str]:
    """Runs an exec, httpGet, tcpSocket or sleep handler once: (success, what it said)."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if (command := handler.get("exec")) is not None:
                code, output = await execute(command["command"], timeout_seconds)
                return code == 0, output.strip()[-500:] or f"exit code {code}"
            if (request := handler.get("httpGet")) is not None:
                return await _http_get(request, container, pod_ip)
            if (socket := handler.get("tcpSocket")) is not None:
                port = port_number(container, socket["port"])
                _, writer = await asyncio.open_connection(socket.get("host") or pod_ip, port)
                writer.close()
                return True, "connected"
            if (pause := handler.get("sleep")) is not None:
                await asyncio.sleep(float(pause["seconds"]))
                return True, "slept"
    except TimeoutError:
        return False, f"no answer within {timeout_seconds:g} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return False, str(error) or type(error).__name__
    return False, f"handler {', '.join(handler)} is not supported"


async def _http_get(request: Object, container: Object, pod_ip: str) -> tuple[bool, str]:
    port = port_number(container, request["port"])
    scheme = str(request.get("scheme", "HTTP")).lower()
    path = request.get("path") or "/"
    url = f"{scheme}://{request.get('host') or pod_ip}:{port}/{path.removeprefix('/')}"
    headers = {"User-Agent": "kube-probe/1.36"}
    headers |= {item["name"]: item["value"] for item in request.get("httpHeaders", [])}
    # A connection for each probe, as kubelet does: it asks whether a client could connect now.
    connector = aiohttp.TCPConnector(
        ssl=_unverified() if scheme == "https" else False, force_close=True
    )
    options: dict[str, Any] = {"headers": headers, "allow_redirects": False}
    async with aiohttp.ClientSession(connector=connector) as session:  # noqa: SIM117
        async with session.get(url, **options) as answer:
            return 200 <= answer.status < 400, f"HTTP {answer.status}"


@functools.cache
def _unverified() -> ssl.SSLContext:
    """Probes over TLS do not verify: a pod's certificate seldom names its address."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
