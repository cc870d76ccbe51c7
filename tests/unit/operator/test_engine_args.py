"""The two flags that scheduler and engine must agree on."""

import pytest
from tidegate_operator.engine_args import (
    async_scheduling,
    complete,
    engine_limits,
    media_domains,
)

from tidegate.scheduling.contracts import EngineLimits, Task


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        pytest.param([], EngineLimits(256, 8192), id="unset"),
        pytest.param(["--max-num-seqs=64"], EngineLimits(64, 8192), id="equals"),
        pytest.param(["--max_num_seqs", "64"], EngineLimits(64, 8192), id="underscores-apart"),
        pytest.param(
            ["--max-num-batched-tokens=2048", "--max-num-batched-tokens=4096"],
            EngineLimits(256, 4096),
            id="the-last-wins",
        ),
        pytest.param(["--max-num-seqs=many"], EngineLimits(None, 8192), id="vllm-will-refuse-it"),
    ],
)
def test_the_scheduler_knows_what_the_engine_is_given(
    arguments: list[str], limits: EngineLimits
) -> None:
    completed = complete(arguments, Task.GENERATE)
    assert engine_limits(arguments, Task.GENERATE) == limits
    assert completed[-len(arguments) or len(completed) :] == arguments
    assert complete(completed, Task.GENERATE) == completed


def test_an_embedding_engine_chooses_for_itself() -> None:
    assert complete(["--x"], Task.EMBED) == ["--x"]
    assert engine_limits([], Task.EMBED) == EngineLimits()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], (True, False), id="vllms-default-on-gpus"),
        pytest.param(["--no_async_scheduling"], (False, True), id="switched-off"),
        pytest.param(["--no-async-scheduling", "--async-scheduling"], (True, True), id="last-wins"),
        pytest.param(
            ['--speculative-config={"method":"ngram"}'], (False, False), id="drafts-from-the-prompt"
        ),
        pytest.param(
            ["--speculative-config", '{"method":"eagle3"}'], (True, False), id="drafts-of-a-head"
        ),
        pytest.param(["-sc", '{"method":"suffix"}'], (False, False), id="short-flag"),
        pytest.param(["--speculative-config.method=medusa"], (False, False), id="dotted"),
        pytest.param(["--speculative-config=["], (True, False), id="vllm-will-refuse-it"),
    ],
)
def test_the_plug_ins_class_follows_how_vllm_schedules(
    arguments: list[str], expected: tuple[bool, bool]
) -> None:
    assert async_scheduling(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [
        ([], ()),
        (
            ["--allowed-media-domains", "a.example", "B.example", "--seed", "1"],
            ("a.example", "b.example"),
        ),
        (["--allowed_media_domains=a.example", "b.example"], ("a.example",)),
        (["--allowed-media-domains", "a", "--seed=1", "--allowed-media-domains", "b", "b"], ("b",)),
        (["--allowed-media-domains"], ()),
    ],
)
def test_media_hosts_are_those_of_the_engines_flag(
    arguments: list[str], hosts: tuple[str, ...]
) -> None:
    assert media_domains(arguments) == hosts
