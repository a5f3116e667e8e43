"""Dashboards and alerts against the table of metrics, the committed files, and docs/operations.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from streams.observability import catalog
from streams.observability.grafana import alerts, dashboards
from streams.observability.grafana.alerts import ALERTS, PREFIX, Alert
from streams.observability.grafana.dashboards import DASHBOARDS
from streams.observability.grafana.model import Dashboard, model, text
from streams.observability.grafana.promql import growth, metrics_of, restrict, select

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / alerts.PAGE).read_text(encoding="utf-8")
EVERY = {metric.name for metric in catalog.all_metrics()}
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda one: one.name)


def asked() -> set[str]:
    """Return every metric that a panel asks for."""
    return {
        name
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
        for name in metrics_of(query.expression)
    }


# --- against the table ------------------------------------------------------------------------------------------------


def test_every_metric_is_on_a_panel_or_in_an_alert_and_none_is_asked_for_that_there_is_not() -> None:
    assert asked() | {name for alert in ALERTS for name in metrics_of(alert.query)} == EVERY


def test_the_label_of_a_selector_is_one_that_the_metric_has() -> None:
    assert select(catalog.GROUPS, outcome="flat") == 'streamward_groups_total{outcome="flat"}'
    assert select(catalog.LAG_RECORDS, topic="~a|b") == 'streamward_consumer_lag_records{topic=~"a|b"}'
    with pytest.raises(ValueError, match="has no label reason"):
        select(catalog.GROUPS, reason="flat")


def test_a_query_of_a_dashboard_is_for_the_namespace_and_policy_that_are_chosen() -> None:
    assert restrict("streamward_ready") == 'streamward_ready{namespace=~"$namespace"}'
    assert restrict('rate(streamward_groups_total{outcome="flat"}[1m])') == (
        'rate(streamward_groups_total{outcome="flat",namespace=~"$namespace",policy=~"$policy"}[1m])'
    )
    assert restrict("streamward_sampling_seconds_bucket").endswith('{namespace=~"$namespace",policy=~"$policy"}')
    with pytest.raises(ValueError, match="streamward_redy is not a metric"):
        restrict("streamward_redy")


@each_dashboard
def test_no_label_is_asked_for_that_no_metric_of_the_query_has(dashboard: Dashboard) -> None:
    known = {metric.name: {*metric.labels, "namespace"} for metric in catalog.all_metrics()}
    for panel in dashboard.panels:
        for query in panel.queries:
            labels = set().union(*(known[name] for name in metrics_of(query.expression)), {"alertname", "alertstate"})
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels, panel.title
            for wanted in re.findall(r"\b(?:sum|max|min) by \(([^)]*)\)", query.expression):
                assert set(wanted.split(", ")) <= labels | {"le"}, panel.title


def test_a_counter_counts_from_its_first_record_on() -> None:
    counter = "streamward_dead_letters_total"
    assert growth(catalog.DEAD_LETTERS, "stage", window="10m") == (
        f"sum by (namespace, stage) (({counter} unless {counter} offset 10m) or increase({counter}[10m]))"
    )


# --- the files --------------------------------------------------------------------------------------------------------


@each_dashboard
def test_the_committed_dashboard_is_the_generated_one(dashboard: Dashboard) -> None:
    file = dashboards.FOLDER / f"{dashboard.name}.json"
    assert file.read_text(encoding="utf-8") == text(dashboard), "run `make docs`, and commit helm/dashboards"


def test_no_dashboard_is_left_over() -> None:
    assert {file.name for file in dashboards.FOLDER.iterdir()} == {f"{one.name}.json" for one in DASHBOARDS}


def test_the_committed_alerts_are_the_generated_ones() -> None:
    assert alerts.FILE.read_text(encoding="utf-8") == alerts.text(), "run `make docs`, and commit helm/alerts"
    assert [file.name for file in alerts.FILE.parent.iterdir()] == [alerts.FILE.name]


@each_dashboard
def test_panels_have_ids_of_their_own_and_do_not_lie_on_each_other(dashboard: Dashboard) -> None:
    panels = model(dashboard)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken)) and max((x for x, _ in taken), default=0) < 24


@each_dashboard
def test_every_panel_says_what_it_shows_and_takes_the_source_that_is_chosen(dashboard: Dashboard) -> None:
    for panel in model(dashboard)["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"] and (panel["description"] or "ALERTS" in panel["targets"][0]["expr"])
        assert all(target["legendFormat"] and target["expr"] for target in panel["targets"])
    titles = [panel.title for panel in dashboard.panels]
    assert len(titles) == len(set(titles))


def test_there_is_a_page_for_each_part_and_one_for_all() -> None:
    assert [one.title for one in DASHBOARDS] == [
        "Overview", "Training", "Policy serving", "Scoring", "Streams and Kafka", "Rollout", "Plugins",
    ]  # fmt: skip
    assert len({one.uid for one in DASHBOARDS}) == len(DASHBOARDS)


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_every_alert_has_a_heading_and_every_heading_under_alerts_an_alert() -> None:
    part = OPERATIONS.split("\n## Alerts\n")[1].split("\n## ")[0]
    headings = [heading.lower().replace(" ", "-") for heading in re.findall(r"^### (.*)$", part, re.MULTILINE)]
    assert headings == [alert.anchor for alert in ALERTS]


@each_alert
def test_the_page_says_of_each_alert_where_to_look_and_what_to_do(alert: Alert) -> None:
    heading = alert.anchor.replace("-", " ")
    (part,) = re.findall(rf"(?ims)^### {heading}\n(.*?)(?=^##)", OPERATIONS + "\n##")
    assert f"`{PREFIX}{alert.name}`, {alert.severity}" in part
    assert all(word in part for word in ("**Symptom.**", "**Look.**", "**Do.**"))


@each_alert
def test_an_alert_says_how_bad_it_is_what_is_the_matter_and_where_to_read_on(alert: Alert) -> None:
    rule = next(one for one in alerts.rules()["groups"][0]["rules"] if one["alert"] == PREFIX + alert.name)
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".") and len(rule["annotations"]["summary"]) < 140
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.anchor}"
    assert re.fullmatch(r"\d+[mh]", rule["for"])


def test_the_cases_for_promtool_have_each_alert_once_silent_and_once_not() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))["tests"]
    tried = [case for group in cases for case in group["alert_rule_test"]]
    wanted = {PREFIX + alert.name for alert in ALERTS}
    assert {case["alertname"] for case in tried if not case.get("exp_alerts")} == wanted
    assert {case["alertname"] for case in tried if case.get("exp_alerts")} == wanted


# --- who reads them ---------------------------------------------------------------------------------------------------


def test_compose_gives_both_programs_the_files_of_the_chart() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    at = {
        name: dict(mount.split(":")[:2] for mount in services[name]["volumes"] if mount.startswith("./"))
        for name in ("prometheus", "grafana")
    }
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
    assert config["rule_files"] == [at["prometheus"]["./helm/alerts/streamward.yaml"]]
    (provider,) = yaml.safe_load((ROOT / "deploy" / "grafana-dashboards.yml").read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] == at["grafana"]["./helm/dashboards"]
    assert "./deploy/grafana-dashboards.yml" in at["grafana"]
    assert json.loads((dashboards.FOLDER / "overview.json").read_text(encoding="utf-8"))["uid"] == "streamward-overview"
