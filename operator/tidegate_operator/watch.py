"""kopf as the ear of the operator: it tells *that* something changed, never *what is*.

Theory of operation. kopf runs in a thread of its own with its own loop (run embedded, it takes over
signal handlers and cancels every task of the loop at its end). Handlers are ``on.event`` only, so
kopf writes nothing: no finalizer, no annotation, no handler result. Each event is passed to the
operator's loop by ``call_soon_threadsafe``; what is read there comes from the operator's own LIST.
That is why a ghost (an object deleted while kopf's watch was away, of which kopf never tells)
cannot be served for longer than one resync.

kopf's operator returns by exception on several answers of the API server, so a supervisor starts
it anew, with a pause, and reports each start as a reason to LIST everything. Its stop flag is an
event of its own loop: for a flag of another kind kopf waits in a thread of the loop's executor, and
a loop does not end before that thread does, so a watch that died would never start anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from tidegate_operator.kinds import Kind
from tidegate_operator.kube import Json
from tidegate_operator.names import GROUP

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 2.0
CLOSE_SECONDS = 0.25

Listener = Callable[[Kind, "str | None", Json], None]
"""Called in kopf's thread with the kind, the type (None: initial LIST) and the object."""


class Watcher:
    """One kopf operator in one thread, kept running."""

    def __init__(
        self,
        name: str,
        kinds: Mapping[Kind, str],
        namespaces: Sequence[str],
        on_event: Listener,
        on_start: Callable[[], None],
        login: Callable[[], kopf.ConnectionInfo],
    ) -> None:
        """``kinds`` maps each kind to the label selector of its objects ("" selects all)."""
        self._kinds = kinds
        self._namespaces = tuple(namespaces)
        self._on_event = on_event
        self._on_start = on_start
        self._login = login
        self._stop = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        """kopf's loop, and what ends it."""
        self._thread = threading.Thread(target=self._run, name=f"kopf-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stop kopf and wait for its thread."""
        self._stop.set()
        if self._running is not None:
            loop, ending = self._running
            with contextlib.suppress(RuntimeError):  # it ended before
                loop.call_soon_threadsafe(ending.set)
        await asyncio.to_thread(self._thread.join, 10.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._on_start()
            try:
                asyncio.run(self._watch())
                if not self._stop.is_set():
                    log.warning("watching ended; starting anew")
            except BaseException as error:
                # Also a cancellation from within: a thread that ended would be missed by nobody.
                log.warning("watching failed; starting anew: %s: %s", type(error).__name__, error)
            self._stop.wait(RESTART_PAUSE_SECONDS)

    async def _watch(self) -> None:
        ending = asyncio.Event()
        self._running = (asyncio.get_running_loop(), ending)
        if self._stop.is_set():  # by who saw no loop yet
            return
        try:
            await kopf.operator(
                registry=self._registry(ending),
                settings=self._settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=ending,
            )
        finally:
            # TLS connections take a moment to close, which needs the loop.
            await asyncio.sleep(CLOSE_SECONDS)

    def _registry(self, ending: asyncio.Event) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login")(lambda **_: self._login())

        async def over(**_: Any) -> None:
            # Of a watch that died, kopf waits 5 s for whoever still waits for the flag.
            ending.set()

        kopf.on.cleanup(registry=registry, id="over")(over)
        for kind in self._kinds:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
                self._handler(kind)
            )
        return registry

    def _handler(self, kind: Kind) -> Callable[..., None]:
        def changed(type: str | None, event: Mapping[str, Any], **_: Any) -> None:
            self._on_event(kind, type, dict(event["object"]))

        return changed

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # Nothing is ever stored by these names. But kopf takes away what it believes to be its own
        # and no longer needed, which by the default names is that of any other kopf operator.
        settings.persistence.finalizer = f"{GROUP}/never-set"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
            prefix=GROUP, v1=False
        )
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
            prefix=GROUP, key="never-set", v1=False
        )
        # CRDs deleted and made anew are noticed by the supervisor's restart, without any right
        # to read CRDs.
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        settings.networking.error_backoffs = (1, 1, 2, 3, 5, 5, 5)
        for kind, selector in self._kinds.items():
            if selector:
                key = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
                settings.watching.label_selectors[key] = selector
        return settings
