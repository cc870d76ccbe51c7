"""Events on pods, as `kubectl describe` shows them: one for each (pod, reason, message)."""

import asyncio
import hashlib
import logging
import time

from tidegate.local_cluster.kubelet.api import Api, ApiError, Object, Unreachable
from tidegate.local_cluster.kubelet.pods import timestamp, uid_of

log = logging.getLogger(__name__)

_REPEAT_SECONDS = 60.0
_MESSAGE_LIMIT = 1000


class EventRecorder:
    """Writes events in the background; losing one is no failure.

    The same event on the same pod is written at most once a minute, so that a failing probe makes a
    line for a person and not a load on the API server.
    """

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._counts: dict[str, tuple[int, float, float]] = {}
        self._queue: asyncio.Queue[tuple[str, Object, int]] = asyncio.Queue(maxsize=1000)

    def record(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Notes an event of type `kind` (Normal or Warning) on a pod."""
        identity = f"{uid_of(pod)}/{reason}/{message}"
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        now = time.time()
        count, first, written = self._counts.get(name, (0, now, 0.0))
        due = now - written >= _REPEAT_SECONDS
        self._counts[name] = (count + 1, first, now if due else written)
        if not due or self._queue.full():
            return
        metadata = pod["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{name}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:_MESSAGE_LIMIT],
            "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node_name,
            "firstTimestamp": timestamp(first),
            "lastTimestamp": timestamp(now),
            "count": count + 1,
        }
        self._queue.put_nowait((name, event, count))

    def forget(self, pod: Object) -> None:
        """Drops old counts; called when a pod goes."""
        horizon = time.time() - 3600
        self._counts = {key: value for key, value in self._counts.items() if value[2] > horizon}

    async def run(self) -> None:
        while True:
            _, event, count = await self._queue.get()
            path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
            try:
                if count == 0:
                    await self._create(path, event)
                else:
                    changes = {"count": event["count"], "lastTimestamp": event["lastTimestamp"]}
                    await self._api.patch(f"{path}/{event['metadata']['name']}", changes)
            except (ApiError, Unreachable) as error:
                log.debug("event lost: %s", error)

    async def _create(self, path: str, event: Object) -> None:
        try:
            await self._api.create(path, event)
        except ApiError as error:
            if error.status != 409:  # there already, from before the kubelet started
                raise
