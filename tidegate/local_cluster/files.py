"""Files that are either there whole or not at all."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tidegate.local_cluster.errors import LocalClusterError


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Writes a file by renaming a complete one over it, so that no reader sees half of it."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file; None when there is no such file. Raises LocalClusterError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LocalClusterError(f"{path} is damaged: {error}") from None


def remove_tree(folder: Path) -> None:
    """Removes a folder and all below it, also what a pod took its own rights away from."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder)
