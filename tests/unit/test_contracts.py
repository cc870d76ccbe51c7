"""The contracts: what is read, what is refused and how, and that the examples and docs hold."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import (
    KEYS_VERSION,
    POLICY_VERSION,
    STATUS_VERSION,
    BetweenTiers,
    Bundle,
    ContractError,
    Endpoint,
    EngineGroupPolicy,
    EngineLimits,
    EngineStatus,
    Fairness,
    FairnessUnit,
    GateStatus,
    Histogram,
    KeySet,
    KvPool,
    LimitWindow,
    ModelPolicy,
    OnExceed,
    OutputLimits,
    PodList,
    Policy,
    Preemption,
    PrefillLimits,
    PromptLimit,
    QueueLimits,
    RateLimit,
    Refusal,
    Report,
    RequestExplanation,
    SchedulingMode,
    Shard,
    SidecarStatus,
    SignedIdentity,
    SloMetric,
    SloObjective,
    Spill,
    StepStatistics,
    Stop,
    Task,
    TenantExplanation,
    TenantPolicy,
    TenantStatus,
    TierPolicy,
    TierStatus,
    UsageRecord,
    decode,
    dumps,
    encode,
    loads,
    merge_shards,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "tests" / "contracts"
KINDS: dict[str, type] = {
    "policy.json": Policy,
    "policy-shard-0.json": Policy,
    "policy-shard-1.json": Policy,
    "keys.json": KeySet,
    "bundle.json": Bundle,
    "status.json": SidecarStatus,
    "pods.json": PodList,
    "signed_identity.json": SignedIdentity,
    "step_statistics.json": StepStatistics,
    "usage_record.json": UsageRecord,
    "request_explanation.json": RequestExplanation,
    "tenant_explanation.json": TenantExplanation,
}

names = st.text("abcdefghij-", min_size=1, max_size=12)
counts = st.integers(0, 2**40)
seconds = st.floats(0, 1e9)
models = st.builds(
    ModelPolicy,
    name=names,
    task=st.sampled_from(Task),
    max_model_len_tokens=st.none() | counts,
    media_domains=st.lists(names, max_size=2).map(tuple),
).filter(lambda model: model.max_model_len_tokens != 0)
positive = st.integers(1, 10**6)
model_names = st.lists(names, max_size=2).map(tuple)
limits = st.lists(
    st.builds(
        RateLimit,
        name=names,
        per=st.sampled_from(LimitWindow),
        requests=st.none() | positive,
        tokens=positive,
        endpoints=st.lists(st.sampled_from(Endpoint), max_size=2).map(tuple),
        models=model_names,
    ),
    max_size=2,
    unique_by=lambda limit: limit.name,
).map(tuple)
objectives = st.lists(
    st.builds(
        SloObjective,
        metric=st.sampled_from(SloMetric),
        target_seconds=st.floats(0.001, 60),
        ratio_percent=st.floats(1, 100),
    ),
    max_size=3,
    unique_by=lambda objective: objective.metric,
).map(tuple)
tiers = st.builds(
    TierPolicy,
    name=names,
    priority=st.integers(-(2**31), 2**31 - 1),
    reserved_percent=st.integers(0, 20),
    max_percent=st.integers(1, 100),
    output=st.builds(
        OutputLimits,
        default_tokens=st.integers(1, 10**6),
        max_tokens=st.none() | st.integers(1, 10**6),
    ),
    max_in_flight=st.none() | st.integers(1, 10**6),
    fairness=st.builds(
        Fairness,
        unit=st.sampled_from(FairnessUnit),
        quantum=st.none() | st.integers(1, 10**6),
    ),
    queue=st.builds(
        QueueLimits,
        max_requests=counts,
        max_bytes=counts,
        max_wait_seconds=st.floats(0.001, 86_400),
    ),
    weight=st.integers(1, 1000),
    prompt_limit=st.none()
    | st.builds(PromptLimit, max_tokens=positive, on_exceed=st.sampled_from(OnExceed)),
    rate_limits=limits,
    preemption=st.builds(Preemption, evictable=st.booleans()),
    slo_objectives=objectives,
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    rows = draw(st.lists(tiers, min_size=1, max_size=5, unique_by=lambda tier: tier.name))
    tenants = st.builds(
        TenantPolicy,
        name=names,
        tier=st.sampled_from([tier.name for tier in rows]),
        weight=st.integers(1, 1000),
        stop=st.sampled_from(Stop),
        rate_limits=limits,
        models=model_names,
    )
    return Policy(
        version=POLICY_VERSION,
        generation=draw(counts),
        pool=draw(names),
        model=draw(models),
        tiers=tuple(rows),
        tenants=tuple(draw(st.lists(tenants, max_size=9, unique_by=lambda row: row.name))),
        scheduling_mode=draw(st.sampled_from(SchedulingMode)),
        between_tiers=draw(st.sampled_from(BetweenTiers)),
        kv_pools=tuple(
            KvPool(
                tier.name,
                (tier.name,),
                percent=20,
                borrow_limit_percent=draw(st.none() | st.integers(0, 100)),
            )
            for tier in draw(st.lists(st.sampled_from(rows), unique_by=lambda tier: tier.name))
        ),
        prefill=draw(st.builds(PrefillLimits, chunk_tokens=st.none() | positive)),
        engine=draw(
            st.builds(
                EngineLimits,
                max_num_seqs=st.none() | st.integers(1, 4096),
                max_num_batched_tokens=st.none() | st.integers(1, 10**6),
            )
        ),
        engine_groups=tuple(
            EngineGroupPolicy(f"of-{tier.name}", (tier.name,), draw(st.sampled_from(Spill)))
            for tier in draw(st.lists(st.sampled_from(rows), unique_by=lambda tier: tier.name))
        ),
        fallback=draw(
            st.none() | st.just(EngineGroupPolicy("fallback", (rows[0].name,), kv_pools=()))
        ),
    )


histograms = st.lists(counts, min_size=3, max_size=3).map(
    lambda values: Histogram(bounds=(0.1, 1.0), counts=tuple(values), sum=1.5)
)
outcome_counts = st.dictionaries(names, counts, max_size=3)
statuses = st.builds(
    SidecarStatus,
    version=st.just(STATUS_VERSION),
    pool=names,
    started_at=seconds,
    policy_generation=counts,
    policy_error=st.none() | st.text(max_size=20),
    scheduling_mode=st.sampled_from(SchedulingMode),
    draining=st.booleans(),
    engine=st.none()
    | st.builds(
        EngineStatus,
        ready=st.booleans(),
        running=st.none() | counts,
        waiting=st.none() | counts,
        kv_used_ratio=st.none() | st.floats(0, 1),
    ),
    gate=st.none() | st.builds(GateStatus, window=st.integers(1, 999), not_started=counts),
    tiers=st.lists(
        st.builds(
            TierStatus,
            name=names,
            queued=counts,
            requests_total=outcome_counts,
            queue_seconds=histograms,
        ),
        max_size=3,
    ).map(tuple),
    tenants=st.lists(
        st.builds(
            TenantStatus,
            name=names,
            tier=names,
            requests_total=outcome_counts,
            last_refusal=st.none() | st.builds(Refusal, reason=names, at=seconds),
            ttft_seconds=st.none() | histograms,
        ),
        max_size=3,
    ).map(tuple),
)
key_sets = st.builds(
    KeySet,
    version=st.just(KEYS_VERSION),
    generation=counts,
    keys=st.dictionaries(st.text("0123456789abcdef", min_size=64, max_size=64), names, max_size=4),
)


@settings(deadline=None)
@given(policies() | statuses | key_sets)
def test_what_is_written_is_read_back_equal(value: Any) -> None:
    text = dumps(value)
    assert loads(type(value), text) == value
    assert dumps(loads(type(value), text)) == text


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(sorted(KINDS)),
)
def test_anything_else_is_refused_and_never_an_error_of_ours(data: Any, kind: str) -> None:
    with pytest.raises(ContractError):
        decode(KINDS[kind], data)


@pytest.mark.parametrize("name", KINDS)
def test_example_is_read_and_shows_every_field(name: str) -> None:
    data = json.loads((EXAMPLES / name).read_text())
    assert encode(decode(KINDS[name], data)) == data


def objects(value: Any, data: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of all dataclasses in a contract, outermost first."""
    if dataclasses.is_dataclass(value):
        yield data
        for field in dataclasses.fields(value):
            if field.name in data:
                yield from objects(getattr(value, field.name), data[field.name])
    elif isinstance(value, tuple | Mapping):
        keys = value if isinstance(value, Mapping) else range(len(value))
        for key in keys:
            yield from objects(value[key], data[key])


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_a_later_version_is_ignored_in_reports_alone(name: str) -> None:
    """Wherever it stands: an operator that was rolled back goes on reading newer sidecars."""
    kind, data = KINDS[name], json.loads((EXAMPLES / name).read_text())
    value = decode(kind, data)
    for found in objects(value, data):
        found["of_a_later_version"] = {"told": [1]}
        if issubclass(kind, Report):
            assert decode(kind, data) == value
            continue
        with pytest.raises(ContractError, match="unknown field 'of_a_later_version'"):
            decode(kind, data)
        del found["of_a_later_version"]


