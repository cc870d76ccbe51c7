"""What one sidecar holds while it runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tidegate.scheduling.contracts import Bundle
from tidegate_sidecar.cache_salts import CacheSalts
from tidegate_sidecar.callers import Callers
from tidegate_sidecar.departure import Departure
from tidegate_sidecar.dispatcher import Dispatcher
from tidegate_sidecar.engine import EngineClient
from tidegate_sidecar.engine_address import EngineAddress
from tidegate_sidecar.engine_plugin import EnginePlugin
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.governed import Governed
from tidegate_sidecar.identity_keys import IdentityKeys
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.limit_store import LimitStore
from tidegate_sidecar.metrics_text import EngineFigures, Untold
from tidegate_sidecar.models_route import max_model_len
from tidegate_sidecar.reports import Reports
from tidegate_sidecar.service_gap import ServiceGap
from tidegate_sidecar.settings import Settings
from tidegate_sidecar.shared_state.host import SharedStateHost
from tidegate_sidecar.side_lane import SideLane
from tidegate_sidecar.tally import Tally
from tidegate_sidecar.token_counter import token_counter


class Runtime(Governed):
    """The parts, and the state they share. One event loop owns it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.engine_group)
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.started_at = time.time()
        self.tally = Tally()
        folder = settings.engine_plugin
        departure = Departure(loop, settings.leaving_in_force_seconds)
        self.dispatcher = Dispatcher(self.tally, loop, departure, plugin=folder is not None)
        steps = self.dispatcher.in_flight.plugin_steps
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
        keys = settings.identity_keys or settings.pool_identity_keys
        self.callers = Callers(
            None if keys is None else IdentityKeys(keys),
            always_signed=settings.identity_keys is not None,
        )
        self.estimator = Estimator()
        self.engine_tells_usage = True
        """In a stream, where it is asked to; False: it was asked and refused."""
        self.token_counter = token_counter(settings.tokenizer, settings.model_folder)
        self.side_lane = SideLane()
        self.engine_models: list[dict[str, Any]] = []
        self.engine_figures = EngineFigures()
        self.engine_untold = Untold()

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
            and not self.dispatcher.departure.begun
        )

    def begin_drain(self) -> None:
        """Not ready from now on, and after ``leaving_seconds`` no new request; idempotent."""
        self.dispatcher.departure.begin()

    def count_pods(self, ready: int) -> None:
        """So many share the limits of those that each count for themselves."""
        self.pods = max(ready, 1)
        if (scheduler := self.dispatcher.scheduler) is not None:
            scheduler.limits.limiter.pods = self.pods

    def put_in_force(self, bundle: Bundle, in_force: InForce) -> None:
        """The scheduler, the reports and the plug-in go by it from here on."""
        policy = in_force.policy
        self.dispatcher.apply_policy(policy, bundle.keys.keys)
        self.callers.apply_policy(
            bundle.policy.routed, self.dispatcher.loop.time(), first=self.in_force is None
        )
        self.shared_state.apply_policy(policy)
        self.count_pods(self.pods)
        self.reports.apply_policy(in_force)
        self.cache_salts.forget()
        if self.plugin is not None:
            self.plugin.policy_applied(policy)
