"""What the plug-in refuses to start on; the real vLLM is checked under the marker `vllm`."""

import pytest

from tidegate import vllm_plugin
from tidegate.vllm_plugin.guard import PluginRefused, check_hooks, check_version


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.7", "0.32.1rc1", "0.32"])
def test_tested_versions_are_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0", "0.11.0+cu129", "dev"])
def test_others_are_refused_with_the_range_and_the_way_out(version: str) -> None:
    with pytest.raises(PluginRefused) as refusal:
        check_version(version)
    for part in (version, "0.32.0", "0.33.0", "plugin: Disabled"):
        assert part in str(refusal.value)


def test_without_vllm_it_says_so() -> None:
    with pytest.raises(PluginRefused, match="inside vLLM"):
        _ = vllm_plugin.TidegateScheduler


def test_it_has_nothing_else() -> None:
    with pytest.raises(AttributeError):
        _ = vllm_plugin.Scheduler


class Declared:
    size: int

    def hook(self, request: object, tokens: int) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        raise NotImplementedError


class Real:
    def __init__(self) -> None:
        self.size = 1

    def hook(self, request: object, tokens: int) -> None: ...

    def gone(self) -> None: ...


class Changed:
    def hook(self, request: object, tokens: int, more: bool = False) -> None: ...


def test_what_fits_is_taken() -> None:
    check_hooks([(Declared, Real, Real())])


def test_every_difference_is_named() -> None:
    with pytest.raises(PluginRefused) as refusal:
        check_hooks([(Declared, Real, Real()), (Declared, Changed, Changed())])
    for part in (
        "Changed.size",
        "Changed.hook takes",
        "'more'",
        "Changed.gone",
        "plugin: Disabled",
    ):
        assert part in str(refusal.value)
    assert "Real" not in str(refusal.value)
