"""Fronts: none, and the production sidecar's scheduler and gate in virtual time.

``SidecarFront`` does what ``tidegate_sidecar.dispatcher`` does, without its event loop: submit,
pump while the gate is open, tell the gate of steps, starts and ends, tell the scheduler of progress
in portions, settle with the engine's usage. Prompt sizes are exact here (the sidecar estimates them
from bytes and is corrected at the end).

Beside a plug-in each tier has a gate of its own (design section 2: a vetoed or preempted request
takes no room in the gate of any other tier). The order inside the engine is the plug-in's there, so
a tier's gate keeps only that tier's line short; with one gate for all, a long prompt whose prefill
is rationed would keep higher tiers out of the engine. A gate is told of the prompt tokens that the
prefix cache is expected to leave, and by the plug-in's statistics of what its tier holds of what
its KV pool may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.finish_time import Skew
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.tenant_averages import (
    DEADLINE_PERCENT,
    Averages,
    expected_cached_tokens,
    output_quantile_tokens,
)
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
from tidegate.simulator.simulation.plugin import PluginHook
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.simulation.step_rows import StepRows


class DirectFront:
    """Nothing stands before the engine: what arrives is sent, with its tier's priority."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._priorities = priorities

    def attach(self, group: Group) -> None:
        self._group = group

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        if not self._group.fits(request):
            return Outcome.ENGINE_REFUSED
        self._group.send(request, self._priorities.get(request.tier, 0), now)
        return None

    def stepped(self, events: StepEvents, now: float) -> None:
        pass

    def tick(self, now: float) -> Ended:
        return ()

    def queued(self) -> dict[str, int]:
        return {}

    def notes(self) -> dict[str, float]:
        return {}


