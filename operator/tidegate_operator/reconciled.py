"""What the reconcile of a pool is given besides the API server's objects, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.compile import CompiledPool
from tidegate_operator.engine_groups import Group
from tidegate_operator.findings import Fault, Finding
from tidegate_operator.kube import Json
from tidegate_operator.pool_router import LiveRouter
from tidegate_operator.routing import NO_ROUTE, Route
from tidegate_operator.world import Key


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a pool's pods otherwise than by the API server."""

    generation: int = 0
    """The highest that a sidecar reported and that was not delivered."""
    reads_policy: int | None = None
    """The version of the policy that all of its sidecars read; unset: not known, so it stays what
    it was."""
    scaled: Mapping[str, int] | None = None
    """How many pods autoscaling wants in each engine group; unset: it did not decide yet."""
    in_force: int | None = None
    """Generation of the policy that all ready sidecars run; unset: not known."""
    deliver: Callable[[Delivery], None] = lambda _: None
    """Takes what the sidecars are to be told."""
    identity_keys: str | None = field(default=None, repr=False)
    """With which the pool's routers sign, as last seen; unset: not seen yet."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as its last reconcile left it."""

    key: Key
    generation: int
    """metadata.generation that was looked at."""
    pool: ServingPool | None
    """Unset: the spec cannot be read."""
    compiled: CompiledPool | None
    groups: tuple[Group, ...] = ()
    """Its engine groups, after them former ones that still have pods, and its fallback last."""
    stateful_sets: Mapping[str, Json] = field(default_factory=dict)
    """By group."""
    service: Json | None = None
    route: Route = NO_ROUTE
    """How clients come to it."""
    router: LiveRouter | None = None
    delivery: Delivery | None = None
    identity_keys: str | None = field(default=None, repr=False)
    """With which its routers sign; unset: not known."""
    sidecar_image: str = ""
    outdated: bool = False
    """Its pods are as an earlier version of the operator rendered them."""
    faults: tuple[Fault, ...] = ()
    """Of the spec, and of applying it."""
    findings: tuple[Finding, ...] = ()
    """Accepted and ResolvedRefs."""

    @property
    def name(self) -> str:
        return "/".join(self.key)
