"""What every command on a local cluster shares: its name, finding it, how its errors are told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.errors import CommandError, os_error_text
from tidegate.local_cluster.binaries import Binaries, find_binaries
from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.paths import DEFAULT_CLUSTER, cache_directory, cluster_directory

API_SERVER = "kube-apiserver"

Name = Annotated[
    str, typer.Option("--name", envvar="TIDEGATE_CLUSTER", help="Which local cluster.")
]


@contextmanager
def told() -> Iterator[None]:
    """What is wrong with a cluster or the machine ends the command with a message."""
    try:
        yield
    except LocalClusterError as error:
        raise CommandError(str(error)) from error
    except subprocess.TimeoutExpired as error:
        program = Path(error.cmd[0]).name
        raise CommandError(f"{program} gave no answer within {error.timeout:.0f} s") from error
    except OSError as error:
        raise CommandError(os_error_text(error)) from error


def find_cluster(name: str) -> LocalCluster | None:
    """The cluster of that name, also a half-made one; None where there is none."""
    cache = cache_directory()
    # A cluster can be stopped even after its programs were removed from the cache.
    programs = find_binaries(cache, cluster_directory(name, cache)) or Binaries(cache / "bin")
    cluster = LocalCluster(name, programs, cache)
    return cluster if cluster.state.exists() else None


def existing_cluster(name: str) -> LocalCluster:
    """The cluster of that name; CommandError where there is none."""
    cluster = find_cluster(name)
    if cluster is None or not cluster.exists:
        raise CommandError(f"there is no cluster {name!r}: `{_up(name)}` makes one")
    return cluster


def answering_cluster(name: str) -> LocalCluster:
    """The cluster of that name, whose API server runs; CommandError where there is none."""
    cluster = existing_cluster(name)
    if not any(state.running for state in cluster.states() if state.name == API_SERVER):
        raise CommandError(f"cluster {name!r} is down: `{_up(name)}` starts it")
    return cluster


def _up(name: str) -> str:
    return "tidegate up" if name == DEFAULT_CLUSTER else f"tidegate up --name {name}"
