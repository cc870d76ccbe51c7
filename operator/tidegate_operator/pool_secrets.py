"""What the Secrets of a pool hold that the operator makes once and then keeps.

``known`` are those of the pool's Secrets that a LIST has just shown, by name; one that is not among
them is asked for by itself, as somebody may have taken its label.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Mapping

from tidegate_operator import names
from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.kinds import SECRET
from tidegate_operator.kube import Json
from tidegate_operator.pool_children import PoolChildren
from tidegate_operator.render import (
    admin_token_secret,
    cache_salt_key_secret,
    identity_keys_secret,
)
from tidegate_operator.render.policy_secrets import (
    ADMIN_TOKEN_FILE,
    CACHE_SALT_KEY_FILE,
    IDENTITY_KEYS_FILE,
)


def new_token() -> str:
    """256 bits."""
    return secrets.token_urlsafe(32)


def new_identity_keys() -> str:
    """Two, so that a rotation has one to go on with."""
    return f"{new_token()}\n{new_token()}"


async def admin_token(run: PoolChildren, known: Mapping[str, Json]) -> str | None:
    """The token of the pool's admin ports; None where it was refused."""
    name = names.admin_secret(run.pool.metadata.name)
    return await _made_once(run, known, name, ADMIN_TOKEN_FILE, admin_token_secret, new_token)


async def pod_keys(
    run: PoolChildren, known: Mapping[str, Json], identity_keys: str | None
) -> str | None:
    """Those that are between the pods: of the cache salts, and of the routers, which are returned;
    None where they were refused.

    ``identity_keys`` are the routers' as last seen: where somebody took them away they come back,
    since pods that read new ones at different times refuse what others signed.
    """
    pool = run.pool.metadata.name
    salt, identity = names.cache_salt_secret(pool), names.identity_secret(pool)
    await _made_once(run, known, salt, CACHE_SALT_KEY_FILE, cache_salt_key_secret, new_token)
    return await _made_once(
        run,
        known,
        identity,
        IDENTITY_KEYS_FILE,
        identity_keys_secret,
        lambda: identity_keys or new_identity_keys(),
    )


async def _made_once(
    run: PoolChildren,
    known: Mapping[str, Json],
    name: str,
    file: str,
    render: Callable[[PoolIdentity, str], Json],
    make: Callable[[], str],
) -> str | None:
    """What a Secret of the pool holds, made where there is none; None where it was refused."""
    live = known.get(name) or await run.get(SECRET, name)
    value = _value_in(live, file) or make()
    desired = render(run.pool, value)
    if live is None:
        # Create and not apply: of two operators one makes it, the other reads again.
        live = await run.create(SECRET, desired)
        if live is None:
            return None
    # Somebody may be rotating it just now.
    desired["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
    return value if await run.apply(SECRET, desired, live) is not None else None


def _value_in(secret: Json | None, file: str) -> str | None:
    encoded = ((secret or {}).get("data") or {}).get(file, "")
    try:
        return base64.b64decode(encoded, validate=True).decode("ascii").strip() or None
    except (binascii.Error, UnicodeDecodeError):
        return None
