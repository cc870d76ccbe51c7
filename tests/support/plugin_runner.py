"""Runs the cases of ``plugin_cases`` in vLLM's environment, one JSON line each.

``PYTHON tests/support/plugin_runner.py MODEL [NAME ...]``, with the repository's root and its
``tests`` folder on PYTHONPATH: ``{"case": ..., "variant": ..., "error": null or a traceback}``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from support.plugin_cases import CASES
from support.scheduler_host import SchedulerHost, engine_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tidegate.vllm_plugin import TidegateAsyncScheduler, TidegateScheduler
from tidegate.vllm_plugin.guard import PluginRefused

KINDS: dict[str, tuple[type, type, int]] = {
    "sync": (TidegateScheduler, Scheduler, 1),
    "async": (TidegateAsyncScheduler, AsyncScheduler, 2),
}


class Bench:
    """One variant on one model."""

    def __init__(self, model: str, folder: Path, variant: str) -> None:
        self.folder = folder
        self._ours, self._stock, self._depth = KINDS[variant]
        self.is_async = self._depth > 1
        self._config: Callable[[str], Any] = cache(
            lambda engine: engine_config(model, **json.loads(engine))
        )

    def host(
        self,
        policy: dict[str, Any],
        *,
        blocks: int = 400,
        stock: bool = False,
        statistics: str | None = None,
        **engine: Any,
    ) -> SchedulerHost:
        config = self._config(json.dumps(engine))
        if stock:
            return SchedulerHost(self._stock, config, blocks, depth=self._depth)
        return SchedulerHost(
            self._ours,
            config,
            blocks,
            depth=self._depth,
            policy=policy,
            folder=self.folder,
            statistics=statistics,
        )

    def refused(self, *, swapped: bool = False, config: object = None) -> str:
        configured = self._config("{}")
        configured.additional_config = config or {}
        depth = 3 - self._depth if swapped else self._depth
        try:
            SchedulerHost(self._ours, configured, 100, depth=depth)
        except PluginRefused as refusal:
            return str(refusal)
        raise AssertionError("it started")


def main(model: str, *names: str) -> None:
    for variant in KINDS:
        for name, check in CASES.items():
            if names and name not in names:
                continue
            with tempfile.TemporaryDirectory(prefix="tg-") as folder:
                error = None
                try:
                    check(Bench(model, Path(folder), variant))
                except Exception:
                    error = traceback.format_exc(limit=-6)
            print(json.dumps({"case": name, "variant": variant, "error": error}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
