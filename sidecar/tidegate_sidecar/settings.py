"""The sidecar's settings: one dataclass, read from flags, else ``TIDEGATE_*``, else the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.scheduling.contracts import MAIN_GROUP
from tidegate_sidecar.departure import MOST_OF_DRAIN
from tidegate_sidecar.engine_address import EngineAddress
from tidegate_sidecar.flags import (
    SettingsError,
    parse_flags,
    require_token_beyond_loopback,
    setting,
)
from tidegate_sidecar.logs import LogFormat
from tidegate_sidecar.traffic_profile import TenantNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one sidecar runs. What it schedules stands in the policy, not here."""

    policy: Path = setting("policy.json, or a folder of its shards (policy*.json).")
    keys: Path = setting("keys.json, or a folder of its shards (keys*.json).")
    engine: str = setting("The engine: uds:/path/to/socket or http://host:port.")
    engine_plugin: Path | None = setting(
        "Folder shared with the engine's scheduler plug-in: the policy is written there "
        "(policy.json) and the plug-in's step statistics are read from a socket (steps.sock). "
        "Unset: the engine has no plug-in.",
        None,
    )
    identity_keys: Path | None = setting(
        "File of secrets, one a line, with which routers sign what they vouch for: then only what "
        "they signed is served. Unset: API keys are looked up here.",
        None,
    )
    pool_identity_keys: Path | None = setting(
        "The same for a pod of a pool, where the policy says whether a router stands before it: "
        "what routers signed is served from the start, and API keys as long as the policy does not "
        "name a router. Unset: nothing is signed, or see identity_keys.",
        None,
    )
    tokenizer: Path | None = setting(
        "The model's tokenizer.json: prompts that a limit decides about are counted by it. Unset: "
        "see model_folder.",
        None,
    )
    model_folder: Path | None = setting(
        "Folder of the model's files: its tokenizer.json counts, where there is one and the "
        "library is installed. Else, and unset: estimates decide.",
        None,
    )
    engine_group: str = setting(
        "Engine group of the engine, whose own part of the policy then holds.", MAIN_GROUP
    )
    host: str = setting("Address of the tenants' port.", "127.0.0.1")
    port: int = setting("The tenants' port; 0: any free one.", 8000)
    admin_host: str | None = setting(
        "Address of the admin port; unset: that of the tenants' port, and 127.0.0.1 where there "
        "is no token.",
        None,
    )
    admin_port: int = setting("The admin port; 0: any free one.", 8001)
    admin_token_file: Path | None = setting(
        "File with the bearer token of the admin port. Unset: the admin port is open, and only on "
        "a loopback address.",
        None,
    )
    max_body_bytes: int = setting(
        "Largest request body after inflating. A prompt of 1M tokens has about 4 MB; a few images "
        "fit too.",
        32 * 1024 * 1024,
    )
    header_seconds: float = setting(
        "A request's head must have arrived so long after its first byte.", 20.0
    )
    body_seconds: float = setting("A request body must have arrived by then.", 60.0)
    client_stall_seconds: float = setting(
        "A client that reads nothing for so long, with its buffers full, counts as gone.", 60.0
    )
    engine_silence_seconds: float = setting(
        "An engine that sends nothing for so long has failed its request. Above the longest "
        "prefill and, for answers that are not streamed, the longest answer.",
        600.0,
    )
    engine_poll_seconds: float = setting(
        "Between two looks at the engine's health and metrics.", 0.5
    )
    policy_poll_seconds: float = setting("Between two looks at the policy files.", 0.5)
    shared_state_deadline_ms: float = setting(
        "Until what a request asks the server that pods count in is sent, and from then until it "
        "is answered; beyond it the sidecar counts for itself.",
        10.0,
    )
    drain_seconds: float = setting(
        "From SIGTERM on, queued requests are still served for so long, then refused with 503.",
        30.0,
    )
    leaving_seconds: float = setting(
        "From SIGTERM on, or from when the engine's preStop hook asks for /drained, new requests "
        "are still taken for so long, and each answer says Connection: close; then they are "
        "refused with 503. It is a part of drain_seconds, and at most a quarter. 0: refused at "
        "once.",
        5.0,
    )
    grace_seconds: float | None = setting(
        "From SIGTERM on, streams may run for so long, then they end with an error event; unset: "
        "20 s beyond the drain. The pod's terminationGracePeriodSeconds must be above it.",
        None,
    )

    state_folder: Path | None = setting(
        "Folder, of one sidecar alone, in which the counters of rate limits outlive it: a second "
        "old at most after a kill. Unset: they begin anew with each start.",
        None,
    )
    usage_records: str | None = setting(
        "Where the usage records go, a line of JSON for each request that has ended: stdout, or a "
        "file's path; unset: nowhere.",
        None,
    )
    log_format: LogFormat = setting(
        "How the log on standard error looks: text or json.", LogFormat.TEXT
    )
    profile_folder: Path | None = setting(
        "Folder for samples of the traffic, taken when a tier's first tokens become slow; unset: "
        "the last ones are kept in memory alone.",
        None,
    )
    profile_tenants: TenantNames = setting(
        "How tenants stand in those: named, or hashed.", TenantNames.HASHED
    )
    cache_salt_key_file: Path | None = setting(
        "File with the key from which the salts are made that keep tenants out of each other's "
        "prefix cache. Unset: a new key with each start.",
        None,
    )

    def __post_init__(self) -> None:
        try:
            EngineAddress.parse(self.engine)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        for name in ("port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise SettingsError(f"{name}: must be between 0 and 65535")
        for name in (
            "max_body_bytes",
            "header_seconds",
            "engine_poll_seconds",
            "policy_poll_seconds",
            "shared_state_deadline_ms",
        ):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}: must be above 0")
        if self.identity_keys is not None and self.pool_identity_keys is not None:
            raise SettingsError("identity_keys and pool_identity_keys: only one of them")
        if self.leaving_seconds < 0:
            raise SettingsError("leaving_seconds: must not be below 0")
        if self.grace_in_force_seconds < self.drain_seconds:
            raise SettingsError("grace_seconds: must not be below drain_seconds")
        require_token_beyond_loopback(self.admin_address, self.admin_token_file)

    @property
    def grace_in_force_seconds(self) -> float:
        """``grace_seconds``, resolved."""
        if self.grace_seconds is not None:
            return self.grace_seconds
        return self.drain_seconds + 20.0

    @property
    def leaving_in_force_seconds(self) -> float:
        """``leaving_seconds``, within the drain."""
        return min(self.leaving_seconds, MOST_OF_DRAIN * self.drain_seconds)

    @property
    def admin_address(self) -> str:
        """Where the admin port is bound."""
        if self.admin_host is not None:
            return self.admin_host
        return "127.0.0.1" if self.admin_token_file is None else self.host


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags and environment; SettingsError says what is missing or wrong."""
    return parse_flags(
        Settings,
        arguments,
        environment,
        program="tidegate_sidecar",
        prefix="TIDEGATE_",
        description=__doc__,
    )
