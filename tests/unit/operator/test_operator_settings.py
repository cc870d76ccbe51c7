"""Settings by flag and environment."""

import sys
from pathlib import Path

import pytest
from tidegate_operator import __main__ as operator_main
from tidegate_operator.settings import Settings, parse_settings


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environment = {"TIDEGATE_RESYNC_SECONDS": "7", "TIDEGATE_NAMESPACES": "a, b"}
    settings = parse_settings(["--resync-seconds=9"], environment)
    assert (settings.resync_seconds, settings.namespaces) == (9.0, ("a", "b"))
    assert settings.leader_election is True
    assert parse_settings([], environment).resync_seconds == 7.0
    assert parse_settings(["--leader-election=false"], {}).leader_election is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resync-seconds=soon"], "--resync-seconds"),
        (["--workers=0"], "--workers must be at least 1"),
        (["--leader-election=maybe"], "true or false"),
        (["--lease-renew-deadline-seconds=20"], "below --lease-duration-seconds"),
        (["--lease-retry-seconds=6"], "at most half of --lease-renew-deadline-seconds"),
        (["--resync-seconds=nan"], "--resync-seconds"),
        (["--resync-seconds=inf"], "--resync-seconds"),
        (["--http-port=65536"], "--http-port must be at most 65535"),
        (["--log-level=LOUD"], "--log-level"),
    ],
)
def test_a_bad_setting_ends_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments, {})
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_who_may_serve_others() -> None:
    assert not Settings().may_share("a")
    assert Settings(shared_pool_namespaces=("a",)).may_share("a")
    assert Settings(shared_pool_namespaces=("*",)).may_share("b")


def test_credentials_that_cannot_be_read_end_it_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["operator", f"--kubeconfig={tmp_path / 'missing'}"])
    monkeypatch.setattr(operator_main, "configure_logging", lambda level: None)
    assert operator_main.main() == 1
    assert "no credentials for the API server" in caplog.messages[-1]
    assert caplog.records[-1].exc_info is None
