"""Writes ``crds/*.yaml`` and ``docs/api.md``: ``python -m tidegate_operator.api.generate ROOT``."""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate_operator.api.crd import render_crds
from tidegate_operator.api.docs import render_docs


def generated_files() -> dict[str, str]:
    """Path below the repository's root -> content."""
    crds = {f"crds/{name}": text for name, text in render_crds().items()}
    return {**crds, "docs/api.md": render_docs()}


def main(root: Path) -> None:
    """Write all of them below ``root``."""
    for name, text in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
