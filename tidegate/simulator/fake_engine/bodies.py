"""Request bodies of the OpenAI API with vLLM's extensions, checked and brought into one form.

Unknown fields are ignored, as vLLM does. Sampling parameters (temperature and its kin) are
accepted and have no effect: there is no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.text import VOCABULARY, Prompt

_MAX_CHOICES = 16_384  # vLLM's VLLM_MAX_N_SEQUENCES
_MAX_PRIORITY = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """A chat or completion request. ``max_tokens`` None: what the context leaves."""

    model: str | None
    prompts: tuple[Prompt, ...]
    echo_texts: tuple[str, ...]
    choices: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    priority: int
    cache_salt: str
    xargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """An embedding request."""

    model: str | None
    prompts: tuple[Prompt, ...]
    base64: bool
    priority: int
    cache_salt: str


def _typed(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], what: str) -> Any:
    value = body.get(name)
    if value is None:
        return None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ApiError(400, f"{name} must be {what}", name)
    return value


def _integer(body: Mapping[str, Any], name: str, minimum: int, maximum: int = 2**53) -> int | None:
    value = _typed(body, name, int, "an integer")
    if value is None:
        return None
    if not minimum <= value <= maximum:
        limit = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        raise ApiError(
            400, f"{name} must be {limit}, got {value}. (parameter={name}, value={value})", name
        )
    return int(value)


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    return bool(_typed(body, name, bool, "a boolean"))


def _model(body: Mapping[str, Any]) -> str | None:
    model: str | None = _typed(body, "model", str, "a string")
    return model


def _cache_salt(body: Mapping[str, Any]) -> str:
    salt: str | None = _typed(body, "cache_salt", str, "a non-empty string if provided")
    if salt == "":
        raise ApiError(400, "cache_salt must be a non-empty string if provided", "cache_salt")
    return salt or ""


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = _typed(body, "stop", (str, list), "a string or a list of strings")
    stops = [value] if isinstance(value, str) else value or []
    if not all(isinstance(stop, str) for stop in stops):
        raise ApiError(400, "stop must be a string or a list of strings", "stop")
    if "" in stops:
        raise ApiError(400, "stop cannot contain an empty string.", "stop")
    return tuple(stops)


def _stream_options(body: Mapping[str, Any], stream: bool) -> tuple[bool, bool]:
    options = _typed(body, "stream_options", dict, "an object")
    if options is None:
        return False, False
    if not stream:
        raise ApiError(
            400, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    usage = _boolean(options, "include_usage")
    return usage, usage and _boolean(options, "continuous_usage_stats")


def _xargs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    xargs = _typed(body, "vllm_xargs", dict, "an object") or {}
    for name, value in xargs.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, (str, int, float)) for v in values):
            raise ApiError(
                400, f"vllm_xargs.{name} must be a string, a number or a list of them", "vllm_xargs"
            )
    return dict(xargs)


def _generate(
    body: Mapping[str, Any],
    prompts: tuple[Prompt, ...],
    echo_texts: tuple[str, ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerateBody:
    stream = _boolean(body, "stream")
    include_usage, continuous_usage = _stream_options(body, stream)
    min_tokens = _integer(body, "min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            "min_tokens",
        )
    return GenerateBody(
        model=_model(body),
        prompts=_truncated(body, prompts),
        echo_texts=echo_texts,
        choices=_integer(body, "n", 1, _MAX_CHOICES) or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=_boolean(body, "ignore_eos"),
        stops=_stops(body),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        logprobs=logprobs,
        priority=_integer(body, "priority", -_MAX_PRIORITY, _MAX_PRIORITY) or 0,
        cache_salt=_cache_salt(body),
        xargs=_xargs(body),
    )


def parse_chat(body: Mapping[str, Any]) -> GenerateBody:
    """A body of ``POST /v1/chat/completions``. ApiError 400: malformed."""
    messages = _typed(body, "messages", list, "a list of messages")
    if not messages:
        raise ApiError(400, "messages must be a non-empty list", "messages")
    text = "".join(_render_message(index, message) for index, message in enumerate(messages))
    tools = _typed(body, "tools", list, "a list of tools")
    if tools:
        text = f"<|tools|>{tools!r}\n{text}"
    max_tokens = _integer(body, "max_completion_tokens", 1)
    if max_tokens is None:
        max_tokens = _integer(body, "max_tokens", 1)
    top = _integer(body, "top_logprobs", 0, 20)
    wants_logprobs = _boolean(body, "logprobs")
    if top and not wants_logprobs:
        raise ApiError(
            400, "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
    logprobs = (top or 0) if wants_logprobs else None
    prompt = Prompt.from_text(f"{text}<|assistant|>\n")
    return _generate(body, (prompt,), ("",), max_tokens, logprobs)


def _render_message(index: int, message: Any) -> str:
    where = f"messages[{index}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where} must be an object with a role", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_render_part(where, part) for part in content)
    elif content is None:
        content = ""
    elif not isinstance(content, str):
        raise ApiError(400, f"{where}.content must be a string or a list of parts", "messages")
    calls = message.get("tool_calls")
    return f"<|{message['role']}|>\n{content}{calls if calls else ''}\n"


def _render_part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ApiError(400, f"{where}.content has a part that is not an object", "messages")
    kind = part.get("type")
    text = part.get("text")
    if kind in ("text", "input_text") and isinstance(text, str):
        return text
    if kind in ("image_url", "input_audio", "video_url", "audio_url"):
        raise ApiError(400, f"At most 0 {kind.split('_')[0]}(s) may be provided in one prompt.")
    raise ApiError(400, f"{where}.content has a part of unknown type {kind!r}", "messages")


def parse_completion(body: Mapping[str, Any]) -> GenerateBody:
    """A body of ``POST /v1/completions``: a prompt of any of the four shapes."""
    prompts = _prompts(body, "prompt")
    echo = _boolean(body, "echo")
    max_tokens = _integer(body, "max_tokens", 1)
    if max_tokens is None:
        max_tokens = 16  # OpenAI's default for this endpoint
    logprobs = _integer(body, "logprobs", 0, 20)
    if _boolean(body, "use_beam_search"):
        raise ApiError(400, "use_beam_search is not supported", "use_beam_search")
    texts = tuple(text if echo else "" for _, text in prompts)
    return _generate(body, tuple(prompt for prompt, _ in prompts), texts, max_tokens, logprobs)


def parse_embedding(body: Mapping[str, Any]) -> EmbeddingBody:
    """A body of ``POST /v1/embeddings``."""
    encoding = _typed(body, "encoding_format", str, "float or base64") or "float"
    if encoding not in ("float", "base64"):
        raise ApiError(400, "encoding_format must be float or base64", "encoding_format")
    if _integer(body, "dimensions", 1) is not None:
        raise ApiError(
            400,
            "The model does not support matryoshka representation, "
            "changing output dimensions will lead to poor results.",
            "dimensions",
        )
    return EmbeddingBody(
        model=_model(body),
        prompts=_truncated(body, tuple(prompt for prompt, _ in _prompts(body, "input"))),
        base64=encoding == "base64",
        priority=_integer(body, "priority", -_MAX_PRIORITY, _MAX_PRIORITY) or 0,
        cache_salt=_cache_salt(body),
    )


def _truncated(body: Mapping[str, Any], prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """As ``truncate_prompt_tokens`` says; the beginning is cut off."""
    kept = _integer(body, "truncate_prompt_tokens", 1)
    return tuple(prompt.last(kept) for prompt in prompts)


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(body: Mapping[str, Any], name: str) -> list[tuple[Prompt, str]]:
    """A string, a list of strings, a list of token ids, or a list of such lists."""
    value = body.get(name)
    shape = f"{name} must be a string, a list of strings, token ids, or a list of token id lists"
    if isinstance(value, str):
        return [(_checked(Prompt.from_text(value), name), value)]
    if not isinstance(value, list) or not value:
        raise ApiError(400, shape, name)
    if all(isinstance(item, str) for item in value):
        return [(_checked(Prompt.from_text(item), name), item) for item in value]
    if all(_is_token_id(item) for item in value):
        value = [value]
    if not all(isinstance(ids, list) and all(map(_is_token_id, ids)) for ids in value):
        raise ApiError(400, shape, name)
    return [_token_prompt(ids, name) for ids in value]


def _token_prompt(ids: list[int], name: str) -> tuple[Prompt, str]:
    for token_id in ids:
        if not 0 <= token_id < VOCABULARY:
            raise ApiError(400, f"Token id {token_id} is out of vocabulary", name)
    return _checked(Prompt.from_token_ids(ids), name), "".join(f" t{token_id}" for token_id in ids)


def _checked(prompt: Prompt, name: str) -> Prompt:
    if prompt.tokens == 0:
        raise ApiError(400, "The decoder prompt cannot be empty", name)
    return prompt
