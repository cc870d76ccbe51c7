"""What ^C does to a command on a local cluster: it cleans up, uncut, and ends with 130."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegate.cli.errors import INTERRUPTED, CommandError
from tidegate.local_cluster.cluster import LocalCluster

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """^C, SIGTERM and a closed terminal are one KeyboardInterrupt; nothing cuts its clean-up."""

    def interrupt(number: int, frame: object) -> None:
        for other in _INTERRUPTS:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _INTERRUPTS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("interrupted", INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def removed_when_interrupted(cluster: LocalCluster, say: Callable[[str], None]) -> Iterator[None]:
    """An interrupt while a cluster comes up removes what this command started."""
    new = not cluster.exists
    ran = not new and any(state.running for state in cluster.states())
    try:
        yield
    except KeyboardInterrupt:
        if not ran:
            say("interrupted: stopping what was started")
            if new:
                cluster.purge()
            else:
                cluster.stop()
        raise
