"""O3 with engines that do not tell their usage: what was served is counted, and billed."""

from __future__ import annotations

from typing import Any

import pytest
from support.faulty_engine import (
    DONE,
    GOOD_STREAM,
    USAGE,
    FaultyEngine,
    answer_well,
    chat_answer,
    chat_chunk,
)
from support.faulty_upstream import answer, event_stream
from support.sidecar import ALICE, SidecarUnderTest
from support.sidecar_calls import served_tokens

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


def strict(engine: FaultyEngine) -> Any:
    """An engine that does not know ``stream_options`` and refuses what it does not know."""

    async def script(connection: Any) -> None:
        request = engine.requests[-1]
        if "stream_options" in request.json():
            message = "Unrecognized request argument supplied: stream_options"
            await answer(400, {"error": {"message": message, "type": "invalid_request_error"}})(
                connection
            )
        elif request.json().get("stream"):
            await event_stream([*GOOD_STREAM, DONE])(connection)
        else:
            await answer_well(request)(connection)

    return script


async def test_an_engine_that_refuses_to_be_asked_for_usage_is_asked_without(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar()
    engine.script = strict(engine)
    async with sidecar.chat(stream=True) as response:
        assert response.status == 200
        assert await response.read() == b"".join([*GOOD_STREAM, DONE])
    await sidecar.settled()
    assert served_tokens(sidecar) > 2  # its prompt by estimate, and what streamed
    assert len(engine.requests) == 2
    async with sidecar.chat(stream=True) as response:
        assert response.status == 200
        await response.read()
    assert len(engine.requests) == 3  # it is known by now
    before = served_tokens(sidecar)
    async with sidecar.chat(max_tokens=50) as response:
        assert (await response.json())["usage"] == USAGE  # asked plainly, it tells
    await sidecar.settled()
    assert served_tokens(sidecar) - before == USAGE["total_tokens"]
    assert "stream" not in engine.requests[-1].json()
    async with sidecar.chat(stream=True, stream_options={"include_usage": True}) as response:
        assert response.status == 400  # what the client asks for itself, it is told
    assert sidecar.outcomes(ALICE) == {"completed": 3, "malformed": 1}


async def test_what_was_asked_to_be_joined_is_joined_without_usage(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar()
    engine.script = strict(engine)
    async with sidecar.chat(max_tokens=50) as response:
        joined = await response.json()
    assert joined["choices"][0]["message"]["content"] == "Hello!"
    assert joined["usage"] is None
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"completed": 1}


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_engine_that_says_nothing_of_usage_is_billed_by_what_it_said(
    sidecar: SidecarUnderTest, engine: FaultyEngine, streamed: bool
) -> None:
    words = 30
    if streamed:
        engine.script = event_stream([*[chat_chunk("word ")] * words, DONE])
    else:
        whole = chat_answer("word" * words)
        del whole["usage"]
        engine.script = answer(200, whole)
    async with sidecar.chat(stream=streamed, max_tokens=words if streamed else 16) as response:
        assert response.status == 200
        await response.read()
    await sidecar.settled()
    # about a token each, beside the prompt of a few
    assert words <= served_tokens(sidecar) <= words + 20
