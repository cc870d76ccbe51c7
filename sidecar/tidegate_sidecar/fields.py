"""The request fields of each endpoint, with their types. Everything else is refused.

OpenAI's of its own endpoints; of those that vLLM adds (rerank, score, tokenize), the ones that say
what to compute.

An allow-list, since what passes reaches the engine as it is: an engine reads fields of its own
beside OpenAI's (``priority``, ``cache_salt``, ``vllm_xargs``, ``session_id``), by which a tenant
could pass others in the queue or read their cache.

A check returns what is wrong with a value, or None. ``null`` stands for absent everywhere, as in
OpenAI's schema, but for the fields an endpoint requires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], str | None]

MAX_CHOICES = 128
"""OpenAI's bound of ``n``."""
MAX_PROMPTS = 2_048
"""Of a list of prompts that goes to the engine whole; OpenAI's bound of ``input`` lists."""
MAX_SEQUENCES = 2_048
"""Of one request: nothing else is dispatched while more than the engine's seats are in flight."""
MAX_MESSAGES = 16_384
"""Of a conversation; likewise of what a Responses input lists."""
MAX_DOCUMENTS = 16_384
"""Of a list that is served in parts: they, not the list, are what the engine sees at once."""


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


def _anything(value: Any) -> str | None:
    """Its shape is checked where it is measured."""
    return None


def _only_false(value: Any) -> str | None:
    return None if value is False else "is not supported: nothing is stored here"


def _only_absent(value: Any) -> str | None:
    return "is not supported: nothing is stored here"


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
    "prompt": _anything,
    "best_of": integer(1, MAX_CHOICES),
    "echo": boolean,
    "logprobs": integer(0, 20),
    "suffix": string,
}

EMBEDDING_FIELDS: dict[str, Check] = {
    "model": string,
    "input": _anything,
    "dimensions": integer(1),
    "encoding_format": string,
    "user": string,
}

RESPONSES_FIELDS: dict[str, Check] = {
    "model": string,
    "input": _anything,
    "background": _only_false,
    "conversation": _only_absent,
    "include": a_list,
    "instructions": string,
    "max_output_tokens": integer(1),
    "max_tool_calls": integer(1),
    "metadata": an_object,
    "parallel_tool_calls": boolean,
    "previous_response_id": _only_absent,
    "prompt": _only_absent,
    "prompt_cache_key": string,
    "prompt_cache_retention": string,
    "reasoning": an_object,
    "safety_identifier": string,
    "service_tier": string,
    "store": _only_false,
    "stream": boolean,
    "stream_options": _stream_options,
    "temperature": number(0, 2),
    "text": an_object,
    "tool_choice": _string_or_object,
    "tools": a_list,
    "top_logprobs": integer(0, 20),
    "top_p": number(0, 1),
    "truncation": string,
    "user": string,
}

RERANK_FIELDS: dict[str, Check] = {
    "model": string,
    "query": _anything,
    "documents": _anything,
    "top_n": integer(0),
    "max_tokens_per_doc": integer(0),
    "return_documents": boolean,
    "user": string,
}

SCORE_PAIRS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("text_1", "text_2"),
    ("data_1", "data_2"),
)
"""The names by which the two sides of a score come."""

SCORE_FIELDS: dict[str, Check] = {
    "model": string,
    "user": string,
    **dict.fromkeys((name for pair in SCORE_PAIRS for name in pair), _anything),
}

TOKENIZE_FIELDS: dict[str, Check] = {
    "model": string,
    "prompt": string,
    "messages": a_list,
    "tools": a_list,
    "add_special_tokens": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "return_token_strs": boolean,
}

DETOKENIZE_FIELDS: dict[str, Check] = {"model": string, "tokens": _anything}
