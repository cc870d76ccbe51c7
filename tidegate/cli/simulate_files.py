"""The files that `tidegate simulate` writes its report to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidegate.cli.errors import CommandError
from tidegate.cli.load import check_writable
from tidegate.scheduling.contracts import dumps
from tidegate.scheduling.contracts.simulation_report import SimulationReport
from tidegate.simulator.simulation.result import SimulationResult


class ReportFiles:
    """JSON and a page; :class:`CommandError` at once where one could not be written."""

    def __init__(self, json_file: Path | None, html_file: Path | None) -> None:
        check_writable(json_file, "--json")
        check_writable(html_file, "--html")
        if json_file is not None and html_file is not None and _same(json_file, html_file):
            raise CommandError(f"--json and --html are both {html_file}", exit_code=2)
        self._json, self._html = json_file, html_file
        self._page = _renderer() if html_file is not None else None

    def write(
        self,
        report: SimulationReport,
        results: Sequence[SimulationResult],
        pools: Mapping[str, str],
    ) -> None:
        """Both; ``pools`` by tier."""
        if self._json is not None:
            _write(self._json, dumps(report) + "\n")
        if self._html is not None and self._page is not None:
            _write(self._html, self._page(report, results, pools))


def _same(one: Path, other: Path) -> bool:
    """One file; a terminal or a pipe takes both."""
    return one.resolve() == other.resolve() and (one.is_file() or not one.exists())


def _renderer() -> Callable[..., str]:
    """Imported only for a page, and before the simulation: matplotlib takes a second or is not."""
    try:
        from tidegate.simulator.report.html import page
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidegate"):
            raise
        raise CommandError(
            f"--html needs {error.name}: install it with pip install 'tidegate[simulator]'"
        ) from None
    return page


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None
