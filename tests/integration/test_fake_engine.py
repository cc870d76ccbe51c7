"""The fake engine over TCP and over a Unix socket: vLLM's API, usage, errors, aborts, log."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import struct
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from support.fake_engine import (
    MODEL,
    StartEngine,
    check_log,
    client_session,
    engine_process,
    read_log,
    until,
    wait_quiet,
)

from tidegate.simulator.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello there, engine"}]}


async def post(
    session: aiohttp.ClientSession, path: str, body: Any, **headers: str
) -> tuple[int, dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(path, json=body, headers=named) as response:
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    """The JSON of each server-sent event; the last must be [DONE]."""
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def refused(session: aiohttp.ClientSession) -> None:
    """Send work until a draining engine refuses it, as vLLM 0.32 does."""
    async with asyncio.timeout(10):
        while True:
            status, answer = await post(session, "/v1/chat/completions", {**CHAT, "max_tokens": 1})
            if status != 200:
                break
    assert (status, answer["error"]["code"]) == (500, 500)


@pytest.fixture(params=["tcp", "uds"])
async def engine(
    request: pytest.FixtureRequest, start_engine: StartEngine, sockets: Path
) -> FakeEngine:
    flags = ["--uds", str(sockets / "engine.sock")] if request.param == "uds" else []
    return await start_engine(*flags)


class TestGeneration:
    async def test_chat(self, engine: FakeEngine) -> None:
        async with client_session(engine) as session:
            status, answer = await post(
                session, "/v1/chat/completions", {**CHAT, "max_tokens": 5, "ignore_eos": True},
                x_request_id="abc",
            )  # fmt: skip
        assert status == 200
        assert answer["id"] == "chatcmpl-abc"
        assert answer["object"] == "chat.completion"
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "length"
        assert len(choice["message"]["content"]) == 5 * 4
        usage = answer["usage"]
        assert usage["completion_tokens"] == 5
        assert usage["total_tokens"] == usage["prompt_tokens"] + 5

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    async def test_a_stream_says_what_the_whole_answer_says(
        self, engine: FakeEngine, path: str
    ) -> None:
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 40, "n": 2}
        body |= {"prompt": "abcdefgh"} if path == "/v1/completions" else CHAT
        async with client_session(engine) as session:
            _, whole = await post(session, path, body)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            async with session.post(path, json={**body, **options}) as response:
                assert response.headers["Content-Type"].startswith("text/event-stream")
                chunks = await events(response)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"].items() <= whole["usage"].items()
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        for choice in whole["choices"]:
            mine = [
                c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]
            ]
            if "message" in choice:
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                text = "".join(c["delta"]["content"] for c in mine)
                assert text == choice["message"]["content"]
            else:
                assert "".join(c["text"] for c in mine) == choice["text"]
            reasons = [c["finish_reason"] for c in mine]
            assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]

    @pytest.mark.parametrize(
        ("prompt", "prompt_tokens", "choices"),
        [
            pytest.param("abcdefghi", 3, 1, id="text"),
            pytest.param(["abcd", "abcde"], 3, 2, id="texts"),
            pytest.param([1, 2, 3, 4, 5], 5, 1, id="token ids"),
            pytest.param([[1, 2, 3], [4]], 4, 2, id="lists of token ids"),
        ],
    )
    async def test_prompt_shapes_are_counted(
        self, engine: FakeEngine, prompt: Any, prompt_tokens: int, choices: int
    ) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True, "n": 3}
        async with client_session(engine) as session:
            status, answer = await post(session, "/v1/completions", body)
        assert status == 200
        assert answer["usage"]["prompt_tokens"] == prompt_tokens
        assert answer["usage"]["completion_tokens"] == choices * 3 * 2
        assert [c["index"] for c in answer["choices"]] == list(range(choices * 3))
        assert len({c["text"] for c in answer["choices"]}) == choices * 3

    async def test_continuous_usage_counts_up(self, engine: FakeEngine) -> None:
        body = {
            **CHAT, "max_tokens": 4, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }  # fmt: skip
        async with (
            client_session(engine) as session,
            session.post("/v1/chat/completions", json=body) as response,
        ):
            chunks = await events(response)
        counts = [c["usage"]["completion_tokens"] for c in chunks if "usage" in c]
        assert counts == [1, 2, 3, 4, 4]

    async def test_a_model_ends_by_itself_the_same_way_each_time(self, engine: FakeEngine) -> None:
        body = {"model": MODEL, "prompt": "tell me", "max_tokens": 5000}
        async with client_session(engine) as session:
            _, first = await post(session, "/v1/completions", body)
            _, second = await post(session, "/v1/completions", body)
        assert first["choices"] == second["choices"]
        assert first["choices"][0]["finish_reason"] == "stop"
        assert 1 <= first["usage"]["completion_tokens"] < 5000

    async def test_a_stop_string_cuts_the_text_before_it(self, engine: FakeEngine) -> None:
        body: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 20, "ignore_eos": True}
        async with client_session(engine) as session:
            _, full = await post(session, "/v1/completions", body)
            text = full["choices"][0]["text"]
            stop = text[22:26]
            _, cut = await post(session, "/v1/completions", {**body, "stop": [stop]})
            async with session.post(
                "/v1/completions", json={**body, "stop": stop, "stream": True}
            ) as response:
                streamed = "".join(c["choices"][0]["text"] for c in await events(response))
        [choice] = cut["choices"]
        assert choice["text"] == streamed == text[: text.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert cut["usage"]["completion_tokens"] == -(-(text.index(stop) + 4) // 4)

    async def test_logprobs_and_echo(self, engine: FakeEngine) -> None:
        body = {"model": MODEL, "prompt": "abcd", "max_tokens": 3, "ignore_eos": True}
        async with client_session(engine) as session:
            _, plain = await post(session, "/v1/completions", {**body, "logprobs": 2, "echo": True})
            _, chat = await post(
                session, "/v1/chat/completions",
                {**CHAT, "max_tokens": 3, "ignore_eos": True, "logprobs": True, "top_logprobs": 2},
            )  # fmt: skip
        [choice] = plain["choices"]
        assert choice["text"] == "abcd" + "".join(choice["logprobs"]["tokens"])
        assert choice["logprobs"]["text_offset"] == [4, 8, 12]
        content = chat["choices"][0]["logprobs"]["content"]
        assert "".join(c["token"] for c in content) == chat["choices"][0]["message"]["content"]
        assert all(len(c["top_logprobs"]) == 2 for c in content)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "status", "param", "said"),
        [
            (
                {"model": "other"},
                404,
                "model",
                "`other` does not exist. Valid aliases: test-model.",
            ),
            ({"messages": []}, 400, "messages", "non-empty"),
            ({"messages": "hi"}, 400, "messages", "list of messages"),
            ({"messages": [{"content": "x"}]}, 400, "messages", "role"),
            ({"max_tokens": 0}, 400, "max_tokens", "at least 1"),
            ({"max_tokens": "5"}, 400, "max_tokens", "an integer"),
            ({"max_tokens": True}, 400, "max_tokens", "an integer"),
            (
                {"max_tokens": 40_000},
                400,
                "max_tokens",
                "cannot be greater than max_model_len=32768",
            ),
            ({"n": 0}, 400, "n", "at least 1"),
            ({"stream": "yes"}, 400, "stream", "boolean"),
            ({"stream_options": {}}, 400, "stream_options", "stream=True"),
            ({"cache_salt": ""}, 400, "cache_salt", "non-empty"),
            ({"stop": [""]}, 400, "stop", "empty"),
            ({"stop": [1]}, 400, "stop", "list of strings"),
            ({"priority": 1.5}, 400, "priority", "an integer"),
            ({"vllm_xargs": {"a": {}}}, 400, "vllm_xargs", "vllm_xargs.a"),
            ({"top_logprobs": 2}, 400, "top_logprobs", "logprobs"),
            ({"min_tokens": 5, "max_tokens": 3}, 400, "min_tokens", "max_tokens=3"),
        ],
        ids=str,
    )
    async def test_chat(
        self,
        start_engine: StartEngine,
        change: dict[str, Any],
        status: int,
        param: str | None,
        said: str,
    ) -> None:
        engine = await start_engine()
        async with client_session(engine) as session:
            got, answer = await post(session, "/v1/chat/completions", {**CHAT, **change})
        assert got == status
        assert answer["error"]["code"] == status
        assert answer["error"]["param"] == param
        assert said in answer["error"]["message"]
        assert answer["error"]["type"] == ("NotFoundError" if status == 404 else "BadRequestError")

    @pytest.mark.parametrize(
        "prompt", [None, "", [], [""], [[]], [1, "a"], [[1], "a"], 5, [-1], [[10**9]], [True]]
    )
    async def test_prompts(self, start_engine: StartEngine, prompt: Any) -> None:
        engine = await start_engine()
        async with client_session(engine) as session:
            status, answer = await post(
                session, "/v1/completions", {"model": MODEL, "prompt": prompt}
            )
        assert (status, answer["error"]["param"]) == (400, "prompt")

    async def test_what_is_not_json(self, start_engine: StartEngine) -> None:
        engine = await start_engine()
        json_type = {"Content-Type": "application/json"}
        async with client_session(engine) as session:
            for data, headers in ((b"{", json_type), (b"[]", json_type), (b"{}", {})):
                async with session.post("/v1/completions", data=data, headers=headers) as response:
                    assert response.status == 400
                    assert (await response.json())["error"]["code"] == 400

    async def test_a_prompt_longer_than_the_context(self, start_engine: StartEngine) -> None:
        engine = await start_engine("--max-model-len", "100")
        async with client_session(engine) as session:
            for tokens, said in ((101, "contains 101 input tokens"), (100, "at least 1, got 0")):
                body = {"model": MODEL, "prompt": [1] * tokens, "max_tokens": 1}
                status, answer = await post(session, "/v1/completions", body)
                assert status == 400
                assert said in answer["error"]["message"]

    async def test_max_tokens_is_shortened_to_what_the_context_leaves(
        self, start_engine: StartEngine
    ) -> None:
        engine = await start_engine("--max-model-len", "100")
        async with client_session(engine) as session:
            body = {"model": MODEL, "prompt": [1] * 90, "max_tokens": 50, "ignore_eos": True}
            status, answer = await post(session, "/v1/completions", body)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 10)
        assert answer["choices"][0]["finish_reason"] == "length"

    async def test_an_unknown_path(self, start_engine: StartEngine) -> None:
        engine = await start_engine()
        async with client_session(engine) as session:
            assert await post(session, "/v1/nothing", {}) == (404, {"detail": "Not Found"})


class TestServing:
    async def test_models_health_version(self, engine: FakeEngine) -> None:
        async with client_session(engine) as session:
            async with session.get("/v1/models") as response:
                [model] = (await response.json())["data"]
            for path in ("/health", "/ping"):
                async with session.get(path) as response:
                    assert response.status == 200
            async with session.get("/version") as response:
                assert (await response.json())["version"].startswith("0.")
        assert (model["id"], model["max_model_len"]) == (MODEL, 32_768)

    async def test_metrics_count_what_was_done(self, engine: FakeEngine) -> None:
        async with client_session(engine) as session:
            body = {"model": MODEL, "prompt": [7] * 33, "max_tokens": 5, "ignore_eos": True}
            for _ in range(2):
                await post(session, "/v1/completions", body)
            async with session.get("/metrics") as response:
                lines = dict(
                    line.rsplit(" ", 1)
                    for line in (await response.text()).splitlines()
                    if not line.startswith("#")
                )
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        assert lines[f"vllm:prompt_tokens_total{labels}"] == "66.0"
        assert lines[f"vllm:generation_tokens_total{labels}"] == "10.0"
        assert lines[f"vllm:prefix_cache_hits_total{labels}"] == "32.0"
        assert lines[f"vllm:prefix_cache_queries_total{labels}"] == "66.0"
        assert lines[f"vllm:num_requests_running{labels}"] == "0.0"
        assert lines[f"vllm:num_requests_waiting{labels}"] == "0.0"
        assert lines[f"vllm:kv_cache_usage_perc{labels}"] == "0.0"
        assert lines[f"vllm:num_preemptions_total{labels}"] == "0.0"
        assert lines[f"vllm:time_to_first_token_seconds_count{labels}"] == "2.0"
        assert lines[f"vllm:request_queue_time_seconds_count{labels}"] == "2.0"
        [info] = [name for name in lines if name.startswith("vllm:cache_config_info{")]
        assert 'num_gpu_blocks="16385"' in info
        assert 'block_size="16"' in info

    async def test_embeddings(self, start_engine: StartEngine) -> None:
        engine = await start_engine("--runner", "pooling", "--fake-embedding-dimensions", "16")
        async with client_session(engine) as session:
            body = {"model": MODEL, "input": ["abcdefgh", "abc"]}
            status, answer = await post(session, "/v1/embeddings", body)
            _, packed = await post(session, "/v1/embeddings", {**body, "encoding_format": "base64"})
            no_chat, _ = await post(session, "/v1/chat/completions", CHAT)
        assert status == 200
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 3
        for row, packed_row in zip(answer["data"], packed["data"], strict=True):
            vector = row["embedding"]
            assert len(vector) == 16
            assert sum(v * v for v in vector) == pytest.approx(1)
            raw = base64.b64decode(packed_row["embedding"])
            assert struct.unpack("<16f", raw) == pytest.approx(vector, rel=1e-6)
        assert no_chat == 404

    async def test_scores_and_reranks(self, start_engine: StartEngine) -> None:
        engine = await start_engine("--runner", "pooling")
        documents = ["abcd", "efgh", "ijkl"]
        async with client_session(engine) as session:
            for path in ("/score", "/v1/score"):
                body = {"model": MODEL, "text_1": "query", "text_2": documents}
                status, scored = await post(session, path, body)
                assert (status, [row["index"] for row in scored["data"]]) == (200, [0, 1, 2])
            for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
                body = {"model": MODEL, "query": "query", "documents": documents, "top_n": 2}
                status, ranked = await post(session, path, body)
                assert status == 200
        scores = {row["index"]: row["score"] for row in scored["data"]}
        best = sorted(scores, key=lambda index: -scores[index])[:2]
        assert [row["index"] for row in ranked["results"]] == best
        assert [row["document"]["text"] for row in ranked["results"]] == [
            documents[index] for index in best
        ]
        assert ranked["usage"]["total_tokens"] == scored["usage"]["total_tokens"] > 0

    async def test_tokenize_counts_what_a_prompt_costs(self, start_engine: StartEngine) -> None:
        engine = await start_engine()
        async with client_session(engine) as session:
            _, told = await post(session, "/tokenize", CHAT)
            _, answer = await post(session, "/v1/chat/completions", {**CHAT, "max_tokens": 1})
            _, text = await post(session, "/detokenize", {"model": MODEL, "tokens": [1, 2]})
        assert told["count"] == len(told["tokens"]) == answer["usage"]["prompt_tokens"]
        assert isinstance(text["prompt"], str)

    async def test_the_openai_client(self, start_engine: StartEngine) -> None:
        engine = await start_engine()
        async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="unused") as client:
            assert [m.id async for m in client.models.list()] == [MODEL]
            response = await client.responses.create(model=MODEL, input="hi", max_output_tokens=3)
            events = [
                event
                async for event in await client.responses.create(
                    model=MODEL, input="hi", max_output_tokens=3, stream=True
                )
            ]
            assert events[-1].type == "response.completed"
            assert events[-1].response.output_text == response.output_text
            deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
            assert "".join(deltas) == response.output_text
            assert response.usage is not None
            assert response.usage.output_tokens == len(deltas) == 3
            whole = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=20
            )
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == whole.choices[0].message.content
            assert chunks[-1].usage == whole.usage
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="other", prompt="hi")
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model=MODEL, prompt="hi", max_tokens=99_999)

    async def test_a_priority_orders_the_waiting(
        self, start_engine: StartEngine, tmp_path: Path
    ) -> None:
        log = tmp_path / "log.jsonl"
        engine = await start_engine(
            "--max-num-seqs", "1", "--scheduling-policy", "priority", "--fake-request-log", str(log)
        )
        async with client_session(engine) as session:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 50, "ignore_eos": True}
            tasks = [asyncio.create_task(post(session, "/v1/completions", body, x_request_id="-"))]
            await until(lambda: engine.engine.running)
            for name, priority in (("late", 5), ("soon", -3), ("between", 0)):
                extra = {"priority": priority, "vllm_xargs": {"who": name}}
                tasks.append(
                    asyncio.create_task(
                        post(session, "/v1/completions", {**body, **extra}, x_request_id=name)
                    )
                )
            # vLLM's header wins over the body.
            tasks.append(
                asyncio.create_task(
                    post(
                        session, "/v1/completions", {**body, "priority": 9},
                        x_request_id="first", x_vllm_priority="-9",
                    )
                )
            )  # fmt: skip
            await asyncio.gather(*tasks)
        order = [line["x_request_id"] for line in read_log(log, "scheduled")]
        assert order == ["-", "first", "soon", "between", "late"]
        assert {line["xargs"].get("who") for line in read_log(log, "arrived")} >= {"late", "soon"}


class TestAborts:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_client_that_leaves_frees_its_blocks(
        self, engine: FakeEngine, stream: bool
    ) -> None:
        async with client_session(engine) as session:
            body = {**CHAT, "max_tokens": 30_000, "ignore_eos": True, "stream": stream}
            task = asyncio.create_task(session.post("/v1/chat/completions", json=body).__aenter__())
            await until(lambda: engine.engine.kv.held_blocks > 0)
            if stream:
                (await task).close()
            else:
                task.cancel()
            await wait_quiet(engine)
        assert engine.engine.totals.generation_tokens < 30_000

    async def test_sigterm_aborts_what_runs(self, sockets: Path, tmp_path: Path) -> None:
        """As vLLM 0.32: an error event and [DONE] in a stream, a 500 for a whole answer."""
        log, uds = tmp_path / "log.jsonl", str(sockets / "engine.sock")
        async with (
            engine_process("--fake-request-log", str(log), uds=uds) as engine,
            client_session(engine) as session,
        ):
            body = {**CHAT, "max_tokens": 30_000, "ignore_eos": True}
            whole = asyncio.create_task(post(session, "/v1/chat/completions", body))
            async with session.post(
                "/v1/chat/completions", json={**body, "stream": True}
            ) as response:
                await response.content.readany()
                engine.process.send_signal(signal.SIGTERM)
                rest = await response.text()
            status, answer = await whole
            assert await engine.wait() == 0
        *_, last, done, end = rest.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        assert json.loads(last.removeprefix("data: ")) == answer
        assert status == answer["error"]["code"] == 500
        assert os.listdir(sockets) == ["engine.sock"]
        assert check_log(log)["aborted"] == 2
        assert {line["reason"] for line in read_log(log, "aborted")} == {"shutdown"}

    async def test_sigterm_with_a_shutdown_timeout_lets_work_end(self, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        async with (
            engine_process("--shutdown-timeout", "20", "--fake-request-log", str(log)) as engine,
            client_session(engine) as session,
        ):
            body = {**CHAT, "max_tokens": 2_000, "ignore_eos": True, "stream": True}
            async with session.post("/v1/chat/completions", json=body) as response:
                await response.content.readany()
                engine.process.send_signal(signal.SIGTERM)
                await refused(session)
                async with session.get("/health") as health:
                    assert health.status == 200
                text = await response.text()
            assert text.endswith("data: [DONE]\n\n")
            assert await engine.wait() == 0
        assert max(line["output_tokens"] for line in read_log(log, "finished")) == 2_000
        assert check_log(log)["aborted"] == 0

    async def test_sigterm_with_a_short_shutdown_timeout_aborts_then(self) -> None:
        async with (
            engine_process("--shutdown-timeout", "1") as engine,
            client_session(engine) as session,
        ):
            body = {**CHAT, "max_tokens": 30_000, "ignore_eos": True, "stream": True}
            async with session.post("/v1/chat/completions", json=body) as response:
                await response.content.readany()
                engine.process.send_signal(signal.SIGTERM)
                assert '"code":500' in await response.text()
            assert await engine.wait() == 0

    async def test_a_slow_reader_holds_up_nobody_and_loses_nothing(
        self, start_engine: StartEngine
    ) -> None:
        engine = await start_engine("--fake-time-scale", "0.05", "--max-model-len", "100000")
        body = {
            "model": MODEL, "prompt": [1, 2, 3], "n": 4, "max_tokens": 20_000, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with (
            client_session(engine) as session,
            session.post("/v1/completions", json=body) as response,
        ):
            # The response is not read: the socket fills, the engine goes on to the end.
            await until(lambda: not engine.engine.has_work, seconds=60)
            chunks = await events(response)
        assert chunks[-1]["usage"]["completion_tokens"] == 80_000
        assert len(chunks) < 80_000
        for index in range(4):
            texts = [
                c["choices"][0]["text"] for c in chunks[:-1] if c["choices"][0]["index"] == index
            ]
            assert len("".join(texts)) == 80_000


class TestRequestLog:
    async def test_order_lengths_and_steps(self, start_engine: StartEngine, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        engine = await start_engine(
            "--fake-request-log", str(log), "--fake-log-steps", "--max-num-seqs", "2"
        )
        async with client_session(engine) as session:
            body = {"model": MODEL, "prompt": "secret words", "max_tokens": 10, "ignore_eos": True}
            await asyncio.gather(
                *(post(session, "/v1/completions", body, x_request_id=f"r{i}") for i in range(5))
            )
        await engine.stop()
        counts = check_log(log)
        assert counts["arrived"] == counts["scheduled"] == counts["first_token"] == 5
        assert counts["finished"] == 5
        assert [line["order"] for line in read_log(log, "scheduled")] == list(range(5))
        for line in read_log(log, "finished"):
            assert (line["prompt_tokens"], line["output_tokens"]) == (3, 10)
            assert line["served_seconds"] > 0
        steps = read_log(log, "step")
        assert [line["step"] for line in steps] == list(range(len(steps)))
        assert all(line["running"] + line["free_seats"] == 2 for line in steps)
        assert sum(line["decode_tokens"] for line in steps) == 5 * 9
        assert "secret" not in log.read_text()

    async def test_a_folder_gets_a_file_for_each_process(
        self, start_engine: StartEngine, tmp_path: Path
    ) -> None:
        engine = await start_engine("--fake-request-log", str(tmp_path))
        async with client_session(engine) as session:
            await post(session, "/v1/chat/completions", CHAT)
        await engine.stop()
        [name] = os.listdir(tmp_path)
        log = tmp_path / name
        assert name.startswith("engine-")
        assert check_log(log)["finished"] == 1

    async def test_to_standard_output(self) -> None:
        async with (
            engine_process("--fake-request-log", "/dev/stdout") as engine,
            client_session(engine) as session,
        ):
            assert engine.process.stdout is not None
            await post(session, "/v1/chat/completions", CHAT, x_request_id="mine")
            line = json.loads(await engine.process.stdout.readline())
        assert (line["event"], line["x_request_id"]) == ("arrived", "mine")


class TestAddress:
    async def test_a_socket_left_behind_stops_the_next_start(
        self, start_engine: StartEngine, sockets: Path
    ) -> None:
        """As in vLLM, which neither removes its socket nor replaces one that is there."""
        path = sockets / "engine.sock"
        engine = await start_engine("--uds", str(path))
        await engine.stop()
        with pytest.raises(OSError, match="Address already in use"):
            await start_engine("--uds", str(path))
        path.unlink()
        await start_engine("--uds", str(path))

    async def test_the_command_says_so_and_ends(self, sockets: Path) -> None:
        path = sockets / "engine.sock"
        path.write_text("mine")
        with pytest.raises(AssertionError, match="did not start \\(status 1\\)"):
            async with engine_process(uds=str(path)):
                pass
        assert path.read_text() == "mine"

    async def test_a_path_too_long(self, start_engine: StartEngine, sockets: Path) -> None:
        with pytest.raises(OSError, match="under 100 bytes"):
            await start_engine("--uds", str(sockets / ("x" * 100)))
