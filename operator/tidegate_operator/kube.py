"""The Kubernetes API as this operator uses it: one small typed client.

Theory of operation: objects are plain JSON dicts (what SSA sends and LIST returns); the kinds are a
fixed table (:mod:`tidegate_operator.kinds`), so no discovery request, no discovery cache file and
no right to discover is needed. Everything goes through ``kubernetes.aio``'s dynamic client (its
typed APIs load 100 MB of models). Each request has a timeout, and every way in which it can fail is
one of the errors below:

* :class:`Unavailable`: no answer, a timeout, 429 or a server error: try again later;
* :class:`Conflict`: someone else was first (409): read again, decide again;
* :class:`Invalid`: the server read it and refuses it: trying again changes nothing;
* :class:`Forbidden`: a right is missing.

Not found is an answer, not an error, for reads and deletes.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self, cast

import aiohttp
import kopf
import orjson
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic.client import DynamicClient
from kubernetes.aio.dynamic.resource import Resource

from tidegate_operator import __version__
from tidegate_operator.kinds import KINDS, POD, Kind

log = logging.getLogger(__name__)

Json = dict[str, Any]

FIELD_MANAGER = "tidegate-operator"
REQUEST_TIMEOUT_SECONDS = 10.0
LIST_TIMEOUT_SECONDS = 30.0
_CANNOT_TELL = ("exceeded quota", "status unknown for quota", "cannot create resource")
"""In refusals of a dry run that say nothing about the pod: a quota that is used up or not counted
yet, an operator without the right."""


class KubeError(Exception):
    """A request to the API server that failed."""

    message = ""
    """What the server said, without the request."""


class Unavailable(KubeError):
    """No usable answer; the same request may succeed later."""


class Conflict(KubeError):
    """The object changed, exists already or is another one by now."""


class Invalid(KubeError):
    """The server refuses the content."""


class Forbidden(KubeError):
    """The operator's account lacks a right, or its credentials expired."""


class NotFound(KubeError):
    """The object, its namespace or its kind does not exist."""


async def load_configuration(kubeconfig: str | None = None) -> client.Configuration:
    """Credentials of the pod we run in, else of ``kubeconfig`` (unset: $KUBECONFIG or ~/.kube)."""
    configuration = client.Configuration()
    if kubeconfig is None:
        try:
            cast(Any, config.load_incluster_config)(client_configuration=configuration)
            return configuration
        except config.ConfigException:
            pass
    await cast(Any, config.load_kube_config)(
        config_file=kubeconfig, client_configuration=configuration
    )
    return configuration


