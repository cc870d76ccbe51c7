"""The router before sidecars: who asks is told once; a request that nobody began is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import test_utils, web
from cryptography import x509
from support.certificates import self_signed
from support.fake_engine import until
from support.faulty_engine import DONE, chat_chunk
from support.faulty_upstream import event_stream, reset, stall
from support.router_fleet import SEATS, Fleet, write_secrets
from support.sidecar import (
    ALICE,
    BOB,
    SidecarUnderTest,
    chat_body,
    keys_document,
)
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.identity_keys import IDENTITY_HEADER, LIFETIME_SECONDS, IdentityKeys
from tidegate_sidecar.router.pods import PodSet

from tidegate.scheduling.contracts import Bundle, ServingPod, UsageRecord, loads

pytestmark = pytest.mark.integration


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A router and one pod, which it knows."""
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(tmp_path, pods, edge)
        await fleet.start()
        await fleet.add_pod()
        await fleet.tell(0)
        yield fleet
        await fleet.settled()


async def test_a_request_is_answered_as_its_pod_answers_it(fleet: Fleet) -> None:
    engine, pod = fleet.pods[0]
    async with fleet.chat(stream=True) as answer:
        streamed = await answer.read()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
    assert streamed.endswith(DONE)
    async with fleet.chat() as answer:
        assert (await answer.json())["choices"][0]["message"]["content"] == "Hello!"
        request_id = answer.headers["x-request-id"]
    assert engine.requests[-1].headers["x-request-id"] == request_id, "one id all the way"
    assert pod.outcomes(ALICE) == {"completed": 2}
    assert await fleet.models(BOB) == ["test-model"]
    odd = {**fleet.headers(), "traceparent": "\u20ac", "tracestate": "\u20ac=1"}
    async with fleet.client.post(fleet.url, json=chat_body(), headers=odd) as answer:
        assert answer.status == 200, "a client's free text is no header of ours"


async def test_the_edge_refuses_what_no_pod_need_see(fleet: Fleet) -> None:
    engine, _ = fleet.pods[0]
    async with fleet.client.post(fleet.url, json=chat_body()) as answer:
        assert answer.status == 401
    assert await fleet.answered(model="another") == 404
    assert await fleet.answered(temperature="hot") == 400
    assert engine.requests == []


async def test_a_pod_behind_a_router_serves_nobody_else(fleet: Fleet) -> None:
    engine, pod = fleet.pods[0]
    async with pod.chat() as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["type"] == "authentication_error"
    keys = IdentityKeys(fleet.secrets)
    (digest,) = (d for d, t in keys_document()["keys"].items() if t == ALICE)
    body = json.dumps(chat_body()).encode()

    async def asked(value: str, sent: bytes = body) -> int:
        async with pod.request(body=sent, tenant=None, headers={IDENTITY_HEADER: value}) as answer:
            return int(answer.status)

    good = keys.sign(Identity(ALICE, digest), "id-1", body, time.time())
    assert await asked(good) == 200
    assert await asked(good, body + b" ") == 401, "signed for another body"
    assert await asked(keys.sign(Identity(ALICE, digest), "id-2", body, time.time() - 60)) == 401
    assert await asked(keys.sign(Identity(BOB, digest), "id-3", body, time.time())) == 401
    stranger = IdentityKeys(write_secrets(fleet.folder / "other", secrets.token_hex(32)))
    assert await asked(stranger.sign(Identity(ALICE, digest), "id-4", body, time.time())) == 401
    engine.script = stall
    again = keys.sign(Identity(ALICE, digest), "id-7", body, time.time())
    served = asyncio.create_task(asked(again))
    await until(lambda: engine.busy == 1)
    assert await asked(again) == 401, "served already, under that id"
    served.cancel()
    await until(lambda: engine.busy == 0)
    engine.script = None
    # A rotation: the new secret is known before it signs.
    old, new = fleet.secrets.read_text(), secrets.token_hex(32)
    write_secrets(fleet.secrets, old, new)
    signed_by_new = IdentityKeys(write_secrets(fleet.folder / "new", new))
    await until(lambda: _knows(pod, signed_by_new))
    by_new = signed_by_new.sign(Identity(ALICE, digest), "id-5", body, time.time())
    assert await asked(by_new) == 200
    assert await asked(keys.sign(Identity(ALICE, digest), "id-6", body, time.time())) == 200


