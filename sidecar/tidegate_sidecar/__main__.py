"""``python -m tidegate_sidecar``: run one sidecar. ``... router``: run one router.
``... copy-plugin FOLDER``: put the plug-in that a sidecar's engine loads into a folder, and end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvloop

from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.logs import configure
from tidegate_sidecar.plugin_files import copy_plugin
from tidegate_sidecar.server import serve
from tidegate_sidecar.settings import parse_settings


def main() -> int:
    """0 after a drain; 1 where a port cannot be bound; 2 for wrong settings."""
    if sys.argv[1:2] == ["copy-plugin"] and len(sys.argv) == 3:
        copy_plugin(Path(sys.argv[2]))
        return 0
    if sys.argv[1:2] == ["router"]:
        from tidegate_sidecar.router.__main__ import main as run_router

        return run_router(sys.argv[2:])
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
