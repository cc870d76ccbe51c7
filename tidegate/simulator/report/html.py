"""The report as one page that needs nothing else: no script, no file, no network.

The statement about fidelity stands first, whatever comes after it. Colours follow the reader's
light or dark setting; the plots are part of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from tidegate.scheduling.contracts.limits import SloMetric
from tidegate.scheduling.contracts.simulation_report import PolicyRun, SimulationReport
from tidegate.simulator.report import plots, rows, text
from tidegate.simulator.simulation.result import SimulationResult

MOST_TENANTS = 50

_CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1f23; --soft: #5c636b; --rule: #d8dce1;
  --band: #f4f6f8; --warn: #8a4b00; --warn-paper: #fff4e0; --good: #14603a; --good-paper: #e6f5ec; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e8ea; --soft: #9aa2ab;
  --rule: #3a4048; --band: #1d2126; --warn: #ffce85; --warn-paper: #3a2a10; --good: #9fe0bb;
  --good-paper: #143324; } }
body { margin: 0 auto; max-width: 1760px; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 1rem 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: .25rem 0 .5rem; } p { margin: .4rem 0; max-width: 75ch; }
.fidelity { border-left: 4px solid; padding: .6rem 1rem; border-radius: 3px; }
.fidelity p { margin: 0; max-width: none; }
.model-only { color: var(--warn); background: var(--warn-paper); }
.checked { color: var(--good); background: var(--good-paper); }
.facts, .soft { color: var(--soft); } .facts { max-width: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums;
  margin: .5rem 0; }
th { text-align: right; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--rule);
  vertical-align: bottom; }
td { text-align: right; white-space: nowrap; } th, td { padding: .2rem .5rem; }
th.name, td.name { text-align: left; } tbody tr:hover { background: var(--band); }
tbody + tbody tr:first-child td { border-top: 1px solid var(--rule); }
svg { display: block; width: 100%; height: auto; stroke-linejoin: round; color: var(--ink); }
figure { margin: .5rem 0 1rem; max-width: 1240px; } figure.single { max-width: 820px; }
.policies { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 830px), 1fr));
  gap: 1rem; }
.policy { border: 1px solid var(--rule); border-radius: 6px; padding: .75rem 1rem; min-width: 0; }
summary { margin: .6rem 0; cursor: pointer; color: var(--soft); }
ul { margin: .4rem 0; padding-left: 1.2rem; } dl { max-width: 80ch; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.2rem; color: var(--soft); }
"""

GLOSSARY = (
    ("TTFT, E2E, ITL", "Time to the first token, to the last one, and the mean time between the "
     "tokens of a request, with all queueing. Percentiles are over all requests that were sent; "
     "one that was refused or did not end is slower than all others."),
    ("never", "The percentile lies among the requests that never got there."),
    ("in time", "Of all requests sent, those that met the tier's latency objective; with several "
     "objectives one figure each. A refused request is a miss."),
    ("goodput/s", "Requests per second that were answered and met every objective."),
    ("gap", "Tenants of one tier that waited all the time: the most less the least service in a "
     "window of 30 s, prompt tokens and twice the output tokens over the tenant's weight."),
    ("share", "Of all tokens served."),
    ("reserved x traffic", "The reservation times the part of all requests: a measure of how much "
     "is set aside for how little. Used, reservation used and lent are measured: GPU time spent "
     "on the tier, the part of its reservation that it used itself, what it left to others."),
    ("1,000 calls", "By use: the GPU time that the tier's service took. By reservation: a tier "
     "pays for all that is reserved for it; what nobody reserved is paid by those that use more "
     "than their reservation."),
)  # fmt: skip


