"""A pool's shared state: in the policy, in the pods, and in a condition where it is missing."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from support.custom_resources import Json, pool, tenant, tier
from tidegate_operator import api
from tidegate_operator.api.shared_state import SharedStateSpec
from tidegate_operator.compile import compile_pool
from tidegate_operator.judge import judge
from tidegate_operator.pool_warnings import pool_warnings
from tidegate_operator.reconciled import PoolState
from tidegate_operator.render import render_children
from tidegate_operator.rollout_plan import cold_digest
from tidegate_operator.shards import Previous

from tidegate.scheduling.contracts import Policy, SharedState

ADDRESS = "rediss://valkey.acme:6380/3"
SECRET = {"name": "valkey", "key": "auth"}


def read(obj: Json) -> api.ServingPool:
    parsed = api.parse(api.ServingPool, obj)
    assert isinstance(parsed, api.ServingPool), parsed
    return parsed


def policy(obj: Json, version: int = 2) -> Policy:
    judgement = judge([tier("t0")], [tenant("one", "t0")], {"acme": {}}, {})
    compiled = compile_pool(
        read(obj), judgement, Previous(), may_share=False, now_seconds=1.0, version=version
    )
    assert compiled.policy is not None
    return compiled.policy


def template(obj: Json) -> Json:
    (group,) = render_children(read(obj), "sidecar:1", ()).groups
    spec: Json = group.stateful_set["spec"]["template"]["spec"]
    return spec


def test_the_policy_names_server_pool_and_tenants_by_their_uids() -> None:
    obj = pool(sharedState={"address": ADDRESS, "secretRef": SECRET})
    made = policy(obj)
    assert made.shared_state == SharedState(
        ADDRESS, "/etc/tidegate/shared-state/password", obj["metadata"]["uid"]
    )
    assert [row.uid for row in made.tenants] == ["tenant-acme-one"]
    open_to_all = policy(pool(sharedState={"address": ADDRESS})).shared_state
    assert open_to_all is not None
    assert open_to_all.secret_file is None
    without = policy(pool())
    assert without.shared_state is None
    assert [row.uid for row in without.tenants] == [None]
    assert policy(obj, version=1).shared_state is None


def test_the_password_is_mounted_and_nothing_else_restarts_a_pod() -> None:
    plain, named = pool(), pool(sharedState={"address": ADDRESS})
    secret = pool(sharedState={"address": ADDRESS, "secretRef": SECRET})
    assert template(named) == template(plain)
    assert cold_digest(named["spec"]) == cold_digest(plain["spec"]) != cold_digest(secret["spec"])
    pod = template(secret)
    assert pod["volumes"][-1] == {
        "name": "shared-state",
        "secret": {
            "secretName": "valkey",
            "defaultMode": 0o440,
            "optional": True,
            "items": [{"key": "auth", "path": "password"}],
        },
    }
    mounts = pod["containers"][1]["volumeMounts"]
    assert mounts[-1]["mountPath"] == "/etc/tidegate/shared-state"


@pytest.mark.parametrize(
    ("spec", "cut_off", "reason"),
    [
        ({"replicas": 1}, (), None),
        ({"replicas": 3}, (), "SharedStateUnset"),
        ({"replicas": 3, "sharedState": {"address": ADDRESS}}, (), None),
        (
            {"replicas": 3, "sharedState": {"address": ADDRESS}},
            ("pod chat-1: no answer within 10 ms",),
            "SharedStateUnavailable",
        ),
    ],
)
def test_pods_that_count_for_themselves_are_warned_of(
    spec: Json, cut_off: tuple[str, ...], reason: str | None
) -> None:
    obj = read(pool(**spec))
    state = PoolState(("acme", "chat"), 1, obj, None, sidecar_image="sidecar:1")
    found = pool_warnings(obj, state, "sidecar:1", None, cut_off)
    assert [str(finding.reason) for finding in found] == ([reason] if reason else [])
    if cut_off:
        assert cut_off[0] in found[0].message


@pytest.mark.parametrize(
    "address",
    [
        "valkey:6379",
        "http://valkey",
        "redis://user:secret@valkey",
        "redis://valkey:6379/0/1",
        "redis:// valkey",
        "redis://valkey:123456",
    ],
)
def test_an_address_is_an_address_and_holds_no_password(address: str) -> None:
    with pytest.raises(ValidationError):
        SharedStateSpec.model_validate({"address": address})
