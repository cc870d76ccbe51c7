"""Which pods a StatefulSet is to ask for: upgrades restart nothing, what cannot work neither."""

from __future__ import annotations

import copy
from typing import Any

from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.names import POD_TEMPLATE_ANNOTATION, SIDECAR_IMAGE_ANNOTATION
from tidegate_operator.render import render_children
from tidegate_operator.render.groups import GroupChildren
from tidegate_operator.rollout_plan import RolloutPlan, cold_digest, plan_rollout

ENGINE = {"image": "vllm/vllm-openai:v0.32.0"}
CLAIM = {"size": "1Gi", "storageClassName": "fast"}


def model(**cache: Any) -> Json:
    made: Json = {"name": "m", "source": {"huggingFace": {"repo": "acme/tiny"}}}
    return made | ({"cache": cache} if cache else {})


def rendered(obj: Json, image: str = "sidecar:1") -> GroupChildren:
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    (group,) = render_children(read, image).groups
    return group


def plan(obj: Json, live: Json | None = None, image: str = "sidecar:1", **env: str) -> RolloutPlan:
    """``env``: what another version of the operator puts into the engine's environment."""
    made = rendered(obj, image)
    stateful_set = copy.deepcopy(made.stateful_set)
    container = stateful_set["spec"]["template"]["spec"]["containers"][0]
    container["env"] += [{"name": name, "value": value} for name, value in env.items()]
    return plan_rollout(stateful_set, live, made.conflicts, cold_digest(obj["spec"]))


def applied(obj: Json, live: Json | None = None, **env: str) -> Json:
    made = plan(obj, live, **env).workload
    assert made is not None
    return made


def template(stateful_set: Json | None) -> Json:
    assert stateful_set is not None
    found: Json = stateful_set["spec"]["template"]
    return found


def test_a_new_pool_is_checked_first_and_has_nothing_to_fall_back_on() -> None:
    made = plan(pool())
    assert made.pod is not None
    assert made.pod["metadata"]["name"] == "chat-check"
    assert made.pod["spec"] == template(made.workload)["spec"]
    assert made.last_good is None


def test_the_same_again_asks_nothing_and_writes_nothing_else() -> None:
    live = applied(pool())
    again = plan(pool(), live)
    assert (again.pod, again.faults, again.outdated) == (None, (), False)
    assert again.workload == live


def test_an_upgrade_that_renders_otherwise_keeps_the_pods() -> None:
    live = applied(pool())
    newer = plan(pool(replicas=5, schedulingMode="FirstComeFirstServed"), live, NEWER="1")
    assert newer.outdated
    assert newer.pod is None
    assert template(newer.workload) == template(live)
    assert newer.workload is not None
    assert newer.workload["spec"]["replicas"] == 5


def test_a_change_of_the_engine_takes_what_is_newer() -> None:
    live = applied(pool())
    changed = plan(pool(engine=ENGINE | {"args": ["--x"]}), live, NEWER="1")
    assert not changed.outdated
    assert changed.pod is not None
    assert template(changed.workload) != template(live)
    assert template(changed.last_good) == template(live)


def test_taking_the_annotation_away_takes_what_is_newer() -> None:
    live = applied(pool())
    del live["metadata"]["annotations"][POD_TEMPLATE_ANNOTATION]
    newer = plan(pool(), live, NEWER="1")
    assert not newer.outdated
    assert template(newer.workload) != template(live)


def test_an_annotation_that_a_hand_spoilt_is_none() -> None:
    live = applied(pool())
    for spoilt in ("", "x", "e30=", live["metadata"]["annotations"][POD_TEMPLATE_ANNOTATION][:-8]):
        live["metadata"]["annotations"][POD_TEMPLATE_ANNOTATION] = spoilt
        assert plan(pool(), live).pod is not None


def test_the_sidecar_that_runs_is_the_one_that_is_noted() -> None:
    live = applied(pool())
    del live["metadata"]["annotations"][SIDECAR_IMAGE_ANNOTATION]
    made = plan(pool(), live, image="sidecar:2").workload
    assert made is not None
    assert made["metadata"]["annotations"][SIDECAR_IMAGE_ANNOTATION] == "sidecar:1"


