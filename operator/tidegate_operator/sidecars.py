"""The operator's line to the sidecars of one pool: policy out, figures back.

Theory of operation. A link knows the pods that can be reached (by their Pod objects: an address and
not terminating; not only ready ones, since a sidecar that is about to get ready must not start to
serve by an old file) and the bundle that all of them should run. One loop brings them there: a
sidecar that is not known to run the bundle's generation gets it, at once after a change and then
with a back-off of its own. Each visit is a task of its own, and those to sidecars that failed have
their own places, so the dead delay nobody: what is revoked is gone from all that live. A visit also
reads ``/status`` now and then, and what a sidecar says of its generation there is believed over
what was posted: a restarted one that runs an old file is found by the next reading.

The link only moves data; it writes nothing to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import aiohttp

from tidegate.scheduling.contracts import SidecarStatus, loads
from tidegate_operator.admin_port import AdminPort, Delivery, Refused, version_in
from tidegate_operator.fallback import is_spare
from tidegate_operator.figures import Reading, keep_reading
from tidegate_operator.metrics import Metrics
from tidegate_operator.pool_state import PodState

log = logging.getLogger(__name__)

RETRY_BASE_SECONDS = 0.2
RETRY_HIGHEST_SECONDS = 2.0
"""With the time to connect, below the 5 s in which a revocation acts on whoever can be reached."""
CONCURRENT_REQUESTS = 32


@dataclass(slots=True)
class Sidecar:
    """One sidecar, as the operator knows it."""

    pod: PodState
    generation: int | None = None
    """Unset: not known."""
    reads_policy: int | None = None
    """The highest version of the policy that it reads; unset: not known."""
    refusal: str | None = None
    """Why it does not take the newest policy, in its own words."""
    failures: int = 0
    """Visits in a row on which something failed."""
    told_pods: int | None = None
    """Among how many pods it divides limits; unset: not known."""
    not_before: float = 0.0
    """No delivery before, on the monotonic clock."""
    to_read: bool = False
    visit: asyncio.Task[None] | None = None
    """Set while one is under way."""
    readings: deque[Reading] = field(default_factory=deque)

    def leave(self) -> None:
        """End the visit that is under way, if any."""
        if self.visit:
            self.visit.cancel()


class SidecarLink:
    """The sidecars of one pool; ``run`` is its loop."""

    def __init__(
        self,
        pool: str,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        *,
        scrape_seconds: float,
        window_seconds: float,
        changed: Callable[[], None],
        outdated: Callable[[int], None],
        other_version: Callable[[], None],
    ) -> None:
        """``changed`` is called when there is something new to write into a status; ``outdated``
        when a sidecar runs a higher generation than was delivered; ``other_version`` when all of
        them read another version of the policy than before."""
        self.pool = pool
        self.sidecars: dict[str, Sidecar] = {}
        self.delivery: Delivery | None = None
        self.pending_since: float | None = None
        """On the monotonic clock: since when a ready sidecar lacks the newest policy."""
        self._admin = AdminPort(session)
        self._metrics = metrics
        self._scrape_seconds = scrape_seconds
        self._window_seconds = window_seconds
        self._changed = changed
        self._outdated = outdated
        self._other_version = other_version
        self._told_version: int | None = None
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._slots_of_failing = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._next_scrape = 0.0
        self._news = False

    def update(self, pods: Sequence[PodState], delivery: Delivery | None) -> None:
        """Set who is there and what they should run; the loop acts on it at once."""
        reachable = {pod.uid: pod for pod in pods if pod.ip and not pod.terminating}
        before = {uid: (s.pod.ip, s.pod.ready) for uid, s in self.sidecars.items()}
        for uid in self.sidecars.keys() - reachable.keys():
            self.sidecars.pop(uid).leave()
        for uid, pod in reachable.items():
            sidecar = self.sidecars.setdefault(uid, Sidecar(pod))
            if sidecar.pod.ip != pod.ip:
                sidecar.leave()
                sidecar = self.sidecars[uid] = Sidecar(pod)
            if sidecar.pod.ready != pod.ready:
                # Its process may be another one, which began by files that may be old.
                sidecar.generation = sidecar.told_pods = None
            sidecar.pod = pod
        self._tell_version()
        now = {uid: (s.pod.ip, s.pod.ready) for uid, s in self.sidecars.items()}
        if delivery != self.delivery or now != before:
            for sidecar in self.sidecars.values():
                sidecar.not_before = 0.0
            self.delivery = delivery
            self._wake.set()

    @property
    def behind(self) -> list[Sidecar]:
        """Ready sidecars that are not known to run the newest policy."""
        if self.delivery is None:
            return []
        wanted = self.delivery.generation
        return [s for s in self.sidecars.values() if s.pod.ready and s.generation != wanted]

    @property
    def in_force(self) -> int | None:
        """Generation of the policy that all ready ones run; None: some do not, or are not known
        to."""
        return None if self.delivery is None or self.behind else self.delivery.generation

    @property
    def ready_pods(self) -> int:
        """Among how many limits are divided where each counts for itself; of the fallback only
        while no others are."""
        ready = [s.pod for s in self.sidecars.values() if s.pod.ready]
        return max(1, sum(not is_spare(pod) for pod in ready) or len(ready))

    @property
    def told(self) -> list[tuple[PodState, SidecarStatus]]:
        """What each ready pod told last."""
        read = (s for s in self.sidecars.values() if s.pod.ready and s.readings)
        return [(sidecar.pod, sidecar.readings[-1].status) for sidecar in read]

    @property
    def reads_policy(self) -> int | None:
        """The version of the policy that all sidecars which were heard of read; None: none was."""
        known = (s.reads_policy for s in self.sidecars.values())
        return min((version for version in known if version is not None), default=None)

    def readings(self) -> list[list[Reading]]:
        """Of each sidecar that was heard of within the window, oldest first."""
        oldest = time.monotonic() - self._window_seconds
        every = (s.readings for s in self.sidecars.values())
        return [list(r) for r in every if r and r[-1].at_seconds >= oldest]

    async def run(self) -> None:
        """Deliver and read, until cancelled."""
        try:
            while True:
                self._round()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._idle_seconds()):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            visits = [s.visit for s in self.sidecars.values() if s.visit]
            for visit in visits:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    def _round(self) -> None:
        """Begin the visits that are due, and tell what those that ended brought."""
        now = time.monotonic()
        due = now >= self._next_scrape
        if due:
            self._next_scrape = now + self._scrape_seconds
        for sidecar in self.sidecars.values():
            sidecar.to_read |= due
            if self.delivery is None or sidecar.visit is not None:
                continue
            if sidecar.to_read or (self._needs(sidecar) and now >= sidecar.not_before):
                visit = self._visit(sidecar, self.delivery)
                sidecar.visit = asyncio.create_task(visit)
        was = self.pending_since
        self.pending_since = (was or now) if self.behind else None
        # Told when all were read, or at the next reading where one takes its time.
        read = self._news and all(s.visit is None for s in self.sidecars.values())
        if due or read or was != self.pending_since:
            self._news = False
            self._changed()

    def _idle_seconds(self) -> float:
        now = time.monotonic()
        free = (s for s in self.sidecars.values() if s.visit is None and self._needs(s))
        return max(0.01, min([self._next_scrape, *(s.not_before for s in free)]) - now)

    def _needs(self, sidecar: Sidecar) -> bool:
        return self._lacks_policy(sidecar) or (
            self.delivery is not None and sidecar.told_pods != self.ready_pods
        )

    def _lacks_policy(self, sidecar: Sidecar) -> bool:
        return self.delivery is not None and sidecar.generation != self.delivery.generation

    async def _visit(self, sidecar: Sidecar, delivery: Delivery) -> None:
        """Bring one sidecar what it lacks and read it when that is due; never raises."""
        try:
            async with self._slots_of_failing if sidecar.failures else self._slots:
                error: Exception | None = None
                if self._needs(sidecar) and time.monotonic() >= sidecar.not_before:
                    if self._lacks_policy(sidecar):
                        error = await self._tried(self._deliver(sidecar, delivery))
                    if error is None:
                        error = await self._tried(self._tell_pods(sidecar, delivery))
                reachable = error is None or isinstance(error, Refused)
                if sidecar.to_read and reachable:
                    error = await self._tried(self._read(sidecar, delivery)) or error
                sidecar.to_read = False
                self._note_end(sidecar, error)
        finally:
            sidecar.visit = None
            self._wake.set()

    @staticmethod
    async def _tried(request: Coroutine[None, None, None]) -> Exception | None:
        """The failure of a request, of whatever kind: it is that of one sidecar."""
        try:
            await request
        except Exception as error:
            return error
        return None

    def _note_end(self, sidecar: Sidecar, error: Exception | None) -> None:
        if error is None:
            # One that answers but refuses the policy is no success.
            if not self._needs(sidecar):
                sidecar.failures = 0
            return
        delay = min(RETRY_HIGHEST_SECONDS, RETRY_BASE_SECONDS * 2.0 ** min(sidecar.failures, 20))
        sidecar.failures += 1
        sidecar.not_before = time.monotonic() + delay
        self._metrics.sidecar_failures.inc()
        # A pod that is still starting has no port yet, which is nothing to report; and the status
        # goes on naming one that stays behind.
        level = logging.WARNING if sidecar.pod.ready and sidecar.failures == 1 else logging.DEBUG
        log.log(
            level,
            "pool %s, pod %s: %s: %s",
            self.pool,
            sidecar.pod.name,
            type(error).__name__,
            error,
        )

    async def _deliver(self, sidecar: Sidecar, delivery: Delivery) -> None:
        sidecar.refusal = await self._admin.put_policy(sidecar.pod, delivery)
        if sidecar.refusal is not None:
            raise Refused(f"it refuses the policy: {sidecar.refusal}")
        sidecar.generation = delivery.generation
        self._metrics.pushes.inc()

    async def _tell_pods(self, sidecar: Sidecar, delivery: Delivery) -> None:
        ready = self.ready_pods
        await self._admin.put_pods(sidecar.pod, delivery, ready)
        sidecar.told_pods = ready

    async def _read(self, sidecar: Sidecar, delivery: Delivery) -> None:
        answered, body = await self._admin.status(sidecar.pod, delivery)
        if answered == 503:
            sidecar.generation = None
            sidecar.reads_policy = version_in(body)
            self._tell_version()
            self._wake.set()
            return
        if answered != 200:
            raise Refused(f"GET /status: {answered}")
        status = loads(SidecarStatus, body, "status")
        sidecar.reads_policy = status.reads_policy
        self._tell_version()
        self._note(sidecar, status, delivery)

    def _tell_version(self) -> None:
        """As long as nobody was heard of, the version stays what it was."""
        version = self.reads_policy
        if version is not None and version != self._told_version:
            self._told_version = version
            self._other_version()

    def _note(self, sidecar: Sidecar, status: SidecarStatus, delivery: Delivery) -> None:
        if sidecar.readings and sidecar.readings[-1].status.started_at != status.started_at:
            # Its process is another one, whose totals began anew.
            sidecar.readings.clear()
            sidecar.told_pods = None
            self._wake.set()
        new = Reading(time.monotonic(), time.time(), status)
        keep_reading(sidecar.readings, new, self._window_seconds)
        self._news = True
        if self.delivery is not delivery:
            return
        if sidecar.generation != status.policy_generation:
            sidecar.generation = status.policy_generation
            self._wake.set()
        if status.policy_generation > delivery.generation:
            self._outdated(status.policy_generation)
