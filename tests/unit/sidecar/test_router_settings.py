"""Settings with which a router, or what trusts one, does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.identity_keys import IdentityKeys
from tidegate_sidecar.router.settings import RouterSettings

PATH = Path("unread")


def settings(**more: Any) -> RouterSettings:
    return RouterSettings(policy=PATH, keys=PATH, pods=PATH, identity_keys=PATH, **more)


def test_an_admin_port_that_others_reach_needs_a_token() -> None:
    with pytest.raises(SettingsError, match="admin_token_file"):
        settings(admin_host="0.0.0.0")
    assert settings(admin_host="0.0.0.0", admin_token_file=PATH).admin_host == "0.0.0.0"
    assert settings(admin_host="127.0.0.2").admin_token_file is None


@pytest.mark.parametrize("content", ["", "\n", "short\n", "x" * 32 + "\nshort"])
def test_secrets_that_are_too_short_are_a_wrong_setting(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secrets"
    path.write_text(content)
    with pytest.raises(SettingsError, match="secret"):
        IdentityKeys(path)
