"""Reading single flags out of ``spec.engine.args``, as vLLM's parser would."""

from __future__ import annotations

from collections.abc import Sequence


def flag_integer(arguments: Sequence[str], flag: str) -> int | None:
    """The flag's positive integer, spelled ``--a-b=1`` or ``--a_b 1``; the last one wins.

    None where it is absent or not such a number: vLLM itself will say so when it starts.
    """
    found: int | None = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if not equals:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        found = int(value) if value.isdecimal() and int(value) > 0 else None
    return found
