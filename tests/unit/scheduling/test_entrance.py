"""What holds of the way into an engine without a plug-in, whatever arrives and whoever ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    EngineLimits,
    KvPool,
    ModelPolicy,
    Policy,
    Preemption,
    QueueLimits,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.entrance import Entrance
from tidegate.scheduling.places import Places
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler

BLOCK_TOKENS = 16
PRIORITY = {"high": 2, "middle": 1, "low": 0}
CLAIMED = (
    KvPool("first", ("high",), 20, lendable_percent=0),
    KvPool("second", ("middle",), 40),
)
"""The high tier may borrow what the middle one does not wait for."""
POOLS = (
    (),
    CLAIMED,
    (
        KvPool("first", ("high",), 50, lendable_percent=0),
        KvPool("rest", ("middle", "low"), 50, borrow_limit_percent=0),
    ),
)


def policy(pools: tuple[KvPool, ...], seats: int, reserved_percent: int) -> Policy:
    """Three tiers by priority, the lower two evictable, with a tenant of its name each."""
    return Policy(
        version=POLICY_VERSION,
        generation=1,
        pool="a/b",
        model=ModelPolicy("m"),
        tiers=tuple(
            TierPolicy(
                name,
                priority,
                reserved_percent=reserved_percent if name == "high" else 0,
                queue=QueueLimits(max_requests=1_000, max_wait_seconds=1e6),
                preemption=Preemption(evictable=name != "high", max_per_request=2),
            )
            for name, priority in PRIORITY.items()
        ),
        tenants=tuple(TenantPolicy(name, name) for name in PRIORITY),
        engine=EngineLimits(max_num_seqs=seats, max_num_batched_tokens=512),
        kv_pools=pools,
    )


@dataclass(eq=False)
class Occupant:
    """A request in the engine that its host counts along."""

    request: Request
    preemptions: int = 0
    output_tokens: int = 0
    unfilled_tokens: int = 0
    first_token_at: float | None = None
    streamed: bool = True
    """Its client sees each token; unset: the whole answer, at its end."""

    @property
    def evictable(self) -> bool:
        return self.first_token_at is None or not self.streamed


@dataclass
class Host:
    """Dispatches as the sidecar does, and checks each step of it."""

    terms: Policy
    blocks: int
    now: float = 0.0
    occupants: dict[str, Occupant] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    out: list[str] = field(default_factory=list)
    """Preempted, and in their back-off."""
    made_way_for: set[str] = field(default_factory=set)
    """Tiers of whom the next that goes is one."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.terms, 0.0, timed=True)
        places: Places[Occupant] = Places()
        self.entrance = Entrance(self.scheduler, places, self.terms, plugin=False)
        places.engine_blocks(self.blocks + 1, BLOCK_TOKENS)
        self.places = places

    def submit(self, tenant: str, prompt: int, output: int, sequences: int = 1) -> None:
        request = Request(str(len(self.occupants)), tenant, prompt, output, sequences=sequences)
        self.occupants[request.id] = Occupant(request)
        assert self.scheduler.submit(request, self.now) is None
        self.entrance.gates.arrived(request, self.now)

    def preempt(self, victim: Occupant, tier: str, now: float) -> bool:
        request = victim.request
        assert request.id in self.inside, "each once"
        assert victim.evictable
        assert request.tenant != "high"
        assert PRIORITY[request.tenant] < PRIORITY[tier]
        assert victim.preemptions < 2
        victim.preemptions += 1
        self.inside.remove(request.id)
        self.out.append(request.id)
        self.made_way_for.add(tier)
        self.entrance.left(victim, now)
        return True

    def pump(self) -> None:
        gates = self.entrance.gates
        while self.scheduler.has_work():
            self.made_way_for.clear()
            request = self.entrance.next(self.now, self.preempt)
            if request is None:
                assert not self.made_way_for
                return
            assert self.made_way_for <= {request.tenant}
            assert gates.is_open()
            assert request.tenant not in gates.held_back(self.now)
            occupant = self.occupants[request.id]
            occupant.unfilled_tokens = request.prompt_tokens
            self.inside.add(request.id)
            self.entrance.dispatched(occupant)

    def come_back(self) -> None:
        request = self.occupants[self.out.pop(0)].request
        assert self.scheduler.requeue(request.id, self.now, "high") is None

    def go_on(self, name: str, *, ends: bool) -> None:
        """A token more, if it may produce one, or its end."""
        occupant = self.occupants[name]
        if ends or occupant.output_tokens == occupant.request.max_output_tokens:
            self.end(name)
            return
        if occupant.first_token_at is None:
            occupant.first_token_at, occupant.unfilled_tokens = self.now, 0
            self.entrance.gates.started(occupant.request)
        occupant.output_tokens += 1
        self.scheduler.progress(name, 1, self.now)

    def end(self, name: str) -> None:
        occupant = self.occupants[name]
        self.inside.remove(name)
        self.entrance.left(occupant, self.now)
        usage = Usage(occupant.request.prompt_tokens, occupant.output_tokens)
        self.scheduler.finish(name, usage, self.now)

    def check(self) -> None:
        gates = self.entrance.gates
        inside = [self.occupants[name].request for name in self.inside]
        assert gates.in_flight == sum([request.sequences for request in inside])
        assert 0 <= gates.not_started <= gates.in_flight
        assert self.scheduler.in_flight() == len(self.inside) + len(self.out)
        assert all(0 <= pool.borrowed <= pool.held for pool in self.places.pools())


