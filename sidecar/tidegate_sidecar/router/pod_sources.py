"""Where a router learns which pods there are: a file here, or a cluster (:mod:`.pod_watch`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tidegate.scheduling.contracts import ContractError, PodList, ServingPod, loads

log = logging.getLogger("tidegate.router")


class PodSource(Protocol):
    """Knows the pods; what cannot be read leaves its last list."""

    def take(self) -> Sequence[ServingPod] | None:
        """All pods, each under a name of its own; None: they are as they were at the last call."""


class PodListFile:
    """``pods.json``, read again whenever its content changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None

    def take(self) -> Sequence[ServingPod] | None:
        """See :class:`PodSource`."""
        try:
            text = self._path.read_bytes()
            if text == self._seen:
                return None
            self._seen = text  # what is wrong with it is told once
            return loads(PodList, text, self._path.name).pods
        except (OSError, ContractError) as error:
            log.warning("the list of pods stays as it was: %s", error)
            return None
