"""Who may say who asks: the client by its API key, a router by its signature, or both for a while.

Theory of operation. Whether a router stands before a pool changes while the pool runs, and no
request is lost for it. A sidecar that only holds the routers' keys serves what they signed from the
start, and API keys as well. When its policy says that all comes by a router (``routed``), clients
may still come to it by old ways: a Service that the node of a client does not know changed yet, or
a connection kept open from before. So API keys are accepted for :data:`UNSIGNED_SECONDS` more, and
beyond that on connections that were there at the change; each such answer closes its connection,
so that the client's next request goes the new way. Then only signed requests are served. When the
policy takes it back, API keys are accepted at once.

A process that starts under such a policy has no client from before, and serves signed requests
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakSet

from aiohttp.hdrs import AUTHORIZATION
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.auth import Identity, authenticate
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.identity_keys import IDENTITY_HEADER, IdentityKeys
from tidegate_sidecar.in_force import InForce

UNSIGNED_SECONDS = 60.0
"""Above what it takes until every node of a cluster knows where a Service leads now."""


class Caller(NamedTuple):
    """Who asks, and how it is known."""

    identity: Identity
    request_id: str | None = None
    """Of the router's; unset: the client came by itself."""
    goes_elsewhere: bool = False
    """The client's next request should come another way."""


class Callers:
    """Identifies who sends requests. ``keys``: the routers'; ``always_signed``: whatever a policy
    says, only what they signed is served."""

    def __init__(self, keys: IdentityKeys | None, *, always_signed: bool) -> None:
        self.keys = keys
        self.connections: Callable[[], Iterable[Any]] = tuple
        """Those of the tenants' port."""
        self._signed_from = -math.inf if always_signed else math.inf
        """Loop time from which new connections are served signed requests alone."""
        self._always_signed = always_signed
        self._from_before: WeakSet[Any] = WeakSet()

    def signed_only(self, now: float) -> bool:
        """Whether a client that comes anew needs a router."""
        return now >= self._signed_from

    def apply_policy(self, routed: bool, now: float, *, first: bool) -> None:
        """What a policy says of routers; ``first``: of this process."""
        if self._always_signed or self.keys is None:
            return
        if not routed:
            self._signed_from = math.inf
        elif self._signed_from == math.inf:
            self._signed_from = now if first else now + UNSIGNED_SECONDS
            self._from_before = WeakSet(self.connections())

    def identify(self, request: BaseRequest, in_force: InForce, now: float, utc: float) -> Caller:
        """Who sent the request; UNAUTHENTICATED where nobody vouches for it."""
        shown = request.headers.getall(AUTHORIZATION, ())
        if self.keys is None:
            return Caller(authenticate(shown, in_force.keys))
        signed = request.headers.getall(IDENTITY_HEADER, ())
        if (shown or not signed) and not self._refuses(request, now):
            changed = self._signed_from < math.inf
            return Caller(authenticate(shown, in_force.keys), goes_elsewhere=changed)
        vouched = self.keys.verified(signed, utc)
        if in_force.keys.get(vouched.key_sha256) != vouched.tenant:
            raise ApiError(Outcome.UNAUTHENTICATED)  # revoked since
        identity = Identity(vouched.tenant, vouched.key_sha256, vouched.body_sha256)
        return Caller(identity, vouched.request_id)

    def _refuses(self, request: BaseRequest, now: float) -> bool:
        """Whether it must be signed."""
        return self.signed_only(now) and request.protocol not in self._from_before
