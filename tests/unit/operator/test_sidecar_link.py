"""The line to a pool's sidecars: one that hangs or refuses delays no other, and is tried again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tidegate_operator import sidecars
from tidegate_operator.admin_port import Delivery
from tidegate_operator.metrics import Metrics
from tidegate_operator.pod_reports import cut_off
from tidegate_operator.pool_state import PodState
from tidegate_operator.sidecars import SidecarLink

from tidegate.scheduling.contracts import EngineStatus, SharedStateStatus, SidecarStatus, encode


class Answer:
    """One HTTP answer, as the link reads it."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self._text = text

    async def text(self) -> str:
        return self._text

    async def read(self) -> bytes:
        return self._text.encode()


class Sidecars:
    """An HTTP session to sidecars by address; ``mode`` says how each behaves."""

    def __init__(self) -> None:
        self.mode: dict[str, str] = {}
        self.generation: dict[str, int] = {}
        self.puts: list[str] = []
        self.pods: dict[str, list[int]] = {}
        """What each was told of how many serve."""
        self.started: dict[str, float] = {}
        self.shared_state: SharedStateStatus | None = None
        self.waiting = 0
        self.reads_policy: dict[str, int] = {}
        """By address; others have no policy yet and say nothing of versions."""
        self.tokens: dict[str, str] = {}
        """That each asks for, by address; others take any."""
        self.told = 0
        """How often the link said that its sidecars read another version."""

    def tell_version(self) -> None:
        self.told += 1

    async def _reach(self, url: str) -> str:
        address = url.split("/")[2].split(":")[0]
        match self.mode.get(address, "well"):
            case "hangs":
                self.waiting += 1
                await asyncio.Event().wait()
            case "dead":
                raise OSError("no route to host")
            case "odd":
                raise RuntimeError("what nobody thought of")
        return address

    def _knows(self, address: str, headers: Any) -> bool:
        wanted = self.tokens.get(address)
        return wanted is None or headers["Authorization"] == f"Bearer {wanted}"

    @contextlib.asynccontextmanager
    async def put(self, url: str, headers: Any, data: bytes = b"") -> AsyncIterator[Answer]:
        address = await self._reach(url)
        if not self._knows(address, headers):
            yield Answer(401, "a valid bearer token is needed")
            return
        if "/pods?" in url:
            if self.mode.get(address) != "earlier version":
                self.pods.setdefault(address, []).append(int(url.rpartition("=")[2]))
            yield Answer(404 if self.mode.get(address) == "earlier version" else 200, "{}")
            return
        self.puts.append(address)
        if self.mode.get(address) == "refuses":
            yield Answer(422, "told to refuse")
            return
        self.generation[address] = int(data)
        yield Answer(200, "{}")

    @contextlib.asynccontextmanager
    async def get(self, url: str, headers: Any) -> AsyncIterator[Answer]:
        address = await self._reach(url)
        if not self._knows(address, headers):
            yield Answer(401, "a valid bearer token is needed")
            return
        if self.mode.get(address) == "reads nothing":
            known = self.reads_policy.get(address)
            yield Answer(503, "{}" if known is None else f'{{"reads_policy": {known}}}')
            return
        status = SidecarStatus(
            1,
            "acme/chat",
            self.started.get(address, 1.0),
            self.generation.get(address, 0),
            reads_policy=self.reads_policy.get(address, 1),
            shared_state=self.shared_state,
        )
        told = encode(status)
        if self.mode.get(address) == "later version":
            told["of_a_later_version"] = told["engine"] = {"ready": True, "of_a_later_version": [1]}
        yield Answer(200, json.dumps(told))


def pod(address: str, *, ready: bool = True) -> PodState:
    return PodState(address, f"pod-{address}", address, ready, terminating=False)


def delivery(generation: int) -> Delivery:
    return Delivery(generation, str(generation).encode(), "token")


