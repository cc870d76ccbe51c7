"""Which trace context of a client reaches the engine where nothing is traced here."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from tidegate_sidecar.trace_context import trace_headers

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def of(*pairs: tuple[str, str]) -> dict[str, str]:
    return trace_headers(CIMultiDictProxy(CIMultiDict(pairs)))


def test_a_well_formed_context_is_handed_on_as_it_came() -> None:
    state = "rojo=00f067aa0ba902b7,tenant@vendor=t61rcWkgMzE"
    assert of(("Traceparent", PARENT), ("tracestate", state)) == {
        "traceparent": PARENT,
        "tracestate": state,
    }
    assert of(("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")) == {
        "traceparent": PARENT,
        "tracestate": "a=1,b=2",
    }


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT + "\n",
        PARENT + "-more",
        "ff" + PARENT[2:],
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        "the prompt",
    ],
)
def test_what_is_no_traceparent_is_not_handed_on(parent: str) -> None:
    assert of(("traceparent", parent), ("tracestate", "a=1")) == {}


@pytest.mark.parametrize("state", ["no member", "=x", "a=" + "x" * 300, "A=1", "a=1;b=\x07"])
def test_what_is_no_tracestate_is_left_out(state: str) -> None:
    assert of(("traceparent", PARENT), ("tracestate", state)) == {"traceparent": PARENT}


def test_two_parents_are_none() -> None:
    assert of(("traceparent", PARENT), ("traceparent", PARENT)) == {}
