"""The throttle: a request that the backlog would keep from its latency target is refused at once.

Use: one ``Throttle`` per tenant; ``refusal_seconds(forecast, first_token_seconds, target_seconds)``
before a request is queued: None admits it, a number is the Retry-After to refuse it with. One
forecast of ``waiting_time`` to admit, O(log ``MAX_RETRY_SECONDS``) of them to refuse.

Theory
------
What cannot be met is better said at once than served late: the client can go elsewhere or retry,
and the engine is not kept busy with what nobody waits for any more (an answer too late counts as a
miss too). The prediction is made for *this* request under the policy in force: its own tenant's
queue at its share, what its tier yields, and its own prefill in the present mix. So a tenant that
has nothing queued is never refused for what its neighbours have; only what its tier yields can
make it late.

Refused above 1.0 of the target; a tenant that was refused is accepted again below 0.8. Between the
two the last verdict stands: with one threshold, each request that leaves the queue would admit the
next, and a client would see refusals and admissions take turns.

The throttle is about the backlog. A prompt whose prefill alone takes more than 0.8 of the target
could never be accepted again, however long its tenant waited, so it is judged against the time that
it takes without any backlog, divided by 0.8: it may be late by its own length and is not refused
for that (a prompt limit is for that), and waits no longer than a quarter of its prefill.

Retry-After is the least number of whole seconds after which the same request is accepted in both
of two cases: nobody sends anything meanwhile (the forecast for later, by bisection; at most
``MAX_RETRY_SECONDS``), or its own tenant sends nothing and the others go on as they do, so that
what it would wait for is served in that wait. The latter looks no further ahead than what is sent
is remembered, ``MEMORY_SECONDS``: a tier that is starved from above is told as much.

Bound: what is admitted behind a backlog is forecast to have its first token within the target, or
within 1.25 times its own prefill where that is longer; a forecast's error is ``waiting_time``'s.
Invariants: no refusal without a wait; hysteresis is per tenant; a refused request changes nothing
but its own tenant's state. Source: source 002's live throttle; hysteresis as a Schmitt trigger.
"""

from __future__ import annotations

from math import ceil

from tidegate.scheduling.load_rates import MEMORY_SECONDS
from tidegate.scheduling.waiting_time import WaitForecast

REFUSE_ABOVE = 1.0
ACCEPT_BELOW = 0.8
MAX_RETRY_SECONDS = 3_600


class Throttle:
    """Of one tenant: whether it is being refused."""

    __slots__ = ("refusing",)

    def __init__(self) -> None:
        self.refusing = False

    def refusal_seconds(
        self, forecast: WaitForecast, first_token_seconds: float, target_seconds: float
    ) -> int | None:
        """Why not: seconds after which it would be accepted; None: accepted.

        ``first_token_seconds``: from its dispatch to its first token; ``target_seconds``: promised
        from its arrival to its first token.
        """
        target = max(target_seconds, first_token_seconds / ACCEPT_BELOW)
        wait = forecast.seconds()
        threshold = ACCEPT_BELOW if self.refusing else REFUSE_ABOVE
        self.refusing = wait > 0 and wait + first_token_seconds > threshold * target
        if not self.refusing:
            return None
        # Rounding must not ask for less than no wait.
        most_wait = max(ACCEPT_BELOW * target - first_token_seconds, 0.0)
        return max(_retry_seconds(forecast, most_wait), _while_others_go_on(wait - most_wait))


def _while_others_go_on(seconds: float) -> int:
    return ceil(round(min(seconds, MEMORY_SECONDS), 6))


def _retry_seconds(forecast: WaitForecast, most_wait_seconds: float) -> int:
    """The least whole number of seconds after which the wait is no longer than that."""
    low, high = 0, 1
    while high < MAX_RETRY_SECONDS and forecast.seconds(high) > most_wait_seconds:
        low, high = high, 2 * high
    high = min(high, MAX_RETRY_SECONDS)
    while high - low > 1:
        middle = (low + high) // 2
        if forecast.seconds(middle) > most_wait_seconds:
            low = middle
        else:
            high = middle
    return high
