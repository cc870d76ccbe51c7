"""``python -m tidegate_sidecar.router``: run one router."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import uvloop

from tidegate_sidecar.flags import SettingsError, parse_flags
from tidegate_sidecar.logs import LogFormat, configure
from tidegate_sidecar.router.server import serve
from tidegate_sidecar.router.settings import RouterSettings


def main(arguments: Sequence[str]) -> int:
    """0 after a drain; 1 where a port cannot be bound; 2 for wrong settings."""
    try:
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
    except SettingsError as error:
        print(f"tidegate_sidecar.router: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tidegate_sidecar.router: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