def _knows(pod: SidecarUnderTest, signer: IdentityKeys) -> bool:
    keys = pod.runtime.callers.keys
    assert keys is not None
    signed = signer.sign(Identity(ALICE, "0" * 64), "probe", b"", time.time())
    with contextlib.suppress(Exception):
        return keys.verified([signed], time.time()).request_id == "probe"
    return False


async def test_a_pod_that_is_gone_costs_nobody_an_answer(fleet: Fleet) -> None:
    await fleet.add_pod()
    await fleet.tell(0, 1)
    await fleet.pods[0][1].sidecar.stop()
    fleet.pods[0][1].check_other = False
    models = [fleet.models() for _ in range(6)]
    statuses = await asyncio.gather(*(fleet.answered() for _ in range(12)), *models)
    assert statuses == [200] * 12 + [["test-model"]] * 6
    assert len(fleet.pods[1][0].requests) == 12


async def test_a_pod_that_is_back_begins_anew(fleet: Fleet) -> None:
    (pod,), (engine, _) = fleet.router.pods.pods, fleet.pods[0]
    for _ in range(20):
        pod.breaker.failed(asyncio.get_running_loop().time(), trial=True)
    assert not fleet.router.pods.serving(), "it would rest for half a minute"
    engine.healthy = False
    await until(lambda: not pod.ready)
    engine.healthy = True
    await until(lambda: fleet.router.pods.serving())


