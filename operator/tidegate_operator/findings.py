"""What the operator found about one object, before it becomes conditions.

A finding says of one condition type whether it holds, why as one word, and why for people: the
message names the field and the cure, and never repeats a value that could be a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason

MESSAGE_LIMIT = 1_000
"""Characters of a condition's message; a list of faults beyond it is cut with a count."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one condition of one object."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a person must mend."""

    type: ConditionType
    reason: Reason
    message: str


def verdicts(faults: Sequence[Fault], accepted: str, resolved: str) -> tuple[Finding, Finding]:
    """Accepted and ResolvedRefs of an object with these faults; the texts are for none."""
    return (
        _verdict(ConditionType.ACCEPTED, faults, Reason.ACCEPTED, accepted),
        _verdict(ConditionType.RESOLVED_REFS, faults, Reason.RESOLVED, resolved),
    )


def with_faults(findings: Sequence[Finding], faults: Sequence[Fault]) -> tuple[Finding, ...]:
    """The findings as they are with all of these faults."""
    return tuple(_verdict(f.type, faults, f.reason, f.message, f.status) for f in findings)


def joined(messages: Iterable[str]) -> str:
    """The messages as one, cut at the limit with the number of those left out."""
    kept: list[str] = []
    left_out = 0
    for message in messages:
        if kept and sum(map(len, kept)) + len(message) > MESSAGE_LIMIT:
            left_out += 1
        else:
            kept.append(message)
    text = "; ".join(kept)
    return f"{text}; and {left_out} more" if left_out else text


def _verdict(
    kind: ConditionType,
    faults: Sequence[Fault],
    good: Reason,
    text: str,
    status: ConditionStatus = ConditionStatus.TRUE,
) -> Finding:
    mine = [fault for fault in faults if fault.type is kind]
    if not mine:
        return Finding(kind, status, good, text)
    message = joined(fault.message for fault in mine)
    return Finding(kind, ConditionStatus.FALSE, mine[0].reason, message)
