"""A plain HTTP client for the real API server, and objects of our kinds to send to it."""

from __future__ import annotations

import copy
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.crd import KINDS
from tidegate_operator.api.examples import EXAMPLES

from tidegate.local_cluster.control_plane import ControlPlane

ABSENT = object()
"""As a value of `changed`: take the field away."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the API server said, also where it refused."""

    status: int
    body: Json
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    def ok(self) -> Json:
        assert self.status in (200, 201), self.message
        return self.body


class Api:
    """Requests to the API server exactly as they are on the wire."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        credentials = json.loads(plane.kubeconfig.read_text())
        self._token = credentials["users"][0]["user"]["token"]
        self._ssl = ssl.create_default_context(cafile=str(plane.ca_file))
        self._address = plane.url.removeprefix("https://")

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        connection = http.client.HTTPSConnection(self._address, timeout=30, context=self._ssl)
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": content_type,
            "Accept": accept,
        }
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            warnings = tuple(response.headers.get_all("Warning") or ())
            return Answer(response.status, json.loads(response.read()), warnings)
        finally:
            connection.close()

    def path(self, obj: Json, *, name: bool = True, subresource: str = "") -> str:
        kind = KINDS[obj["kind"]]
        path = f"/apis/{obj['apiVersion']}"
        if kind.scope == "Namespaced":
            path += f"/namespaces/{obj['metadata']['namespace']}"
        path += f"/{kind.plural}"
        if name:
            path += f"/{obj['metadata']['name']}"
        return path + (f"/{subresource}" if subresource else "")

    def create(self, obj: Json, *, dry_run: bool = False) -> Answer:
        query = "?dryRun=All" if dry_run else ""
        return self.request("POST", self.path(obj, name=False) + query, obj)

    def read(self, obj: Json) -> Json:
        return self.request("GET", self.path(obj)).ok()

    def merge(self, obj: Json, patch: Json, *, subresource: str = "") -> Answer:
        path = self.path(obj, subresource=subresource)
        return self.request("PATCH", path, patch, content_type="application/merge-patch+json")

    def apply(self, obj: Json, manager: str) -> Answer:
        path = f"{self.path(obj)}?fieldManager={manager}&force=true"
        return self.request("PATCH", path, obj, content_type="application/apply-patch+yaml")

    def table(self, obj: Json) -> tuple[dict[str, Any], dict[str, Any]]:
        """One object as `kubectl get` shows it: its columns, and those of `-o wide` besides."""
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        body = self.request("GET", self.path(obj), accept=accept).ok()
        (row,) = body["rows"]
        cells = list(zip(body["columnDefinitions"], row["cells"], strict=True))
        shown = {column["name"]: cell for column, cell in cells if column["priority"] == 0}
        wide = {column["name"]: cell for column, cell in cells if column["priority"] > 0}
        return shown, wide


def example(kind: str, name: str, namespace: str = "default") -> Json:
    """The documented example of a kind under another name."""
    obj = copy.deepcopy(EXAMPLES[kind])
    obj["metadata"] = {"name": name}
    if KINDS[kind].scope == "Namespaced":
        obj["metadata"]["namespace"] = namespace
    return obj


def changed(obj: Json, changes: Mapping[str, object]) -> Json:
    """A copy with values set (or taken away) at dotted paths; a number is a place in a list."""
    obj = copy.deepcopy(obj)
    for path, value in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        target: Any = obj
        for part in parents:
            target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
        if value is ABSENT:
            del target[last]
        elif isinstance(target, list) and last == len(target):
            target.append(value)
        else:
            target[last] = value
    return obj
