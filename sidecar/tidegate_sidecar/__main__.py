"""``python -m tidegate_sidecar``: run one sidecar."""

from __future__ import annotations

import os
import sys

import uvloop

from tidegate_sidecar.logs import configure
from tidegate_sidecar.server import serve
from tidegate_sidecar.settings import SettingsError, parse_settings


def main() -> int:
    """0 after a drain; 1 where a port cannot be bound; 2 for wrong settings."""
    try:
        settings = parse_settings(sys.argv[1:], os.environ)
        configure(settings.log_format)
        uvloop.run(serve(settings))
    except SettingsError as error:
        print(f"tidegate_sidecar: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tidegate_sidecar: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
