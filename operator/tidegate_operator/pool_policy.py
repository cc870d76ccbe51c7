"""The policy of one pool in its Secrets: what was written last, and what is to be written now.

The first shard is written under its ``resourceVersion``: who writes it owns the generation, and
another operator that worked from the same reading gets a conflict and reads again. So sidecars are
told only what stands in the Secrets: told before, two operators could tell two policies of one
generation, and a sidecar that starts anew would begin with an older one than it had.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.scheduling.contracts import POLICY_VERSION, Bundle, dumps
from tidegate_operator import names
from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.apply import in_sync
from tidegate_operator.compile import CompiledPool
from tidegate_operator.kinds import SECRET
from tidegate_operator.kube import Json
from tidegate_operator.pool_children import PoolChildren, owns
from tidegate_operator.render import policy_secrets
from tidegate_operator.shards import Previous


def shards_among(secrets: Mapping[str, Json], pool: PoolIdentity) -> dict[str, Json]:
    """The pool's own policy Secrets, by name, of all that carry its label."""
    return {name: secret for name, secret in secrets.items() if _is_policy(secret, pool)}


def version_to_write(reads_policy: int | None, previous: Previous) -> int:
    """Of the policy: the highest that both its writer and its readers know."""
    return min(POLICY_VERSION, reads_policy or previous.version)


async def write_policy(
    run: PoolChildren, compiled: CompiledPool, live: Mapping[str, Json], token: str | None
) -> Delivery | None:
    """Write what differs of the shards; what the sidecars are to be told then."""
    policy, keys = compiled.policy, compiled.keys
    assert policy is not None
    assert keys is not None
    desired = policy_secrets(run.pool, compiled.documents)
    for index, secret in enumerate(desired):
        old = live.get(secret["metadata"]["name"])
        if index == 0 and old is not None and not in_sync(secret, old):
            secret["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if await run.apply(SECRET, secret, old) is None:
            return None
    wanted = {secret["metadata"]["name"] for secret in desired}
    for name in sorted(live.keys() - wanted):
        await run.delete(SECRET, live[name])
    if token is None:
        return None
    return Delivery(policy.generation, dumps(Bundle(policy, keys)).encode(), token)


def _is_policy(secret: Json, pool: PoolIdentity) -> bool:
    labels = secret["metadata"]["labels"]
    return labels.get(names.COMPONENT_LABEL) == names.POLICY and owns(pool, secret)
