"""Every panel and every alert, asked of a real Prometheus that scraped a real run of the loop.

    the loop and calls (tiny model), archive, audit ──► Prometheus ──► each query of helm/dashboards and helm/alerts

One task comes too late and one record is none, which is a dead letter; no version is refused, no score fails.
An error fails, and so does an answer that is empty or no number: what is counted only after a fault has to answer 0
before. Tasks come twice, since what comes once is no rate. Runs with `make test-deploy` only: it takes two minutes.

Not covered: Grafana, which is not asked to draw anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest

from schemas.events import TrainingCall
from streams.kafka.producer import Producer
from streams.observability.catalog import SERVED
from streams.observability.grafana.alerts import ALERTS, FILE, PREFIX, Alert
from streams.observability.grafana.dashboards import DASHBOARDS, FOLDER
from streams.settings.model import Metrics
from tests import skips
from tests.chaos.proxy import free_ports
from tests.pipeline.test_metrics import GROUPS, asked, tiny_loop
from tests.support import factories
from tests.support.deploy.prometheus import Answer, Prometheus, needs, running as scraping
from tests.support.processes import running, until

OPT_IN = "TEST_CLUSTER"
NEVER = "sum(streamward_score_failures_total)"
"""What has no answer in this run, because no score fails."""
RULE, CATALOGUE = "retrain.toml", "catalogue.yaml"
COMMANDS = {
    "archive": "admin archive sync --follow",
    "agents": "agents run guide --command true",
    "policy": "policy --fleet",
    "train": "train --fleet",
    "jobs": "jobs run",
    "curate": "improve curate follow",
    "datasets": "improve datasets follow good",
    "retrain": f"improve retrain follow --rule {RULE}",
    "selfplay": f"improve selfplay run {CATALOGUE} --every 1h",
}
"""Where that is not the name of the process."""
ON_PROMOTION = 'name = "r"\npolicy = "default"\nactions = ["tune"]\n[when]\npromotable = 9\n[tune]\nmethod = "sft"\n'
SUMS = {"name": "sums", "scenarios": [{"name": "s", "questions": [{"question": "1 + 1 =", "expected": 2}]}]}
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(os.environ.get(OPT_IN) != "1", reason=skips.ASKED_FOR),
    needs("prometheus"),
]


class Seen(NamedTuple):
    """What Prometheus answered."""

    at_work: dict[str, Answer]
    """By query."""
    firing: set[str]
    health: dict[str, tuple[str, str]]
    """Of each rule: health and last error."""
    ended: Answer
    """ProcessDown's value when all processes have ended."""


def filled(query: str) -> str:
    """Return a panel's query as Grafana sends it when everything is chosen."""
    return query.replace("$__rate_interval", "1m").replace("$namespace", ".*").replace("$policy", ".*")


