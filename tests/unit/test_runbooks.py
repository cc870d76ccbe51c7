"""What alerts, dashboards and pages send people to is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tidegate_operator.settings import RUNBOOKS
from tidegate_operator.slo import rule_groups

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy
from tidegate.scheduling.outcomes import Outcome

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_alert_links_to_a_runbook_about_it() -> None:
    objective = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.5)
    tiers = [TierPolicy("t0", slo_objectives=(objective,))]
    rules = [rule for group in rule_groups("a", "b", tiers, RUNBOOKS) for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    assert alerts
    for alert in alerts:
        name = alert["annotations"]["runbook_url"].rpartition("/")[2]
        assert (DOCS / "runbooks" / name).read_text().startswith(f"# {alert['alert']}\n")


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.name not in ("api.md", "contracts.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_dashboards_name_runbooks_that_there_are() -> None:
    for dashboard in (ROOT / "manifests" / "monitoring").glob("*.json"):
        for panel in json.loads(dashboard.read_text())["panels"]:
            for name in re.findall(r"Runbook: ([a-z-]+)", panel.get("description", "")):
                assert (DOCS / "runbooks" / f"{name}.md").exists()


def test_every_refusal_has_a_row() -> None:
    page = (DOCS / "runbooks" / "refused-requests.md").read_text()
    served = {Outcome.COMPLETED, Outcome.CLIENT_CLOSED}
    missing = [str(o) for o in Outcome if o not in served and f"`{o.value}`" not in page]
    assert missing == []
