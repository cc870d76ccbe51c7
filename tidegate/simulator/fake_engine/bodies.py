"""Request bodies of the OpenAI API with vLLM's extensions, checked and brought into one form.

Unknown fields are ignored, as vLLM does. Sampling parameters (temperature and its kin) are
accepted and have no effect: there is no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.members import (
    boolean,
    cache_salt,
    integer,
    model_name,
    priority,
    typed,
)
from tidegate.simulator.fake_engine.text import VOCABULARY, Prompt

_MAX_CHOICES = 16_384  # vLLM's VLLM_MAX_N_SEQUENCES


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


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = typed(body, "stop", (str, list), "a string or a list of strings")
    stops = [value] if isinstance(value, str) else value or []
    if not all(isinstance(stop, str) for stop in stops):
        raise ApiError(400, "stop must be a string or a list of strings", "stop")
    if "" in stops:
        raise ApiError(400, "stop cannot contain an empty string.", "stop")
    return tuple(stops)


def _stream_options(body: Mapping[str, Any], stream: bool) -> tuple[bool, bool]:
    options = typed(body, "stream_options", dict, "an object")
    if options is None:
        return False, False
    if not stream:
        raise ApiError(
            400, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    usage = boolean(options, "include_usage")
    return usage, usage and boolean(options, "continuous_usage_stats")


def _xargs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    xargs = typed(body, "vllm_xargs", dict, "an object") or {}
    for name, value in xargs.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, (str, int, float)) for v in values):
            raise ApiError(
                400, f"vllm_xargs.{name} must be a string, a number or a list of them", "vllm_xargs"
            )
    return dict(xargs)


def generate_body(
    body: Mapping[str, Any],
    prompts: tuple[Prompt, ...],
    echo_texts: tuple[str, ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerateBody:
    stream = boolean(body, "stream")
    include_usage, continuous_usage = _stream_options(body, stream)
    min_tokens = integer(body, "min_tokens", 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            "min_tokens",
        )
    return GenerateBody(
        model=model_name(body),
        prompts=truncated(body, prompts),
        echo_texts=echo_texts,
        choices=integer(body, "n", 1, _MAX_CHOICES) or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=boolean(body, "ignore_eos"),
        stops=_stops(body),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        logprobs=logprobs,
        priority=priority(body),
        cache_salt=cache_salt(body),
        xargs=_xargs(body),
    )


def parse_chat(body: Mapping[str, Any]) -> GenerateBody:
    """A body of ``POST /v1/chat/completions``. ApiError 400: malformed."""
    max_tokens = integer(body, "max_completion_tokens", 1)
    if max_tokens is None:
        max_tokens = integer(body, "max_tokens", 1)
    top = integer(body, "top_logprobs", 0, 20)
    wants_logprobs = boolean(body, "logprobs")
    if top and not wants_logprobs:
        raise ApiError(
            400, "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
    logprobs = (top or 0) if wants_logprobs else None
    return generate_body(body, (chat_prompt(body),), ("",), max_tokens, logprobs)


def chat_prompt(body: Mapping[str, Any]) -> Prompt:
    """What the chat template makes of messages and tools."""
    messages = typed(body, "messages", list, "a list of messages")
    if not messages:
        raise ApiError(400, "messages must be a non-empty list", "messages")
    return _templated(messages, typed(body, "tools", list, "a list of tools"))


def parse_response(body: Mapping[str, Any]) -> GenerateBody:
    """A body of ``POST /v1/responses``: its input as messages, one choice, no logprobs."""
    given = typed(body, "input", (str, list), "a string or a list of items")
    if not given:
        raise ApiError(400, "input must be a string or a non-empty list", "input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if instructions := typed(body, "instructions", str, "a string"):
        items = [{"role": "system", "content": instructions}, *items]
    messages = [item if not isinstance(item, dict) else {"role": "tool", **item} for item in items]
    prompt = _templated(messages, typed(body, "tools", list, "a list of tools"))
    max_tokens = integer(body, "max_output_tokens", 1)
    return generate_body({**body, "stream_options": None}, (prompt,), ("",), max_tokens, None)


def _templated(messages: list[Any], tools: list[Any] | None) -> Prompt:
    text = "".join(render_message(index, message) for index, message in enumerate(messages))
    if tools:
        text = f"<|tools|>{tools!r}\n{text}"
    return Prompt.from_text(f"{text}<|assistant|>\n")


def render_message(index: int, message: Any) -> str:
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
    if kind in ("text", "input_text", "output_text") and isinstance(text, str):
        return text
    if kind in ("image_url", "input_audio", "video_url", "audio_url"):
        raise ApiError(400, f"At most 0 {kind.split('_')[0]}(s) may be provided in one prompt.")
    raise ApiError(400, f"{where}.content has a part of unknown type {kind!r}", "messages")


def parse_completion(body: Mapping[str, Any]) -> GenerateBody:
    """A body of ``POST /v1/completions``: a prompt of any of the four shapes."""
    prompts = prompt_list(body, "prompt")
    echo = boolean(body, "echo")
    max_tokens = integer(body, "max_tokens", 1)
    if max_tokens is None:
        max_tokens = 16  # OpenAI's default for this endpoint
    logprobs = integer(body, "logprobs", 0, 20)
    if boolean(body, "use_beam_search"):
        raise ApiError(400, "use_beam_search is not supported", "use_beam_search")
    texts = tuple(text if echo else "" for _, text in prompts)
    return generate_body(body, tuple(prompt for prompt, _ in prompts), texts, max_tokens, logprobs)


def truncated(body: Mapping[str, Any], prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """As ``truncate_prompt_tokens`` says; the beginning is cut off."""
    kept = integer(body, "truncate_prompt_tokens", 1)
    return tuple(prompt.last(kept) for prompt in prompts)


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def prompt_list(body: Mapping[str, Any], name: str) -> list[tuple[Prompt, str]]:
    """A string, a list of strings, a list of token ids, or a list of such lists."""
    value = body.get(name)
    shape = f"{name} must be a string, a list of strings, token ids, or a list of token id lists"
    if isinstance(value, str):
        return [(checked(Prompt.from_text(value), name), value)]
    if not isinstance(value, list) or not value:
        raise ApiError(400, shape, name)
    if all(isinstance(item, str) for item in value):
        return [(checked(Prompt.from_text(item), name), item) for item in value]
    if all(_is_token_id(item) for item in value):
        value = [value]
    if not all(isinstance(ids, list) and all(map(_is_token_id, ids)) for ids in value):
        raise ApiError(400, shape, name)
    return [_token_prompt(ids, name) for ids in value]


def _token_prompt(ids: list[int], name: str) -> tuple[Prompt, str]:
    for token_id in ids:
        if not 0 <= token_id < VOCABULARY:
            raise ApiError(400, f"Token id {token_id} is out of vocabulary", name)
    return checked(Prompt.from_token_ids(ids), name), "".join(f" t{token_id}" for token_id in ids)


def checked(prompt: Prompt, name: str) -> Prompt:
    if prompt.tokens == 0:
        raise ApiError(400, "The decoder prompt cannot be empty", name)
    return prompt
