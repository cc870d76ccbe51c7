"""``python -m tidegate_sidecar``: run one sidecar. ``... router``: run one router.
``... copy-plugin FOLDER``: put the plug-in that a sidecar's engine loads into a folder, and end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvloop

from tidegate_sidecar.logs import configure
from tidegate_sidecar.plugin_files import copy_plugin
from tidegate_sidecar.process import exit_code
from tidegate_sidecar.server import serve
from tidegate_sidecar.settings import parse_settings


def main() -> int:
    """Its exit code."""
    if sys.argv[1:2] == ["copy-plugin"] and len(sys.argv) == 3:
        copy_plugin(Path(sys.argv[2]))
        return 0
    if sys.argv[1:2] == ["router"]:
        from tidegate_sidecar.router.__main__ import main as run_router

        return run_router(sys.argv[2:])
    return exit_code("tidegate_sidecar", _run)


def _run() -> None:
    settings = parse_settings(sys.argv[1:], os.environ)
    configure(settings.log_format)
    uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
