"""``python -m tidegate_sidecar.router``: run one router."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import uvloop

from tidegate_sidecar.flags import parse_flags
from tidegate_sidecar.logs import LogFormat, configure
from tidegate_sidecar.process import exit_code
from tidegate_sidecar.router.server import serve
from tidegate_sidecar.router.settings import RouterSettings


def main(arguments: Sequence[str]) -> int:
    """Its exit code."""
    return exit_code("tidegate_sidecar.router", lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> None:
    settings = parse_flags(
        RouterSettings,
        arguments,
        os.environ,
        program="tidegate_sidecar.router",
        prefix="TIDEGATE_ROUTER_",
        description=__doc__,
    )
    configure(LogFormat.JSON)
    uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
