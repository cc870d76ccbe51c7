"""`tidegate keys new`: API keys and their hashes.

A key is shown once, here, and kept nowhere: the cluster gets its SHA-256 (or the key in a Secret
that the tenant's own people make). 256 random bits, so that a hash without salt cannot be
guessed from.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated

import typer

from tidegate.cli.errors import CommandError

KEY_BYTES = 32
"""256 bits; the operator refuses less in a Secret."""

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")

keys = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="API keys of tenants.",
)


@keys.callback()
def _group() -> None:
    """API keys of tenants."""


@keys.command()
def new(
    prefix: Annotated[
        str, typer.Option(help="Put before the key and a '-', to tell keys apart at a glance.")
    ] = "tg",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many keys.")] = 1,
    name: Annotated[
        str,
        typer.Option(help="Name of the entry in spec.apiKeys; numbered where there are several."),
    ] = "key",
) -> None:
    """Make keys: each is printed once, with its SHA-256 as YAML for a Tenant's spec."""
    if not _PREFIX.fullmatch(prefix):
        raise CommandError(
            "--prefix takes at most 32 letters, digits, '-' and '_', a letter or digit first", 2
        )
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?", name):
        raise CommandError("--name takes at most 58 lower-case letters, digits and '-'", 2)
    made = [make_key(prefix) for _ in range(count)]
    names = [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
    typer.echo("# Hand each key to its tenant; it is shown only this once.")
    for entry, key in zip(names, made, strict=True):
        typer.echo(f"# {entry}: {key}")
    typer.echo("apiKeys:")
    for entry, key in zip(names, made, strict=True):
        typer.echo(f"- name: {entry}\n  sha256: {sha256(key)}")


def make_key(prefix: str) -> str:
    """A new key: the prefix, '-', and 256 random bits in URL-safe base64."""
    return f"{prefix}-{secrets.token_urlsafe(KEY_BYTES)}"


def sha256(key: str) -> str:
    """What the cluster knows of a key: lower-case hexadecimal SHA-256 of its UTF-8 bytes."""
    return hashlib.sha256(key.encode()).hexdigest()
