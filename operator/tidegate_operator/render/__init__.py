"""From a ServingPool to the Kubernetes objects that run it: pure, and the same every time.

What is *hot* (tiers, tenants, weights, limits, percents, mode) is in the policy Secrets alone and
never in the pod template, so that none of it restarts an engine. What is *cold* (image, model,
arguments, resources, timeouts) is in the pod template alone. Every field rendered here is owned by
the operator's server-side apply; what is not rendered belongs to whoever sets it.

``tests/unit/golden`` shows the result for one pool of each kind.
"""

from tidegate_operator.render.children import Children, render_children
from tidegate_operator.render.policy_secrets import (
    admin_token_secret,
    cache_salt_key_secret,
    identity_keys_secret,
    policy_secrets,
)

__all__ = [
    "Children",
    "admin_token_secret",
    "cache_salt_key_secret",
    "identity_keys_secret",
    "policy_secrets",
    "render_children",
]
