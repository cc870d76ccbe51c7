"""Log lines hold neither keys nor content, whoever logs and whatever failed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from tidegate_sidecar.logs import LogFormat, configure, log_loop_errors

CANARY = "sk-canary of a prompt"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def fail() -> None:
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        raise ValueError(f"could not read {CANARY}") from error


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("form", LogFormat)
def test_an_exception_is_its_kind_and_its_places(form: LogFormat) -> None:
    out = io.StringIO()
    configure(form, out)
    try:
        fail()
    except ValueError:
        logging.getLogger("anybody").exception("request %s failed", "r1", extra={"tenant": "a/b"})
    text = out.getvalue()
    assert CANARY not in text
    assert "request r1 failed" in text
    for shown in ("ValueError", "KeyError", "test_logs.py", "fail"):
        assert shown in text
    if form is LogFormat.JSON:
        (line,) = map(json.loads, text.splitlines())
        assert (line["kind"], line["level"], line["tenant"]) == ("log", "error", "a/b")
        assert line["at"].endswith("Z")


@pytest.mark.usefixtures("restored")
async def test_a_loop_reports_what_failed_without_its_values() -> None:
    out = io.StringIO()
    configure(LogFormat.JSON, out)
    loop = asyncio.get_running_loop()
    log_loop_errors(loop)
    loop.call_soon(fail)
    loop.call_exception_handler({"message": f"task of {CANARY}", "exception": KeyError(CANARY)})
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    text = out.getvalue()
    assert CANARY not in text
    assert text.count("an error on the event loop") == 2
