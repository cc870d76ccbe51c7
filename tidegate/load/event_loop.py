"""Runs a coroutine on uvloop where the platform has it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_fast(main: Coroutine[None, None, T]) -> T:
    """``asyncio.run`` on the faster loop."""
    if sys.platform != "win32":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    return asyncio.run(main)
