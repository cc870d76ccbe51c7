"""`tidegate router`: the edge stage before several sidecars, without Kubernetes.

Authentication and the choice of a pod from files (followed): policy, keys, and the list of pods.
The sidecars run with ``--identity-keys``, and then serve what the router signed and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidegate_sidecar.policy_files import read_bundle
from tidegate_sidecar.router.server import serve as serve_router
from tidegate_sidecar.router.settings import RouterSettings

from tidegate.cli.data_plane import (
    AdminPortOption,
    HostOption,
    KeysOption,
    PolicyOption,
    PortOption,
    judged,
    run,
)
from tidegate.scheduling.contracts import PodList, loads


def router(
    policy: PolicyOption,
    keys: KeysOption,
    pods: Annotated[Path, typer.Option(help="pods.json: where the sidecars are.")],
    identity_keys: Annotated[
        Path, typer.Option(help="File of secrets, one a line; the first signs.")
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    admin_port: AdminPortOption = 8001,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM chain; read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
) -> None:
    """Route tenants' requests to sidecars: authenticate, choose a pod, relay."""
    with judged():
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
    run(serve_router(settings), host, port, admin_port)
