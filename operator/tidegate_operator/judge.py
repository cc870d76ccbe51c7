"""Every TenantTier and Tenant judged by itself: what takes effect, and what a person must mend.

Rules. One bad object never stops another. A Tenant whose tier or weight cannot be used gets no row
here; each pool may keep the row it last served (see :mod:`tidegate_operator.compile`). Taking away
is never invalid: keys and ``stop`` are always those of the present spec, so a removed key, a
deleted Secret or a Hold act at once, whatever else is wrong with the object. Where two Tenants have
one key, the older (creation time, then namespace/name) keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidegate.scheduling.contracts import RateLimit, Stop
from tidegate_operator.api.common import FieldError, parse
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.tenant import ISOLATED, ApiKey, Tenant
from tidegate_operator.api.tenant_tier import LimitOverride, TenantTier
from tidegate_operator.api_keys import ResolvedKey, SecretData, resolve_keys
from tidegate_operator.findings import Fault, Finding, joined, verdicts
from tidegate_operator.limit_policy import looser_limits, rate_limits

Json = dict[str, Any]
Labels = Mapping[str, str]
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a Tenant rightly claims: a tier, a weight in it, and limits of its own."""

    tier: str
    weight: int
    rate_limits: tuple[RateLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantVerdict:
    """One Tenant, judged."""

    name: str
    """namespace/name."""
    namespace: str
    generation: int
    """metadata.generation that was judged."""
    claim: Claim | None
    """Unset: not usable as it is."""
    stop: Stop | None
    """Unset: the spec cannot be read."""
    models: tuple[str, ...] | None
    """The models that it may call, empty for all. Unset: the spec cannot be read."""
    cache_scope: str | None
    """Who shares its prefix cache. Unset: the spec cannot be read."""
    digests: tuple[str, ...]
    """SHA-256 of the keys that are its own and usable, sorted."""
    findings: tuple[Finding, ...]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class TierVerdict:
    """One TenantTier, judged."""

    name: str
    generation: int
    """metadata.generation that was judged."""
    tier: TenantTier | None
    """Unset: the spec cannot be read."""
    findings: tuple[Finding, ...]

    def allows(self, labels: Labels) -> bool:
        """Whether Tenants of a namespace with these labels may claim it."""
        return self.tier is not None and self.tier.spec.allowed_namespaces.matches(labels)

    @property
    def max_weight(self) -> int:
        """The highest weight that a Tenant may set for itself."""
        overrides = self.tier.spec.tenant_overrides if self.tier else None
        return (overrides and overrides.max_weight) or 1

    def too_loose(self, limits: Sequence[RateLimit]) -> list[str]:
        """Names of those limits of a Tenant that it may not set for itself."""
        spec = self.tier.spec if self.tier else None
        overrides = spec.tenant_overrides if spec else None
        if spec is None or (overrides and overrides.rate_limits is LimitOverride.ANY):
            return []
        return looser_limits(limits, rate_limits(spec.rate_limits))


@dataclass(frozen=True, slots=True)
class Judgement:
    """All tiers and tenants, judged."""

    tiers: Mapping[str, TierVerdict] = field(default_factory=dict)
    tenants: Mapping[str, TenantVerdict] = field(default_factory=dict)
    namespaces: Mapping[str, Labels] = field(default_factory=dict)

    def tier_allows(self, tier: str, namespace: str) -> bool:
        """Whether the tier exists and may be claimed from that namespace."""
        verdict = self.tiers.get(tier)
        return verdict is not None and verdict.allows(self.namespaces.get(namespace, {}))


def judge(
    tiers: Iterable[Json],
    tenants: Iterable[Json],
    namespaces: Mapping[str, Labels],
    secrets: Mapping[tuple[str, str], SecretData],
) -> Judgement:
    """Judge all of them; ``secrets`` are the labelled ones by (namespace, name)."""
    tier_verdicts = {verdict.name: verdict for verdict in map(_judge_tier, _living(tiers))}
    judgement = Judgement(tier_verdicts, {}, namespaces)
    drafts = sorted(
        (_draft(obj, judgement, secrets) for obj in _living(tenants)), key=lambda draft: draft.age
    )
    owners: dict[str, str] = {}
    verdicts_by_name = {}
    for draft in drafts:
        verdicts_by_name[draft.name] = _settle(draft, owners)
    return Judgement(tier_verdicts, dict(sorted(verdicts_by_name.items())), namespaces)


def _living(objects: Iterable[Json]) -> Iterable[Json]:
    return (obj for obj in objects if not obj["metadata"].get("deletionTimestamp"))


def _judge_tier(obj: Json) -> TierVerdict:
    name, generation = obj["metadata"]["name"], obj["metadata"]["generation"]
    parsed = parse(TenantTier, obj)
    if isinstance(parsed, TenantTier):
        findings = verdicts([], "The tier is valid", "Nothing is referenced")
        return TierVerdict(name, generation, parsed, findings)
    findings = verdicts([_unreadable(parsed)], "", "Nothing is referenced")
    return TierVerdict(name, generation, None, findings)


def _unreadable(errors: Sequence[FieldError]) -> Fault:
    return Fault(ConditionType.ACCEPTED, Reason.INVALID, joined(map(str, errors)))


@dataclass(slots=True)
class _Draft:
    """A Tenant before keys are compared between Tenants."""

    uid: str
    name: str
    namespace: str
    generation: int
    age: tuple[datetime, str]
    claim: Claim | None
    stop: Stop | None
    models: tuple[str, ...] | None
    cache_scope: str | None
    keys: list[ResolvedKey]
    faults: list[Fault]


def _draft(
    obj: Json, judgement: Judgement, secrets: Mapping[tuple[str, str], SecretData]
) -> _Draft:
    metadata = obj["metadata"]
    namespace, generation = metadata["namespace"], metadata["generation"]
    uid, name = metadata.get("uid", ""), f"{namespace}/{metadata['name']}"
    created = metadata.get("creationTimestamp")
    age = (datetime.fromisoformat(created) if created else _NEVER, name)
    parsed = parse(Tenant, obj)
    if not isinstance(parsed, Tenant):
        keys, faults = resolve_keys(namespace, _readable_keys(obj), secrets)
        faults = [_unreadable(parsed), *faults]
        return _Draft(uid, name, namespace, generation, age, None, None, None, None, keys, faults)
    claim, faults = _judge_claim(parsed, namespace, judgement)
    keys, key_faults = resolve_keys(namespace, parsed.spec.api_keys or [], secrets)
    stop = parsed.spec.stop or Stop.NONE
    models = tuple(sorted(parsed.spec.models or ()))
    scope = _cache_scope(parsed)
    faults += key_faults
    return _Draft(uid, name, namespace, generation, age, claim, stop, models, scope, keys, faults)


def _cache_scope(tenant: Tenant) -> str:
    """Who shares its prefix cache: nobody else, or the tenants of its namespace's group."""
    metadata, shared = tenant.metadata, tenant.spec.prefix_cache
    if shared is None or shared == ISOLATED:
        return f"tenant/{metadata.uid}"
    return f"group/{metadata.namespace}/{shared}"


def _readable_keys(obj: Json) -> list[ApiKey]:
    """Keys of a spec that cannot be read as a whole: those that can be read by themselves."""
    spec = obj.get("spec")
    entries = spec.get("apiKeys") if isinstance(spec, dict) else None
    if not isinstance(entries, list):
        return []
    parsed = (parse(ApiKey, entry) for entry in entries)
    return [key for key in parsed if isinstance(key, ApiKey)]


def _judge_claim(
    tenant: Tenant, namespace: str, judgement: Judgement
) -> tuple[Claim | None, list[Fault]]:
    name, weight = tenant.spec.tier_ref.name, tenant.spec.weight or 1
    limits = rate_limits(tenant.spec.rate_limits)
    tier = judgement.tiers.get(name)
    if tier is None or tier.tier is None or not judgement.tier_allows(name, namespace):
        return None, [_not_claimable(name, tier, namespace)]
    if faults := _too_much(tier, weight, limits):
        return None, faults
    return Claim(name, weight, limits), []


def _not_claimable(name: str, tier: TierVerdict | None, namespace: str) -> Fault:
    """Why nobody in the namespace can claim the tier."""
    if tier is None:
        return Fault(
            ConditionType.RESOLVED_REFS,
            Reason.TIER_NOT_FOUND,
            f"spec.tierRef: there is no TenantTier {name}; create it, or name one of "
            "`kubectl get tenanttiers`",
        )
    if tier.tier is None:
        return Fault(
            ConditionType.RESOLVED_REFS,
            Reason.TIER_INVALID,
            f"spec.tierRef: TenantTier {name} is not valid; see its conditions",
        )
    return Fault(
        ConditionType.ACCEPTED,
        Reason.TIER_NOT_ALLOWED,
        f"spec.tierRef: the allowedNamespaces of TenantTier {name} do not select namespace "
        f"{namespace}; claim another tier, or have the namespace labelled",
    )


def _too_much(tier: TierVerdict, weight: int, limits: Sequence[RateLimit]) -> list[Fault]:
    """What the tier does not let a Tenant set for itself."""
    if weight > tier.max_weight:
        return [
            Fault(
                ConditionType.ACCEPTED,
                Reason.WEIGHT_NOT_ALLOWED,
                f"spec.weight: {weight} is above {tier.max_weight}, the tenantOverrides.maxWeight "
                f"of TenantTier {tier.name}; lower it, or have that raised",
            )
        ]
    return [
        Fault(
            ConditionType.ACCEPTED,
            Reason.RATE_LIMIT_NOT_ALLOWED,
            f"spec.rateLimits[{limit}]: is looser than the limit of that name of TenantTier "
            f"{tier.name}, whose tenantOverrides.rateLimits only lets it be tightened: ask for no "
            "more requests and tokens in the same window, of all that it counts; or have that "
            "set to Any",
        )
        for limit in tier.too_loose(limits)
    ]


def _settle(draft: _Draft, owners: dict[str, str]) -> TenantVerdict:
    """Give the draft those of its keys that no older Tenant has; ``owners`` grows by them."""
    faults = list(draft.faults)
    digests = set()
    for key in draft.keys:
        owner = owners.setdefault(key.digest, draft.name)
        if owner == draft.name:
            digests.add(key.digest)
        else:
            faults.append(
                Fault(
                    ConditionType.ACCEPTED,
                    Reason.KEY_CONFLICT,
                    f"spec.apiKeys[{key.name}]: an older Tenant has the same key and keeps it; "
                    "make another with `tidegate keys new`",
                )
            )
    if not draft.keys and not faults:
        faults.append(
            Fault(
                ConditionType.ACCEPTED,
                Reason.NO_KEYS,
                "spec.apiKeys is empty, so nobody can call as this Tenant; add a key made with "
                "`tidegate keys new`",
            )
        )
    tier = draft.claim.tier if draft.claim else ""
    accepted = f"Served in tier {tier} wherever a pool takes it" if tier else "The spec is in order"
    findings = verdicts(faults, accepted, "All references were found")
    return TenantVerdict(
        draft.name,
        draft.namespace,
        draft.generation,
        draft.claim,
        draft.stop,
        draft.models,
        draft.cache_scope,
        tuple(sorted(digests)),
        findings,
        draft.uid,
    )
