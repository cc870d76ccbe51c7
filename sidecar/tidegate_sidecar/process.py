"""How a process of the data plane ends: its exit code, and what is said of a failure to begin."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tidegate_sidecar.flags import SettingsError


def exit_code(program: str, run: Callable[[], None]) -> int:
    """0 after a drain; 1 where a port cannot be bound; 2 for wrong settings."""
    try:
        run()
    except SettingsError as error:
        code, why = 2, str(error)
    except OSError as error:
        code, why = 1, str(error)
    else:
        return 0
    print(f"{program}: {why}", file=sys.stderr)
    return code
