"""Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers."""

import math
import re
from fractions import Fraction

_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")


def parse(text: str) -> Fraction:
    """The value of a quantity. Raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, suffix = match.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent or 0)) * _SUFFIXES[suffix or ""]


def divide(value: str, divisor: str) -> int:
    """The value in units of `divisor` ("0" and "" mean 1), rounded up as the downward API does."""
    unit = parse(divisor) if divisor else Fraction(0)
    return math.ceil(parse(value) / (unit or Fraction(1)))
