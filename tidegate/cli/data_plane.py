"""Running a process of the data plane in the foreground, with its failures as a command's."""

from __future__ import annotations

from collections.abc import Coroutine

import uvloop
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.logs import LogFormat, configure

from tidegate.cli.errors import CommandError


def run(serving: Coroutine[None, None, None], host: str, port: int, admin_port: int) -> None:
    """Until it was told to end; CommandError where it cannot begin."""
    configure(LogFormat.TEXT)
    try:
        uvloop.run(serving)
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    except OSError as error:
        if error.filename is not None:
            raise CommandError(str(error), 2) from None
        raise CommandError(
            f"cannot listen on {host}:{port} or 127.0.0.1:{admin_port}: {error}"
        ) from None
