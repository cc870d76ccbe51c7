"""The request fields of each endpoint: OpenAI's, with their types. Everything else is refused.

An allow-list, since what passes reaches the engine as it is: an engine reads fields of its own
beside OpenAI's (``priority``, ``cache_salt``, ``vllm_xargs``, ``session_id``), by which a tenant
could pass others in the queue or read their cache.

A check returns what is wrong with a value, or None. ``null`` stands for absent everywhere, as in
OpenAI's schema, but for the fields an endpoint requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any], str | None]

MAX_CHOICES = 128
"""OpenAI's bound of ``n``."""
MAX_PROMPTS = 2_048
"""OpenAI's bound of ``input`` lists."""
MAX_SEQUENCES = 2_048
"""Of one request: nothing else is dispatched while more than the engine's seats are in flight."""
MAX_MESSAGES = 16_384


def _kind(*kinds: type, name: str) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        return None if fits else f"must be {name}"

    return check


string = _kind(str, name="a string")
boolean = _kind(bool, name="true or false")
an_object = _kind(dict, name="an object")
a_list = _kind(list, name="a list")


def integer(low: int | None = None, high: int | None = None) -> Check:
    """An integer within bounds; ``true`` and ``1.0`` are none."""

    def check(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return "must be an integer"
        if low is not None and value < low:
            return f"must be at least {low}"
        if high is not None and value > high:
            return f"must be at most {high}"
        return None

    return check


def number(low: float, high: float) -> Check:
    """A number within bounds."""

    def check(value: Any) -> str | None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return "must be a number"
        return None if low <= value <= high else f"must be between {low:g} and {high:g}"

    return check


def _stop(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return None
    return "must be a string or a list of strings"


def _logit_bias(value: Any) -> str | None:
    bias = number(-100, 100)
    if isinstance(value, dict) and all(bias(item) is None for item in value.values()):
        return None
    return "must map token ids to numbers between -100 and 100"


def _stream_options(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    for key, item in value.items():
        if key not in ("include_usage", "include_obfuscation"):
            return f"has an unknown member {key[:64]!r}"
        if item is not None and not isinstance(item, bool):
            return f"member {key!r} must be true or false"
    return None


def _string_or_object(value: Any) -> str | None:
    return None if isinstance(value, str | dict) else "must be a string or an object"


_SAMPLING: dict[str, Check] = {
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "seed": integer(),
    "stop": _stop,
    "logit_bias": _logit_bias,
    "n": integer(1, MAX_CHOICES),
    "max_tokens": integer(1),
    "stream": boolean,
    "stream_options": _stream_options,
    "user": string,
}

CHAT_FIELDS: dict[str, Check] = {
    **_SAMPLING,
    "model": string,
    "messages": a_list,
    "audio": an_object,
    "function_call": _string_or_object,
    "functions": a_list,
    "logprobs": boolean,
    "max_completion_tokens": integer(1),
    "metadata": an_object,
    "modalities": a_list,
    "parallel_tool_calls": boolean,
    "prediction": an_object,
    "prompt_cache_key": string,
    "prompt_cache_retention": string,
    "reasoning_effort": string,
    "response_format": an_object,
    "safety_identifier": string,
    "service_tier": string,
    "store": boolean,
    "tool_choice": _string_or_object,
    "tools": a_list,
    "top_logprobs": integer(0, 20),
    "verbosity": string,
    "web_search_options": an_object,
}

COMPLETION_FIELDS: dict[str, Check] = {
    **_SAMPLING,
    "model": string,
    "prompt": lambda _: None,  # its four shapes are checked where they are counted
    "best_of": integer(1, MAX_CHOICES),
    "echo": boolean,
    "logprobs": integer(0, 20),
    "suffix": string,
}

EMBEDDING_FIELDS: dict[str, Check] = {
    "model": string,
    "input": lambda _: None,  # as `prompt`
    "dimensions": integer(1),
    "encoding_format": string,
    "user": string,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route that reaches the engine."""

    name: str
    path: str
    fields: Mapping[str, Check]
    prompt_field: str
    generates: bool = True
    """Produces output tokens, so it can stream; False: embeddings."""


CHAT = Endpoint("chat", "/v1/chat/completions", CHAT_FIELDS, "messages")
COMPLETIONS = Endpoint("completions", "/v1/completions", COMPLETION_FIELDS, "prompt")
EMBEDDINGS = Endpoint("embeddings", "/v1/embeddings", EMBEDDING_FIELDS, "input", generates=False)

ENDPOINTS: dict[str, Endpoint] = {e.path: e for e in (CHAT, COMPLETIONS, EMBEDDINGS)}