class SidecarFront:
    """The production scheduler and gate; ``plugin`` where the engine has one.

    ``timed``: the scheduler is told of each step and counts in engine time; it then forecasts
    finish times too. The sidecar does not do so yet.
    """

    def __init__(
        self,
        policy: Policy,
        priorities: Mapping[str, int],
        plugin: PluginHook | None = None,
        timed: bool = False,
    ) -> None:
        self.scheduler = Scheduler(policy, 0.0, timed)
        self._timed = timed
        self._forecasts: dict[str, Request] = {}
        self._priorities = priorities
        self._plugin = plugin
        tiers = [tier.name for tier in policy.tiers]
        if plugin is None:
            gate = Gate(policy.engine, 0.0)
            self._gates = dict.fromkeys(tiers, gate)
            self._all_gates = [gate]
        else:
            self._gates = {tier: Gate(policy.engine, 0.0) for tier in tiers}
            self._all_gates = list(self._gates.values())
        for gate in self._all_gates:
            gate.apply_limits(policy.engine, chunk_tokens=policy.prefill.chunk_tokens)
        self._requests: dict[str, SimRequest] = {}
        self._queued: Counter[str] = Counter()
        self._of_tier = {tier: Averages() for tier in tiers}
        self._of_tenant = {tenant.name: Averages() for tenant in policy.tenants}
        self._skews: list[Skew] = []

    def attach(self, group: Group) -> None:
        self._group = group
        if self._timed:
            plugin = self._plugin
            group.step_rows = StepRows(_nobody if plugin is None else plugin.cause_of)

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        job = Request(
            request.id,
            request.tenant,
            request.planned.prompt_tokens,
            request.max_output_tokens,
        )
        refusal = self.scheduler.submit(job, now)
        if refusal is not None:
            return refusal
        if job.prompt_tokens < request.planned.prompt_tokens:
            request.truncate(job.prompt_tokens)
        if not self._group.fits(request):
            self.scheduler.cancel(request.id, now)
            return Outcome.ENGINE_REFUSED
        self._requests[request.id] = request
        self._queued[request.tier] += 1
        self._pump(now)
        return None

    def _pump(self, now: float) -> None:
        scheduler = self.scheduler
        while scheduler.has_work():
            closed = frozenset(tier for tier, gate in self._gates.items() if not gate.is_open())
            job = scheduler.next(now, closed) if len(closed) < len(self._gates) else None
            if job is None:
                return
            request = self._requests[job.id]
            self._queued[request.tier] -= 1
            self._dispatch(request, job, now)

    def _dispatch(self, request: SimRequest, job: Request, now: float) -> None:
        if job.forecast is not None:
            self._forecasts[job.id] = job
            request.est_finish = job.forecast.est_finish
        gate = self._gates[request.tier]
        sequence = self._group.send(request, self._priorities.get(request.tier, 0), now)
        if self._plugin is None:
            gate.dispatched(job.id, job.sequences, job.prompt_tokens, now)
            return
        tenant, tier = self._of_tenant[request.tenant], self._of_tier[request.tier]
        cached = expected_cached_tokens(job.prompt_tokens, tenant, tier)
        gate.dispatched(job.id, job.sequences, job.prompt_tokens - cached, now)
        expected = output_quantile_tokens(DEADLINE_PERCENT, request.max_output_tokens, tenant, tier)
        assert job.sequence is not None
        self._plugin.arrived(request, sequence, job.sequence, expected)

    def stepped(self, events: StepEvents, now: float) -> None:
        scheduler = self.scheduler
        if self._timed:
            scheduler.step(events.step.duration_seconds, events.rows)
        has_work = scheduler.has_work()
        for tier, gate in self._gates.items():
            if len(self._all_gates) == 1:
                gate.step(now, has_work)
                break
            gate.step(now, self._queued[tier] > 0)
        for request in events.started:
            self._gates[request.tier].started(request.id, now)
            self._tell(request, now)
        for request in events.progressed:
            self._tell(request, now)
        for request in events.finished:
            assert request.engine is not None
            del self._requests[request.id]
            self._gates[request.tier].ended(request.id, now)
            for averages in (self._of_tenant[request.tenant], self._of_tier[request.tier]):
                averages.ended(
                    request.engine.prompt_tokens,
                    request.engine.output_tokens,
                    request.engine.cached_tokens,
                )
            usage = Usage(
                request.engine.prompt_tokens,
                request.engine.output_tokens,
                request.engine.cached_tokens,
            )
            scheduler.finish(request.id, usage, now)
            self._note_skew(request.id)
        self._pump(now)

    def _note_skew(self, request_id: str) -> None:
        job = self._forecasts.pop(request_id, None)
        if job is not None and job.forecast is not None and job.forecast.skew is not None:
            self._skews.append(job.forecast.skew)

    def _tell(self, request: SimRequest, now: float) -> None:
        assert request.engine is not None
        tokens = request.engine.output_tokens
        self.scheduler.progress(request.id, tokens - request.told_tokens, now)
        request.told_tokens = tokens

    def tick(self, now: float) -> Ended:
        engine = self._group.engine
        if self._plugin is None:
            used = engine.kv.held_blocks / engine.kv.total_blocks
            self._all_gates[0].engine_metrics(len(engine.running), len(engine.waiting), used, now)
        else:
            ratios = self._plugin.kv_ratios()
            for tier, gate in self._gates.items():
                gate.engine_metrics(None, None, ratios.get(tier), now)
        expired = []
        for job, outcome in self.scheduler.expire(now):
            request = self._requests.pop(job.id)
            self._queued[request.tier] -= 1
            expired.append((request, outcome))
        self._pump(now)
        return expired

    def queued(self) -> dict[str, int]:
        return dict(self._queued)

    def notes(self) -> dict[str, float]:
        said = {f"gate window {tier}": float(gate.window) for tier, gate in self._gates.items()}
        if self._plugin is not None:
            said |= {f"vetoed {why}": float(n) for why, n in self._plugin.vetoes.items()}
        said |= skew_notes(self._skews)
        return said


def skew_notes(skews: Sequence[Skew]) -> dict[str, float]:
    """How many finish estimates there were, how many were flagged, and why."""
    if not skews:
        return {}
    causes = Counter(f"skew flagged, {one.cause}" for one in skews if one.cause is not None)
    ordered = sorted(one.ratio for one in skews)
    return {
        "skew estimates": float(len(skews)),
        **{f"skew p{p}": ordered[int((len(ordered) - 1) * p / 100)] for p in (5, 50, 90, 95)},
        **{cause: float(count) for cause, count in causes.items()},
    }


def _nobody(request_id: str) -> str | None:
    """Without a plug-in nobody says for whom a request was preempted."""
    return None
