"""`tidegate serve`: one sidecar in front of any OpenAI-compatible engine, without Kubernetes.

The smallest set-up: policy and keys from files (followed, so that an edit with a higher generation
acts at once), the tenants' port, and an admin port. The admin port is open and therefore bound to
127.0.0.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidegate_sidecar.policy_files import read_bundle
from tidegate_sidecar.server import serve as serve_sidecar
from tidegate_sidecar.settings import Settings

from tidegate.cli.data_plane import (
    AdminPortOption,
    HostOption,
    KeysOption,
    PolicyOption,
    PortOption,
    judged,
    run,
)


def serve(
    policy: PolicyOption,
    keys: KeysOption,
    engine: Annotated[
        str, typer.Option(help="The engine: http://host:port or uds:/path/to/socket.")
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    admin_port: AdminPortOption = 8001,
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
    with judged():
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
            leaving_seconds=0.0,  # no other one would take its clients
        )
    run(serve_sidecar(settings), host, port, admin_port)