def test_a_conflict_keeps_the_pods_and_still_scales() -> None:
    live = applied(pool())
    conflicting = ENGINE | {"podTemplate": {"spec": {"hostname": "x"}}}
    made = plan(pool(engine=conflicting, replicas=3), live)
    assert [fault.reason for fault in made.faults] == ["PodTemplateConflict"]
    assert "podTemplate.spec.hostname" in made.faults[0].message
    assert template(made.workload) == template(live)
    assert made.workload is not None
    assert made.workload["spec"]["replicas"] == 3
    assert plan(pool(engine=conflicting)).workload is None


def cached(**claim: Any) -> Json:
    return model(volumeClaimTemplate=CLAIM | claim)


def test_a_pod_with_a_claim_of_its_own_is_checked_with_it() -> None:
    made = plan(pool(model=cached()))
    assert made.pod is not None
    assert made.pod["spec"]["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "cache-chat-0"}
    assert "cache" not in {v["name"] for v in template(made.workload)["spec"]["volumes"]}


def test_o18_claims_that_cannot_change_stay_and_the_rest_takes_effect() -> None:
    live = applied(pool(model=cached()))
    for change, field in (
        ({"size": "2Gi"}, "volumeClaimTemplate.size"),
        ({"storageClassName": "slow"}, "volumeClaimTemplate.storageClassName"),
        ({"accessMode": "ReadWriteMany"}, "volumeClaimTemplate.accessMode"),
    ):
        changed = pool(model=cached(**change), engine=ENGINE | {"args": ["--x"]})
        made = plan(changed, live)
        (fault,) = made.faults
        assert (fault.type, fault.reason) == ("Progressing", "ImmutableFieldChange")
        assert fault.message.startswith(f"spec.model.cache.{field}: ")
        assert "--cascade=orphan" in fault.message
        assert made.workload is not None
        assert (
            made.workload["spec"]["volumeClaimTemplates"] == (live["spec"]["volumeClaimTemplates"])
        )
        assert "--x" in template(made.workload)["spec"]["containers"][0]["args"]
        settled = plan(changed, made.workload)
        assert (settled.pod, settled.outdated) == (None, False)


def test_o18_a_cache_of_another_kind_waits_with_its_volume() -> None:
    for before, after in ((model(), cached()), (cached(), model())):
        live = applied(pool(model=before))
        made = plan(pool(model=after), live)
        assert [fault.reason for fault in made.faults] == ["ImmutableFieldChange"]
        assert template(made.workload)["spec"]["volumes"] is not None
        names = [v["name"] for v in template(made.workload)["spec"]["volumes"]]
        assert names.count("cache") == (1 if before == model() else 0)
        anew = plan(pool(model=after), None)
        assert anew.faults == ()


def test_the_same_size_written_otherwise_is_no_change() -> None:
    live = applied(pool(model=cached(size="0.5Gi")))
    live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "512Mi"
    live["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"] = "Filesystem"
    made = plan(pool(model=cached(size="0.5Gi")), live)
    assert made.faults == ()
    assert made.workload is not None
    assert made.workload["spec"]["volumeClaimTemplates"] == live["spec"]["volumeClaimTemplates"]


def test_chunks_and_the_groups_draft_make_pods_what_they_are_and_budgets_do_not() -> None:
    """What a pool does not say is not in its digest, so that an upgrade restarts nothing."""
    plain = pool()["spec"]
    before = cold_digest(plain)
    groups = [{"name": "a", "draft": {"method": "Ngram", "tokens": 4}}, {"name": "b", "share": 2}]
    assert cold_digest(plain | {"prefill": {"budgetPercent": 20}}) == before
    assert cold_digest(plain | {"kvPools": [], "betweenTiers": "Weighted"}) == before
    assert cold_digest(plain | {"prefill": {"chunkTokens": 512}}) != before
    assert cold_digest(plain | {"engineGroups": groups}, "b") == before
    assert cold_digest(plain | {"engineGroups": groups}, "a") != before


def test_pods_without_what_a_router_needs_are_replaced_and_others_are_not() -> None:
    live, digest = applied(pool()), cold_digest(pool()["spec"])
    newer = copy.deepcopy(rendered(pool()).stateful_set)
    newer["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "NEW", "value": "1"})
    for needs, replaced in ((None, False), (lambda _: True, False), (lambda _: False, True)):
        made = plan_rollout(newer, live, (), digest, needs)
        assert (template(made.workload) == template(newer)) == replaced
        assert made.outdated != replaced
        assert (made.pod is not None) == replaced  # asked before