def test_shards_of_the_example_are_one_policy() -> None:
    shards = [loads(Policy, (EXAMPLES / f"policy-shard-{i}.json").read_text()) for i in (1, 0)]
    assert merge_shards(shards) == loads(Policy, (EXAMPLES / "policy.json").read_text())


def edited(edit: Callable[[dict[str, Any]], Any], name: str = "policy.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((EXAMPLES / name).read_text())
    edit(data)
    return data


def test_only_equal_contracts_are_equal_bytes() -> None:
    policy = loads(Policy, (EXAMPLES / "policy.json").read_text())
    other = decode(Policy, edited(lambda data: data.update(generation=8)))
    assert dumps(policy) == dumps(decode(Policy, dict(reversed(encode(policy).items()))))
    assert dumps(policy) != dumps(other)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(lambda d: d.pop("pool"), "Policy.pool: required", id="missing"),
        pytest.param(lambda d: d.update(colour=1), "unknown field 'colour'", id="unknown"),
        pytest.param(
            lambda d: d.update(version=3), "Policy.version: must be at most 2", id="newer"
        ),
        pytest.param(lambda d: d.update(version=0), "must be at least 1", id="older"),
        pytest.param(
            lambda d: d.update(generation=True), "expected an integer, got true", id="boolean"
        ),
        pytest.param(
            lambda d: d["tiers"][0].update(priority=1.0), "expected an integer", id="float"
        ),
        pytest.param(
            lambda d: d["tiers"][0]["queue"].update(max_wait_seconds=float("nan")),
            r"tiers\[0\].queue.max_wait_seconds: expected a finite number",
            id="NaN",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["queue"].update(max_wait_seconds=10**400),
            "expected a finite number, got a larger one",
            id="no double",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["fairness"].update(quantum=2**53),
            r"fairness.quantum: expected an integer that a double holds",
            id="huge",
        ),
        pytest.param(
            lambda d: d["tiers"][0].update(name="\ud800"), "Unicode text", id="lone surrogate"
        ),
        pytest.param(
            lambda d: d["tiers"][0]["queue"].update(max_wait_seconds=1e9), "at most 86400", id="day"
        ),
        pytest.param(
            lambda d: d["tiers"][0]["queue"].update(max_wait_seconds=0), "at least 0.001", id="zero"
        ),
        pytest.param(
            lambda d: d["tenants"][1].update(weight=1001), r"tenants\[1\].weight", id="bound"
        ),
        pytest.param(lambda d: d["tenants"][0].update(stop="Halt"), "None, Hold,", id="enum"),
        pytest.param(lambda d: d.update(tiers={}), "expected a list, got an object", id="list"),
        pytest.param(lambda d: d.update(model=[]), "expected an object, got a list", id="object"),
        pytest.param(lambda d: d["tenants"][0].update(tier="t9"), "not one of tiers", id="no tier"),
        pytest.param(
            lambda d: d["tiers"][1].update(reserved_percent=41), "more than 100", id="reservations"
        ),
        pytest.param(lambda d: d["tiers"].append(d["tiers"][0]), "listed twice", id="tier twice"),
        pytest.param(
            lambda d: d["tenants"].append(d["tenants"][0]), "listed twice", id="tenant twice"
        ),
        pytest.param(
            lambda d: d["tiers"][0]["rate_limits"].append(d["tiers"][0]["rate_limits"][0]),
            r"tiers\[0\]: rate_limits: 'calls' is listed twice",
            id="limit twice",
        ),
        pytest.param(
            lambda d: d["tenants"][0]["rate_limits"].append(d["tenants"][0]["rate_limits"][0]),
            r"tenants\[0\]: rate_limits: 'calls' is listed twice",
            id="tenant's limit twice",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["rate_limits"][0].update(requests=None),
            r"rate_limits\[0\]: requests: set it, or tokens",
            id="limit of nothing",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["rate_limits"][0].update(endpoints=["images"]),
            "expected one of chat, completions, responses, embeddings, rerank, score",
            id="endpoint",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["prompt_limit"].update(max_tokens=None),
            "prompt_limit: max_tokens: set it, or max_prefill_seconds",
            id="prompt limit of nothing",
        ),
        pytest.param(
            lambda d: d["tiers"][0]["slo_objectives"].append(d["tiers"][0]["slo_objectives"][0]),
            "slo_objectives: .* is listed twice",
            id="objective twice",
        ),
        pytest.param(
            lambda d: d["kv_pools"][0].update(tiers=["t9"]),
            "kv_pools: 'protected' lists 't9', not one of tiers",
            id="KV pool of no tier",
        ),
        pytest.param(
            lambda d: d["kv_pools"][0].update(tiers=["t3"]),
            "kv_pools: tiers: 't3' is listed twice",
            id="tier in two KV pools",
        ),
        pytest.param(
            lambda d: d["kv_pools"][1].update(percent=31), "percent sums to more", id="KV percents"
        ),
        pytest.param(
            lambda d: d["kv_pools"][1].update(name="protected"), "listed twice", id="KV pool twice"
        ),
        pytest.param(
            lambda d: d["kv_pools"][0].update(lendable_percent=71),
            r"kv_pools\[0\]: lendable_percent: must not be above percent",
            id="lends more than it has",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(
    edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        decode(Policy, edited(edit))


def test_a_policy_written_before_the_newest_fields_still_says_what_it_said() -> None:
    old = edited(lambda d: None)
    for name in ("kv_pools", "prefill"):
        del old[name]
    for row in old["tiers"]:
        for name in ("weight", "prompt_limit", "rate_limits", "preemption", "slo_objectives"):
            del row[name]
    for row in old["tenants"]:
        del row["rate_limits"], row["models"]
    read = decode(Policy, old)
    assert read.kv_pools == ()
    assert all(
        (tier.rate_limits, tier.prompt_limit, tier.slo_objectives) == ((), None, ())
        and not tier.preemption.evictable
        for tier in read.tiers
    )
    assert all((row.rate_limits, row.models) == ((), ()) for row in read.tenants)


def test_an_objective_is_found_by_its_metric() -> None:
    tier = loads(Policy, (EXAMPLES / "policy.json").read_text()).tiers[0]
    assert tier.slo_seconds(SloMetric.TIME_TO_FIRST_TOKEN) == 0.8
    assert tier.slo_seconds(SloMetric.END_TO_END) is None


@pytest.mark.parametrize("text", ["", "{", "[1,", "nul", "\ud800".encode("utf-8", "surrogatepass")])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ContractError, match="is not JSON"):
        loads(Policy, text)


def test_a_refusal_does_not_repeat_a_string_it_was_given() -> None:
    secret = "sk-not-to-be-shown"
    for edit in (
        lambda d: d.update(generation=secret),
        lambda d: d.update(scheduling_mode=secret),
        lambda d: d["tiers"][0].update(output=secret),
    ):
        with pytest.raises(ContractError) as caught:
            decode(Policy, edited(edit))
        assert secret not in str(caught.value)


def test_keys_are_digests_and_go_with_one_policy() -> None:
    upper = edited(lambda d: d.update(keys={"AB" * 32: "shop/acme"}), "keys.json")
    with pytest.raises(ContractError, match="64 lower-case hexadecimal"):
        decode(KeySet, upper)
    other = edited(lambda d: d["keys"].update(generation=8), "bundle.json")
    with pytest.raises(ContractError, match="policy has generation 7, keys have generation 8"):
        decode(Bundle, other)


def test_a_histogram_has_one_count_more_than_bounds() -> None:
    short = edited(lambda d: d["tiers"][0]["ttft_seconds"]["counts"].pop(), "status.json")
    with pytest.raises(ContractError, match="one more than bounds"):
        decode(SidecarStatus, short)


@settings(deadline=None)
@given(policies(), st.integers(1, 16), st.randoms())
def test_any_cut_into_shards_merges_into_the_whole(policy: Policy, count: int, random: Any) -> None:
    shards = []
    for index in range(count):
        data = encode(policy) | {"shard": encode(Shard(index, count))}
        data["tenants"] = data["tenants"][index::count]
        if index:
            data["tiers"] = []
        shards.append(decode(Policy, data))
    random.shuffle(shards)
    whole = merge_shards(shards)
    assert sorted(row.name for row in whole.tenants) == sorted(row.name for row in policy.tenants)
    assert (whole.tiers, whole.shard) == (policy.tiers, None)


@pytest.mark.parametrize(
    "shards",
    [
        pytest.param([], id="none"),
        pytest.param([(0, 2, 7)], id="one missing"),
        pytest.param([(0, 2, 7), (1, 2, 8)], id="two generations"),
        pytest.param([(0, 2, 7), (1, 3, 7)], id="two counts"),
        pytest.param([(0, 2, 7), (0, 2, 7)], id="one twice"),
        pytest.param([(1, 2, 7), (2, 2, 7)], id="the first missing"),
    ],
)
def test_a_mixed_set_of_shards_is_not_applied(shards: list[tuple[int, int, int]]) -> None:
    example = loads(Policy, (EXAMPLES / "policy-shard-1.json").read_text())
    rows = [
        decode(
            Policy,
            encode(example) | {"shard": {"index": i, "count": n}, "generation": g, "tenants": []},
        )
        for i, n, g in shards
    ]
    with pytest.raises(ContractError):
        merge_shards(rows)


def test_a_group_has_its_own_parts_and_no_draft_for_those_at_home_elsewhere() -> None:
    policy = loads(Policy, (EXAMPLES / "policy.json").read_text())
    chat, plain = policy.in_group("chat"), policy.in_group("plain")
    assert [tier.draft_tokens for tier in chat.tiers] == [None, 0]
    assert [tier.draft_tokens for tier in plain.tiers] == [0, 0], "by its noDraftTiers, and by home"
    assert (chat.kv_pools, chat.engine) == (policy.kv_pools, policy.engine)
    spare = policy.in_group("fallback")
    assert policy.fallback is not None
    assert (spare.kv_pools, spare.engine) == (policy.fallback.kv_pools, policy.fallback.engine)
    assert policy.in_group("main") is policy, "a sidecar of a group that there is not (any more)"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(
            lambda d: d["engine_groups"][1].update(tiers=["t0"]), "listed twice", id="two homes"
        ),
        pytest.param(
            lambda d: d["fallback"].update(name="chat"), "listed twice", id="names are unique"
        ),
        pytest.param(
            lambda d: d["engine_groups"][1].update(tiers=["t9"]), "not one of tiers", id="tier"
        ),
        pytest.param(
            lambda d: d["fallback"]["kv_pools"][0].update(tiers=["t9"]), "'t9'", id="tier of a part"
        ),
        pytest.param(
            lambda d: d["fallback"]["kv_pools"].append(
                d["fallback"]["kv_pools"][0] | {"name": "more", "tiers": ["t3"]}
            ),
            "more than 100",
            id="percents",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(
    edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        decode(Policy, edited(edit))


def test_a_shard_that_names_an_unknown_tier_fails_when_merged() -> None:
    first = loads(Policy, (EXAMPLES / "policy-shard-0.json").read_text())
    second = edited(lambda d: d["tenants"][0].update(tier="t9"), "policy-shard-1.json")
    with pytest.raises(ContractError, match="not one of tiers"):
        merge_shards([first, decode(Policy, second)])


def test_contracts_md_is_up_to_date() -> None:
    path = ROOT / "scripts" / "lib" / "contracts_docs.py"
    spec = importlib.util.spec_from_file_location("contracts_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "contracts.md").read_text() == module.render(), "run scripts/generate"
