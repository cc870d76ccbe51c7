"""Free ports on loopback addresses.

Taken from below the range that the kernel gives to outgoing connections: a port that must be the
same again after a restart would else now and then be some connection's by then.
"""

import random
import socket
from collections.abc import Iterable

from tidegate.local_cluster.errors import LocalClusterError

_RANGE = range(20000, 30000)
_TRIES = 1000


def bindable(address: str, port: int) -> bool:
    """Whether a server could listen there now (a port in TIME_WAIT counts as free)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, address: str = "127.0.0.1", taken: Iterable[int] = ()) -> list[int]:
    """`count` different ports that were free on `address` a moment ago, none of them in `taken`."""
    avoid = set(taken)
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        port = random.choice(_RANGE)
        if port not in avoid and bindable(address, port):
            avoid.add(port)
            found.append(port)
    raise LocalClusterError(f"no {count} free ports between {_RANGE.start} and {_RANGE.stop}")
