"""The `tidegate` command: a table of commands, each imported only when it is run.

A command is one line of ``COMMANDS``: its module, the attribute there (a function with typer's
annotations, or a ``typer.Typer`` for a group of commands) and the line that ``--help`` shows.
Importing lazily keeps ``tidegate --version`` fast and lets a command that needs an optional
dependency fail alone, naming the extra that brings it.

A command ends with an error by raising :class:`tidegate.cli.errors.CommandError`: one line on
stderr and an exit code, no traceback. Wrong arguments exit with 2.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidegate.cli.errors import INTERRUPTED, CommandError


@dataclass(frozen=True, slots=True)
class CommandSource:
    """Where a command lives and what ``tidegate --help`` says of it."""

    module: str
    attribute: str
    help: str
    extra: str
    """The optional dependencies (``pip install tidegate[extra]``) that it needs."""


COMMANDS: dict[str, CommandSource] = {
    "up": CommandSource(
        "tidegate.cli.cluster", "up", "Start a local cluster with Tidegate on it.", "local-cluster"
    ),
    "down": CommandSource("tidegate.cli.cluster", "down", "Stop it.", "local-cluster"),
    "status": CommandSource(
        "tidegate.cli.cluster", "status", "What runs, and what failed.", "local-cluster"
    ),
    "logs": CommandSource("tidegate.cli.cluster", "logs", "A pod's log.", "local-cluster"),
    "kubectl": CommandSource(
        "tidegate.cli.cluster", "kubectl", "kubectl on the local cluster.", "local-cluster"
    ),
    "load": CommandSource(
        "tidegate.cli.load", "load", "Send a scenario's requests and report.", "simulator"
    ),
    "simulate": CommandSource(
        "tidegate.cli.simulate",
        "simulate",
        "What a policy would do, in virtual time.",
        "simulator,operator",
    ),
    "top": CommandSource(
        "tidegate.cli.top",
        "top",
        "Pools, tiers and tenants, while it happens.",
        "simulator,local-cluster",
    ),
    "rules": CommandSource(
        "tidegate.cli.rules",
        "rules",
        "Alerts on what tiers are promised, for Prometheus.",
        "operator,local-cluster",
    ),
    "explain": CommandSource(
        "tidegate.cli.explain",
        "explain",
        "Why a request or a tenant waits, waited or was refused.",
        "local-cluster",
    ),
    "demo": CommandSource(
        "tidegate.cli.demo",
        "demo",
        "A noisy neighbour, with and without Tidegate.",
        "simulator,local-cluster",
    ),
    "serve": CommandSource(
        "tidegate.cli.serve", "serve", "The sidecar alone, before any engine.", "sidecar"
    ),
    "router": CommandSource(
        "tidegate.cli.router", "router", "The edge alone, before several sidecars.", "sidecar"
    ),
    "keys": CommandSource("tidegate.cli.keys", "keys", "Make API keys and their hashes.", ""),
}


class _LazyCommand(TyperCommand):
    """Stands in ``--help`` for a command and becomes it when it is run."""

    def __init__(self, name: str, source: CommandSource) -> None:
        super().__init__(name, help=source.help)
        self._source = source

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return _load(self.name or "", self._source).make_context(info_name, args, parent, **extra)


class _LazyGroup(TyperGroup):
    """The table as a command group."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        source = COMMANDS.get(cmd_name)
        return None if source is None else _LazyCommand(cmd_name, source)

    def invoke(self, ctx: Any) -> Any:
        """Also a ^C while a command is still being imported is told."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise CommandError("interrupted", INTERRUPTED) from None


def _load(name: str, source: CommandSource) -> Any:
    try:
        target = getattr(importlib.import_module(source.module), source.attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0].startswith("tidegate"):
            raise
        raise CommandError(
            f"tidegate {name} needs {error.name}: install it with "
            f"pip install 'tidegate[{source.extra}]'"
        ) from None
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name)(target)
        target = single
    return typer.main.get_command(target)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {importlib.metadata.version('tidegate')}")
        raise typer.Exit


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Many tenants share one pool of vLLM GPUs and each keeps its promised latency.",
)


@app.callback(no_args_is_help=True)
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the ``tidegate`` command."""
    try:
        app()
    except CommandError as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(error.exit_code)
