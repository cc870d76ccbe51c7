"""Settings as a documented dataclass, read from flags, else the environment, else the default."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S")


class SettingsError(ValueError):
    """A setting that cannot hold; the message names it and the cure."""


def setting(text: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of a dataclass of settings, with its help."""
    return field(default=default, metadata={"help": text})


def require_token_beyond_loopback(admin_host: str, token_file: Path | None) -> None:
    """SettingsError where an admin port that others reach asks for no token."""
    loopback = admin_host in ("localhost", "::1") or admin_host.startswith("127.")
    if token_file is None and not loopback:
        raise SettingsError(
            f"admin_host: {admin_host} is not a loopback address, which needs an admin_token_file"
        )


def parse_flags(
    settings: type[S],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    program: str,
    prefix: str,
    description: str,
) -> S:
    """Settings of that class; ``prefix``: of the variables. SettingsError says what is wrong."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    kinds = typing.get_type_hints(settings)
    fields = dataclasses.fields(typing.cast(Any, settings))
    for each in fields:
        shown = "required" if each.default is dataclasses.MISSING else each.default
        parser.add_argument(
            "--" + each.name.replace("_", "-"),
            dest=each.name,
            help=f"{each.metadata['help']} ({shown}; {prefix}{each.name.upper()})",
        )
    given = vars(parser.parse_args(arguments))
    values: dict[str, Any] = {}
    for each in fields:
        text = given[each.name]
        if text is None:
            text = environment.get(f"{prefix}{each.name.upper()}")
        if text is not None:
            values[each.name] = _convert(each.name, kinds[each.name], text)
        elif each.default is dataclasses.MISSING:
            raise SettingsError(f"--{each.name.replace('_', '-')} is required")
    return settings(**values)


def _convert(name: str, kind: Any, text: str) -> Any:
    for wanted in (int, float, Path):
        if kind is wanted or wanted in typing.get_args(kind):
            try:
                return wanted(text)
            except ValueError:
                raise SettingsError(f"{name}: {text!r} is not a number") from None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if text not in list(kind):
            raise SettingsError(f"{name}: must be one of {', '.join(kind)}")
        return kind(text)
    return text
