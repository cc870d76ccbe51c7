"""How far the service of tenants drifts apart while they wait: the gap in aligned 30 s windows.

Theory of operation: the measure under which the runs of VTC's artifact were compared (Sheng et al.,
OSDI 2024; Ying1123/VTC-artifact). A request gives service ``prompt_tokens`` at its first token and
``2 x output_tokens`` evenly between its first and its last token. A tenant is *continuously
backlogged* in a window if at every moment of it some request of the tenant waits for its first
token. The gap of a window with at least two such tenants is the largest less the smallest service
among them; who is not backlogged got what it asked for and is no party to it.

Windows are aligned, ``[30k, 30k + 30)``, from 0 to the last end, so the drain after the last
arrival counts. Requests that were refused, or never started, give no service and do not wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 30.0
INPUT_PRICE = 1.0
OUTPUT_PRICE = 2.0
"""Of a token in service units, as VTC charges them."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """What became of one request, as its client saw it; times in seconds from the start."""

    tenant: str
    prompt_tokens: int
    output_tokens: int
    arrival: float
    first_token: float | None
    """Unset: refused, or never started."""
    finished: float | None

    @property
    def first_token_seconds(self) -> float | None:
        """Time to the first token; None where there was none."""
        return None if self.first_token is None else self.first_token - self.arrival


@dataclass(frozen=True, slots=True)
class WindowGap:
    """One window with at least two continuously backlogged tenants."""

    start: float
    service_by_tenant: dict[str, float]
    """Of the backlogged tenants, in service units."""

    @property
    def gap(self) -> float:
        served = self.service_by_tenant.values()
        return max(served) - min(served)


def window_gaps(
    requests: Iterable[ServedRequest], window_seconds: float = WINDOW_SECONDS, offset: float = 0.0
) -> list[WindowGap]:
    """The windows in which at least two tenants were continuously backlogged, in order.

    ``offset`` shifts all windows, in seconds; windows never begin before it.
    """
    served = [one for one in requests if one.first_token is not None and one.finished is not None]
    if not served:
        return []
    end = max(one.finished for one in served if one.finished is not None)
    windows = int(-(-(end - offset) // window_seconds))
    service = _service(served, windows, window_seconds, offset)
    backlogged = _backlogged(served, windows, window_seconds, offset)
    gaps = []
    for index in range(windows):
        tenants = backlogged[index]
        if len(tenants) >= 2:
            by_tenant = {tenant: service[index].get(tenant, 0.0) for tenant in sorted(tenants)}
            gaps.append(WindowGap(offset + index * window_seconds, by_tenant))
    return gaps


def _service(
    served: Sequence[ServedRequest], windows: int, width: float, offset: float
) -> list[dict[str, float]]:
    by_window: list[dict[str, float]] = [defaultdict(float) for _ in range(windows)]
    for one in served:
        start, end = one.first_token, one.finished
        assert start is not None
        assert end is not None
        first = int((start - offset) // width)
        if 0 <= first < windows:
            by_window[first][one.tenant] += INPUT_PRICE * one.prompt_tokens
        if end <= start:
            continue
        rate = OUTPUT_PRICE * one.output_tokens / (end - start)
        for index in range(max(first, 0), min(windows, int((end - offset) // width) + 1)):
            left = offset + index * width
            overlap = min(end, left + width) - max(start, left)
            if overlap > 0:
                by_window[index][one.tenant] += rate * overlap
    return by_window


def _backlogged(
    served: Sequence[ServedRequest], windows: int, width: float, offset: float
) -> list[set[str]]:
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in served:
        assert one.first_token is not None
        waits[one.tenant].append((one.arrival, one.first_token))
    by_window: list[set[str]] = [set() for _ in range(windows)]
    for tenant, intervals in waits.items():
        for start, end in _merged(intervals):
            first = max(0, int(-(-(start - offset) // width)))
            for index in range(first, min(windows, int((end - offset) // width))):
                by_window[index].add(tenant)
    return by_window


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union; those that touch become one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