def panels() -> Iterator[tuple[str, str]]:
    """Yield (dashboard: panel, query) of every committed file."""
    for dashboard in DASHBOARDS:
        for panel in json.loads((FOLDER / f"{dashboard.name}.json").read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                yield f"{dashboard.name}: {panel['title']}", filled(target["expr"])


def values() -> Iterator[tuple[str, str]]:
    """Yield (alert, query) for the values that the limits are about."""
    for alert in ALERTS:
        yield alert.name, alert.limit.query
        if alert.only_if:
            yield f"{alert.name}, only if", alert.only_if.query


def named(name: str) -> Alert:
    return next(alert for alert in ALERTS if alert.name == name)


def numbers(found: Answer) -> list[float]:
    """Return the values of an answer that are numbers."""
    return [value for value in (float(one["value"][1]) for one in found) if not math.isnan(value)]


def ask_all(server: Prometheus) -> dict[str, Answer]:
    return {query: server.ask(query) for _, query in (*panels(), *values(), ("", NEVER))}


def new_model(number: int) -> TrainingCall:
    """Return the call that makes a model of session s1."""
    model = f"s1:train:{number}"
    return factories.training_call(model=model, call_id=model)


@pytest.fixture(scope="module")
def seen(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("watched")
    settings = tiny_loop(folder, kafka_bootstrap)
    (folder / RULE).write_text(ON_PROMOTION)
    (folder / CATALOGUE).write_text(json.dumps(SUMS))
    of_agent: dict[str, object] = {"agent": "guide", "purpose": "eval"}
    *ports, audit_port = free_ports(len(SERVED) + 1)
    targets: dict[str, str] = {name: f"127.0.0.1:{port}" for name, port in zip(SERVED, ports, strict=True)}
    targets["audit"] = f"127.0.0.1:{audit_port}"
    audit = f"audit --follow --every 2 --listen {targets['audit']}"
    with ExitStack() as outer:
        server = outer.enter_context(scraping(folder / "prometheus", targets, FILE))
        with Producer(settings) as producer:
            producer.send_bytes(settings.topics.prefix + "tasks", b"t0", b"no task")
            producer.send(asked(0, deadline_at=1))
            for number in range(1, GROUPS + 3):
                producer.send(asked(number))
            producer.send(asked(100, **of_agent))
            producer.send(new_model(0))
        with ExitStack() as stack:
            for name, port in zip(SERVED, ports, strict=True):
                own = settings.model_copy(update={"metrics": Metrics(port=port)})
                stack.enter_context(running(own, folder, COMMANDS.get(name, name)))
            stack.enter_context(running(settings, folder, audit))
            until(lambda: bool(server.ask("streamward_trainer_version == 1")), "a version", folder=folder)
            until(lambda: bool(server.ask("streamward_agent_run_seconds_count")), "a run", folder=folder)
            with Producer(settings) as producer:
                for number in range(GROUPS + 3, 3 * GROUPS + 3):
                    producer.send(asked(number))
                producer.send(asked(101, **of_agent))
                producer.send(new_model(1))
            until(lambda: bool(server.ask("streamward_trainer_version >= 2")), "another", folder=folder)
            until(lambda: bool(server.ask("streamward_rollout_primary_version >= 2")), "it in force", folder=folder)
            with Producer(settings) as producer:
                producer.send(asked(102, policy="another", purpose="eval"))
            until(lambda: bool(server.ask("streamward_ledger_imbalance_records")), "a recount", folder=folder)
            with suppress(AssertionError):  # which are missing, the tests say one by one
                until(
                    lambda: sum(not numbers(found) for found in ask_all(server).values()) == 1, "answers", timeout_s=20
                )
            at_work, firing = ask_all(server), server.firing()
            groups = server.get("rules")["groups"]
        until(lambda: not server.ask("streamward_process_info"), "that nobody answers any more")
        ended = server.ask(named("ProcessDown").limit.query)
    health = {rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]}
    return Seen(at_work, firing, health, ended)


@pytest.mark.parametrize(("panel", "query"), list(panels()))
def test_a_panel_has_an_answer(seen: Seen, panel: str, query: str) -> None:
    assert numbers(seen.at_work[query]), f"{panel}: {query}"


@pytest.mark.parametrize(("alert", "query"), list(values()))
def test_the_value_of_an_alert_has_an_answer_also_while_all_is_well(seen: Seen, alert: str, query: str) -> None:
    assert numbers(seen.at_work[query]), f"{alert}: {query}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_prometheus_evaluates_each_rule(seen: Seen, alert: Alert) -> None:
    assert seen.health[PREFIX + alert.name] == ("ok", "")


def test_what_could_not_be_used_fires_and_nothing_else_does(seen: Seen) -> None:
    assert seen.firing == {f"{PREFIX}DeadLetters"}
    letters = seen.at_work[named("DeadLetters").limit.query]
    assert [(one["metric"]["stage"], float(one["value"][1])) for one in letters] == [("advantages", 1)]


def test_every_process_was_up_and_all_are_named_when_they_have_ended(seen: Seen) -> None:
    def told(found: Answer) -> dict[str, float]:
        return {one["metric"]["process"]: float(one["value"][1]) for one in found}

    assert told(seen.at_work[named("ProcessDown").limit.query]) == dict.fromkeys(SERVED, 1)
    assert told(seen.ended) == dict.fromkeys(SERVED, 0)


def test_what_was_never_counted_has_no_answer_by_itself(seen: Seen) -> None:
    assert seen.at_work[NEVER] == []
