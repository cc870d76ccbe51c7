"""A folder of files that change all at once, laid out as kubelet does.

    config -> ..data/config        what the container reads
    ..data -> ..2026_07_24_...     one link, swapped by a rename
    ..2026_07_24_.../config        the files of one generation

A reader that opened a file keeps the generation it opened; one that follows `..data` never sees
files of two generations. Watchers see one rename of `..data`.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CURRENT = "..data"


@dataclass(frozen=True, slots=True)
class Payload:
    """A file's content and permission bits."""

    content: bytes
    mode: int = 0o644


def write(folder: Path, files: Mapping[str, Payload]) -> bool:
    """Makes `files` (by relative path) the content of the volume; False when it is so already."""
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / _CURRENT
    if current.is_symlink() and _read(current) == dict(files):
        return False
    old = folder / os.readlink(current) if current.is_symlink() else None
    generation = Path(tempfile.mkdtemp(prefix="..", suffix="_generation", dir=folder))
    generation.chmod(0o755)
    for path, payload in files.items():
        file = generation / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload.content)
        file.chmod(payload.mode)
    link = folder / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(generation.name)
    link.rename(current)
    _link_names(folder, {path.split("/", 1)[0] for path in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    _remove_strays(folder, generation)
    return True


def _link_names(folder: Path, names: set[str]) -> None:
    """The links that the container sees; those of files that went away are removed last."""
    present = {entry.name for entry in folder.iterdir() if not entry.name.startswith("..")}
    for name in names - present:
        (folder / name).symlink_to(f"{_CURRENT}/{name}")
    for name in present - names:
        (folder / name).unlink()


def _remove_strays(folder: Path, generation: Path) -> None:
    """What a write that was cut short left behind."""
    for entry in folder.iterdir():
        if entry.name.endswith("_generation") and entry.name != generation.name:
            shutil.rmtree(entry, ignore_errors=True)


def _read(generation: Path) -> dict[str, Payload]:
    return {
        str(file.relative_to(generation)): Payload(file.read_bytes(), file.stat().st_mode & 0o777)
        for file in generation.rglob("*")
        if file.is_file()
    }
