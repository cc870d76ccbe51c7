"""The real vLLM and a model for it; engines start in half a minute, so most tests share one."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from support.vllm_engine import VllmEngine, vllm_engine

from testbed.real_vllm import VllmError, make_tiny_model, vllm_python


@pytest.fixture(scope="session")
def python() -> Path:
    """vLLM's own; where there is none, tests are skipped, and in CI they fail."""
    try:
        return vllm_python()
    except VllmError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def tiny_model(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(python, tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def engine(python: Path, tiny_model: Path) -> Iterator[VllmEngine]:
    """Two seats and priorities; aborts what runs on SIGTERM."""
    flags = ("--max-model-len=8192", "--max-num-seqs=2", "--scheduling-policy=priority")
    with vllm_engine(python, tiny_model, *flags) as running:
        yield running


@pytest.fixture
async def client(engine: VllmEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with engine.client() as session:
        yield session
