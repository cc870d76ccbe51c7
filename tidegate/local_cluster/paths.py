"""Where the local cluster keeps its files.

All of it lies below one cache folder: `bin/` (built once, shared by every cluster), `tools/` (a Go
from PyPI where the machine has none) and `clusters/NAME/` (etcd's data, keys, logs, pods).
"""

import os
import re
from pathlib import Path

from tidegate.local_cluster.errors import LocalClusterError

DEFAULT_CLUSTER = "tidegate"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def cache_directory() -> Path:
    """`$TIDEGATE_CACHE`, or `tidegate` in the user's cache folder; not created here."""
    own = os.environ.get("TIDEGATE_CACHE")
    try:
        if own:
            return Path(own).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser().absolute() / "tidegate"
    except RuntimeError:
        raise LocalClusterError(
            "no home folder to keep files in: set TIDEGATE_CACHE to a folder"
        ) from None


def cluster_directory(name: str, cache: Path | None = None) -> Path:
    """The state folder of the cluster `name`. Raises LocalClusterError for an unfit name."""
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f"cluster name {name!r}: use at most 40 lower-case letters, digits and '-', "
            "beginning and ending with a letter or digit"
        )
    return (cache or cache_directory()) / "clusters" / name
