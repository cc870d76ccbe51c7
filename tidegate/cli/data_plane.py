"""Running a process of the data plane in the foreground: the options of all, and its failures as a
command's."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.logs import LogFormat, configure

from tidegate.cli.errors import CommandError, os_error_text
from tidegate.scheduling.contracts import ContractError

PolicyOption = Annotated[Path, typer.Option(help="policy.json, or a folder of its shards.")]
KeysOption = Annotated[Path, typer.Option(help="keys.json, or a folder of its shards.")]
HostOption = Annotated[str, typer.Option(help="Address of the tenants' port.")]
PortOption = Annotated[int, typer.Option(help="The tenants' port; 0: any free one.")]
AdminPortOption = Annotated[
    int, typer.Option(help="The admin port, on 127.0.0.1; 0: any free one.")
]


@contextlib.contextmanager
def judged() -> Iterator[None]:
    """What is wrong with files and settings that are read in it is a CommandError."""
    try:
        yield
    except (ContractError, SettingsError) as error:
        raise CommandError(str(error), 2) from None
    except OSError as error:
        raise CommandError(os_error_text(error), 2) from None


def run(serving: Coroutine[None, None, None], host: str, port: int, admin_port: int) -> None:
    """Until it was told to end; CommandError where it cannot begin."""
    configure(LogFormat.TEXT)
    try:
        uvloop.run(serving)
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    except OSError as error:
        if error.filename is not None:
            raise CommandError(os_error_text(error), 2) from None
        raise CommandError(
            f"cannot listen on {host}:{port} or 127.0.0.1:{admin_port}: {error}"
        ) from None
