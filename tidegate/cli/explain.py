"""`tidegate explain REQUEST|TENANT`: why it waits, waited or was refused.

A tenant is named namespace/name, anything else is a request's id (`x-request-id`). Each sidecar
knows its own engine's requests, so all are asked, one after the other: the one at `--sidecar`, or
every pod of the cluster, directly where its address can be reached and through `kubectl
port-forward` elsewhere.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tidegate.cli.errors import CommandError
from tidegate.cli.explain_text import request_lines, tenant_lines
from tidegate.cli.sidecars import Kubectl, SidecarAddress, sidecars_of_cluster
from tidegate.scheduling.contracts import (
    ContractError,
    RequestExplanation,
    TenantExplanation,
    dumps,
    loads,
)

_SECONDS = 10.0
_NOT_FOUND = 404
_TENANTS = "tenants.tidegate.io"

T = TypeVar("T")
Explanation = RequestExplanation | TenantExplanation


def explain(
    what: Annotated[str, typer.Argument(help="A request's id, or a tenant's namespace/name.")],
    sidecar: Annotated[
        str | None, typer.Option(help="Admin URL of one sidecar, such as http://127.0.0.1:8001.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with that one's bearer token."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Ask this cluster's sidecars.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(envvar="TIDEGATE_CLUSTER", help="Ask those of this local cluster."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a list.")] = False,
) -> None:
    """Say why a request or a tenant's requests wait, waited or were refused."""
    if sidecar is not None and kubeconfig is not None:
        raise CommandError("give --sidecar or --kubeconfig, not both", 2)
    if sidecar is None and token_file is not None:
        raise CommandError("--token-file goes with --sidecar", 2)
    failures: list[CommandError] = []
    kubectl: Kubectl | None = None
    with ExitStack() as stack:
        if sidecar is not None:
            token = None if token_file is None else _token(token_file)
            sidecars: Iterable[SidecarAddress] = [SidecarAddress("", sidecar.rstrip("/"), token)]
        else:
            kubectl = _kubectl(kubeconfig, name)
            sidecars = sidecars_of_cluster(stack, kubectl, failures)
        found = list(_explanations(sidecars, what, failures))
    fault = ""
    if kubectl is not None and _is_tenant(what) and (found or not failures):
        fault = fault_of_tenant(kubectl, what, served=bool(found))
    if failures and not found:
        raise failures[0]
    for failure in failures:
        typer.echo(f"tidegate: {failure}", err=True)
    if not found:
        if _is_tenant(what):
            raise CommandError(f"no sidecar's policy has a tenant {what!r}{fault}")
        raise CommandError(
            f"no sidecar knows a request {what!r} (any more); a tenant is NAMESPACE/NAME"
        )
    if fault:
        typer.echo(f"tidegate: tenant {what!r}{fault}", err=True)
    _print(found, as_json=as_json)


def _print(found: Sequence[tuple[SidecarAddress, Explanation]], *, as_json: bool) -> None:
    if as_json:
        rows = [{"sidecar": one.pod, **json.loads(dumps(each))} for one, each in found]
        typer.echo(json.dumps(rows, indent=2))
        return
    for one, explanation in found:
        if one.pod:
            typer.echo(f"{one.pod}:")
        for line in _lines(explanation):
            typer.echo(line)


def fault_of_tenant(kubectl: Kubectl, tenant: str, *, served: bool) -> str:
    """What the conditions of a Tenant, `namespace/name`, find wrong; empty: nothing.

    Of one that no sidecar knows (not ``served``) something always is: also that it does not exist.
    """
    namespace, name = tenant.split("/", 1)
    try:
        found = kubectl.json("get", f"{_TENANTS}/{name}", f"--namespace={namespace}")
    except CommandError as error:
        return "" if served else f": {error}"
    conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", [])}
    for kind in ("Accepted", "ResolvedRefs") if served else ("Accepted", "ResolvedRefs", "Ready"):
        condition = conditions.get(kind, {"status": "True"})
        if condition["status"] != "True":
            return f": {condition['reason']}: {condition['message']}"
    return "" if served else f": see `kubectl describe {_TENANTS} {name} -n {namespace}`"


def _token(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise CommandError(f"--token-file: {file} cannot be read as text", 2) from None


def _is_tenant(what: str) -> bool:
    return "/" in what


def _lines(explanation: Explanation) -> Iterator[str]:
    if isinstance(explanation, TenantExplanation):
        return tenant_lines(explanation)
    return request_lines(explanation)


def _explanations(
    sidecars: Iterable[SidecarAddress], what: str, failures: list[CommandError]
) -> Iterator[tuple[SidecarAddress, Explanation]]:
    """Of a request the first that is found; of a tenant each sidecar's. ``failures`` grows by those
    that cannot be asked: one that starts or ends hides no other's answer."""
    quoted = "/".join(urllib.parse.quote(part, safe="") for part in what.split("/"))
    tenant = _is_tenant(what)
    for one in sidecars:
        try:
            body = _get(one, f"/explain/{'tenants' if tenant else 'requests'}/{quoted}")
        except CommandError as failure:
            failures.append(failure)
            continue
        if body is not None and tenant:
            yield one, _read(TenantExplanation, body, one)
        elif body is not None:
            yield one, _read(RequestExplanation, body, one)
            return


def _read(kind: type[T], body: bytes, one: SidecarAddress) -> T:
    try:
        return loads(kind, body)
    except ContractError as error:
        raise CommandError(f"{one.pod or one.url} answers in another version: {error}") from None


def _get(one: SidecarAddress, path: str) -> bytes | None:
    """The answer; None: it is not known there."""
    headers = {} if one.token is None else {"Authorization": f"Bearer {one.token}"}
    where = one.pod or one.url
    try:
        request = urllib.request.Request(one.url + path, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_SECONDS) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _NOT_FOUND:
                return None
            raise CommandError(f"{where} answers {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise CommandError(f"{where} cannot be asked: {reason}") from None


def _kubectl(kubeconfig: Path | None, name: str | None) -> Kubectl:
    """kubectl with the given cluster, else with the local one."""
    try:
        from tidegate.cli.cluster_objects import kubectl_of
        from tidegate.cli.existing_cluster import answering_cluster, told
        from tidegate.local_cluster.paths import DEFAULT_CLUSTER
    except ModuleNotFoundError as error:
        raise CommandError(
            f"without --sidecar this needs {error.name}: install it with "
            "pip install 'tidegate[local-cluster]'"
        ) from None
    with told():
        if kubeconfig is None:
            answering_cluster(name or DEFAULT_CLUSTER)
    return kubectl_of(name or DEFAULT_CLUSTER, kubeconfig)
