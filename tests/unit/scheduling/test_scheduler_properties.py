"""What holds whatever happens: the scheduler's invariants and the round robin's bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    BetweenTiers,
    Fairness,
    FairnessUnit,
    LimitWindow,
    ModelPolicy,
    OnExceed,
    Policy,
    PromptLimit,
    QueueLimits,
    RateLimit,
    SchedulingMode,
    SloMetric,
    SloObjective,
    Stop,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.deficit_round_robin import Account, DeficitRoundRobin, difference_bound
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.step_time_fit import decode_work, prefill_work

TENANTS = ("a", "b", "c", "d")
TIERS = ("t0", "t1", "t3")

rate_limits = st.builds(
    RateLimit,
    name=st.just("limit"),
    per=st.sampled_from(LimitWindow),
    requests=st.integers(1, 5),
    tokens=st.none() | st.integers(1, 20_000),
)
prompt_limits = st.builds(
    PromptLimit, max_tokens=st.integers(1, 4000), on_exceed=st.sampled_from(OnExceed)
)
objectives = st.builds(
    SloObjective,
    metric=st.just(SloMetric.TIME_TO_FIRST_TOKEN),
    target_seconds=st.floats(0.1, 20.0),
)

policies = st.builds(
    Policy,
    version=st.just(POLICY_VERSION),
    generation=st.integers(0, 100),
    pool=st.just("test/pool"),
    model=st.just(ModelPolicy(name="model")),
    tiers=st.tuples(
        *(
            st.builds(
                TierPolicy,
                name=st.just(name),
                priority=st.integers(-2, 2),
                reserved_percent=st.integers(0, 33),
                max_percent=st.integers(1, 100),
                max_in_flight=st.none() | st.integers(1, 3),
                fairness=st.builds(
                    Fairness,
                    unit=st.sampled_from(FairnessUnit),
                    quantum=st.none() | st.integers(1, 500),
                ),
                queue=st.builds(
                    QueueLimits,
                    max_requests=st.integers(0, 6),
                    max_bytes=st.integers(0, 600),
                    max_wait_seconds=st.floats(0.5, 30.0),
                ),
                weight=st.integers(1, 1000),
                prompt_limit=st.none() | prompt_limits,
                rate_limits=st.just(()) | st.tuples(rate_limits),
                slo_objectives=st.just(()) | st.tuples(objectives),
            )
            for name in TIERS
        )
    ),
    tenants=st.lists(
        st.builds(
            TenantPolicy,
            name=st.sampled_from(TENANTS),
            tier=st.sampled_from(TIERS),
            weight=st.integers(1, 1000),
            stop=st.sampled_from(Stop),
        ),
        unique_by=lambda row: row.name,
    ).map(tuple),
    scheduling_mode=st.sampled_from(SchedulingMode),
    between_tiers=st.sampled_from(BetweenTiers),
)


class AnyHost(RuleBasedStateMachine):
    """A host that does anything in any order; a model counts along."""

    @initialize(policy=policies, timed=st.booleans())
    def start(self, policy: Policy, timed: bool) -> None:
        self.now = 0.0
        self.number = 0
        self.timed = timed
        self.busy_ms = 0.0
        self.scheduler = Scheduler(policy, self.now, timed)
        self.queued: dict[str, Request] = {}
        self.flying: dict[str, Request] = {}
        self.ended: set[str] = set()
        self.sequence = 0

    def end(self, request: Request) -> None:
        assert request.id not in self.ended, "a request ends once"
        self.ended.add(request.id)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        tenant=st.sampled_from((*TENANTS, "stranger")),
        prompt=st.integers(0, 5000),
        output=st.integers(0, 5000),
        body=st.integers(0, 300),
        priority=st.integers(-1, 1),
        patience=st.none() | st.floats(-1, 20),
    )
    def submit(
        self,
        tenant: str,
        prompt: int,
        output: int,
        body: int,
        priority: int,
        patience: float | None,
    ) -> None:
        self.number += 1
        request = Request(
            id=str(self.number),
            tenant=tenant,
            prompt_tokens=prompt,
            max_output_tokens=output,
            body_bytes=body,
            priority=priority,
            deadline=None if patience is None else self.now + patience,
        )
        if self.scheduler.submit(request, self.now) is None:
            self.queued[request.id] = request
        else:
            self.end(request)

    @rule(closed=st.just(frozenset()) | st.frozensets(st.sampled_from(TIERS)))
    def dispatch(self, closed: frozenset[str]) -> None:
        might = self.scheduler.has_work()
        peeked = self.scheduler.peek(self.now, closed)
        request = self.scheduler.next(self.now, closed)
        assert request is peeked
        if request is None:
            # Work conservation: all that wait have just expired or stand behind a limit.
            assert closed or not self.scheduler.has_work()
            return
        assert might
        row = next(r for r in self.scheduler.policy.tenants if r.name == request.tenant)
        assert row.tier not in closed
        assert self.queued.pop(request.id) is request
        self.flying[request.id] = request
        assert request.sequence is not None
        assert request.sequence > self.sequence
        self.sequence = request.sequence
        assert request.deadline is None or request.deadline > self.now

    @precondition(lambda self: getattr(self, "flying", None))
    @rule(data=st.data(), tokens=st.integers(0, 3000))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.flying)))
        self.scheduler.progress(id, tokens, self.now)

    @precondition(lambda self: getattr(self, "timed", False))
    @rule(
        data=st.data(),
        seconds=st.just(0.0) | st.floats(1e-4, 1),
        cause=st.none() | st.sampled_from(TIERS),
    )
    def step(self, data: st.DataObject, seconds: float, cause: str | None) -> None:
        """Some of those in flight, and one that has ended, if there is one."""
        ids = data.draw(st.sets(st.sampled_from(sorted(self.flying) or ["0"])))
        rows = [
            RequestStep(id, decode_work(100) if int(id) % 2 else prefill_work(500, 10))
            for id in sorted(ids)
        ]
        if rows and cause is not None:
            rows[0] = rows[0]._replace(recomputed=prefill_work(50, 0), caused_by=cause)
        self.scheduler.step(seconds, rows)
        if rows:
            self.busy_ms += 1000 * seconds

    @precondition(lambda self: getattr(self, "flying", None))
    @rule(
        data=st.data(),
        usage=st.none() | st.builds(Usage, st.integers(0, 5000), st.integers(0, 5000)),
    )
    def finish(self, data: st.DataObject, usage: Usage | None) -> None:
        id = data.draw(st.sampled_from(sorted(self.flying)))
        self.scheduler.finish(id, usage, self.now)
        self.end(self.flying.pop(id))

    @precondition(lambda self: getattr(self, "flying", None))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.flying)))
        request = self.flying.pop(id)
        if self.scheduler.requeue(id, self.now) is None:
            self.queued[id] = request
        else:
            self.end(request)

    @precondition(lambda self: getattr(self, "number", 0))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = str(data.draw(st.integers(1, self.number)))
        if self.scheduler.cancel(id, self.now):
            self.end(self.queued.pop(id))

    @rule()
    def expire(self) -> None:
        for request, _ in self.scheduler.expire(self.now):
            self.end(self.queued.pop(request.id))
        upcoming = self.scheduler.next_expiry()
        assert upcoming is None or upcoming > self.now

    @rule(policy=policies)
    def reload(self, policy: Policy) -> None:
        for request, _ in self.scheduler.apply_policy(policy, self.now):
            self.end(self.queued.pop(request.id))

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        expired_unseen = scheduler.next_expiry() == float("-inf")
        if not expired_unseen:
            assert scheduler.queued() == len(self.queued)
        assert scheduler.in_flight() == len(self.flying)
        assert len(self.ended) + len(self.queued) + len(self.flying) == self.number
        rows = scheduler.tenant_snapshots(self.now)
        assert sum(row.queued for row in rows) == scheduler.queued()
        assert sum(row.running for row in rows) == scheduler.in_flight()
        for row in rows:
            assert min(row.queued, row.queued_bytes, row.running, row.service_tokens_total) >= 0
            waiting = [r for r in self.queued.values() if r.tenant == row.name]
            if not expired_unseen:
                assert row.queued_bytes == sum(request.body_bytes for request in waiting)
        assert sum(tier.queued for tier in scheduler.tier_snapshots()) == scheduler.queued()
        limits = {tier.name: tier.max_in_flight for tier in scheduler.policy.tiers}
        free = [row for row in rows if row.queued and row.running < (limits[row.tier] or 10**9)]
        assert scheduler.has_work() == bool(free), "work-conserving"

    @invariant()
    def the_outlook_agrees_with_a_recount(self) -> None:
        if not hasattr(self, "scheduler") or not self.scheduler._looks_out:
            return
        queued = dict.fromkeys(TIERS, 0.0)
        active = dict.fromkeys(TIERS, 0)
        unstarted = 0
        for job in self.scheduler._jobs.values():
            if job.waiting:
                queued[job.tenant.tier.name] += job.expected_cost
            elif not job.started:
                unstarted += job.request.prompt_tokens
        for tenant in self.scheduler._roster.tenants.values():
            if tenant.policy is not None and tenant.queue.size + tenant.in_flight:
                active[tenant.tier.name] += tenant.account.weight
        outlook = self.scheduler._outlook
        assert outlook._unstarted_tokens == unstarted
        for name, load in outlook._loads._loads.items():
            assert load.queued == pytest.approx(queued[name], abs=1e-6)
            assert load.active_weight == active[name]

    @invariant()
    def who_waits_agrees_with_a_recount(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        tiers = self.scheduler._selection.tiers
        assert tiers._waiting == sum(tier.waiting for tier in tiers._tiers)
        for turn in tiers._turns.values():
            waiting = [tier for tier in tiers._tiers if tier.waiting and tier.share.turn is turn]
            assert turn.waiting == len(waiting)
        for tier in self.scheduler._roster.tiers.values():
            assert tier.account.waiting == tier.account.share.waiting == (not tier.robin.is_empty)

    @invariant()
    def the_tiers_clock_is_the_engines(self) -> None:
        if hasattr(self, "scheduler") and self.timed:
            assert self.scheduler._selection.tiers.served == pytest.approx(self.busy_ms)

    def teardown(self) -> None:
        """All that is left runs to its end: nothing is stuck."""
        if not hasattr(self, "scheduler"):
            return
        for id in list(self.flying):
            self.scheduler.finish(id, None, self.now)
        while (request := self.scheduler.next(self.now)) is not None:
            self.scheduler.finish(request.id, Usage(1, 1), self.now)
        self.scheduler.expire(self.now)
        assert (self.scheduler.queued(), self.scheduler.in_flight()) == (0, 0)
        assert all(row.running == 0 for row in self.scheduler.tenant_snapshots(self.now))
        assert not self.scheduler._admission.holds_any, "every reservation is settled"


TestAnyHost = AnyHost.TestCase
TestAnyHost.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

costs = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    quantum=st.integers(1, 2048),
    weights=st.lists(st.integers(1, 1000), min_size=2, max_size=6),
    data=st.data(),
)
def test_charges_of_two_backlogged_tenants_differ_by_at_most_the_bound(
    quantum: int, weights: list[int], data: st.DataObject
) -> None:
    robin: DeficitRoundRobin[int] = DeficitRoundRobin(quantum)
    accounts = [Account(number, weight) for number, weight in enumerate(weights)]
    cycles = [data.draw(costs) for _ in accounts]
    charged = [0.0] * len(accounts)
    turn = [0] * len(accounts)
    for account in accounts:
        robin.enter(account, credit=data.draw(st.booleans()))
    history = [list(charged)]
    for _ in range(150):
        account = robin.first()
        assert account is not None
        number = account.owner
        cost = cycles[number][turn[number] % len(cycles[number])]
        turn[number] += 1
        robin.dispatch(account, cost)
        charged[number] += cost / account.weight
        history.append(list(charged))
    bounds = {
        (i, j): difference_bound(
            quantum, (max(cycles[i]), weights[i]), (max(cycles[j]), weights[j])
        )
        for i in range(len(accounts))
        for j in range(i)
    }
    for (i, j), bound in bounds.items():
        lead = [charges[i] - charges[j] for charges in history]
        assert max(lead) - min(lead) <= bound * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    quantum=st.integers(1, 2048),
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    size=st.integers(1, 200_000),
    data=st.data(),
)
def test_one_request_queued_of_any_size_gets_at_most_its_share_plus_one_turn(
    quantum: int, weights: list[int], size: int, data: st.DataObject
) -> None:
    """Tenant 0 keeps one request of ``size``; all begin to wait together."""
    robin: DeficitRoundRobin[int] = DeficitRoundRobin(quantum)
    accounts = [Account(number, weight) for number, weight in enumerate(weights)]
    cycles = [[size], *(data.draw(costs) for _ in accounts[1:])]
    turn = [0] * len(accounts)
    charged = [0.0] * len(accounts)
    for account in accounts:
        robin.enter(account, credit=True)
    most = size if size >= quantum * weights[0] else size + quantum * weights[0]
    for _ in range(150):
        account = robin.first()
        assert account is not None
        number = account.owner
        cost = cycles[number][turn[number] % len(cycles[number])]
        turn[number] += 1
        robin.dispatch(account, cost)
        charged[number] += cost
        if number == 0:  # its queue was empty for a moment, while the request was in flight
            robin.leave(account)
            robin.enter(account, credit=False)
        share = sum(charged) * weights[0] / sum(weights)
        assert charged[0] <= (share + most) * (1 + 1e-9)


@pytest.mark.parametrize("tenants", [2, 500])
def test_a_huge_request_costs_no_rounds(tenants: int) -> None:
    """A debt of a million quanta is paid by computing the round, not by spinning to it."""
    robin: DeficitRoundRobin[int] = DeficitRoundRobin(1)
    accounts = [Account(number, 1) for number in range(tenants)]
    for account in accounts:
        robin.enter(account, credit=False)
    starts = 0
    original = DeficitRoundRobin._start_turn

    def counted(self: DeficitRoundRobin[Any], account: Account[Any]) -> None:
        nonlocal starts
        starts += 1
        original(self, account)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeficitRoundRobin, "_start_turn", counted)
        for _ in range(3 * tenants):
            account = robin.first()
            assert account is not None
            robin.dispatch(account, 1_000_000)
        assert robin.first() is not None
    assert starts <= 3 * tenants + 1


def test_debt_and_quantum_survive_a_change_of_weight(build: SimpleNamespace) -> None:
    robin: DeficitRoundRobin[str] = DeficitRoundRobin(10)
    owes, other = Account("owes", 1), Account("other", 1)
    for account in (owes, other):
        robin.enter(account, credit=False)
    robin.dispatch(owes, 1000)
    assert robin.debt(owes) == 1000
    robin.set_weight(owes, 10)
    assert robin.debt(owes) == 1000
    robin.set_quantum(50)
    dispatched = 0
    while (first := robin.first()) is other:
        robin.dispatch(other, 10)
        dispatched += 10
    assert first is owes
    assert 90 <= dispatched <= 160
