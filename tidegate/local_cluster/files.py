"""Files that are either there whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


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
    """The value in a JSON file; None when there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
