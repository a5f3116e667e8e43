"""`streamward admin dashboards` against the part of Grafana's API that it uses (tests/support/doubles/grafana.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streams.cli.root import cli
from streams.observability.grafana.dashboards import DASHBOARDS
from streams.observability.grafana.model import TAG
from streams.observability.grafana.upload import differences
from tests.support.doubles import grafana

UIDS = {dashboard.uid for dashboard in DASHBOARDS}


@pytest.fixture
def there() -> Iterator[grafana.Grafana]:
    """A Grafana without dashboards."""
    with grafana.running() as running:
        yield running


def run(command: str, url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["admin", "dashboards", command, "--grafana", url, *arguments])


def states(result: Result) -> dict[str, str]:
    return {row["dashboard"]: row["state"] for row in map(json.loads, result.stdout.splitlines())}


def test_all_are_made_in_their_folder_and_then_they_are_the_same(there: grafana.Grafana) -> None:
    missing = run("check", there.url)
    assert missing.exit_code == 1 and states(missing) == dict.fromkeys(UIDS, "missing")
    assert there.writes == []
    made = run("apply", there.url)
    assert made.exit_code == 0 and states(made) == dict.fromkeys(UIDS, "created")
    assert there.folders[TAG]["title"] == "Streamward"
    assert {folder for _, folder in there.dashboards.values()} == {TAG}
    same = run("check", there.url)
    assert same.exit_code == 0 and states(same) == dict.fromkeys(UIDS, "same")


def test_a_second_apply_writes_nothing(there: grafana.Grafana) -> None:
    run("apply", there.url)
    there.writes.clear()
    again = run("apply", there.url)
    assert states(again) == dict.fromkeys(UIDS, "same") and there.writes == []


def test_what_somebody_changed_is_named_and_put_right(there: grafana.Grafana) -> None:
    run("apply", there.url)
    model, folder = there.dashboards["streamward-overview"]
    model["title"], model["panels"][1]["targets"][0]["expr"], model["version"] = "Mine", "up", 7
    there.dashboards["streamward-scoring"] = (there.dashboards["streamward-scoring"][0], "elsewhere")
    found = run("check", there.url)
    assert found.exit_code == 1
    told = {row["dashboard"]: row["differences"] for row in map(json.loads, found.stdout.splitlines())}
    assert told["streamward-overview"][0] == "title: got 'Mine', expected 'Streamward: Overview'"
    assert told["streamward-overview"][1].startswith("panels[1].targets[0].expr: got 'up', expected ")
    assert told["streamward-scoring"] == ["folder: got 'elsewhere', expected 'streamward'"]
    assert {uid for uid, differ in told.items() if differ} == {"streamward-overview", "streamward-scoring"}
    updated = run("apply", there.url)
    assert {uid for uid, state in states(updated).items() if state == "updated"} == {
        "streamward-overview",
        "streamward-scoring",
    }
    assert there.dashboards["streamward-overview"][0]["version"] == 8
    assert run("check", there.url).exit_code == 0 and folder == TAG


def test_what_grafana_adds_of_its_own_is_no_difference(there: grafana.Grafana) -> None:
    run("apply", there.url)
    model, _ = there.dashboards["streamward-training"]
    model["weekStart"], model["preload"] = "", False
    model["panels"][1]["pluginVersion"] = "12.1.0"
    del model["panels"][0]["panels"], model["timezone"]
    assert run("check", there.url).exit_code == 0


def test_a_change_by_somebody_else_meanwhile_is_not_lost(there: grafana.Grafana) -> None:
    run("apply", there.url)
    model, _ = there.dashboards["streamward-policy"]
    model["title"] = "Mine"

    def meanwhile() -> None:
        model["version"] += 1

    there.before_write = meanwhile
    result = run("apply", there.url)
    assert result.exit_code == 4
    assert "412 The dashboard has been changed by someone else" in result.stderr
    assert "apply again" in result.stderr and model["title"] == "Mine"


def test_a_grafana_that_does_not_keep_what_it_is_given_is_no_success(there: grafana.Grafana) -> None:
    keep = there.answer

    def forgetful(method: str, path: str, authorization: str, body: dict[str, object]) -> grafana.Answer:
        status, told = keep(method, path, authorization, body)
        if "dashboard" in told:
            told = {**told, "dashboard": {**told["dashboard"], "panels": []}}
        return status, told

    there.answer = forgetful  # type: ignore[method-assign]
    result = run("apply", there.url)
    assert result.exit_code == 1 and "reads back differently: panels: got 0 entries" in result.stderr


def test_without_the_right_token_it_is_refused_with_the_way_out(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with grafana.running(token="s3cret") as there:
        refused = run("apply", there.url)
        assert refused.exit_code == 4 and "401" in refused.stderr and "--token-file" in refused.stderr
        token.write_text("s3cret\n")
        assert run("apply", there.url, "--token-file", str(token)).exit_code == 0
        token.write_text("wrong")
        wrong = run("check", there.url, "--token-file", str(token))
        assert wrong.exit_code == 4 and "wrong" not in wrong.stderr


def test_a_grafana_that_is_not_there_is_unreachable() -> None:
    result = run("check", "http://127.0.0.1:1")
    assert result.exit_code == 5 and "does not answer" in result.stderr


@pytest.mark.parametrize(
    ("url", "arguments", "says"),
    [
        ("localhost:3000", (), "expected http(s)://HOST"),
        ("ftp://somebody:secret@host", (), "--grafana ftp://host: expected"),
        ("http://host", ("--token-file", "none"), "--token-file none"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    url: str, arguments: tuple[str, ...], says: str
) -> None:
    result = run("check", url, *arguments)
    assert result.exit_code == 2 and says in result.stderr and "secret" not in result.stderr


def test_an_empty_token_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    result = run("check", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token"))
    assert result.exit_code == 2 and "is empty" in result.stderr


def test_something_else_that_answers_is_no_grafana(there: grafana.Grafana) -> None:
    there.answer = lambda *_: (200, {"status": "ok"})  # type: ignore[method-assign]
    result = run("check", there.url)
    assert result.exit_code == 1 and "not Grafana" in result.stderr
    there.answer = lambda *_: (503, {"message": "database is locked"})  # type: ignore[method-assign]
    result = run("check", there.url)
    assert result.exit_code == 5 and "503 Server Error 503: database is locked" not in result.stdout
    assert "database is locked" in result.stderr


def test_the_first_differences_are_told_and_the_rest_counted() -> None:
    wanted = {"panels": [{"id": number} for number in range(20)]}
    told = list(differences(wanted, {"panels": [{"id": -1}] * 20}))
    assert told[0] == "panels[0].id: got -1, expected 0" and told[-1] == "and 10 more" and len(told) == 11
    assert list(differences(wanted, {"panels": [*wanted["panels"], {"id": 99}]})) == [
        "panels: got 21 entries, expected 20"
    ]
    assert list(differences({"a": 0}, {"a": None})) == ["a: got None, expected 0"]
