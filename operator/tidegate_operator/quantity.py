"""Kubernetes quantities as numbers: ``500m``, ``0.5Gi``, 2."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_UNITS = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def amount(value: object) -> Decimal | None:
    """The number that a quantity stands for; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    digits = text.rstrip("mkMGTPEi")
    unit = text[len(digits) :]
    try:
        return Decimal(digits) * (_UNITS[unit] if unit else 1)
    except (InvalidOperation, KeyError):
        return None
