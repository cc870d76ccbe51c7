"""`tidegate explain` before a real sidecar: named by its URL, and found through kubectl."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.faulty_engine import FaultyEngine
from support.sidecar import ALICE, SidecarUnderTest, policy_document, sidecar_under_test, speak

from tidegate.cli.errors import CommandError
from tidegate.cli.explain import _explanations, explain, fault_of_tenant
from tidegate.cli.sidecars import Kubectl, SidecarAddress, sidecars_of_cluster

pytestmark = pytest.mark.integration

TOKEN = "secret-token"
KUBECTL = """#!{python}
import json, sys, time
arguments = sys.argv[1:]
if "pods" in arguments:
    labels = {{"tidegate.io/pool": "chat"}}
    metadata = {{"namespace": "team-a", "name": "chat-0", "labels": labels}}
    pod = {{"metadata": metadata, "status": {{"podIP": "10.0.0.9"}}}}
    unready = {{"metadata": pod["metadata"] | {{"name": "chat-1"}}, "status": {{}}}}
    deleted = pod | {{"metadata": pod["metadata"] | {{"namespace": "team-b"}}}}
    print(json.dumps({{"items": [unready, deleted, pod]}}))
elif "--namespace=team-b" in arguments:
    sys.exit('secrets "chat-admin" not found')
elif "secret" in arguments:
    assert "chat-admin" in arguments and "--namespace=team-a" in arguments
    print(json.dumps({{"data": {{"token": "{token}"}}}}))
else:
    assert arguments[1:] == ["port-forward", "--namespace=team-a", "pod/chat-0", ":8001"]
    print("Forwarding from 127.0.0.1:{port} -> 8001", flush=True)
    time.sleep(60)
"""


async def explained(what: str, url: str, token_file: Path | None, as_json: bool = False) -> None:
    await asyncio.to_thread(explain, what, url, token_file, None, None, as_json)


async def test_a_sidecar_by_its_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    limit = {"name": "minute", "per": "Minute", "requests": 1}
    async with (
        FaultyEngine() as engine,
        sidecar_under_test(
            tmp_path,
            engine,
            policy=policy_document(tier={"rate_limits": [limit]}),
            admin_token_file=token,
        ) as sidecar,
    ):
        await speak(sidecar)
        _, headers, _ = await speak(sidecar)
        url = sidecar.admin_url
        await explained(headers["x-request-id"], url, token)
        assert (
            "by limit minute (1 requests a minute), told to retry after" in capsys.readouterr().out
        )
        await explained(ALICE, url + "/", token, as_json=True)
        (row,) = json.loads(capsys.readouterr().out)
        assert row["requests_total"] == {"completed": 1, "rate_limited": 1}
        with pytest.raises(CommandError, match="no sidecar knows a request 'no-such-id'"):
            await explained("no-such-id", url, token)
        with pytest.raises(CommandError, match="no sidecar's policy has a tenant 'a/b/"):
            await explained("a/b/../c", url, token)
        with pytest.raises(CommandError, match="answers 401"):
            await explained(ALICE, url, None)
        await found_through_kubectl(tmp_path, sidecar)


async def found_through_kubectl(folder: Path, sidecar: SidecarUnderTest) -> None:
    kubectl = folder / "kubectl"
    token = base64.b64encode(TOKEN.encode()).decode()
    kubectl.write_text(
        KUBECTL.format(python=sys.executable, token=token, port=sidecar.sidecar.admin_port)
    )
    kubectl.chmod(0o755)

    cluster = Kubectl(str(kubectl), folder / "kubeconfig")

    def ask() -> list[tuple[str, str, str | None]]:
        with ExitStack() as stack:
            found = sidecars_of_cluster(stack, cluster, [])
            return [(one.pod, one.url, one.token) for one in found]

    def ask_all() -> tuple[list[str], list[str]]:
        """Beside one that cannot be asked, and one whose pool is being deleted."""
        failures: list[CommandError] = []
        with ExitStack() as stack:
            ends = SidecarAddress("team-a/chat-2", "http://127.0.0.1:1", TOKEN)
            answers = sidecars_of_cluster(stack, cluster, failures)
            found = _explanations([ends, *answers], ALICE, failures)
            return [one.pod for one, _ in found], [str(failure) for failure in failures]

    found_pods, failures = await asyncio.to_thread(ask_all)
    assert found_pods == ["team-a/chat-0"]
    deleted, unreachable = failures
    assert deleted.endswith('secrets "chat-admin" not found')
    assert unreachable.startswith("team-a/chat-2 cannot be asked")
    found = await asyncio.to_thread(ask)
    assert found == [("team-a/chat-0", sidecar.admin_url, TOKEN)]


@pytest.mark.parametrize(
    ("said", "of_unserved", "of_served"),
    [
        (
            {"Ready": "NoPool", "Accepted": "KeyConflict"},
            ": KeyConflict: about KeyConflict",
            ": KeyConflict: about KeyConflict",
        ),
        ({"Ready": "NoPool"}, ": NoPool: about NoPool", ""),
        ({}, ": see `kubectl describe tenants.tidegate.io b -n a`", ""),
        (None, ': kubectl get: tenants.tidegate.io "b" not found', ""),
    ],
    ids=["not accepted", "no pool", "nothing", "missing"],
)
def test_what_is_wrong_with_a_tenant_is_told_by_its_conditions(
    said: dict[str, str] | None, of_unserved: str, of_served: str, tmp_path: Path
) -> None:
    ready = {"type": "ResolvedRefs", "status": "True", "reason": "Resolved", "message": ""}
    conditions = [ready] + [
        {"type": kind, "status": "False", "reason": reason, "message": f"about {reason}"}
        for kind, reason in (said or {}).items()
    ]
    tenant = tmp_path / "tenant.json"
    tenant.write_text(json.dumps({"status": {"conditions": conditions}}))
    answer = f"cat {tenant}"
    if said is None:
        answer = "echo 'tenants.tidegate.io \"b\" not found' >&2; exit 1"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        '#!/bin/sh\n[ "$*" = "--kubeconfig=x get tenants.tidegate.io/b --namespace=a -o json" ] '
        f"|| exit 2\n{answer}\n"
    )
    kubectl.chmod(0o755)
    asked = Kubectl(str(kubectl), Path("x"))
    assert fault_of_tenant(asked, "a/b", served=False) == of_unserved
    assert fault_of_tenant(asked, "a/b", served=True) == of_served


async def test_what_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be asked"):
        await explained("r", "http://127.0.0.1:1", None)
    with pytest.raises(CommandError, match="cannot be asked"):
        await explained("r", "nonsense", None)
    with pytest.raises(CommandError, match="cannot be asked"):
        await explained("r", "http://127.0.0.1:1/ x", None)
    token = tmp_path / "token"
    token.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="cannot be read as text"):
        await explained("r", "http://127.0.0.1:1", token)
    broken = tmp_path / "kubectl"
    broken.write_text("#!/bin/sh\necho 'The connection was refused' >&2\nexit 1\n")
    broken.chmod(0o755)
    with ExitStack() as stack, pytest.raises(CommandError, match="connection was refused"):
        list(sidecars_of_cluster(stack, Kubectl(str(broken), tmp_path / "kubeconfig"), []))
