"""Alerts and dashboards as Prometheus and a cluster read them.

    tests/deploy/alerts.yaml, those of plugins ──► promtool test rules ──► what fires, and what does not
    helm template ──► ConfigMaps and a PrometheusRule ──► the committed files

Not covered: the operator and the sidecar that take them up.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from streams.observability.grafana import alerts, dashboards
from tests.deploy.test_chart import BOOTSTRAP, Object, helm, name_of, needs_helm
from tests.support.deploy.prometheus import needs, promtool

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "deploy" / "alerts.yaml"
OF_PLUGINS = sorted((ROOT / "tests" / "plugins").glob("*/alerts.yaml"))
EVERY_ALERT = [*alerts.ALERTS, *(alert for of_plugin in alerts.by_plugin().values() for alert in of_plugin)]
needs_promtool = needs("promtool")


# --- as Prometheus reads them -----------------------------------------------------------------------------------------


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", CASES, *OF_PLUGINS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cases_expect_what_the_alerts_say_today() -> None:
    """Without promtool, so that a text that is changed is noticed where there is none."""
    summaries = {alerts.PREFIX + alert.name: _pattern(alert.summary) for alert in EVERY_ALERT}
    cases = [case for file in (CASES, *OF_PLUGINS) for case in yaml.safe_load(file.read_text("utf-8"))["tests"]]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    expected = {
        (check["alertname"], alert["exp_annotations"]["summary"])
        for check in checks
        for alert in check.get("exp_alerts", [])
    }
    assert expected
    assert [(name, text) for name, text in expected if not summaries[name].fullmatch(text)] == []


def _pattern(summary: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\{\{.+?\}\}", summary))))


@needs_promtool
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("[10m])) or on() vector(0)) > 0", "[10m])) or on() vector(0)) > 1"),
        ("unless streamward_dead_letters_total offset 10m", "unless streamward_dead_letters_total"),
        ("for: 6h", "for: 8h"),
    ],
)
def test_the_cases_notice_a_rule_that_is_wrong(tmp_path: Path, right: str, wrong: str) -> None:
    """A few rules made wrong, so that the test above is known to be able to fail."""
    text = alerts.text()
    assert right in text
    (tmp_path / "rules.yaml").write_text(text.replace(right, wrong))
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    wanted = ("dead letters", "a trial")
    tests = [group for group in cases["tests"] if group["name"].startswith(wanted)]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({**cases, "rule_files": ["rules.yaml"], "tests": tests}))
    assert len(tests) == len(wanted) and promtool("test", "rules", tmp_path / "cases.yaml").returncode != 0


@needs_promtool
def test_prometheus_of_compose_takes_its_configuration(tmp_path: Path) -> None:
    config = (ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(config.replace("/etc/prometheus/alerts.yml", "alerts.yml"))
    shutil.copy(alerts.FILE, tmp_path / "alerts.yml")
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(EVERY_ALERT)} rules found" in done.stdout


# --- as the chart brings them -----------------------------------------------------------------------------------------


def rendered(values: Object) -> list[Object]:
    """Return the objects of these values that the values without them do not have."""
    both = [helm({**BOOTSTRAP, **more}) for more in ({}, values)]
    for done in both:
        assert done.returncode == 0, done.stderr
    before, after = ([one for one in yaml.safe_load_all(done.stdout) if one is not None] for done in both)
    names = {name_of(one) for one in before}
    return [one for one in after if name_of(one) not in names]


@needs_helm
def test_the_chart_brings_each_dashboard_as_it_was_committed_where_the_sidecar_finds_it() -> None:
    found = rendered({"grafana": {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "RL"}}}})
    assert {one["kind"] for one in found} == {"ConfigMap"}
    files = {name: text for one in found for name, text in one["data"].items()}
    assert files == {
        f"streamward-{file.name}": file.read_text(encoding="utf-8") for file in dashboards.FOLDER.iterdir()
    }
    for one in found:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "RL"}
        assert len(json.dumps(one)) < 256 * 1024  # what kubectl apply can annotate


@needs_helm
def test_the_chart_brings_the_alerts_with_links_to_where_the_page_is_read() -> None:
    page = "https://example.com/wiki/operations.md"
    (found,) = rendered({"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "runbooks": page}})
    assert (found["apiVersion"], found["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    assert json.loads(json.dumps(found["spec"]).replace(page, alerts.PAGE)) == alerts.rules()
    links = {rule["annotations"]["runbook_url"].partition("#")[0] for rule in found["spec"]["groups"][0]["rules"]}
    assert links == {page}


@needs_helm
def test_the_chart_brings_the_rules_of_an_image_with_other_plugins() -> None:
    others = {"groups": [{"name": "streamward-thumbs", "rules": []}]}
    (found,) = rendered({"prometheusRule": {"enabled": True, "rules": yaml.safe_dump(others)}})
    assert found["spec"] == others
