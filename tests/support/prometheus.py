"""Prometheus' own programs, for what only they can judge: rules, queries, alerts."""

from __future__ import annotations

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def prometheus_programs() -> Path:
    """The folder of prometheus, promtool and alertmanager; brought on the first call."""
    made = subprocess.run(
        [REPOSITORY / "scripts/install-prometheus"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=280,
    )
    return Path(made.stdout.strip())