ARRIVALS = st.tuples(
    st.sampled_from(["low", "low", "middle", "high"]), st.integers(1, 400), st.integers(1, 120),
    st.sampled_from([1, 1, 2, 3]),
)  # fmt: skip
EVENTS = st.lists(
    ARRIVALS | ARRIVALS | st.sampled_from(["progress", "end", "step", "come back", "wait"]),
    min_size=20,
    max_size=50,
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(POOLS), st.integers(2, 6), st.sampled_from([0, 50]), st.integers(30, 90), EVENTS
)
def test_whoever_enters_found_the_gate_open_and_who_makes_way_comes_back(
    pools: tuple[KvPool, ...],
    seats: int,
    reserved_percent: int,
    blocks: int,
    events: list[str | tuple[str, int, int, int]],
) -> None:
    host = Host(policy(pools, seats, reserved_percent), blocks)
    for number, event in enumerate(events):
        running = sorted(host.inside, key=int)
        if isinstance(event, tuple):
            host.submit(*event)
        elif event == "step":
            host.entrance.stepped(0.02, ())
        elif event == "come back" and host.out:
            host.come_back()
        elif event == "wait":
            host.now += 0.5
        elif running and event in ("progress", "end"):
            host.go_on(running[number % len(running)], ends=event == "end")
        host.pump()
        host.check()
    while host.out or host.inside or host.scheduler.has_work():
        if host.out:
            host.come_back()
        for name in sorted(host.inside, key=int):
            host.go_on(name, ends=True)
        host.entrance.stepped(0.02, ())
        host.now += 0.1
        host.pump()
        host.check()
    assert host.entrance.gates.in_flight == host.scheduler.queued() == 0
    assert not any(pool.held for pool in host.places.pools())


def test_nobody_makes_way_for_one_whom_a_claim_keeps_out() -> None:
    host = Host(policy(CLAIMED, seats=3, reserved_percent=0), blocks=100)
    lows = [("low", 80, 16)] * 3
    for tenant, prompt, output in [*lows, ("middle", 400, 80), ("high", 1100, 100)]:
        host.submit(tenant, prompt, output)
        host.pump()
    assert (host.inside, host.out) == ({"0", "1", "2"}, []), "all seats are taken"
    host.end("0")
    host.pump()
    assert host.inside == {"1", "2", "3"}, "the seat is for whom it was kept"


def full_engine(*, evictable: tuple[str, ...]) -> Host:
    """Three seats, four sequences: of the third request that runs, two; then a high one waits."""
    host = Host(policy((), seats=3, reserved_percent=0), blocks=100)
    for name, sequences in (("0", 1), ("1", 1), ("2", 2)):
        host.submit("low", 50, 16, sequences)
        host.pump()
        host.go_on(name, ends=False)
        host.occupants[name].streamed = name not in evictable
    assert host.entrance.gates.in_flight == 4
    host.submit("high", 50, 16)
    host.pump()
    return host


def test_nobody_makes_way_where_more_seats_lack_than_can_be_had() -> None:
    host = full_engine(evictable=("0",))
    assert (host.inside, host.out) == ({"0", "1", "2"}, []), "one seat given up lets nobody in"


def test_all_make_way_where_more_than_one_seat_lacks() -> None:
    host = full_engine(evictable=("0", "1"))
    assert (host.inside, sorted(host.out)) == ({"2", "3"}, ["0", "1"])
