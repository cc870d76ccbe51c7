"""Whether this vLLM is one that the plug-in knows.

Theory of operation: vLLM's scheduler is no public interface. So the plug-in starts only on the
versions that its tests ran on, and even there compares every name and signature that it relies on
(``vllm_types``) with what it finds. What does not fit is refused before the engine serves: an
engine without quotas that nobody knows of is worse than one that does not start.

Invariant: a refusal names everything that does not fit, and the way out.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Iterable, Iterator

TESTED = ((0, 32, 0), (0, 33, 0))
"""From the first, below the second."""

WAY_OUT = (
    "Serve one of these versions, or without the plug-in: `plugin: Disabled` in the ServingPool, "
    "no --scheduler-cls by hand."
)


class PluginRefused(RuntimeError):
    """The plug-in can't work here; the message says why and what to do."""


def check_version(found: str | None = None) -> None:
    """:class:`PluginRefused` unless vLLM (``found``: its version) is within the tested range."""
    try:
        found = found or importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        raise PluginRefused(
            "Tidegate's scheduler plug-in runs inside vLLM; none is here."
        ) from None
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", found)
    first, below = TESTED
    if match is None or not first <= tuple(int(part or 0) for part in match.groups()) < below:
        raise PluginRefused(
            f"Tidegate's scheduler plug-in is tested with vLLM {_text(first)} up to, not "
            f"including, {_text(below)}; this is {found}. {WAY_OUT}"
        )


def check_hooks(parts: Iterable[tuple[type, type, object]]) -> None:
    """:class:`PluginRefused` unless each (description, vLLM's class, an object of it) fits."""
    wrong = [line for part in parts for line in differences(*part)]
    if wrong:
        raise PluginRefused(
            "Tidegate's scheduler plug-in does not fit this build of vLLM: "
            f"{'; '.join(wrong)}. {WAY_OUT}"
        )


def differences(declared: type, kind: type, thing: object) -> Iterator[str]:
    """What of a description is missing or different: methods with their parameters in the class,
    attributes in the object."""
    name = kind.__name__
    for attribute in inspect.get_annotations(declared):
        if not hasattr(thing, attribute):
            yield f"{name}.{attribute} is missing"
    for attribute, method in vars(declared).items():
        if not inspect.isfunction(method):
            continue
        found = getattr(kind, attribute, None)
        if found is None:
            yield f"{name}.{attribute}() is missing"
        elif not attribute.startswith("__"):
            expected, parameters = _parameters(method), _parameters(found)
            if expected != parameters:
                yield f"{name}.{attribute} takes {parameters}, not {expected}"


def _parameters(function: object) -> list[str]:
    assert callable(function)
    return [name for name in inspect.signature(function).parameters if name != "self"]


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
