"""Free ports on loopback addresses."""

import socket
from collections.abc import Iterable


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
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        while len(found) < count:
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(probe)  # held open meanwhile, so that the kernel names no port twice
            probe.bind((address, 0))
            port = probe.getsockname()[1]
            if port not in avoid:
                found.append(port)
    finally:
        for probe in held:
            probe.close()
    return found
