"""A request on its way through a simulation: from the client that sends it to its record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.simulation.result import RequestRecord
from tidegate.workload.clients.client import Client
from tidegate.workload.requests import PlannedRequest, SharedPrefix


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request; the group that serves it and the front that queues it write what happens."""

    id: str
    client: Client
    planned: PlannedRequest
    tier: str
    arrival: float
    max_output_tokens: int
    """What its client sends as max_tokens: no less than what it will produce."""
    group: str | None = None
    engine: EngineRequest | None = None
    dispatched: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    outcome: Outcome | None = None
    told_tokens: int = 0
    """Of its output, what its front was told."""
    est_finish: float | None = None
    itl_max_seconds: float = 0.0

    @property
    def tenant(self) -> str:
        return self.planned.tenant

    def truncate(self, prompt_tokens: int) -> None:
        """Only the end of its prompt is sent: no other request begins like that."""
        self.planned = replace(self.planned, prompt_tokens=prompt_tokens, prefix=None)

    def to_engine(
        self, block_size: int, priority: int, now: float, most_drafted_tokens: int | None
    ) -> EngineRequest:
        """The engine's own view of it, made when it is sent there."""
        if self.engine is not None:
            self.engine = self.engine.again(priority, now)
            return self.engine
        planned = self.planned
        salt = crc32(self.client.name.encode())
        self.engine = EngineRequest(
            request_id=self.id,
            prompt_tokens=planned.prompt_tokens,
            output_tokens_target=planned.output_tokens,
            priority=priority,
            arrived_at=now,
            prompt_block_hashes=block_hashes(
                planned.prefix, planned.prompt_tokens, block_size, salt
            ),
            content_key=hash((salt, 0, planned.index)) or 1,  # hash(-1) == hash(-2)
            traffic=self.client.kind,
            most_drafted_tokens=most_drafted_tokens,
        )
        return self.engine

    def record(self) -> RequestRecord:
        """What is left of it."""
        engine = self.engine
        return RequestRecord(
            id=self.id,
            tenant=self.tenant,
            tier=self.tier,
            group=self.group,
            arrival=self.arrival,
            prompt_tokens=self.planned.prompt_tokens,
            cached_tokens=0 if engine is None else engine.cached_tokens,
            output_tokens=0 if engine is None else engine.output_tokens,
            dispatched=self.dispatched,
            first_token=self.first_token,
            finished=self.finished,
            outcome=self.outcome,
            preemptions=0 if engine is None else engine.preemptions,
            recomputed_tokens=0 if engine is None else engine.recomputed_tokens,
            est_finish=self.est_finish,
            itl_max_seconds=self.itl_max_seconds,
            first_scheduled=None if engine is None else engine.first_scheduled_at,
        )


def block_hashes(
    prefix: SharedPrefix | None, prompt_tokens: int, block_size: int, salt: int
) -> list[int]:
    """Hashes of a prompt's full engine blocks, equal exactly where the prompts are equal so far.

    Blocks behind the shared ones are the request's own: the engine derives their hashes from its
    content key, so that they fill the cache as everybody's do, and are hit by itself alone.
    """
    if prefix is None:
        return []
    covered = min(prompt_tokens, len(prefix.block_ids) * prefix.block_tokens)
    hashes: list[int] = []
    chained, shared = salt, -1
    for index in range(covered // block_size):
        last = ((index + 1) * block_size - 1) // prefix.block_tokens
        while shared < last:
            shared += 1
            chained = hash((chained, prefix.block_ids[shared]))
        hashes.append(hash((chained, index)))
    return hashes
