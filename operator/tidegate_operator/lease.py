"""Leader election on a ``coordination.k8s.io`` Lease.

Theory of operation. A candidate watches the Lease's record. The record is another's as long as it
names another holder and changed within ``duration``, measured on this process's monotonic clock
from the moment *it saw* the change: wall clocks of two machines are never compared. Otherwise it
writes itself in, guarded by ``resourceVersion``, so that of two candidates one gets a conflict. The
holder renews every ``retry`` seconds. Every attempt has a timeout and any failure, of whatever
kind, is a failed renewal; when the last success is ``renew_deadline`` old the Lease is lost. As
``renew_deadline`` < ``duration``, a holder knows that it lost before anyone else may take over.

Two leaders for a moment (a stopped process that wakes up) are harmless all the same: all writes are
idempotent applies, and generations are claimed under ``resourceVersion``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate_operator.kinds import LEASE, Kind
from tidegate_operator.kube import Conflict, Json, Kube, KubeError

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """The Lease could not be renewed in time, or is another's."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; see :mod:`tidegate_operator.settings`."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    @property
    def attempt(self) -> float:
        """The longest that one attempt may take: a server that is slow, but answers, loses nobody
        the Lease, and after one that does not there is time for another."""
        return max(self.retry, self.renew_deadline / 2)


class Elector:
    """One candidate for one Lease."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        namespace: str,
        identity: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._timing = timing or LeaseTiming()
        self._clock = clock
        self._seen: tuple[str, str, int] | None = None
        self._seen_at = 0.0
        self._lease: Json | None = None

    async def acquire(self) -> None:
        """Return as soon as the Lease is ours; failures are logged and tried again."""
        while True:
            if await self._attempt():
                break
            await asyncio.sleep(self._timing.retry)
        log.info("took the Lease", extra={"lease": self._name, "identity": self._identity})

    async def hold(self) -> None:
        """Renew for ever; :class:`LeadershipLost` when that failed for too long."""
        renewed_at = self._clock()
        while True:
            lost_at = renewed_at + self._timing.renew_deadline
            await asyncio.sleep(min(self._timing.retry, max(0.0, lost_at - self._clock())))
            # From when it is asked for: others see the write before we have the answer.
            asked_at = self._clock()
            if asked_at < lost_at and await self._attempt(lost_at - asked_at):
                renewed_at = asked_at
            elif self._held_by_other():
                raise LeadershipLost(f"the Lease {self._name} is held by another operator now")
            elif self._clock() >= lost_at:
                raise LeadershipLost(
                    f"the Lease {self._name} could not be renewed for "
                    f"{self._timing.renew_deadline:g} s"
                )

    async def release(self) -> None:
        """Give the Lease up, so that another need not wait for it to run out."""
        if self._lease is None or self._held_by_other():
            return
        body = {
            **self._lease,
            "spec": {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1},
        }
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(self._timing.retry):
                await self._kube.replace(LEASE, body)
        self._lease = None

    async def _attempt(self, longest_seconds: float = math.inf) -> bool:
        """One try to take or renew; whether the Lease is ours now."""
        try:
            async with asyncio.timeout(min(longest_seconds, self._timing.attempt)):
                return await self._try()
        except (KubeError, TimeoutError) as error:
            log.warning("Lease: %s", str(error) or type(error).__name__)
        except Exception:
            # Whatever it is, it is no renewal; the deadline decides, not the kind of the failure.
            log.exception("Lease: unexpected failure")
        return False

    async def _try(self) -> bool:
        lease = await self._kube.get(LEASE, self._name, self._namespace)
        if lease is None:
            return await self._write(self._kube.create, self._record(None))
        self._observe(lease)
        if self._held_by_other() and self._clock() - self._seen_at < self._duration_of(lease):
            return False
        return await self._write(self._kube.replace, self._record(lease))

    async def _write(self, write: Callable[[Kind, Json], Awaitable[Json]], record: Json) -> bool:
        try:
            lease = await write(LEASE, record)
        except Conflict:
            return False
        self._lease = lease
        self._observe(lease)
        return True

    def _record(self, old: Json | None) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (old or {}).get("spec") or {}
        ours = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "acquireTime": before.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0)
            + (0 if ours or old is None else 1),
        }
        metadata: Json = {"name": self._name, "namespace": self._namespace}
        if old is not None:
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": metadata,
            "spec": spec,
        }

    def _observe(self, lease: Json) -> None:
        spec = lease.get("spec") or {}
        seen = (
            str(spec.get("holderIdentity") or ""),
            str(spec.get("renewTime") or ""),
            int(spec.get("leaseTransitions") or 0),
        )
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()

    def _held_by_other(self) -> bool:
        return self._seen is not None and self._seen[0] not in ("", self._identity)

    def _duration_of(self, lease: Json) -> float:
        spec = lease.get("spec") or {}
        return float(spec.get("leaseDurationSeconds") or self._timing.duration)
