"""Keys, tokens and kubeconfigs of a local cluster.

Everyone who talks to the API server has a user of his own, so that RBAC and the audit log mean
something: the two system components by the names that the bootstrap roles know, the kubelet as a
node (Node authorizer), a person as `tidegate-admin` in system:masters. Tokens are random, live in
files only their owner may read, and are kept when a cluster starts again.
"""

import base64
import json
import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tidegate.local_cluster.files import read_json, write_atomically, write_json

NODE_NAME = "tidegate-node"
ADMIN, CONTROLLER_MANAGER, SCHEDULER, KUBELET = (
    "admin",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
)
USERS: dict[str, tuple[str, str]] = {
    ADMIN: ("tidegate-admin", "system:masters"),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", ""),
    SCHEDULER: ("system:kube-scheduler", ""),
    KUBELET: (f"system:node:{NODE_NAME}", "system:nodes"),
}
"""For each client: its user name and its group ('' for none)."""


def ensure_service_account_key(private: Path, public: Path) -> None:
    """The key pair that signs service account tokens; an existing one is kept."""
    if private.exists() and public.exists():
        return
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    write_atomically(
        public,
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    write_atomically(
        private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ),
    )


def ensure_tokens(store: Path, token_file: Path) -> dict[str, str]:
    """A token for each of USERS, kept in `store`; `token_file` is the API server's form of them."""
    tokens: dict[str, str] = read_json(store) or {}
    for client in USERS:
        tokens.setdefault(client, secrets.token_urlsafe(32))
    write_json(store, tokens)
    rows = [
        f"{tokens[client]},{user},{user}" + (f',"{group}"' if group else "")
        for client, (user, group) in USERS.items()
    ]
    write_atomically(token_file, "\n".join(rows) + "\n")
    return tokens


def write_kubeconfig(path: Path, *, server: str, ca: bytes, token: str, cluster: str) -> None:
    """A kubeconfig with one context, certificate and token inline.

    Written as JSON, which is YAML: every client reads it, and no quoting can go wrong. The token is
    inline because not every client understands a `tokenFile`.
    """
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(ca).decode(),
                },
            }
        ],
        "users": [{"name": cluster, "user": {"token": token}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
        "preferences": {},
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")
