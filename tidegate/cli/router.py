"""`tidegate router`: the edge stage before several sidecars, without Kubernetes.

Authentication and the choice of a pod from files (followed): policy, keys, and the list of pods.
The sidecars run with ``--identity-keys``, and then serve what the router signed and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.policy_files import read_bundle
from tidegate_sidecar.router.server import serve as serve_router
from tidegate_sidecar.router.settings import RouterSettings

from tidegate.cli.data_plane import run
from tidegate.cli.errors import CommandError
from tidegate.scheduling.contracts import ContractError, PodList, loads


def router(
    policy: Annotated[Path, typer.Option(help="policy.json, or a folder of its shards.")],
    keys: Annotated[Path, typer.Option(help="keys.json, or a folder of its shards.")],
    pods: Annotated[Path, typer.Option(help="pods.json: where the sidecars are.")],
    identity_keys: Annotated[
        Path, typer.Option(help="File of secrets, one a line; the first signs.")
    ],
    host: Annotated[str, typer.Option(help="Address of the tenants' port.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The tenants' port; 0: any free one.")] = 8000,
    admin_port: Annotated[
        int, typer.Option(help="The admin port, on 127.0.0.1; 0: any free one.")
    ] = 8001,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM chain; read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
) -> None:
    """Route tenants' requests to sidecars: authenticate, choose a pod, relay."""
    try:
        read_bundle(policy, keys)
        loads(PodList, pods.read_bytes(), pods.name)
        settings = RouterSettings(
            policy=policy,
            keys=keys,
            pods=pods,
            identity_keys=identity_keys,
            host=host,
            port=port,
            admin_port=admin_port,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
        )
    except (ContractError, OSError, SettingsError) as error:
        raise CommandError(str(error), 2) from None
    run(serve_router(settings), host, port, admin_port)
