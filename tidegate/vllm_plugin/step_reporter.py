"""Step statistics (``contracts.StepStatistics``) as Unix datagrams, one a step.

Theory of operation: the socket never blocks and is not connected: each datagram is sent to the
path, so a receiver that comes later, restarts or is slow costs the engine nothing. What can't be
sent at once is dropped and counted. A decode of one token is only counted, so that a datagram stays
small: its size grows with prompts computed and victims, not with all that run.

Invariant: what is sent decodes as the contract (tests compare); nothing here raises but by mistake.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Mapping

from tidegate.scheduling.contracts import STEP_STATISTICS_VERSION
from tidegate.scheduling.plan_request import StepPlan, StepState
from tidegate.scheduling.step_policy import StepPolicy
from tidegate.vllm_plugin.roster import Roster, sequence_of


class StepReporter:
    """Tells one path about the steps of one engine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.sent = self.dropped = 0
        self._preemptions: list[dict[str, int | None]] = []

    def close(self) -> None:
        """No more steps."""
        self._socket.close()

    def preempted(self, roster: Roster, name: str, beneficiary: str | None) -> None:
        """Of the step that comes or is under way; before its counters are reset."""
        entry = roster.entries[name]
        maker = roster.entries.get(beneficiary) if beneficiary is not None else None
        self._preemptions.append(
            {
                "sequence": sequence_of(entry.one),
                "for_sequence": sequence_of(maker.one) if maker else None,
                "lost_tokens": entry.one.computed_tokens,
            }
        )

    def step(
        self,
        scheduled_tokens: Mapping[str, int],
        roster: Roster,
        planned: tuple[StepPolicy, StepState, StepPlan] | None,
        **rest: object,
    ) -> None:
        """The step was scheduled; ``rest``: the contract's fields that are the caller's."""
        entering = {one.id for one in planned[2].admit} if planned else set()
        requests, decodes = [], 0
        for name, tokens in scheduled_tokens.items():
            if tokens == 1 and name not in entering:
                decodes += 1
                continue
            entry = roster.entries.get(name)
            if entry is None:
                continue
            before = entry.request.num_computed_tokens - tokens
            requests.append(
                {
                    "sequence": sequence_of(entry.one),
                    "tokens": tokens,
                    "reused_tokens": before if name in entering else 0,
                    "recomputed_tokens": max(min(before + tokens, entry.reached) - before, 0),
                }
            )
        self._send(
            {
                "version": STEP_STATISTICS_VERSION,
                "planned": planned is not None,
                "decodes": decodes,
                "requests": requests,
                "preemptions": self._preemptions,
                "pools": _pools(*planned[:2]) if planned else [],
                "vetoed": Counter(reason.value for reason in planned[2].vetoed.values())
                if planned
                else {},
                "waiting": roster.waiting,
                "dropped_total": self.dropped,
                **rest,
            }
        )
        self._preemptions = []

    def _send(self, statistics: dict[str, object]) -> None:
        data = json.dumps(statistics, separators=(",", ":")).encode()
        try:
            self._socket.sendto(data, self._path)
        except OSError:  # nobody there, nobody reading, or too long
            self.dropped += 1
        else:
            self.sent += 1


def _pools(terms: StepPolicy, state: StepState) -> list[dict[str, str | int]]:
    held = state.held_blocks_by_pool
    if held is None:
        sums = [0] * len(terms.pools)
        for one in state.running:
            sums[terms.tiers[one.tier].pool] += one.blocks
        held = sums
    return [
        {
            "name": pool.name,
            "nominal_blocks": pool.nominal_blocks,
            "held_blocks": blocks,
            "cached_blocks": cached,
        }
        for pool, blocks, cached in zip(terms.pools, held, state.cached_blocks_by_pool, strict=True)
    ]
