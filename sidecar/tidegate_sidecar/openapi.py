"""``GET /openapi.json`` of the admin ports: every route, what it takes and what it answers.

Bodies are the contracts themselves (``contracts.json_schema``); a test holds each route and each
answer against this document.
"""

from __future__ import annotations

from typing import Any

from tidegate.scheduling.contracts import (
    Bundle,
    RequestExplanation,
    SidecarStatus,
    TenantExplanation,
)
from tidegate.scheduling.contracts.json_schema import REFERENCE, component_schemas

Json = dict[str, Any]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_OPEN: Json = {"security": []}


def sidecar_document(most_pods: int, most_handed_back: int) -> Json:
    """Of a sidecar's admin port."""
    paths = _shared_paths() | {
        "/status": _get("How it stands.", _json(_of(SidecarStatus)), "503"),
        "/pods": {
            "put": _operation(
                "How many pods of the pool serve.",
                {"200": _json(_counts("ready")), "400": _error()},
                [_whole_number("ready", 1, most_pods, required=True)],
            )
        },
        "/load": _get("What a router chooses by.", _json({"type": "object"})),
        "/hand-back": {
            "post": _operation(
                "End queued requests with 503, so that their router sends them elsewhere.",
                {"200": _json(_counts("handed_back")), "400": _error(), "409": _error()},
                [_whole_number("requests", 1, most_handed_back, required=True)],
            )
        },
        "/drain": {"post": _operation("Begin the drain.", {"200": _json({"type": "object"})})},
        "/drained": _get(
            "Answers when nothing is in hand any more; at once where no drain begins.",
            _json({"type": "object"}),
            "400",
            parameters=[
                {"name": "begin_seconds", "in": "query", "schema": {"type": "number"}},
            ],
            **_OPEN,
        ),
        "/explain/requests/{id}": _get(
            "Why a request waits, waited or was refused.",
            _json(_of(RequestExplanation)),
            "404",
            parameters=[_in_path("id")],
        ),
        "/explain/tenants/{namespace}/{name}": _get(
            "Where a tenant stands.",
            _json(_of(TenantExplanation)),
            "404",
            parameters=[_in_path("namespace"), _in_path("name")],
        ),
        "/profiles": _get("Samples of slow traffic.", _json({"type": "object"})),
        "/profiles/{name}": _get(
            "One of them.",
            {"description": "A record a line.", "content": {"application/jsonl": {}}},
            "404",
            parameters=[_in_path("name")],
        ),
        "/engine/startupz": _probe("The engine is up."),
        "/engine/livez": _probe("The engine lives."),
        "/engine/metrics": _get("The engine's own metrics.", _text(), "502"),
    }
    kinds = (Bundle, SidecarStatus, RequestExplanation, TenantExplanation)
    return _document("Tidegate sidecar: admin port", paths, kinds)


def router_document() -> Json:
    """Of a router's admin port."""
    paths = _shared_paths() | {"/status": _get("How it stands.", _json({"type": "object"}))}
    return _document("Tidegate router: admin port", paths, (Bundle,))


def _shared_paths() -> Json:
    return {
        "/openapi.json": _get("This document.", _json({"type": "object"})),
        "/healthz": _get("It runs.", _json({"type": "object"}), **_OPEN),
        "/readyz": _probe("It serves."),
        "/metrics": _get("Prometheus text.", _text()),
        "/policy": {
            "put": {
                **_operation(
                    "Put a policy with its keys in force.",
                    {
                        "200": _json({"type": "object"}),
                        "409": _error(),
                        "413": {"description": "Larger than a policy can be."},
                        "422": _error(),
                    },
                ),
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _of(Bundle)}},
                },
            }
        },
    }


def _document(title: str, paths: Json, kinds: tuple[type, ...]) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "v1"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": component_schemas(*kinds),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(summary: str, responses: Json, parameters: list[Json] | None = None) -> Json:
    found: Json = {
        "summary": summary,
        "responses": {"401": _error("The token is missing or wrong."), **responses},
    }
    return found | ({"parameters": parameters} if parameters else {})


def _get(
    summary: str,
    answer: Json,
    *errors: str,
    parameters: list[Json] | None = None,
    **members: Any,
) -> Json:
    responses = {"200": answer, **{status: _error() for status in errors}}
    return {"get": {**_operation(summary, responses, parameters), **members}}


def _probe(summary: str) -> Json:
    body = _json({"type": "object"})
    return {"get": {**_operation(summary, {"200": body, "503": body}), **_OPEN}}


def _of(kind: type) -> Json:
    return {"$ref": REFERENCE + kind.__name__}


def _json(schema: Json) -> Json:
    return {"description": "It is so.", "content": {"application/json": {"schema": schema}}}


def _error(text: str = "Why not.") -> Json:
    return {"description": text, "content": {"application/json": {"schema": _ERROR}}}


def _text() -> Json:
    schema = {"type": "string"}
    return {"description": "Metrics.", "content": {"text/plain": {"schema": schema}}}


def _counts(name: str) -> Json:
    return {"type": "object", "required": [name], "properties": {name: {"type": "integer"}}}


def _whole_number(name: str, low: int, high: int, *, required: bool) -> Json:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _in_path(name: str) -> Json:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}