def connection_info(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """The same credentials for kopf, read anew where a token may have been renewed."""
    if refresh := configuration.refresh_api_key_hook:
        refresh(configuration)
    token = str(configuration.api_key.get("BearerToken") or "")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=token.partition(" ")[2] or token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


class Kube:
    """The client; an async context manager."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._api: Any = client.ApiClient(configuration)
        self._api.user_agent = f"{FIELD_MANAGER}/{__version__}"
        self._dynamic: Any = cast(Any, DynamicClient)(self._api)
        self._resources = {
            kind: cast(Any, Resource)(
                prefix="apis" if kind.group else "api",
                group=kind.group or None,
                api_version=kind.version,
                kind=kind.name,
                name=kind.plural,
                namespaced=kind.namespaced,
                client=self._dynamic,
            )
            for kind in KINDS.values()
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._api.close()

    async def list(
        self, kind: Kind, namespace: str | None = None, label_selector: str | None = None
    ) -> list[Json]:
        """All objects of the kind, in one namespace or in all of them."""
        answer = await self._request(
            "get",
            kind,
            None,
            namespace,
            label_selector=label_selector,
            timeout_seconds=LIST_TIMEOUT_SECONDS,
        )
        items = cast(list[Json], answer["items"])
        for item in items:
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.name)
        return items

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Json | None:
        """The object, or None where there is none."""
        try:
            return await self._request("get", kind, name, namespace)
        except NotFound:
            return None

    async def create(self, kind: Kind, body: Json) -> Json:
        """Create; :class:`Conflict` where it exists."""
        return await self._request(
            "post", kind, None, body["metadata"].get("namespace"), body, manager=True
        )

    async def replace(self, kind: Kind, body: Json) -> Json:
        """Replace; :class:`Conflict` where ``metadata.resourceVersion`` is not the newest."""
        metadata = body["metadata"]
        return await self._request(
            "put", kind, metadata["name"], metadata.get("namespace"), body, manager=True
        )

    async def apply(self, kind: Kind, body: Json) -> Json:
        """Server-side apply; takes over every field of ``body``.

        With ``metadata.resourceVersion`` it is a :class:`Conflict` where that is not the newest.
        """
        metadata = body["metadata"]
        return await self._request(
            "patch",
            kind,
            metadata["name"],
            metadata.get("namespace"),
            {"apiVersion": kind.api_version, "kind": kind.name, **body},
            content_type="application/apply-patch+yaml",
            force_conflicts="true",
            manager=True,
        )

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server has this kind; by discovery, which everyone may read."""
        try:
            found = await self._send("get", f"/apis/{kind.group}/{kind.version}")
        except (NotFound, Forbidden):
            return False
        return any(resource["name"] == kind.plural for resource in found["resources"])

    async def refusal(self, pod: Json) -> str | None:
        """Why the API server would refuse this pod, fields that it does not know included; None:
        it would take it, or cannot tell.

        A dry run goes through all admission and stores nothing. What depends on what runs just now
        (a quota that the present pods use up) is no fault of the pod.
        """
        namespace = pod["metadata"]["namespace"]
        try:
            await self._send(
                "post",
                self._resources[POD].path(namespace=namespace),
                {"apiVersion": POD.api_version, "kind": POD.name, **pod},
                dry_run="All",
                query_params=[("fieldValidation", "Strict")],
            )
        except (Invalid, Forbidden) as error:
            if any(told in str(error) for told in _CANNOT_TELL):
                log.info("a pod could not be checked: %s", error)
                return None
            return error.message
        except Conflict:  # by chance somebody's pod has its name
            return None
        return None

    async def patch_status(self, kind: Kind, owner: Json, status: Json) -> Json | None:
        """Merge ``status`` into the status of ``owner``; None where that object is gone.

        The uid goes along: an object made anew under the same name is not given the old one's
        status.
        """
        metadata = owner["metadata"]
        try:
            return await self._request(
                "patch",
                kind,
                metadata["name"],
                metadata.get("namespace"),
                {"metadata": {"uid": metadata["uid"]}, "status": status},
                subresource="status",
                content_type="application/merge-patch+json",
                manager=True,
            )
        except NotFound:
            return None

    async def delete(self, kind: Kind, owned: Json) -> None:
        """Delete this very object (by uid); nothing where it is gone."""
        metadata = owned["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}}
        try:
            await self._request("delete", kind, metadata["name"], metadata.get("namespace"), body)
        except NotFound:
            return

    async def _request(
        self,
        method: str,
        kind: Kind,
        name: str | None,
        namespace: str | None,
        body: Json | None = None,
        *,
        subresource: str = "",
        content_type: str | None = None,
        label_selector: str | None = None,
        force_conflicts: str | None = None,
        manager: bool = False,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> Json:
        path = self._resources[kind].path(name=name, namespace=namespace)
        return await self._send(
            method,
            f"{path}/{subresource}" if subresource else path,
            body,
            content_type=content_type,
            label_selector=label_selector,
            force_conflicts=force_conflicts,
            field_manager=FIELD_MANAGER if manager else None,
            timeout_seconds=timeout_seconds,
        )

    async def _send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        **parameters: Any,
    ) -> Json:
        try:
            response = await self._dynamic.request(
                method,
                path,
                body=body,
                serialize=False,
                _request_timeout=timeout_seconds,
                **parameters,
            )
            return cast(Json, orjson.loads(await response.read()))
        except ApiException as error:
            raise _translated(error, f"{method} {path}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"{method} {path}: {reason}") from None


def _translated(error: Any, request: str) -> KubeError:
    """The error class for an HTTP answer of the API server."""
    status = int(error.status or 0)
    try:
        message = orjson.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = str(error.reason or "no message")
    text = f"{request}: {status} {message}"
    made = _error_class(status, message)(text)
    made.message = message
    return made


def _error_class(status: int, message: str) -> type[KubeError]:
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status in (401, 403):
        return Forbidden
    # An unknown field in a server-side apply of a built-in kind is answered with 500.
    if status in (400, 413, 415, 422) or "typed patch object" in message:
        return Invalid
    return Unavailable
