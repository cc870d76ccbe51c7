"""Charges, corrections and settlements: every account that a request touches, in one place.

Three accounts, each with a currency of its own:

* the tenant's in its tier's round robin: predicted cost at dispatch, in the tier's unit, corrected
  by what the request turns out to cost;
* the tier's reservation and limit: the same, always in tokens;
* service: tokens that the engine was seen to work on, never predicted. It is what the totals
  publish, and the clock of the tiers.

Invariant: once a request has been settled, its tenant was charged exactly what it cost.
"""

from __future__ import annotations

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.cost import cost, predicted_output_tokens
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.state import Flight, TenantState


class Ledger:
    """Books what requests cost."""

    __slots__ = ("_selection",)

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def charge(self, request: Request, tenant: TenantState, order: int) -> Flight:
        """Charge the request about to be dispatched; its tenant still stands in the selection."""
        tier = tenant.tier
        tokens = request.prompt_tokens + predicted_output_tokens(
            request.max_output_tokens, tenant.output_mean, tier.output_mean
        )
        flight = Flight(request, tenant, order, tokens)
        ordered = not self._selection.in_arrival_order
        flight.grant = self._selection.tiers.dispatch(tier.account, tokens, ordered)
        flight.contended = tier.robin.dispatch(tenant.account, cost(flight.unit, tokens), ordered)
        return flight

    def progress(self, flight: Flight, output_tokens: int) -> None:
        """Book what the engine did, and charge on what outgrows the prediction."""
        request = flight.request
        request.output_tokens += output_tokens
        served = output_tokens
        if not flight.started:
            flight.started = True
            served += request.prompt_tokens
        self._serve(flight, served)
        excess = request.prompt_tokens + request.output_tokens - flight.charged_tokens
        if excess > 0:
            self._correct(flight, excess)

    def settle(self, flight: Flight, usage: Usage | None) -> None:
        """Book the end of a request: what the engine reports, else what was seen of it."""
        request = flight.request
        if usage is not None:
            tokens = usage.prompt_tokens + usage.output_tokens
            flight.tenant.output_mean.add(usage.output_tokens)
            flight.tier.output_mean.add(usage.output_tokens)
        elif flight.started:
            tokens = request.prompt_tokens + request.output_tokens
        else:
            self.undo(flight)
            return
        self._serve(flight, tokens - flight.served_tokens)
        self._correct(flight, tokens - flight.charged_tokens)

    def undo(self, flight: Flight) -> None:
        """As if it had never been dispatched: the engine did no work on it."""
        self._serve(flight, -flight.served_tokens)
        self._selection.tiers.undo(flight.tier.account, flight.charged_tokens, flight.grant)
        self._adjust(flight, -cost(flight.unit, flight.charged_tokens))
        flight.charged_tokens = 0

    def _correct(self, flight: Flight, tokens: float) -> None:
        flight.charged_tokens += tokens
        self._selection.tiers.correct(flight.tier.account, tokens, flight.grant)
        if flight.unit is FairnessUnit.TOKENS:
            self._adjust(flight, tokens)

    def _adjust(self, flight: Flight, amount: float) -> None:
        """Correct the tenant's account by a cost in the flight's unit."""
        tenant = flight.tenant
        robin = tenant.tier.robin
        if tenant.tier.policy.fairness.unit is not flight.unit:
            return  # the unit changed under way; all started even then
        if amount > 0:
            robin.charge(tenant.account, amount, not self._selection.in_arrival_order)
        elif amount < 0:
            robin.refund(tenant.account, -amount, flight.contended)

    def _serve(self, flight: Flight, tokens: int) -> None:
        if not tokens:
            return
        flight.served_tokens += tokens
        flight.tenant.service.add(tokens)
        flight.tier.service.add(tokens)
        self._selection.tiers.serve(tokens)
