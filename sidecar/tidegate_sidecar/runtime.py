"""What one sidecar holds while it runs, and how a policy comes into force."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from tidegate.scheduling.contracts import Bundle, ContractError
from tidegate_sidecar import policy_files
from tidegate_sidecar.cache_salts import CacheSalts
from tidegate_sidecar.dispatcher import Dispatcher
from tidegate_sidecar.engine import EngineClient
from tidegate_sidecar.engine_address import EngineAddress
from tidegate_sidecar.engine_plugin import EnginePlugin
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.limit_store import LimitStore
from tidegate_sidecar.metrics_text import EngineFigures
from tidegate_sidecar.models_route import max_model_len
from tidegate_sidecar.reports import Reports
from tidegate_sidecar.service_gap import ServiceGap
from tidegate_sidecar.settings import Settings
from tidegate_sidecar.shared_state.host import SharedStateHost
from tidegate_sidecar.side_lane import SideLane
from tidegate_sidecar.tally import Tally
from tidegate_sidecar.token_counter import TokenCounter

log = logging.getLogger("tidegate.sidecar")


class StaleGenerationError(Exception):
    """Older than what is in force, or the same generation with another content."""


class Runtime:
    """The parts, and the state they share. One event loop owns it."""

    def __init__(self, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.started_at = time.time()
        self.tally = Tally()
        folder = settings.engine_plugin
        self.dispatcher = Dispatcher(self.tally, loop, plugin=folder is not None)
        steps = self.dispatcher.plugin_steps
        self.plugin = EnginePlugin(folder, steps, loop) if folder and steps else None
        self.shared_state = SharedStateHost(
            self.dispatcher, settings.shared_state_deadline_ms / 1000
        )
        self.pods = 1
        """Ready pods of the pool, this one included, as far as it was told."""
        self.service_gap = ServiceGap(self.dispatcher.backlogged)
        self.cache_salts = CacheSalts(settings.cache_salt_key_file)
        self.reports = Reports(settings, self.dispatcher.recent, loop)
        self.tally.on_first_token = self.reports.baseline.observe
        if (folder := settings.state_folder) is not None:
            dispatcher = self.dispatcher
            dispatcher.limit_store = LimitStore(folder, lambda: dispatcher.changes)
        self.engine = EngineClient(
            EngineAddress.parse(settings.engine),
            silence_seconds=settings.engine_silence_seconds,
        )
        self.estimator = Estimator()
        self.engine_tells_usage = True
        """In a stream, where it is asked to; False: it was asked and refused."""
        self.token_counter = TokenCounter(settings.tokenizer) if settings.tokenizer else None
        self.side_lane = SideLane()
        self.in_force: InForce | None = None
        self.policy_error: str | None = None
        self.engine_models: list[dict[str, Any]] = []
        self.engine_figures = EngineFigures()
        self.drain_begun = asyncio.Event()

    @property
    def max_model_len(self) -> int | None:
        """The context length: the policy's, else the engine's own."""
        if self.in_force is None:
            return None
        model = self.in_force.model
        return model.max_model_len_tokens or max_model_len(self.engine_models, model.name)

    @property
    def ready(self) -> bool:
        """Whether new requests would be served."""
        return (
            self.in_force is not None
            and self.dispatcher.engine_ready
            and not self.dispatcher.draining
        )

    def begin_drain(self) -> None:
        """Not ready from now on, and no new request; idempotent."""
        self.dispatcher.draining = True
        self.drain_begun.set()

    def count_pods(self, ready: int) -> None:
        """So many share the limits of those that each count for themselves."""
        self.pods = max(ready, 1)
        if (scheduler := self.dispatcher.scheduler) is not None:
            scheduler.limits.limiter.pods = self.pods

    def apply(self, bundle: Bundle) -> bool:
        """Put a bundle in force, whole, at once; False: it was in force already.

        Raises :class:`StaleGenerationError` for a lower generation and for the same one with
        another content: of two sources the higher generation wins, whatever came last.
        ContractError: it is another pool's.
        """
        current = self.in_force
        if current is not None:
            generation = bundle.policy.generation
            if generation < current.policy.generation:
                raise StaleGenerationError(
                    f"generation {generation} is older than {current.policy.generation}, "
                    "which is in force"
                )
            if generation == current.policy.generation:
                if bundle == current.bundle:
                    return False
                raise StaleGenerationError(
                    f"generation {generation} is in force with another content"
                )
            if bundle.policy.pool != current.policy.pool:
                raise ContractError(f"policy.pool: {current.policy.pool!r} is served here")
        self.dispatcher.apply_policy(bundle.policy, bundle.keys.keys)
        self.shared_state.apply_policy(bundle.policy)
        self.count_pods(self.pods)
        self.in_force = InForce(bundle, current.model if current is not None else None)
        self.reports.apply_policy(self.in_force)
        self.cache_salts.forget()
        if self.plugin is not None:
            self.plugin.policy_applied(bundle.policy)
        self.policy_error = None
        log.info("policy generation %d is in force", bundle.policy.generation)
        return True

    def policy_failed(self, reason: str) -> None:
        """The last good policy stays; counted and shown once for each reason."""
        if reason != self.policy_error:
            self.policy_error = reason
            self.tally.policy_reload_failures += 1
            log.warning("policy not applied: %s", reason)


class PolicyFiles:
    """Follows the policy and key files."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._signature: policy_files.Signature | None = None

    def look(self) -> None:
        """Apply what changed since the last look, if anything."""
        settings, runtime = self._runtime.settings, self._runtime
        try:
            seen = policy_files.signature(settings.policy, settings.keys)
            if seen == self._signature:
                return
            bundle = policy_files.read_bundle(settings.policy, settings.keys)
        except (ContractError, OSError) as error:
            self._signature = None
            runtime.policy_failed(str(error))
            return
        self._signature = seen
        current = runtime.in_force
        if current is not None and bundle.policy.generation < current.policy.generation:
            return  # a newer one was posted; the files will follow
        try:
            runtime.apply(bundle)
        except (StaleGenerationError, ContractError) as error:
            runtime.policy_failed(str(error))

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            try:
                self.look()
            except Exception:
                log.exception("looking at the policy files failed")
            await asyncio.sleep(self._runtime.settings.policy_poll_seconds)
