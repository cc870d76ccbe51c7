"""The JSON of answers, as vLLM writes it: chat and completion, whole and streamed.

Streamed chunks are cut once per sequence into the bytes before and after the text, because a
token's text is all that differs between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tidegate.simulator.fake_engine.sequence import Sequence

DONE = b"data: [DONE]\n\n"
SYSTEM_FINGERPRINT = "fake-engine"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of one answer share."""

    answer_id: str
    created: int
    model: str
    chat: bool

    def chunk_start(self) -> bytes:
        """``data: {...,"choices":[`` of a streamed chunk."""
        fields = {
            "id": self.answer_id,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
        }
        return b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['

    def usage_chunk(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """The last chunk of ``include_usage``: no choices."""
        tail = orjson.dumps(usage(prompt_tokens, completion_tokens))
        end = b',"system_fingerprint":"%b"}\n\n' % SYSTEM_FINGERPRINT.encode()
        return self.chunk_start() + b'],"usage":' + tail + end

    def role_chunk(self, choice: int) -> bytes:
        """Chat only: the first chunk of a choice."""
        body = {
            "index": choice,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        end = b'],"prompt_token_ids":null,"prompt_text":null}\n\n'
        return self.chunk_start() + orjson.dumps(body) + end

    def delta_chunk(
        self,
        choice: int,
        text: str,
        *,
        finish_reason: str | None,
        stop_reason: str | None,
        logprobs: dict[str, Any] | None,
        usage: dict[str, Any] | None,
    ) -> bytes:
        """A chunk with text, written out in full."""
        body: dict[str, Any] = {"index": choice}
        body |= {"delta": {"content": text}} if self.chat else {"text": text}
        body |= {"logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None or not self.chat:
            body["stop_reason"] = stop_reason
        if not self.chat:
            body["prompt_token_ids"] = None
        body["token_ids"] = None
        tail = b"]}\n\n" if usage is None else b'],"usage":' + orjson.dumps(usage) + b"}\n\n"
        return self.chunk_start() + orjson.dumps(body) + tail

    def delta_halves(self, choice: int) -> tuple[bytes, bytes]:
        """A text chunk without usage, logprobs or end, before and after its text."""
        key = b'"delta":{"content":"' if self.chat else b'"text":"'
        before = self.chunk_start() + b'{"index":%d,' % choice + key
        after = b'"' + (b"}" if self.chat else b"") + b',"logprobs":null,"finish_reason":null'
        if not self.chat:
            after += b',"stop_reason":null,"prompt_token_ids":null'
        return before, after + b',"token_ids":null}]}\n\n'

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        """The body of an answer that is not streamed."""
        prompt = ("prompt_logprobs", "prompt_token_ids", "prompt_text") if self.chat else ()
        return orjson.dumps(
            {
                "id": self.answer_id,
                "object": "chat.completion" if self.chat else "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": SYSTEM_FINGERPRINT,
                "usage": {
                    **usage,
                    "prompt_tokens_details": None,
                    "completion_tokens_details": None,
                },
                **dict.fromkeys(prompt),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def choice(self, sequence: Sequence, top_logprobs: int | None) -> dict[str, Any]:
        """One finished choice of an answer that is not streamed."""
        tokens = sequence.request.output_tokens
        text = sequence.echo + sequence.text(0, tokens)
        if self.chat:
            content: dict[str, Any] = {
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                }
            }
        else:
            content = {"text": text}
        return {
            "index": sequence.choice,
            **content,
            "logprobs": self.logprobs(sequence, 0, tokens, top_logprobs),
            "finish_reason": sequence.finish_reason,
            "stop_reason": sequence.stop_reason,
            "token_ids": None,
            **({} if self.chat else {"prompt_logprobs": None, "prompt_token_ids": None}),
            "routed_experts": None,
        }

    def logprobs(
        self, sequence: Sequence, start: int, end: int, top: int | None
    ) -> dict[str, Any] | None:
        """Logprobs of tokens ``start`` to ``end``; None where none were asked for."""
        if top is None:
            return None
        rows = sequence.logprobs(start, end, top)
        if self.chat:
            return {"content": [_chat_logprob(row, top) for row in rows]}
        return {
            "text_offset": [
                len(sequence.echo) + len(sequence.text(0, position))
                for position in range(start, end)
            ],
            "token_logprobs": [row[0][1] for row in rows],
            "tokens": [row[0][0] for row in rows],
            "top_logprobs": [dict(row) for row in rows],
        }


def _chat_logprob(row: list[tuple[str, float]], top: int) -> dict[str, Any]:
    def entry(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    return {**entry(*row[0]), "top_logprobs": [entry(*pair) for pair in row[:top]]}
