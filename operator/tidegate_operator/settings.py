"""What can be set on the operator itself, by flag or environment variable.

Every setting has one flag ``--like-this`` and one variable ``TIDEGATE_LIKE_THIS``; the flag wins.
Lists are separated by commas. A value that cannot be read ends the program with a message.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from tidegate_operator import __version__

SIDECAR_IMAGE = f"ghcr.io/tidegate/sidecar:{__version__}"
RUNBOOKS = "https://github.com/tidegate/tidegate/blob/main/docs/runbooks"


def _setting(text: str, default: Any = MISSING, **options: Any) -> Any:
    metadata = {"help": text, **options}
    if default is MISSING:
        return field(default_factory=socket.gethostname, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one operator process."""

    namespaces: tuple[str, ...] = _setting(
        "Namespaces it serves (a RoleBinding is needed in each); empty: the whole cluster.", ()
    )
    shared_pool_namespaces: tuple[str, ...] = _setting(
        "Namespaces whose pools may serve Tenants of other namespaces; `*`: all.", ()
    )
    operator_namespace: str = _setting(
        "Namespace of the operator and its Lease.", "tidegate-system"
    )
    monitoring_namespaces: tuple[str, ...] = _setting(
        "Namespaces whose pods may read the metrics of engine pods (NetworkPolicy).",
        ("monitoring",),
    )
    runbooks: str = _setting("Where alerts send those who are called: docs/runbooks/.", RUNBOOKS)
    identity: str = _setting("Begins the holder's name in the Lease; unset: the host name.")
    leader_election: bool = _setting("Take the Lease before doing anything.", True)
    lease_name: str = _setting("Name of the Lease.", "tidegate-operator")
    lease_duration_seconds: float = _setting(
        "A holder not heard of for so long has lost the Lease.", 15.0, low=3.0
    )
    lease_renew_deadline_seconds: float = _setting(
        "A holder that could not renew for so long gives up; below the duration.", 10.0, low=2.0
    )
    lease_retry_seconds: float = _setting("Between attempts.", 2.0, low=0.1)
    sidecar_image: str = _setting("Sidecar of pools that name none.", SIDECAR_IMAGE)
    workers: int = _setting("Pools reconciled at once.", 4, low=1)
    resync_seconds: float = _setting("Between full LISTs.", 30.0, low=1.0)
    scrape_seconds: float = _setting("Between readings of the sidecars.", 5.0, low=0.1)
    figures_window_seconds: float = _setting("What status figures look back on.", 60.0, low=1.0)
    pool_figures_seconds: float = _setting("Between figures of one pool.", 15.0, low=0.1)
    tier_figures_seconds: float = _setting("Between figures of one tier.", 60.0, low=0.1)
    tenant_figures_seconds: float = _setting("Between figures of one tenant.", 300.0, low=0.1)
    status_writes_per_second: float = _setting("Of the whole operator.", 10.0, low=0.1)
    http_host: str = _setting("Address of /healthz, /readyz and /metrics.", "0.0.0.0")
    http_port: int = _setting("Its port; 0: any free one.", 8080, low=0, high=65535)
    kubeconfig: str = _setting("File of credentials; empty: in-cluster, else the usual.", "")
    log_level: str = _setting("DEBUG, INFO, WARNING or ERROR.", "INFO")

    def __post_init__(self) -> None:
        for spec in fields(self):
            low = spec.metadata.get("low")
            if low is not None and getattr(self, spec.name) < low:
                raise ValueError(f"{_flag(spec)} must be at least {low}")
            high = spec.metadata.get("high")
            if high is not None and getattr(self, spec.name) > high:
                raise ValueError(f"{_flag(spec)} must be at most {high}")
        if self.lease_renew_deadline_seconds >= self.lease_duration_seconds:
            raise ValueError(
                "--lease-renew-deadline-seconds must be below --lease-duration-seconds, "
                "so that a holder stops before another starts"
            )
        if 2 * self.lease_retry_seconds > self.lease_renew_deadline_seconds:
            raise ValueError(
                "--lease-retry-seconds must be at most half of --lease-renew-deadline-seconds, "
                "so that one failed attempt loses nothing"
            )
        if self.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("--log-level must be DEBUG, INFO, WARNING or ERROR")

    @property
    def admin_namespaces(self) -> tuple[str, ...]:
        """Namespaces from which the admin port of engine pods may be reached."""
        return (self.operator_namespace, *self.monitoring_namespaces)

    def may_share(self, namespace: str) -> bool:
        """Whether a pool of this namespace may serve Tenants of other namespaces."""
        return "*" in self.shared_pool_namespaces or namespace in self.shared_pool_namespaces


def parse_settings(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> Settings:
    """Settings from the command line and the environment; exits with a message on a bad one."""
    parser = argparse.ArgumentParser(prog="tidegate_operator", description="The Tidegate operator.")
    for spec in fields(Settings):
        parser.add_argument(
            _flag(spec), metavar=spec.name.rsplit("_", 1)[-1].upper(), help=spec.metadata["help"]
        )
    given = vars(parser.parse_args(arguments))
    values = {}
    for spec in fields(Settings):
        text = given[spec.name]
        if text is None:
            text = environment.get(f"TIDEGATE_{spec.name.upper()}")
        if text is not None:
            try:
                values[spec.name] = _parsed(str(spec.type), text)
            except ValueError as error:
                parser.error(f"{_flag(spec)}: {error}")
    try:
        return Settings(**values)
    except ValueError as error:
        parser.error(str(error))


def _flag(spec: Field[Any]) -> str:
    return "--" + spec.name.replace("_", "-")


def _parsed(kind: str, text: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind == "float":
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"expected a number, got {text!r}")
        return number
    return tuple(part.strip() for part in text.split(",") if part.strip())