def page(
    report: SimulationReport, results: Sequence[SimulationResult], pools: Mapping[str, str]
) -> str:
    """The whole page. ``results`` are the report's runs, in its order; ``pools`` by tier."""
    title = f"{report.workload}: {', '.join(run.policy for run in report.runs)}"
    parts = [
        _fidelity(report),
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(_facts(report))}</p>',
        _list(report.notes),
    ]
    if len(report.runs) > 1:
        parts.append("<h2>Policies compared</h2>")
        parts.append(_table(rows.compared(report.runs)))
    parts.append("<h2>Plots</h2>")
    parts.extend(_plots(report, results, pools))
    parts.append("<h2>Each policy</h2>")
    priced = report.gpu_hour_price is not None
    cards = "".join(_policy(run, priced=priced) for run in report.runs)
    parts.append(f'<div class="policies">{cards}</div>')
    parts.append(f"<h2>How to read it</h2><dl>{_glossary()}</dl>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _fidelity(report: SimulationReport) -> str:
    kind = "model-only" if any(run.model_only for run in report.runs) else "checked"
    statement = f"<p>{_prose(text.fidelity(report))}</p>"
    if report.fidelity is None:
        return f'<div class="fidelity {kind}">{statement}</div>'
    summary = _prose(text.fidelity_summary(report.fidelity))
    table = _table(rows.fidelity(report.fidelity))
    return (
        f'<div class="fidelity {kind}">{statement}</div>'
        f"<details><summary>{summary}</summary>{table}</details>"
    )


def _prose(line: str) -> str:
    """Escaped; what stands in backticks is code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(line))


def _facts(report: SimulationReport) -> str:
    facts = [
        f"engine {report.calibration}",
        f"measured from {report.warmup_seconds:,.0f} s to {report.measured_until_seconds:,.0f} s "
        f"of {report.duration_seconds:,.0f} s simulated",
        f"seed {report.seed}",
    ]
    if report.gpu_hour_price is not None:
        facts.append(f"{report.gpu_hour_price:g} per GPU hour")
    return "; ".join(facts)


def _plots(
    report: SimulationReport, results: Sequence[SimulationResult], pools: Mapping[str, str]
) -> Iterable[str]:
    until = report.measured_until_seconds
    targets = _targets(report.runs[0], SloMetric.TIME_TO_FIRST_TOKEN)
    whole = _targets(report.runs[0], SloMetric.END_TO_END)
    dotted = " Dotted: the objective." if targets or whole else ""
    shown = (
        (
            plots.latency_plot(results, until, targets, "ttft_seconds", "time to first token"),
            "Of all requests sent, how many had their first token within a time. Each line of the "
            f"grid is one nine more; a line that ends below the top lost the rest.{dotted}",
        ),
        (
            plots.latency_plot(results, until, whole, "response_seconds", "time to last token"),
            "The same for the whole answer.",
        ),
        (plots.service_plot(results), "Tokens computed per second, recomputed ones included."),
        (plots.kv_plot(results, pools), "Blocks of the KV cache that requests hold, by pool."),
        (plots.queue_plot(results), "Requests that hold no seat in an engine."),
    )  # fmt: skip
    kind = ' class="single"' if len(results) == 1 else ""
    for svg, caption in shown:
        yield f'<figure{kind}><figcaption class="soft">{caption}</figcaption>{svg}</figure>'


def _targets(run: PolicyRun, metric: SloMetric) -> dict[str, float]:
    return {
        tier.name: one.target_seconds
        for tier in run.tiers
        for one in tier.figures.objectives
        if one.metric is metric
    }


def _policy(run: PolicyRun, *, priced: bool) -> str:
    lines = [text.engine_line(run), *rows.remarks(run, MOST_TENANTS)]
    return (
        f'<section class="policy"><h3>{escape(run.policy)}</h3>'
        + _table(rows.counts(run, MOST_TENANTS))
        + _table(rows.latencies(run, MOST_TENANTS))
        + _table(rows.economics(run, priced=priced))
        + _list(lines)
        + "</section>"
    )


def _table(grid: rows.Grid) -> str:
    def cell(place: int, content: str, element: str) -> str:
        kind = ' class="name"' if place < grid.names else ""
        return f"<{element}{kind}>{escape(content)}</{element}>"

    def row(cells: Sequence[str], element: str = "td") -> str:
        return "<tr>" + "".join(cell(at, one, element) for at, one in enumerate(cells)) + "</tr>"

    bodies = "".join(
        f"<tbody>{''.join(map(row, section))}</tbody>" for section in grid.sections if section
    )
    return (
        f'<div class="wide"><table><thead>{row(grid.headings, "th")}</thead>{bodies}</table></div>'
    )


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _glossary() -> str:
    return "".join(f"<dt>{escape(word)}</dt><dd>{escape(what)}</dd>" for word, what in GLOSSARY)
