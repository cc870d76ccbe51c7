"""Public trace formats, and what damaged files are told."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.workload.traces import (
    TraceError,
    TraceRecord,
    read_azure_csv,
    read_mooncake_jsonl,
    read_usage_jsonl,
    read_vtc_artifact,
)

Reader = Callable[[Path], Iterator[TraceRecord]]
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
AZURE = AZURE_HEADER + (
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:50.9951690,879,55"
)
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
    "\n"
    '{"timestamp": 3500, "input_length": 600, "output_length": 26, "hash_ids": [46, 49]}\n'
)
VTC = (
    '{"config": {}, "result": {"responses": ['
    '{"adapter_dir": "rank-8-2", "prompt_len": 36, "output_len": 137, "req_time": 1.5,'
    ' "first_token_latency": -1, "request_latency": -1},'
    '{"adapter_dir": "rank-8-13", "prompt_len": 13, "output_len": 199, "req_time": 0.5}]}}'
)
USAGE = "\n".join(
    json.dumps(
        {"version": 1, "kind": "usage", "id": f"r{number}", "duration_seconds": 1.0} | row
    )
    for number, row in enumerate(
        [
            {"outcome": "completed", "arrived_at": 105.0, "tenant": "a", "prompt_tokens": 30,
             "output_tokens": 8, "estimated_prompt_tokens": 28, "max_output_tokens": 64},
            {"outcome": "rate_limited", "arrived_at": 101.5, "tenant": "b",
             "estimated_prompt_tokens": 20, "max_output_tokens": 5},
            {"outcome": "completed", "arrived_at": 100.0, "tenant": "a", "prompt_tokens": 10,
             "output_tokens": 4, "estimated_prompt_tokens": 9, "max_output_tokens": 64},
            {"outcome": "unauthenticated", "arrived_at": 99.0},
            {"outcome": "throttled", "arrived_at": 102.0, "tenant": "a",
             "estimated_prompt_tokens": 50, "max_output_tokens": 64},
            {"outcome": "completed", "arrived_at": 103.0, "tenant": "b", "endpoint": "embeddings",
             "prompt_tokens": 7, "estimated_prompt_tokens": 7},
        ]
    )
)  # fmt: skip


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure_times_are_from_the_first_request_and_keep_their_100_ns(tmp_path: Path) -> None:
    records = list(read_azure_csv(written(tmp_path, AZURE)))
    assert [(r.prompt_tokens, r.output_tokens) for r in records] == [
        (374, 44),
        (396, 109),
        (879, 55),
    ]
    assert [r.at_seconds for r in records] == pytest.approx([0, 4.314579, 4.314579], abs=5e-7)


def test_azure_reads_a_time_zone_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = (
        "\ufeff" + AZURE_HEADER + "2024-05-10 00:00:00.5+00:00,1,2\n2024-05-10 00:00:02+00:00,3,4\n"
    )
    records = list(read_azure_csv(written(tmp_path, text)))
    assert [r.at_seconds for r in records] == [0.0, 1.5]


def test_mooncake_blocks_become_the_beginning_of_the_prompt(tmp_path: Path) -> None:
    first, second = read_mooncake_jsonl(written(tmp_path, MOONCAKE))
    assert (first.at_seconds, second.at_seconds) == (0.0, 2.5)
    assert (second.prompt_tokens, second.output_tokens) == (600, 26)
    assert first.prefix is not None
    assert second.prefix is not None
    assert (first.prefix.block_ids, first.prefix.block_tokens) == ((46, 47, 48), 512)
    assert second.prefix.block_ids == (46, 49)


def test_vtc_adapters_are_tenants_and_aborted_requests_were_sent_too(tmp_path: Path) -> None:
    records = list(read_vtc_artifact(written(tmp_path, VTC)))
    assert [(r.tenant, r.at_seconds, r.prompt_tokens) for r in records] == [
        ("rank-8-13", 0.0, 13),
        ("rank-8-2", 1.0, 36),
    ]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        pytest.param(read_azure_csv, "", "trace:1: the header lacks TIMESTAMP", id="azure-empty"),
        pytest.param(
            read_azure_csv, "TIMESTAMP,ContextTokens\n", ":1: the header lacks Gen",
            id="azure-header",
        ),
        pytest.param(read_azure_csv, AZURE_HEADER, ":1: no request", id="azure-no-row"),
        pytest.param(
            read_azure_csv, AZURE + "\r\n2023-11-16 18:15:51.0,1", ":5: expected 3 fields, got 2",
            id="azure-cut-short",
        ),
        pytest.param(
            read_azure_csv, AZURE_HEADER + "yesterday,1,2", ":2: TIMESTAMP 'yesterday' is not",
            id="azure-time",
        ),
        pytest.param(
            read_azure_csv, AZURE_HEADER + "2023-11-16 18:15:46,-1,2", ":2: ContextTokens must be",
            id="azure-negative",
        ),
        pytest.param(
            read_azure_csv, AZURE_HEADER + "2023-11-16 18:15:46,1.5,2", ":2: ContextTokens must be",
            id="azure-fraction",
        ),
        pytest.param(
            read_azure_csv, AZURE + "\r\n2023-11-16 18:15:47.0,1,2", ":5: TIMESTAMP goes back",
            id="azure-goes-back",
        ),
        pytest.param(
            read_azure_csv, AZURE_HEADER + '"2023', ":2: not CSV", id="azure-open-quote"
        ),
        pytest.param(
            read_azure_csv, AZURE_HEADER + "2023-11-16 18:15:46.1e5,1,2", ":2: TIMESTAMP '2023",
            id="azure-exponent",
        ),
        pytest.param(read_azure_csv, b"\xff\xfe\x00", "trace: not UTF-8 text", id="binary"),
        pytest.param(
            read_mooncake_jsonl, MOONCAKE.replace("1000", "1" * 400), ":1: timestamp must be a num",
            id="mooncake-huge-time",
        ),
        pytest.param(
            read_vtc_artifact, VTC.replace("0.5", "1" * 400), "req_time must be a number",
            id="vtc-huge-time",
        ),
        pytest.param(
            read_vtc_artifact, VTC.replace("0.5", "1" * 5000), ":1: not JSON", id="vtc-endless-time"
        ),
        pytest.param(read_mooncake_jsonl, "", ":1: no request", id="mooncake-empty"),
        pytest.param(
            read_mooncake_jsonl, MOONCAKE + '{"timestamp"', ":4: not a JSON object",
            id="mooncake-cut-short",
        ),
        pytest.param(read_mooncake_jsonl, "[1]", ":1: not a JSON object", id="mooncake-list"),
        pytest.param(
            read_mooncake_jsonl, '{"timestamp": 0, "input_length": 1, "output_length": 1}',
            ":1: hash_ids is missing", id="mooncake-member",
        ),
        pytest.param(
            read_mooncake_jsonl,
            '{"timestamp": 0, "input_length": true, "output_length": 1, "hash_ids": []}',
            ":1: input_length must be an integer", id="mooncake-boolean",
        ),
        pytest.param(
            read_mooncake_jsonl,
            '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": []}',
            ":1: timestamp must be a number", id="mooncake-nan",
        ),
        pytest.param(
            read_mooncake_jsonl,
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
            ":1: hash_ids must be", id="mooncake-ids",
        ),
        pytest.param(read_vtc_artifact, "{\n\n", ":3: not JSON", id="vtc-cut-short"),
        pytest.param(read_vtc_artifact, "{}", ":1: not a result file", id="vtc-other-file"),
        pytest.param(
            read_vtc_artifact, VTC.replace('"req_time": 0.5', '"req_time": null'),
            "responses[1].req_time must be a number", id="vtc-time",
        ),
        pytest.param(
            read_vtc_artifact, VTC.replace("199", '"199"'),
            "responses[1].output_len must be an integer", id="vtc-length",
        ),
        pytest.param(
            read_vtc_artifact, VTC.replace('"rank-8-2"', "7"), "responses[0].adapter_dir",
            id="vtc-tenant",
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_file_and_line(
    reader: Reader, text: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as raised:
        list(reader(written(tmp_path, text)))
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "trace"))


def test_usage_records_are_replayed_by_arrival_and_refused_ones_by_their_tenants_mean(
    tmp_path: Path,
) -> None:
    log = '{"kind": "log", "message": "a line of the same stream"}'
    records = list(read_usage_jsonl(written(tmp_path, f"{log}\n{USAGE}\n")))
    assert [(r.at_seconds, r.tenant, r.prompt_tokens, r.output_tokens) for r in records] == [
        (0.0, "a", 10, 4),
        (1.5, "b", 20, 5),  # the mean of all, and no more than it asked for
        (2.0, "a", 50, 6),
        (3.0, "b", 7, 0),
        (5.0, "a", 30, 8),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace:1: no request"),
        ('{"kind":"log"}\n', ":1: no request"),
        ("not json", ":1: not a JSON object"),
        (USAGE + '\n{"kind": "usage"}', ":7: record.version: required"),
        (USAGE.replace('"version": 1', '"version": 9', 1), ":1: record.version: must be at most 1"),
    ],
)
def test_what_is_no_file_of_usage_records(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message):
        list(read_usage_jsonl(written(tmp_path, text)))


@pytest.mark.parametrize(
    "reader", [read_azure_csv, read_mooncake_jsonl, read_usage_jsonl, read_vtc_artifact]
)
def test_a_missing_file_is_an_error_that_names_it(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere: No such file"):
        list(reader(tmp_path / "nowhere"))
    with pytest.raises(TraceError, match="no file has such a name"):
        list(reader(tmp_path / "a\0b"))


def test_readers_read_no_further_than_asked(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE + "\r\nbroken")
    assert next(read_azure_csv(path)).prompt_tokens == 374
