"""The W3C trace context of a request: what is handed on to the engine.

Where nothing is traced here, a client's ``traceparent`` and ``tracestate`` reach the engine as they
came, as the recommendation asks of those who take no part; but only well-formed ones, since both
are a client's free text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from multidict import CIMultiDictProxy, istr

from tidegate.scheduling.contracts import UsageRecord

TRACEPARENT = istr("traceparent")
TRACESTATE = istr("tracestate")
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_STATE = re.compile(r"[a-z0-9][-_a-z0-9*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}\Z")
_MAX_STATE_BYTES = 512
_MAX_STATE_MEMBERS = 32


class TraceContext(Protocol):
    """What a request's trace is to those who serve it."""

    def engine_headers(self) -> Mapping[str, str]:
        """Headers for the engine; asked each time that it is sent to it."""

    def ended(self, record: UsageRecord, status: int) -> None:
        """It has ended; once."""


class Forwarded:
    """A client's own context, handed on."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def engine_headers(self) -> Mapping[str, str]:
        return self._headers

    def ended(self, record: UsageRecord, status: int) -> None:
        pass


def trace_headers(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """The client's trace context where it is well-formed, else nothing."""
    parents = headers.getall(TRACEPARENT, ())
    if len(parents) != 1 or not _PARENT.match(parents[0]):
        return {}
    found: dict[str, str] = {TRACEPARENT: parents[0]}
    state = ",".join(headers.getall(TRACESTATE, ()))
    if state and _is_state(state):
        found[TRACESTATE] = state
    return found


def _is_state(state: str) -> bool:
    members = [member.strip(" \t") for member in state.split(",")]
    return (
        len(state) <= _MAX_STATE_BYTES
        and len(members) <= _MAX_STATE_MEMBERS
        and all(not member or _STATE.match(member) for member in members)
    )
