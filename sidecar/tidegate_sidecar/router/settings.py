"""The router's settings: flags, else ``TIDEGATE_ROUTER_*``, else the default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate_sidecar.departure import MOST_OF_DRAIN
from tidegate_sidecar.flags import SettingsError, require_token_beyond_loopback, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How one router runs."""

    policy: Path = setting("policy.json, or a folder of its shards (policy*.json).")
    keys: Path = setting("keys.json, or a folder of its shards (keys*.json).")
    identity_keys: Path = setting(
        "File of secrets, one a line: the first signs what is told to the sidecars."
    )
    pods: Path | None = setting(
        "pods.json: the pods that it sends requests to; followed. Unset: see pods_selector.", None
    )
    pods_selector: str | None = setting(
        "Labels of the pods that it sends requests to, in the namespace that it runs in itself: "
        "they are listed and watched with the rights of its service account. Unset: see pods.",
        None,
    )
    host: str = setting("Address of the tenants' port.", "127.0.0.1")
    port: int = setting("The tenants' port; 0: any free one.", 8000)
    admin_host: str = setting("Address of the admin port.", "127.0.0.1")
    admin_port: int = setting("The admin port; 0: any free one.", 8001)
    admin_token_file: Path | None = setting(
        "File with the bearer token of the router's admin port and of its pods'. Unset: the admin "
        "port is open, and only on a loopback address.",
        None,
    )
    tls_certificate: Path | None = setting(
        "PEM chain; the tenants' port then speaks TLS. Read again when it changes.", None
    )
    tls_key: Path | None = setting("PEM key of the certificate.", None)
    max_body_bytes: int = setting("Largest request body after inflating.", 32 * 1024 * 1024)
    header_seconds: float = setting(
        "A request's head must have arrived so long after its first byte.", 20.0
    )
    body_seconds: float = setting("A request body must have arrived by then.", 60.0)
    client_stall_seconds: float = setting(
        "A client that reads nothing for so long, with its buffers full, counts as gone.", 60.0
    )
    pod_silence_seconds: float = setting(
        "A pod that sends nothing for so long has failed its request; above what its queue and "
        "its engine may take.",
        3_600.0,
    )
    poll_seconds: float = setting("Between two looks at pods, policy and key files.", 0.5)
    drain_seconds: float = setting(
        "From SIGTERM on, requests in hand may run for so long, then they are cut.", 50.0
    )
    leaving_seconds: float = setting(
        "From SIGTERM on, new requests are still taken for so long, and each answer says "
        "Connection: close; then they are refused with 503. It is a part of drain_seconds, and at "
        "most a quarter. 0: refused at once.",
        5.0,
    )

    usage_records: str | None = setting(
        "Where usage records go of the requests that no pod has one of, a line of JSON each: "
        "stdout, or a file's path; unset: nowhere.",
        None,
    )

    def __post_init__(self) -> None:
        if (self.pods is None) == (self.pods_selector is None):
            raise SettingsError("one of pods and pods_selector says which pods there are")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise SettingsError("tls_certificate and tls_key go together")
        for name in ("max_body_bytes", "header_seconds", "poll_seconds"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}: must be above 0")
        if self.leaving_seconds < 0:
            raise SettingsError("leaving_seconds: must not be below 0")
        require_token_beyond_loopback(self.admin_host, self.admin_token_file)

    @property
    def leaving_in_force_seconds(self) -> float:
        """``leaving_seconds``, within the drain."""
        return min(self.leaving_seconds, MOST_OF_DRAIN * self.drain_seconds)
