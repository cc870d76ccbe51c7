"""One container's life: start, probe, end, wait, start again.

The worker runs as a task of its pod's worker and owns the container's folder, one sub-folder for
each attempt. It keeps `view`, the state that the pod's status shows, and calls `on_change` whenever
that differs. A worker made for a container that runs already (the kubelet was away) takes the
running attempt over; one that ended meanwhile is treated as if it had ended just now.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tidegate.local_cluster.kubelet.api import ApiError, Object, Unreachable
from tidegate.local_cluster.kubelet.backoff import RestartBackoff
from tidegate.local_cluster.kubelet.downward import MissingReference
from tidegate.local_cluster.kubelet.images import Image, UnmappedImage
from tidegate.local_cluster.kubelet.pods import is_sidecar
from tidegate.local_cluster.kubelet.probes import ProbeSpec, ProbeTally, run_handler
from tidegate.local_cluster.kubelet.runtime import Attempt, Exit
from tidegate.local_cluster.processes import tail

_RETRY_SECONDS = 2.0
_MINIMUM_GRACE_SECONDS = 2.0

Record = Callable[[str, str, str], None]
"""(type, reason, message) of an event on the pod."""


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(slots=True)
class ContainerView:
    """What the pod's status says of a container."""

    phase: Phase = Phase.WAITING
    reason: str = "ContainerCreating"
    message: str = ""
    started_at: float = 0.0
    exit: Exit | None = None
    last_exit: Exit | None = None
    restarts: int = 0
    attempt: int = 0
    ready: bool = False
    started: bool = False


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """What a container needs of its pod and its node."""

    pod_ip: str
    restart_policy: str
    grace_seconds: Callable[[], float]
    resolve: Callable[[Object], Image]
    prepare: Callable[[Object, Image, Path], Awaitable[Object]]
    record: Record
    on_change: Callable[[], None]
    backoff: Callable[[], RestartBackoff]


