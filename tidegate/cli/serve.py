"""`tidegate serve`: one sidecar in front of any OpenAI-compatible engine, without Kubernetes.

The smallest set-up: policy and keys from files (followed, so that an edit with a higher generation
acts at once), the tenants' port, and an admin port. The admin port is open and therefore bound to
127.0.0.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.policy_files import read_bundle
from tidegate_sidecar.server import serve as serve_sidecar
from tidegate_sidecar.settings import Settings

from tidegate.cli.data_plane import run
from tidegate.cli.errors import CommandError
from tidegate.scheduling.contracts import ContractError


def serve(
    policy: Annotated[Path, typer.Option(help="policy.json, or a folder of its shards.")],
    keys: Annotated[Path, typer.Option(help="keys.json, or a folder of its shards.")],
    engine: Annotated[
        str, typer.Option(help="The engine: http://host:port or uds:/path/to/socket.")
    ],
    host: Annotated[str, typer.Option(help="Address of the tenants' port.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The tenants' port; 0: any free one.")] = 8000,
    admin_port: Annotated[
        int, typer.Option(help="The admin port, on 127.0.0.1; 0: any free one.")
    ] = 8001,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The model's tokenizer.json: what a limit decides about is counted."),
    ] = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Counters of rate limits are kept here over a restart.")
    ] = None,
    usage_records: Annotated[
        str | None,
        typer.Option(metavar="stdout|FILE", help="A line of JSON for each request goes here."),
    ] = None,
) -> None:
    """Serve tenants from one engine: authenticate, queue fairly, dispatch, stream."""
    try:
        read_bundle(policy, keys)
        settings = Settings(
            policy=policy,
            keys=keys,
            engine=engine,
            host=host,
            port=port,
            admin_host="127.0.0.1",
            admin_port=admin_port,
            tokenizer=tokenizer,
            state_folder=state_folder,
            usage_records=usage_records,
        )
    except (ContractError, OSError, SettingsError) as error:
        raise CommandError(str(error), 2) from None
    run(serve_sidecar(settings), host, port, admin_port)
