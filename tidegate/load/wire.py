"""A planned request as HTTP: path, headers and body of OpenAI's endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tidegate.scheduling.contracts import Endpoint, TenantLoad
from tidegate.workload import PlannedRequest, prompt_text, prompt_token_ids

PATHS = {
    Endpoint.CHAT: "/v1/chat/completions",
    Endpoint.COMPLETIONS: "/v1/completions",
    Endpoint.EMBEDDINGS: "/v1/embeddings",
}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """What is sent."""

    path: str
    headers: dict[str, str]
    body: bytes
    stream: bool


class WireFormat:
    """Builds the requests of one tenant. The headers hold its key: never log them."""

    def __init__(self, tenant: TenantLoad, *, model: str, seed: int, key: str | None) -> None:
        self._tenant = tenant
        self._model = model
        self._seed = seed
        self._stream = tenant.stream and tenant.endpoint is not Endpoint.EMBEDDINGS
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        if tenant.priority is not None:
            self._headers["x-tidegate-priority"] = str(tenant.priority)
        if tenant.deadline_ms is not None:
            self._headers["x-tidegate-deadline-ms"] = str(tenant.deadline_ms)

    def build(self, request: PlannedRequest) -> WireRequest:
        """The bytes of one request."""
        tenant = self._tenant
        prompt: str | list[int]
        if tenant.prompt_as_token_ids:
            prompt = prompt_token_ids(request, self._seed, tenant.token_id_limit)
        else:
            prompt = prompt_text(request, self._seed)
        body: dict[str, Any] = {"model": self._model}
        match tenant.endpoint:
            case Endpoint.CHAT:
                body["messages"] = [{"role": "user", "content": prompt}]
            case Endpoint.COMPLETIONS:
                body["prompt"] = prompt
            case Endpoint.EMBEDDINGS:
                body["input"] = prompt
        if tenant.endpoint is not Endpoint.EMBEDDINGS:
            body["max_tokens"] = request.output_tokens
            if tenant.ignore_eos:
                body["ignore_eos"] = True
        if self._stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return WireRequest(PATHS[tenant.endpoint], self._headers, orjson.dumps(body), self._stream)
