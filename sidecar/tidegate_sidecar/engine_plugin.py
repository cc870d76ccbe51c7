"""The engine's scheduler plug-in, as this sidecar deals with it: what it is told and what it tells.

Both lie in a folder that engine and sidecar share: ``policy.json``, the policy in force, and
``steps.sock``, where the step statistics come in. An engine without a policy there schedules as it
always does, so neither waits for the other at the start, and a sidecar that restarts changes
nothing for the engine.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.request import Request
from tidegate_sidecar.engine_tags import tagged
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.plugin_files import write_policy
from tidegate_sidecar.plugin_steps import PluginSteps
from tidegate_sidecar.step_statistics import StepSocket

log = logging.getLogger("tidegate.sidecar")

POLICY_NAME = "policy.json"
SOCKET_NAME = "steps.sock"


class EnginePlugin:
    """Of one engine."""

    def __init__(self, folder: Path, steps: PluginSteps, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._loop = loop
        self.steps = steps
        self.socket = StepSocket(folder / SOCKET_NAME, steps.take)

    def open(self) -> None:
        """Listen for step statistics; OSError where the folder does not allow it."""
        self.socket.open(self._loop)

    def close(self) -> None:
        """Listen no more; what was written stays in force for the engine."""
        self.socket.close(self._loop)

    def policy_applied(self, policy: Policy) -> None:
        """The engine is to follow; where it cannot be told, it goes on with the last one."""
        try:
            write_policy(self._folder / POLICY_NAME, policy)
        except OSError as error:
            log.error("the engine's plug-in was not told of the policy: %s", error)

    def tagged(self, body: bytes, request: Request, in_force: InForce | None) -> bytes:
        """The body of a dispatched request as the plug-in needs it; of one that generates nothing,
        or whose tenant has left the policy, as it is."""
        tenant = in_force.tenant(request.tenant) if in_force is not None else None
        if tenant is None or not request.max_output_tokens:
            return body
        return tagged(body, request, tenant)