async def test_a_pod_with_other_secrets_is_no_fault_of_the_client(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_secrets(fleet.folder / "others", secrets.token_hex(32))
    fleet.secrets = other
    await fleet.add_pod()
    caplog.set_level(logging.INFO, "tidegate.router")
    await fleet.tell(1)
    for line in ("pod pod-0 has left the list", "pod pod-1 is ready"):
        assert [record.message for record in caplog.records].count(line) == 1
    assert await fleet.answered() == 503
    assert await fleet.answered() == 503
    told = [record for record in caplog.records if "does not accept" in record.message]
    assert len(told) == 1
    await fleet.tell(0, 1)
    assert {await fleet.answered() for _ in range(4)} == {200}, "the other pod knows it"


async def test_a_key_that_is_revoked_while_its_request_waits_in_a_pod(fleet: Fleet) -> None:
    engine, pod = fleet.pods[0]
    engine.script = stall
    asked = [asyncio.create_task(fleet.answered()) for _ in range(SEATS + 1)]
    scheduler = pod.runtime.dispatcher.scheduler
    assert scheduler is not None
    await until(lambda: engine.busy == SEATS and scheduler.queued() == 1)
    for governed in (fleet.router, pod.runtime):
        assert governed.in_force is not None
        bundle = governed.in_force.bundle
        later = replace(bundle.policy, generation=2)
        governed.apply(Bundle(later, replace(bundle.keys, generation=2, keys={})))
    done, running = await asyncio.wait(asked, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [401]
    for task in running:
        task.cancel()
    await until(lambda: engine.busy == 0)
    pod.check_other = False  # nobody has a key


async def test_a_draining_pod_passes_its_new_requests_on(fleet: Fleet) -> None:
    await fleet.add_pod()
    await fleet.tell(0, 1)
    fleet.pods[0][1].runtime.begin_drain()
    statuses = await asyncio.gather(*(fleet.answered() for _ in range(12)))
    assert set(statuses) == {200}
    assert fleet.pods[0][0].requests == []


async def test_what_an_engine_may_have_begun_is_never_sent_twice(fleet: Fleet) -> None:
    await fleet.add_pod()
    await fleet.tell(0, 1)
    for engine, _ in fleet.pods:
        engine.script = event_stream([chat_chunk("Hel")], then=reset)
    async with fleet.chat(stream=True) as answer:
        assert answer.status == 200
        text = (await answer.read()).decode()
    assert "Hel" in text
    assert '"error"' in text
    assert "[DONE]" not in text
    assert sum(len(engine.requests) for engine, _ in fleet.pods) == 1


async def test_a_new_pod_gets_half_of_what_waits_on_the_other(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    async def held(number: int) -> None:
        await release.wait()

    fleet.pods[0][0].script = event_stream([chat_chunk("late"), DONE], between=held)
    asked = [asyncio.create_task(fleet.answered(max_tokens=4, stream=True)) for _ in range(500)]
    await until(lambda: fleet.pods[0][1].runtime.dispatcher.in_hand == 500, 60.0)
    # They wait for longer than a signature lasts.
    later = SimpleNamespace(time=lambda: time.time() + 10 * LIFETIME_SECONDS)
    for module in ("proxy", "router.edge"):
        monkeypatch.setattr(f"tidegate_sidecar.{module}.time", later)
    (await fleet.add_pod())[0].script = fleet.pods[0][0].script
    begun = time.monotonic()
    await fleet.tell(0, 1)
    await until(lambda: [engine.busy for engine, _ in fleet.pods] == [SEATS, SEATS])
    assert time.monotonic() - begun < 10.0, "2 s is the aim on a machine of one's own"
    release.set()
    assert set(await asyncio.gather(*asked)) == {200}
    served = [len(engine.requests) for engine, _ in fleet.pods]
    assert sum(served) == 500, "each was served once"
    assert served[1] >= 225
    assert fleet.router.pods.handed_back >= 225


async def test_what_was_handed_back_often_enough_waits_where_it_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_sidecar.router.edge.MAX_HAND_BACKS", 2)
    release = asyncio.Event()

    async def held(number: int) -> None:
        await release.wait()

    engine, pod = fleet.pods[0]
    engine.script = event_stream([chat_chunk("late"), DONE], between=held)
    dispatcher = pod.runtime.dispatcher

    def queued() -> int:
        return dispatcher.scheduler.queued() if dispatcher.scheduler else 0

    asked = [asyncio.create_task(fleet.answered(stream=True)) for _ in range(SEATS + 1)]
    for handed_back in (1, 1, 0):
        await until(lambda: engine.busy == SEATS and queued() == 1)
        assert dispatcher.hand_back(1) == handed_back
    release.set()
    assert set(await asyncio.gather(*asked)) == {200}


async def test_who_hands_nothing_back_holds_up_no_look_at_the_pods() -> None:
    """A sidecar of before the router's: its queue is told, and the route is not there."""

    def old_sidecar(queued: int) -> test_utils.RawTestServer:
        async def answer(request: web.BaseRequest) -> web.Response:
            if request.path == "/load":
                return web.json_response({"ready": True, "queued": queued})
            return web.Response(status=404, text="404: Not Found")

        return test_utils.RawTestServer(answer)

    async with old_sidecar(9) as busy, old_sidecar(0) as free:
        addresses = [f"http://{server.host}:{server.port}" for server in (busy, free)]
        told = [ServingPod(each, each, each) for each in addresses]
        pods = PodSet(SimpleNamespace(take=lambda: told), None, 0.05, 60.0)
        for _ in range(2):
            await pods.look()
        assert [pod.queued for pod in pods.pods] == [9, 0]
        assert pods.handed_back == 0
        pods.close()


def write_certificate(folder: Path, name: str) -> None:
    certificate, key = self_signed(name)
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.crt").write_bytes(certificate)


async def test_a_renewed_certificate_serves_the_next_handshake(tmp_path: Path) -> None:
    write_certificate(tmp_path, "first")
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(tmp_path, pods, edge)
        await fleet.start(tls_certificate=tmp_path / "tls.crt", tls_key=tmp_path / "tls.key")
        await fleet.add_pod()
        await fleet.tell(0)
        url = f"https://127.0.0.1:{fleet.router.port}/v1/chat/completions"
        headers = fleet.headers()
        async with fleet.client.post(url, json=chat_body(), headers=headers, ssl=False) as answer:
            assert answer.status == 200
        assert await shown_name(fleet.router.port) == "first"
        assert fleet.router._tls is not None
        (tmp_path / "tls.crt").write_bytes(self_signed("other")[0])  # its key is not there yet
        fleet.router._tls.look()
        assert await shown_name(fleet.router.port) == "first"
        write_certificate(tmp_path, "second")
        async with asyncio.timeout(10):
            while await shown_name(fleet.router.port) != "second":
                pass  # each look is a handshake


async def shown_name(port: int) -> str:
    """Whose certificate a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return str(x509.load_der_x509_certificate(der).subject.rfc4514_string().removeprefix("CN="))


async def test_what_the_router_ends_itself_it_records(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with AsyncExitStack() as pods:
        async with AsyncExitStack() as edge:
            fleet = Fleet(tmp_path, pods, edge)
            await fleet.start(usage_records=str(path))
            engine, pod = await fleet.add_pod()
            await fleet.tell(0)
            assert await fleet.answered() == 200
            assert await fleet.answered(model="another") == 404
            engine.script = stall
            leaving = asyncio.create_task(fleet.answered())
            await until(lambda: engine.busy == 1)
            leaving.cancel()
            await until(lambda: engine.busy == 0)
            engine.script = event_stream([chat_chunk("Hel")], then=stall)
            async with fleet.chat(stream=True) as answer:
                assert b"Hel" in await answer.content.readany()
                (known,) = fleet.router.pods.pods
                known.client.abort_exchanges()
                assert b'"error"' in await answer.read()
            await until(lambda: engine.busy == 0)
            assert fleet.router.edge.ended["forwarded"] == 1
            await fleet.tell()
            assert await fleet.answered() == 503
        records = [loads(UsageRecord, line) for line in path.read_bytes().splitlines()]
        await pod.settled()
        theirs = pod.runtime.reports.recent.records()
    assert [(record.tenant, record.tier, record.outcome) for record in records] == [
        (ALICE, "standard", "model_not_found"),
        (ALICE, "standard", "engine_failed"),  # its pod may have no record of it
        (ALICE, "standard", "no_engine"),
    ]
    assert [record.outcome for record in theirs] == ["completed", "client_closed", "client_closed"]
    both = {record.id for record in records} & {record.id for record in theirs}
    assert both == {records[1].id}


async def test_a_router_is_ready_once_a_pod_has_served_and_stays_so(tmp_path: Path) -> None:
    """Without a pod it answers with when to try again; a Service without a router refuses."""
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(tmp_path, pods, edge)
        await fleet.start()
        await fleet.router.pods.look()
        assert not fleet.router.ready  # it may just not have heard of any
        await fleet.add_pod()
        await fleet.tell(0)
        await until(lambda: fleet.router.ready)
        await fleet.tell()
        assert fleet.router.ready
        async with fleet.chat() as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
        await fleet.router.drain()
        assert not fleet.router.ready


async def test_a_router_that_goes_serves_who_has_not_heard_of_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(tmp_path, pods, edge)
        await fleet.start(leaving_seconds=600.0, drain_seconds=3_600.0)
        await fleet.add_pod()
        await fleet.tell(0)
        await until(lambda: fleet.router.ready)
        async with fleet.chat() as answer:
            assert "Connection" not in answer.headers
        drain = asyncio.create_task(fleet.router.drain())
        await until(lambda: not fleet.router.ready)
        for stream in (False, True):
            async with fleet.chat(stream=stream) as answer:
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
                await answer.read()
        assert not drain.done()
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)


async def test_a_router_that_has_gone_takes_no_more(tmp_path: Path) -> None:
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(tmp_path, pods, edge)
        await fleet.start()
        await fleet.add_pod()
        await fleet.tell(0)
        await fleet.router.drain()
        async with fleet.chat() as answer:
            assert answer.headers["x-tidegate-dropped-reason"] == "rejected-draining"
