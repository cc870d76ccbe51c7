"""An API server of the operator's that is a dictionary: what it is sent is what there is."""

from __future__ import annotations

import asyncio
import copy

from support.custom_resources import pool, tenant, tier
from tidegate_operator.kinds import NAMESPACE, SECRET, SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Forbidden, Invalid, Json, Unavailable


class Server:
    """Objects by kind; applies are kept, those of a kind in ``refused`` are not, and those in
    ``forbidden`` may not be read."""

    def __init__(self, *objects: tuple[Kind, Json]) -> None:
        self.objects: dict[tuple[Kind, str, str], Json] = {}
        self.refused: set[Kind] = set()
        self.forbidden: set[Kind] = set()
        self.failing: set[Kind] = set()
        self.optional: set[Kind] = set()
        self.creates_secrets = True
        self.refuses_pods: str | None = None
        self.deleted: list[str] = []
        self.away = False
        for kind, obj in objects:
            self.put(kind, obj)

    def put(self, kind: Kind, obj: Json) -> None:
        metadata = obj["metadata"]
        self.objects[kind, metadata.get("namespace", ""), metadata["name"]] = copy.deepcopy(obj)

    async def _step(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> list[Json]:
        await self._step()
        wanted = [term.partition("=") for term in (selector or "").split(",") if term]

        def selected(labels: dict[str, str]) -> bool:
            return all(k in labels and (not eq or labels[k] == v) for k, eq, v in wanted)

        return [
            copy.deepcopy(obj)
            for (k, ns, _), obj in self.objects.items()
            if k is kind
            and namespace in (None, ns)
            and selected(obj["metadata"].get("labels") or {})
        ]

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Json | None:
        await self._step()
        if kind in self.forbidden:
            raise Forbidden(f"get {kind.plural}: 403")
        if kind in self.failing:
            raise Unavailable(f"get {kind.plural}: 500")
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def apply(self, kind: Kind, body: Json) -> Json:
        await self._step()
        if kind in self.refused:
            raise Invalid("not like this")
        body = copy.deepcopy(body)
        body["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}
        self.put(kind, body)
        return body

    async def create(self, kind: Kind, body: Json) -> Json:
        if kind is SECRET and not self.creates_secrets:
            raise Forbidden("exceeded quota")
        return await self.apply(kind, body)

    async def serves(self, kind: Kind) -> bool:
        await self._step()
        return kind in self.optional

    async def refusal(self, pod: Json) -> str | None:
        await self._step()
        return self.refuses_pods

    async def delete(self, kind: Kind, owned: Json) -> None:
        await self._step()
        metadata = owned["metadata"]
        self.deleted.append(kind.name)
        del self.objects[kind, metadata.get("namespace", ""), metadata["name"]]

    async def patch_status(self, kind: Kind, owner: Json, status: Json) -> Json | None:
        await self._step()
        metadata = owner["metadata"]
        obj = self.objects[kind, metadata.get("namespace", ""), metadata["name"]]
        obj["status"] = {**(obj.get("status") or {}), **status}
        return copy.deepcopy(obj)

    def keys(self) -> str:
        shard = self.objects.get((SECRET, "acme", "chat-policy-0"))
        return str(shard["data"]["keys.json"]) if shard else ""


def served() -> Server:
    """With a pool `chat`, a tier and a tenant."""
    return Server(
        (TENANT_TIER, tier("t0")),
        (TENANT, tenant("a")),
        (SERVING_POOL, pool()),
        (NAMESPACE, {"metadata": {"name": "acme", "uid": "n", "resourceVersion": "1"}}),
    )
