"""The admin ports of a cluster's sidecars, as they can be reached from here."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import selectors
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.cli.errors import CommandError, os_error_text

_ADMIN_PORT = 8001
_POOL_LABEL = "tidegate.io/pool"
_SELECTOR = "tidegate.io/component=engine"
_KUBECTL_SECONDS = 60.0
_FORWARD_SECONDS = 20.0
_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")


@dataclass(frozen=True, slots=True)
class SidecarAddress:
    """One sidecar's admin port."""

    pod: str
    """namespace/name; empty: it was named by its URL."""
    url: str
    token: str | None


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a cluster; raises CommandError with its last words."""

    program: str
    kubeconfig: Path

    def json(self, *arguments: str) -> dict[str, Any]:
        """What ``kubectl ... -o json`` says."""
        try:
            done = subprocess.run(
                [*self.command(*arguments), "-o", "json"],
                capture_output=True,
                timeout=_KUBECTL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"kubectl {arguments[0]} gave no answer") from None
        except OSError as error:
            raise CommandError(os_error_text(error)) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise CommandError(f"kubectl {arguments[0]}: {said[-1] if said else 'failed'}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def command(self, *arguments: str) -> list[str]:
        """Its command line."""
        return [self.program, f"--kubeconfig={self.kubeconfig}", *arguments]


def sidecars_of_cluster(
    stack: ExitStack, kubectl: Kubectl, failures: list[CommandError]
) -> Iterator[SidecarAddress]:
    """One after the other; what was opened to reach them is closed with ``stack``. ``failures``
    grows by those that cannot be reached, as one whose pool is being deleted."""
    tokens: dict[tuple[str, str], str] = {}
    for pod in kubectl.json("get", "pods", "-A", "-l", _SELECTOR)["items"]:
        metadata, address = pod["metadata"], pod["status"].get("podIP")
        namespace, pool = metadata["namespace"], metadata["labels"].get(_POOL_LABEL)
        if not address or pool is None:
            continue  # it has not started
        key = (namespace, pool)
        try:
            if key not in tokens:
                tokens[key] = _admin_token(kubectl, namespace, pool)
            host = f"{address}:{_ADMIN_PORT}"
            if not address.startswith("127."):
                host = f"127.0.0.1:{_forwarded(stack, kubectl, namespace, metadata['name'])}"
        except CommandError as failure:
            failures.append(failure)
            continue
        yield SidecarAddress(f"{namespace}/{metadata['name']}", f"http://{host}", tokens[key])


def _admin_token(kubectl: Kubectl, namespace: str, pool: str) -> str:
    secret = kubectl.json("get", "secret", f"{pool}-admin", f"--namespace={namespace}")
    try:
        return base64.b64decode(secret["data"]["token"], validate=True).decode("ascii").strip()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        raise CommandError(f"Secret {namespace}/{pool}-admin holds no token") from None


def _forwarded(stack: ExitStack, kubectl: Kubectl, namespace: str, pod: str) -> int:
    """A local port that leads to a pod's admin port."""
    process = stack.enter_context(
        subprocess.Popen(
            kubectl.command(
                "port-forward", f"--namespace={namespace}", f"pod/{pod}", f":{_ADMIN_PORT}"
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    )
    stack.callback(process.terminate)
    assert process.stdout is not None
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(_FORWARD_SECONDS):
            piece = os.read(process.stdout.fileno(), 65_536)
            said += piece
            if found := _FORWARDING.search(said):
                return int(found[1])
            if not piece:
                break
    words = said.decode(errors="replace").strip().splitlines()
    raise CommandError(f"kubectl port-forward {pod}: {words[-1] if words else 'no answer'}")
