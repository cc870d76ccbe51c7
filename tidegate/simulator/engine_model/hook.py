"""Where a plug-in steers the engine: once before each step, and when a request gives its blocks up.

These are the hooks that a subclass of vLLM's scheduler has (0.32: order of the running list, a
clip of one request's tokens, a veto of one that waits, a preemption before ``schedule()``, blocks
un-hashed before they are freed), and nothing that it has not. Whoever plans knows tenants and
tiers; the engine does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tidegate.simulator.engine_model.request import EngineRequest

if TYPE_CHECKING:
    from tidegate.simulator.engine_model.engine import Engine


@dataclass(slots=True)
class StepDecisions:
    """What a plug-in wants of the step that begins. Requests are named by ``request_id``."""

    preempt: Sequence[EngineRequest] = ()
    """Running ones that lose seat and blocks before anything is scheduled; each at most once."""
    order: Sequence[EngineRequest] | None = None
    """Those that go on running, in the order in which they are scheduled; the last is the first
    victim of a first-come-first-served engine. None: as they are."""
    most_tokens: Mapping[str, int] = field(default_factory=dict)
    """Most tokens that the step computes of a request; 0: it keeps its blocks and does nothing.
    Whoever is not named is not clipped."""
    admit: Sequence[EngineRequest] | None = None
    """Waiting ones that may enter, in this order; all others are vetoed. None: the engine's own
    order. As in vLLM the first that does not fit ends the scan."""


class StepHook(Protocol):
    """A plug-in."""

    def plan(self, engine: Engine, now: float) -> StepDecisions | None:
        """Asked before each step; it changes nothing itself. None: as without a plug-in."""

    def keeps_cached(self, request: EngineRequest) -> bool:
        """Whether blocks that a request gives up stay findable; else they are reused first."""
