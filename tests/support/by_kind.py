"""pytest plug-in: with ``-n 2 --dist loadscope`` each kind of test stays in one process, in order.

So there is one cluster, one API server, and an end-to-end test that looks back at all the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByKind(LoadScopeScheduling):
    """A kind is a folder of ``tests/``."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("/")[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByKind:
    return ByKind(config, log)