@dataclass(slots=True)
class ContainerWorker:
    """Runs one container of a pod; `init` is true for init containers, sidecars among them."""

    spec: Object
    folder: Path
    host: ContainerHost
    init: bool = False
    view: ContainerView = field(default_factory=ContainerView)
    ready_or_done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the container has started in the sense of its startup probe, or is over."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _attempt: Attempt | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        return self.init and is_sidecar(self.spec)

    def take_over(self, known: Object) -> None:
        """Sets the view from what an earlier kubelet left; `known` is its last container status.

        A container that still runs stays as ready as it was until a probe says otherwise.
        """
        attempt = Attempt.last(self.folder)
        if attempt is None:
            return
        if not attempt.running():
            self._set_ended(attempt, attempt.exit())
            return
        self._attempt = attempt
        same = str(known.get("containerID", "")).endswith(f"/{attempt.number}")
        self._set(
            **_running_changes(attempt),
            started=same and bool(known.get("started")),
            ready=same and bool(known.get("ready")),
        )

    async def run(self) -> Exit | None:
        """Runs the container until it will not start again; its last exit (None: never ran)."""
        backoff = self.host.backoff()
        attempt = Attempt.last(self.folder)
        try:
            while True:
                if attempt is None:
                    attempt = await self._start()
                    if attempt is None:
                        return None
                ended = await self._watch(attempt)
                if not self._starts_again(ended):
                    return ended
                delay = backoff.next_delay(ended.finished - ended.started)
                if not await self._wait_restart(delay, ended):
                    return ended
                attempt = None
        finally:
            self.ready_or_done.set()

    async def stop(self, deadline: float, *, hooks: bool = True) -> None:
        """preStop, SIGTERM, SIGKILL at `deadline` (time.monotonic()); returns when it is gone."""
        self._stopping.set()
        attempt = self._attempt
        if attempt is None or not attempt.running():
            return
        await self._end(attempt, deadline, hooks=hooks)
        # Also where `run` does not follow it: the pod was deleted before it was taken over.
        self._set_ended(attempt, attempt.exit())

    def kill(self) -> None:
        """Ends the container at once."""
        self._stopping.set()
        if self._attempt is not None:
            self._attempt.kill()

    async def _end(self, attempt: Attempt, deadline: float, *, hooks: bool) -> None:
        pre_stop = self.spec.get("lifecycle", {}).get("preStop")
        if pre_stop and hooks:
            left = max(0.0, deadline - time.monotonic())
            await self._hook("PreStop", pre_stop, attempt, left)
            deadline = max(deadline, time.monotonic() + _MINIMUM_GRACE_SECONDS)
        attempt.terminate()
        gone = asyncio.ensure_future(attempt.wait())
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await asyncio.shield(gone)
        except TimeoutError:
            attempt.kill()
            await gone

    async def _start(self) -> Attempt | None:
        """Starts a new attempt, retrying what stands in its way; None when stopped meanwhile."""
        pull_backoff = self.host.backoff()
        pull_backoff.next_delay(0.0)
        while not self._stopping.is_set():
            try:
                image = self.host.resolve(self.spec)
                number = self.view.attempt + 1
                spec = await self.host.prepare(self.spec, image, self.folder)
            except UnmappedImage as error:
                self._waits("ErrImagePull", str(error))
                self.host.record("Warning", "Failed", f"Error: ErrImagePull: {error}")
                await self._pause(_RETRY_SECONDS)
                self._waits("ImagePullBackOff", str(error))
                await self._pause(pull_backoff.next_delay(0.0))
                continue
            except MissingReference as error:
                self._waits("CreateContainerConfigError", str(error))
                self.host.record("Warning", "Failed", f"Error: {error}")
                await self._pause(_RETRY_SECONDS)
                continue
            except (ApiError, Unreachable):
                await self._pause(_RETRY_SECONDS)
                continue
            if self._stopping.is_set():
                return None
            self._forget_old_attempts(number)
            # No await from the check to here: a stop finds the attempt or prevents it.
            attempt = self._attempt = Attempt.start(self.folder / str(number), spec)
            self.host.record("Normal", "Started", f"Started container {self.name}")
            return attempt
        return None

    async def _watch(self, attempt: Attempt) -> Exit:
        """Follows a running attempt to its end, probing it meanwhile."""
        self._attempt = attempt
        running = attempt.running()
        taken_over = self.view.phase is Phase.RUNNING and self.view.attempt == attempt.number
        if running and not taken_over:
            self._set(**_running_changes(attempt), started=False, ready=False)
        probes = asyncio.create_task(self._probe(attempt)) if running else None
        try:
            ended = await attempt.wait()
        finally:
            if probes is not None:
                probes.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await probes
        self._set_ended(attempt, ended)
        return ended

    def _starts_again(self, ended: Exit) -> bool:
        if self._stopping.is_set():
            return False
        if self.sidecar:
            return True
        if self.init or self.host.restart_policy == "OnFailure":
            return self.host.restart_policy != "Never" and ended.code != 0
        return self.host.restart_policy == "Always"

    async def _wait_restart(self, delay: float, ended: Exit) -> bool:
        """Waits before the next start; False when stopped meanwhile."""
        self._set(last_exit=ended)
        if delay > 0:
            text = f"back-off {delay:.0f}s restarting failed container={self.name}"
            self.host.record("Warning", "BackOff", text)
            self._waits("CrashLoopBackOff", text)
            await self._pause(delay)
        return not self._stopping.is_set()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not beyond a stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _probe(self, attempt: Attempt) -> None:
        """postStart, then the startup probe, then readiness and liveness beside each other."""
        if not self.view.started and not await self._start_up(attempt):
            return
        readiness, liveness = self.spec.get("readinessProbe"), self.spec.get("livenessProbe")
        self._set(started=True, ready=readiness is None or self.view.ready)
        self.ready_or_done.set()
        async with asyncio.TaskGroup() as group:
            if readiness is not None:
                group.create_task(self._probe_readiness(readiness, attempt))
            if liveness is not None:
                group.create_task(self._probe_liveness(liveness, attempt))

    async def _start_up(self, attempt: Attempt) -> bool:
        """Whether the container started in the sense of its hook and probe; ends it if not."""
        post_start = self.spec.get("lifecycle", {}).get("postStart")
        if post_start and not await self._hook("PostStart", post_start, attempt, 30.0):
            await self._replace(attempt, None)
            return False
        if (startup := self.spec.get("startupProbe")) is not None:
            tally = ProbeTally(ProbeSpec.of(startup))
            if not await self._probe_until_verdict("Startup", startup, tally, attempt):
                await self._replace(attempt, tally.spec.grace_seconds)
                return False
        return True

    async def _probe_readiness(self, probe: Object, attempt: Attempt) -> None:
        tally = ProbeTally(ProbeSpec.of(probe))
        while True:
            ready = await self._probe_until_verdict("Readiness", probe, tally, attempt)
            self._set(ready=ready)
            await asyncio.sleep(tally.spec.period_seconds)

    async def _probe_liveness(self, probe: Object, attempt: Attempt) -> None:
        tally = ProbeTally(ProbeSpec.of(probe))
        while not self._stopping.is_set():
            if not await self._probe_until_verdict("Liveness", probe, tally, attempt):
                await self._replace(attempt, tally.spec.grace_seconds)
                return
            await asyncio.sleep(tally.spec.period_seconds)

    async def _probe_until_verdict(
        self, kind: str, probe: Object, tally: ProbeTally, attempt: Attempt
    ) -> bool:
        spec = tally.spec
        delay = attempt.started + spec.initial_delay_seconds - time.time()
        await asyncio.sleep(max(0.0, delay))
        while True:
            ok, said = await run_handler(
                probe, self.spec, self.host.pod_ip, attempt.execute, spec.timeout_seconds
            )
            if not ok and not self._stopping.is_set():
                self.host.record("Warning", "Unhealthy", f"{kind} probe failed: {said}")
            verdict = tally.observe(ok)
            if verdict is not None:
                return verdict
            await asyncio.sleep(spec.period_seconds)

    async def _replace(self, attempt: Attempt, grace_seconds: float | None) -> None:
        """Ends an unhealthy attempt; the restart policy says whether another follows."""
        grace = self.host.grace_seconds() if grace_seconds is None else float(grace_seconds)
        text = f"Container {self.name} failed its probe, will be restarted"
        self.host.record("Normal", "Killing", text)
        await self._end(attempt, time.monotonic() + grace, hooks=True)

    async def _hook(self, name: str, handler: Object, attempt: Attempt, timeout: float) -> bool:
        ok, said = await run_handler(handler, self.spec, self.host.pod_ip, attempt.execute, timeout)
        if not ok:
            self.host.record("Warning", f"Failed{name}Hook", f"{name} hook failed: {said}")
        return ok

    def _exit_message(self, attempt: Attempt, ended: Exit) -> str:
        if ended.setup_error:
            return ended.setup_error
        policy = self.spec.get("terminationMessagePolicy")
        if ended.code != 0 and policy == "FallbackToLogsOnError":
            return tail(attempt.log, 20)[-2048:]
        return ""

    def _forget_old_attempts(self, number: int) -> None:
        """Keeps the attempt before the new one, for `kubectl logs --previous`."""
        for entry in self.folder.glob("*"):
            if entry.name.isdigit() and int(entry.name) < number - 1:
                shutil.rmtree(entry, ignore_errors=True)

    def _set_ended(self, attempt: Attempt, ended: Exit) -> None:
        self._set(
            phase=Phase.TERMINATED,
            reason=_exit_reason(ended),
            message=self._exit_message(attempt, ended),
            exit=ended,
            attempt=attempt.number,
            restarts=attempt.number - 1,
            ready=self.init and not self.sidecar and ended.code == 0,
            started=False,
        )

    def _waits(self, reason: str, message: str) -> None:
        self._set(phase=Phase.WAITING, reason=reason, message=message, ready=False, started=False)

    def _set(self, **changes: object) -> None:
        before = [getattr(self.view, name) for name in changes]
        if before != list(changes.values()):
            for name, value in changes.items():
                setattr(self.view, name, value)
            self.host.on_change()


def _running_changes(attempt: Attempt) -> dict[str, Any]:
    return {
        "phase": Phase.RUNNING,
        "reason": "",
        "message": "",
        "started_at": attempt.started,
        "attempt": attempt.number,
        "restarts": attempt.number - 1,
    }


def _exit_reason(ended: Exit) -> str:
    if ended.setup_error:
        return "StartError"
    return "Completed" if ended.code == 0 else "Error"
