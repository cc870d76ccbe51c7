"""What the engine's plug-in is told of a request: ``vllm_xargs.tidegate_*`` in its body.

Set when it is dispatched, since only then its sequence number is known. A client's own
``vllm_xargs`` never come so far: the allow-list of bodies has no such field. Requests that pool
carry none. Names and meanings: docs/plugin.md. The tenant is hashed: the engine needs to tell
tenants apart, not to know them.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import orjson

from tidegate.scheduling.contracts import TenantPolicy
from tidegate.scheduling.request import Request


def tagged(body: bytes, request: Request, tenant: TenantPolicy) -> bytes:
    """The body (the text of an object, not empty) of a dispatched request with its tags."""
    tags = {
        "tidegate_tier": tenant.tier,
        "tidegate_tenant": _hashed(tenant.name),
        "tidegate_sequence": request.sequence,
        "tidegate_weight": tenant.weight,
        "tidegate_expected_tokens": math.ceil(request.expected_output_tokens / request.sequences),
    }
    end = body.rindex(b"}")
    return b"".join((body[:end], b',"vllm_xargs":', orjson.dumps(tags), body[end:]))


@lru_cache(maxsize=4_096)
def _hashed(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]
