"""A request body: checked, measured, and rewritten for the engine.

Rules:

* Unknown fields are refused with 400 and ``param`` (``priority`` among them: a tenant orders its
  own requests with the ``x-tidegate-priority`` header and no others).
* Output tokens: ``max_completion_tokens`` wins over ``max_tokens``; null is absent; where neither
  is given the tier's default is assumed and, where the context surely has room for it, sent.
* Members that Tidegate does not set reach the engine byte by byte (:mod:`.json_body`).
* Usage is always asked for in a stream; the client that did not ask does not see it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.scheduling.contracts import OutputLimits
from tidegate_sidecar.endpoints import Endpoint, StreamKind
from tidegate_sidecar.errors import malformed, no_such_model
from tidegate_sidecar.estimate import Estimator, PromptSize
from tidegate_sidecar.fields import MAX_SEQUENCES
from tidegate_sidecar.json_body import parse_object, splice


@dataclass(slots=True)
class Body:
    """A checked body and what scheduling needs to know of it.

    Nobody changes one; frozen, each request would pay for that.
    """

    raw: bytes
    members: dict[str, Any]
    endpoint: Endpoint
    model: str
    size: PromptSize
    stream: bool
    """The client wants server-sent events."""
    wants_usage: bool
    """The client asked for usage in its stream."""
    sequences: int
    """Prompts times choices: what becomes of it in the engine."""
    asked_output_tokens: int | None
    """Per sequence; None: the client named none."""


class OutputBound(NamedTuple):
    """The most output tokens of one sequence: as charged, and as told to the engine."""

    tokens: int
    sent: int | None
    """None: the client's own fields stand."""


def parse_body(endpoint: Endpoint, raw: bytes, media_domains: Container[str] = ()) -> Body:
    """Check a body; :class:`ApiError` (400 with ``param``) where it may not pass."""
    members = parse_object(raw)
    fields = endpoint.fields
    for key, value in members.items():
        check = fields.get(key)
        if check is None:
            shown = key[:64]
            raise malformed(f"Unrecognized request argument: {shown}", shown)
        if value is not None and (complaint := check(value)):
            raise malformed(f"'{key}' {complaint}.", key)
    model = members.get("model")
    if model is None:
        raise malformed("'model' is required.", "model")
    size = endpoint.measure(members, media_domains)
    stream = members.get("stream") is True
    options = members.get("stream_options")
    if options is not None and not stream:
        raise malformed("'stream_options' needs 'stream': true.", "stream_options")
    sequences = size.prompts * _choices(members)
    if endpoint.generates and sequences > MAX_SEQUENCES:
        field = endpoint.prompt_field
        raise malformed(f"'{field}' times 'n' is above {MAX_SEQUENCES} choices.", field)
    asked = asked_field(endpoint, members)
    return Body(
        raw,
        members,
        endpoint,
        model,
        size,
        stream,
        wants_usage=bool(options and options.get("include_usage")),
        sequences=sequences,
        asked_output_tokens=None if asked is None else members[asked],
    )


def asked_field(endpoint: Endpoint, members: dict[str, Any]) -> str | None:
    """The field by which the client bounds the output; None: it does not."""
    for field in endpoint.output_fields:
        if members.get(field) is not None:
            return field
    return None


def _choices(members: dict[str, Any]) -> int:
    choices = members.get("n") or 1
    best_of: int | None = members.get("best_of")
    if best_of is None:
        return int(choices)
    if best_of < choices:
        raise malformed("'best_of' must be at least 'n'.", "best_of")
    return best_of


def output_bound(
    body: Body, limits: OutputLimits, max_model_len: int | None, estimator: Estimator
) -> OutputBound:
    """The bound of one sequence's output under the tier's limits and the model's context."""
    if not body.endpoint.generates:
        return OutputBound(0, None)
    asked = body.asked_output_tokens
    if asked is not None:
        for most, whose in ((limits.max_tokens, "your tier"), (max_model_len, "the model")):
            if most is not None and asked > most:
                field = asked_field(body.endpoint, body.members)
                raise malformed(f"'{field}' is above the {most} tokens that {whose} allows.", field)
        return OutputBound(asked, None)
    default = limits.default_tokens
    if limits.max_tokens is not None:
        default = min(default, limits.max_tokens)
    if max_model_len is None:
        return OutputBound(default, default)
    prompts = body.size.prompts
    room = max_model_len - estimator.tokens(body.size) // prompts
    if default + estimator.most_tokens(body.size) // prompts <= max_model_len:
        return OutputBound(default, default)
    # Too near to the end of the context to send a figure that the engine might refuse the whole
    # request for: without one it takes what is left. A tier's maximum must be sent all the same.
    bounded = max(1, min(default, room))
    return OutputBound(bounded, bounded if limits.max_tokens is not None else None)


def engine_body(
    body: Body,
    *,
    bound: OutputBound,
    engine_priority: int,
    ask_stream: bool,
    ask_usage: bool = True,
    prompt_tokens: int | None = None,
    cache_salt: bytes | None = None,
) -> bytes:
    """The bytes for the engine.

    ``cache_salt``: a JSON string, see :mod:`.cache_salts`; unset: none is sent.
    ``prompt_tokens``: of each prompt only its last so many are computed (vLLM's
    ``truncate_prompt_tokens``; another engine may ignore it, and serves the whole prompt).
    """
    new: dict[str, bytes] = dict(body.endpoint.own_members)
    if prompt_tokens is not None:
        new["truncate_prompt_tokens"] = b"%d" % prompt_tokens
    if cache_salt is not None:
        new["cache_salt"] = cache_salt
    if engine_priority:
        new["priority"] = b"%d" % engine_priority
    if bound.sent is not None:
        # null in the client's place of choice is replaced there; else the field all engines read
        given = [f for f in body.endpoint.output_fields if f in body.members]
        field = given[0] if given else body.endpoint.output_fields[-1]
        new[field] = b"%d" % bound.sent
    if ask_stream:
        if not body.stream:
            new["stream"] = b"true"
        unasked = ask_usage and not body.wants_usage
        if unasked and body.endpoint.stream is StreamKind.CHUNKS:
            new["stream_options"] = _with_usage(body.members.get("stream_options"))
    return splice(body.raw, body.members, new)


def _with_usage(options: dict[str, Any] | None) -> bytes:
    if options and (obfuscation := options.get("include_obfuscation")) is not None:
        flag = b"true" if obfuscation else b"false"
        return b'{"include_usage":true,"include_obfuscation":' + flag + b"}"
    return b'{"include_usage":true}'


def require_model(model: str, usable: str | None) -> None:
    """404 where a request names another model than its tenant may call here."""
    if model != usable:
        raise no_such_model(model)