async def becomes(check: Callable[[], Any], what: str, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(
    session: Sidecars, scrape_seconds: float = 0.1, changed: Callable[[], None] = lambda: None
) -> AsyncIterator[SidecarLink]:
    link = SidecarLink(
        "acme/chat",
        session,  # type: ignore[arg-type]
        Metrics(),
        scrape_seconds=scrape_seconds,
        window_seconds=60.0,
        changed=changed,
        outdated=lambda generation: None,
        other_version=session.tell_version,
    )
    task = asyncio.create_task(link.run())
    try:
        yield link
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_sidecar_that_hangs_delays_no_other() -> None:
    """A revoked key must be gone from the living, however long the dead take to time out."""
    session = Sidecars()
    session.mode["10.0.0.1"] = "hangs"
    async with running(session) as link:
        link.update([pod("10.0.0.1"), pod("10.0.0.2")], delivery(1))
        await becomes(lambda: session.waiting, "the first hangs")
        await becomes(lambda: session.generation.get("10.0.0.2") == 1, "the first policy")
        link.update([pod("10.0.0.1"), pod("10.0.0.2")], delivery(2))
        await becomes(lambda: session.generation["10.0.0.2"] == 2, "the revocation")
        assert [s.pod.name for s in link.behind] == ["pod-10.0.0.1"]


async def test_any_number_of_dead_pods_leaves_room_for_the_living(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sidecars, "CONCURRENT_REQUESTS", 2)
    session = Sidecars()
    dead = [f"10.0.1.{n}" for n in range(8)]
    session.mode |= dict.fromkeys(dead, "dead")
    async with running(session) as link:
        pods = [pod(address) for address in [*dead, "10.0.0.2"]]
        link.update(pods, delivery(1))
        await becomes(
            lambda: all(s.failures for s in link.sidecars.values() if s.pod.ip in dead), ""
        )
        session.mode |= dict.fromkeys(dead, "hangs")
        await becomes(lambda: session.waiting >= 2, "the dead take their time")
        link.update(pods, delivery(2))
        await becomes(lambda: session.generation["10.0.0.2"] == 2, "the revocation")


async def test_a_push_that_failed_is_tried_again_within_seconds_for_as_long_as_it_takes() -> None:
    session = Sidecars()
    session.mode["10.0.0.1"] = "dead"
    async with running(session) as link:
        link.update([pod("10.0.0.1")], delivery(1))
        link.sidecars["10.0.0.1"].failures = 50
        await becomes(lambda: link.sidecars["10.0.0.1"].failures > 50, "it was tried")
        wait = link.sidecars["10.0.0.1"].not_before - time.monotonic()
        assert wait < 2.5, "with the time of a request itself, within the promised 5 s"
        session.mode["10.0.0.1"] = "well"
        await becomes(lambda: session.generation.get("10.0.0.1") == 1, "it is tried again")


async def test_one_that_refuses_is_asked_ever_more_seldom_though_it_answers() -> None:
    session = Sidecars()
    session.mode["10.0.0.1"] = "refuses"
    async with running(session, scrape_seconds=0.01) as link:
        link.update([pod("10.0.0.1")], delivery(1))
        sidecar = link.sidecars["10.0.0.1"]
        await becomes(lambda: sidecar.failures >= 3, "it refused three times")
        assert sidecar.refusal is not None
        assert "told to refuse" in sidecar.refusal
        assert sidecar.readings, "its figures are read all the same"


async def test_a_failure_of_any_kind_is_that_of_one_sidecar() -> None:
    session = Sidecars()
    session.mode["10.0.0.1"] = "odd"
    async with running(session) as link:
        link.update([pod("10.0.0.1"), pod("10.0.0.2")], delivery(1))
        await becomes(lambda: session.generation.get("10.0.0.2") == 1, "the other has it")
        session.mode["10.0.0.1"] = "well"
        await becomes(lambda: session.generation.get("10.0.0.1") == 1, "it is tried again")


async def test_figures_of_a_sidecar_that_no_longer_answers_are_not_told_for_ever() -> None:
    session = Sidecars()
    changes: list[int] = []
    async with running(session, changed=lambda: changes.append(1)) as link:
        link.update([pod("10.0.0.1"), pod("10.0.0.2")], delivery(1))
        await becomes(lambda: len(link.readings()) == 2 and changes, "both were read")
        session.mode["10.0.0.1"] = "dead"
        silent = link.sidecars["10.0.0.1"].readings
        old = [type(r)(r.at_seconds - 61, r.wall_seconds - 61, r.status) for r in silent]
        silent.clear()
        silent.extend(old)
        seen = len(changes)
        await becomes(lambda: len(changes) > seen + 1, "the next rounds")
        assert len(link.readings()) == 1


async def test_a_pod_that_went_is_visited_no_more() -> None:
    session = Sidecars()
    session.mode["10.0.0.1"] = "hangs"
    async with running(session) as link:
        link.update([pod("10.0.0.1")], delivery(1))
        await becomes(lambda: session.waiting, "it hangs")
        link.update([], delivery(1))
        await becomes(lambda: len(asyncio.all_tasks()) <= 2, "its visit ended with it")


async def test_a_sidecar_that_started_anew_is_told_at_once() -> None:
    """It began by files that a kubelet renews once a minute; no reading is due for long."""
    session = Sidecars()
    async with running(session, scrape_seconds=1000.0) as link:
        link.update([pod("10.0.0.1")], delivery(2))
        await becomes(lambda: session.generation.get("10.0.0.1") == 2, "the newest")
        session.generation["10.0.0.1"] = 1
        link.update([pod("10.0.0.1", ready=False)], delivery(2))
        link.update([pod("10.0.0.1")], delivery(2))
        await becomes(lambda: session.generation["10.0.0.1"] == 2, "the newest again")


@pytest.mark.parametrize("mode", ["well", "reads nothing"])
async def test_the_version_is_what_all_sidecars_read(mode: str) -> None:
    """Told also by one that could read no policy yet; one that says nothing reads the first."""
    session = Sidecars()
    session.mode = {"10.0.0.1": mode, "10.0.0.2": mode}
    session.reads_policy = {"10.0.0.1": 2, "10.0.0.2": 2}
    async with running(session, scrape_seconds=0.01) as link:
        assert link.reads_policy is None
        link.update([pod("10.0.0.1"), pod("10.0.0.2")], delivery(1))
        await becomes(lambda: link.reads_policy == 2, "both are heard of")
        assert session.told == 1
        session.mode["10.0.0.3"] = "reads nothing"
        link.update([pod("10.0.0.1"), pod("10.0.0.3", ready=False)], delivery(1))
        await becomes(lambda: link.reads_policy == 1, "an older one comes")
        assert session.told == 2
        link.update([pod("10.0.0.1")], delivery(1))
        await becomes(lambda: session.told == 3, "the older one goes")
        assert link.reads_policy == 2


async def test_what_a_later_version_tells_besides_is_no_failure() -> None:
    """As after a rollback of the operator, which restarts no pods."""
    session = Sidecars()
    session.mode["10.0.0.1"] = "later version"
    async with running(session) as link:
        link.update([pod("10.0.0.1")], delivery(1))
        await becomes(link.readings, "it is read")
        (readings,) = link.readings()
        assert readings[-1].status.engine == EngineStatus(ready=True)
        (sidecar,) = link.sidecars.values()
        assert sidecar.failures == 0


async def test_each_is_told_how_many_serve_and_again_when_it_may_have_forgotten() -> None:
    session = Sidecars()
    session.mode["10.0.0.3"] = "earlier version"
    pods = [pod("10.0.0.1"), pod("10.0.0.2", ready=False), pod("10.0.0.3")]
    async with running(session, scrape_seconds=0.05) as link:
        link.update(pods, delivery(1))
        await becomes(lambda: session.pods.get("10.0.0.1") == [2], "two serve")
        await becomes(lambda: session.pods.get("10.0.0.2") == [2], "also one that does not yet")
        link.update([pod("10.0.0.1"), pod("10.0.0.2"), pod("10.0.0.3")], delivery(1))
        await becomes(lambda: session.pods["10.0.0.1"][-1] == 3, "three serve")
        told = len(session.pods["10.0.0.1"])
        session.started["10.0.0.1"] = 2.0
        await becomes(lambda: len(session.pods["10.0.0.1"]) > told, "it was started anew")
        assert session.generation["10.0.0.3"] == 1
        assert not link.behind


async def test_who_does_not_reach_the_shared_state_is_named() -> None:
    session = Sidecars()
    async with running(session, scrape_seconds=0.05) as link:
        link.update([pod("10.0.0.1"), pod("10.0.0.2", ready=False)], delivery(1))
        await becomes(lambda: link.readings(), "it was read")
        assert cut_off(link.told) == ()
        session.shared_state = SharedStateStatus(False, 1.0, "connection refused")
        await becomes(
            lambda: cut_off(link.told) == ("pod pod-10.0.0.1: connection refused",), "it says so"
        )
        session.shared_state = SharedStateStatus(True, 2.0)
        await becomes(lambda: cut_off(link.told) == (), "it is back")


async def test_one_that_knows_only_the_token_of_before_is_told_and_read() -> None:
    """Its kubelet takes a minute to bring the new one; a revocation does not wait for it."""
    session, addresses = Sidecars(), ("10.0.0.1", "10.0.0.2")
    session.tokens = dict.fromkeys(addresses, "old")
    pods = [pod(address) for address in addresses]
    async with running(session, scrape_seconds=0.05) as link:
        for generation, token in enumerate(("old", "new", "new"), 1):
            link.update(pods, Delivery(generation, str(generation).encode(), token))
            await becomes(
                lambda: link.in_force == generation,  # noqa: B023
                f"generation {generation} in all",
            )
            now = time.monotonic()
            await becomes(
                lambda: all(
                    s.readings and s.readings[-1].at_seconds > now and s.failures == 0  # noqa: B023
                    for s in link.sidecars.values()
                ),
                "all are read",
            )
            session.tokens["10.0.0.1"] = token
        session.tokens["10.0.0.2"] = "a stranger's"
        await becomes(lambda: any(s.failures for s in link.sidecars.values()), "no other is taken")
