"""A local cluster's status for a person, and the lines to go on with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_PLAIN_WIDTH = 400
"""Columns where the output is no terminal: a program or `grep` reads each row as one line."""
_QUICKSTART = "quickstart"
_KEY = "demo-paid"


def print_status(found: dict[str, Any]) -> None:
    """What `cluster_status` found, as tables."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(
        f"cluster {found['name']}: {found['state']}   KUBECONFIG={found['kubeconfig']}",
        markup=False,
        soft_wrap=True,
    )
    if found["state"] == "down":
        return
    for table in _tables(found):
        if table.row_count:
            console.print(table)
    for item in found["failed"]:
        console.print(f"[red]{escape(item['what'])}[/red]: {escape(item['why'])}", soft_wrap=True)
        if item["log"]:
            console.print(item["log"], markup=False, soft_wrap=True)


def _tables(found: dict[str, Any]) -> tuple[Table, ...]:
    parts = Table("process", "state", "pid", box=None)
    for item in found["components"]:
        state = "running" if item["running"] else "[red]not running[/red]"
        parts.add_row(item["name"], state, str(item["pid"] or ""))
    pods = Table("pod", "ready", "phase", "restarts", "reason", box=None)
    for item in found["pods"]:
        name = f"{item['namespace']}/{item['name']}"
        pods.add_row(name, item["ready"], item["phase"], str(item["restarts"]), item["reason"])
    services = Table("service", "port", "type", "listens on", box=None)
    for item in found["services"]:
        name = f"{item['namespace']}/{item['name']}"
        services.add_row(name, str(item["port"]), item["type"], item["address"])
    return parts, pods, services


def moved_services(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """A line for each Service, `namespace/name:port`, that listens elsewhere than it did."""
    return [
        f"Service {name} listens on 127.0.0.1:{after[name]} from now on: another program has taken "
        f"its port {port}"
        for name, port in before.items()
        if after.get(name, port) != port
    ]


def next_steps(
    kubeconfig: Path,
    kubectl: str,
    pools: Iterable[dict[str, Any]],
    services: Iterable[dict[str, Any]],
) -> list[str]:
    """Lines that work when pasted: the cluster, a request to each pool of the quickstart, kubectl.

    `kubectl` is the program's name or path; the key is the quickstart's public one.
    """
    addresses = {
        (item["namespace"], item["name"]): item["address"]
        for item in services
        if item["portName"] == "http"
    }
    lines = [f"export KUBECONFIG={shlex.quote(str(kubeconfig))}"]
    for pool in pools:
        name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        if name[0] == _QUICKSTART and name in addresses:
            lines.append(_request(addresses[name], pool["spec"]["model"]))
    lines.append(f"{shlex.quote(kubectl)} get ttier,tenants.tidegate.io,spool -A")
    return lines


def _request(address: str, model: dict[str, Any]) -> str:
    body: dict[str, Any] = {"model": model["name"]}
    if model.get("task") == "Embed":
        path = "embeddings"
        body["input"] = "Hello"
    else:
        path = "chat/completions"
        body |= {"max_tokens": 32, "messages": [{"role": "user", "content": "Hello"}]}
    return (
        f"curl http://{address}/v1/{path} -H 'Authorization: Bearer {_KEY}' "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
