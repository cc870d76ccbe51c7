"""Which command an image stands for: no image is ever pulled.

A table in TOML maps an image's repository (no tag, no digest) to what its entrypoint would run:

    ["ghcr.io/tidegate/sidecar"]
    command = ["{python}", "-m", "tidegate_sidecar"]
    programs = { tool = ["{python}", "-m", "tidegate.tool"] }   # what `tool` is inside the image
    environment = { LEVEL = "info" }                            # a container's own `env` wins

`{python}` is the interpreter that runs the kubelet. Where a container has a `command` it replaces
the entrypoint, as in Kubernetes. `programs` are what the image has on its PATH: a script each.
"""

import shlex
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


class UnmappedImage(Exception):
    """No table maps this image."""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image's repository stands for on this machine."""

    command: tuple[str, ...]
    programs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def argv(self, command: Sequence[str], args: Sequence[str]) -> list[str]:
        """What a container with this `command` and these `args` runs."""
        return [*(command or self.command), *args]

    def install_programs(self, folder: Path) -> None:
        """Writes a script for each program into `folder`, which belongs first on the PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, words in self.programs.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            script.chmod(0o755)


def repository(image: str) -> str:
    """The repository of an image reference: `registry:5000/a/b:tag@sha256:...` less its end."""
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    name = head + slash + last.split(":", 1)[0]
    for prefix in ("docker.io/library/", "docker.io/"):
        name = name.removeprefix(prefix)
    return name


class ImageTable:
    """Images by repository, read from files; a later file wins over an earlier one."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)

    def find(self, image: str) -> Image:
        """Reads the tables (a mended one is seen on the next try). Raises UnmappedImage."""
        wanted = repository(image)
        found: Image | None = None
        for file in self._files:
            try:
                entries = load(file)
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise UnmappedImage(f"{file}: {error}") from error
            found = entries.get(wanted, found)
        if found is None:
            where = " or ".join(str(file) for file in self._files)
            raise UnmappedImage(
                f'no image is pulled here, and "{wanted}" is not mapped to a command: '
                f"add it to {where}"
            )
        return found


def load(file: Path) -> dict[str, Image]:
    """The images in one table. Raises ValueError where it is malformed."""
    images: dict[str, Image] = {}
    for name, entry in tomllib.loads(file.read_text()).items():
        if not isinstance(entry, dict) or set(entry) - {"command", "programs", "environment"}:
            raise ValueError(f'["{name}"] may hold `command`, `programs` and `environment` only')
        programs = {
            program: _words(name, words) for program, words in entry.get("programs", {}).items()
        }
        environment = entry.get("environment", {})
        if not all(isinstance(value, str) for value in environment.values()):
            raise ValueError(f'["{name}"]: the values of `environment` are strings')
        command = _words(name, entry.get("command"))
        images[repository(name)] = Image(command, programs, environment)
    return images


def _words(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError(f'["{name}"]: a command is a list of words, not {value!r}')
    return tuple(word.replace("{python}", sys.executable) for word in value)
