"""Where an estimate does not decide, the text is counted; elsewhere it is not."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support.faulty_engine import FaultyEngine
from support.sidecar import (
    ALICE,
    KEYS,
    SidecarUnderTest,
    keys_document,
    policy_document,
)
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.token_counter import TokenCounter, token_counter

from tidegate.scheduling.contracts import Bundle, loads

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


class Words(TokenCounter):
    """A tokenizer of words, which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.meanwhile: Any = None

    async def count(self, texts: Sequence[str]) -> int | None:
        self.asked += 1
        if self.meanwhile is not None:
            self.meanwhile()
        return sum(len(text.split()) for text in texts)

    def close(self) -> None:
        pass


def said(words: int, letters: int = 4) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(["w" * (letters - 1)] * words)}]


async def limited(start_sidecar: StartSidecar, **tier: Any) -> tuple[SidecarUnderTest, Words]:
    sidecar = await start_sidecar(policy=policy_document(tier=tier), check_other=False)
    counter = sidecar.runtime.token_counter = Words()
    return sidecar, counter


async def test_the_prompt_limit_is_judged_by_the_count(start_sidecar: StartSidecar) -> None:
    sidecar, counter = await limited(start_sidecar, prompt_limit={"max_tokens": 100})
    for words, letters, status, asked in (
        (20, 4, 200, 0),  # about 24: below, however it is counted
        (400, 4, 413, 0),  # about 404: above
        (96, 5, 200, 1),  # estimated 119 + 4, counted 96 + 4
        (98, 3, 413, 2),  # estimated 73 + 4, counted 98 + 4
    ):
        async with sidecar.chat(messages=said(words, letters)) as answer:
            assert answer.status == status, (words, letters)
        assert counter.asked == asked


async def test_a_rate_limit_reserves_what_was_counted(start_sidecar: StartSidecar) -> None:
    limit = {"name": "minute", "per": "Minute", "tokens": 130}
    sidecar, counter = await limited(start_sidecar, rate_limits=[limit])
    async with sidecar.chat(messages=said(110, 5), max_tokens=3) as answer:
        assert answer.status == 200  # estimated 137 + 4 + 3: above a whole window
    assert counter.asked == 1


async def test_a_key_revoked_while_its_prompt_is_counted_is_refused(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    policy = policy_document(tier={"prompt_limit": {"max_tokens": 100}})
    sidecar = await start_sidecar(policy=policy, check_other=False)
    counter = sidecar.runtime.token_counter = Words()

    def revoke() -> None:
        others = {tenant: key for tenant, key in KEYS.items() if tenant != ALICE}
        bundle = {"policy": {**policy, "generation": 2}, "keys": keys_document(2, others)}
        sidecar.runtime.apply(loads(Bundle, json.dumps(bundle)))

    counter.meanwhile = revoke
    async with sidecar.chat(messages=said(96, 5)) as answer:
        assert answer.status == 401
    assert not engine.requests


def test_a_tokenizer_that_is_not_to_be_had_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        token_counter(tmp_path / "nothing.json", None)


def save_tokenizer(folder: Path) -> Path:
    """Of the words a and b."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


async def test_the_library_counts_off_the_loop(tmp_path: Path) -> None:
    counter = token_counter(save_tokenizer(tmp_path), None)
    assert counter is not None
    assert await counter.count(["a b c", "b"]) == 4
    assert await counter.count(["\ud800"]) is None
    counter.close()


async def test_a_models_own_tokenizer_counts_where_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool names the folder, whatever lies there and whatever its sidecar's image has."""
    caplog.set_level(logging.INFO, "tidegate.sidecar")
    assert token_counter(None, None) is None
    assert token_counter(None, tmp_path) is None
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "prompts are estimated, never counted"
    ]
    save_tokenizer(tmp_path)
    counter = token_counter(None, tmp_path)
    assert counter is not None
    assert await counter.count(["a b"]) == 2
    counter.close()


async def test_a_sidecar_of_a_model_without_a_tokenizer_starts(
    start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    limited = policy_document(tier={"prompt_limit": {"max_tokens": 100}})
    sidecar = await start_sidecar(policy=limited, model_folder=tmp_path / "no", check_other=False)
    async with sidecar.chat(messages=said(98, 3)) as answer:
        assert answer.status == 200  # by the estimate, 77
