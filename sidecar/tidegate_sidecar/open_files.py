"""How many connections of clients the process's limit of open files allows.

A process that has run out of files can accept nothing and connect to nothing: its probes fail and
its engine seems gone, for all tenants, and idle connections without a key are enough to get there.
So the limit is raised as far as it may be, and clients get half of it: each request of theirs may
need a connection to the engine. The rest beyond that is for the admin port and files.
"""

from __future__ import annotations

import resource

_RESERVED = 128
_UNLIMITED = 1 << 20


def client_connections() -> int:
    """Raise the soft limit to the hard one; at least 1."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, (allowed - _RESERVED) // 2)
