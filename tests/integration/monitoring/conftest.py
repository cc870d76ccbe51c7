"""Fixtures of what needs Prometheus' own programs."""

from pathlib import Path

import pytest

from testbed.prometheus import prometheus_programs


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of prometheus, promtool and alertmanager."""
    return prometheus_programs()
