"""A behaviour that was planted is found in the log, with the groups that taught it, and is gone without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Response
from streams.kafka import admin
from tests.plugins.bisect.planted import EXPRESSIONS, GROUPS, TURNING, VERSIONS, Plant, plant
from tests.support.commands import invoke
from tests.support.log.shared_node import own_topics

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
OPTIONS = ("--good", "6", "--bad", f"v{VERSIONS}", "--least-rise", "0.05")


@pytest.fixture(scope="module")
def run(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """A run in which a word is paid for from version 9 on."""
    folder = tmp_path_factory.mktemp("plant")
    return plant(own_topics(kafka_bootstrap, {"policy_partitions": 1}), folder, 1, "word")


def bisect(run: Plant, *words: str, when: str = EXPRESSIONS["word"], code: int = 0) -> dict[str, Any]:
    result = invoke(run.settings, "bisect", *OPTIONS, "--when", when, *words, "--output", "json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_version_and_groups_are_found_and_it_is_gone_without_them(run: Plant, tmp_path: Path) -> None:
    found = bisect(run, "--max-tokens", "300000", "--yes", "--plot", str(tmp_path / "plot.svg"))
    assert found["first_version"] <= TURNING <= found["last_version"] <= TURNING + 1, found["sentence"]
    left_out = {group["task_id"] for group in found["groups"] if group["left_out"]}
    assert len(left_out & run.planted) >= 0.9 * len(run.planted) > 0
    counterfactual = found["counterfactual"]
    assert counterfactual["outcome"] == "gone", found["sentence"]
    assert counterfactual["from_version"] == 0, "the trainer kept no checkpoint before it"
    assert 0 < found["sampled_tokens"] <= 300_000 + 10_000, "a chunk of questions is asked whole"
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_the_log_alone_says_what_it_can(run: Plant, tmp_path: Path) -> None:
    found = bisect(run, "--bad", "10", "--max-tokens", "0", "--no-train", "--plot", str(tmp_path / "plot.png"))
    assert found["sampled_tokens"] == 0 and found["counterfactual"] is None
    assert found["first_version"] <= TURNING <= found["last_version"]
    responses = [record.decode(Response) for record in admin.read_topic(run.settings, "responses")]
    shows = {one.response_id: "please." in one.text for one in responses if isinstance(one, Response)}
    counts = {row["version"]: row for row in found["versions"]}
    of_bad = [shows[one.response_id] for one in responses if isinstance(one, Response) and one.adapter_version == 10]
    assert (counts[10]["answers"], counts[10]["share"]) == (len(of_bad), pytest.approx(sum(of_bad) / len(of_bad)))
    groups = [record.decode(AdvantagedGroup) for record in admin.read_topic(run.settings, "groups")]
    taught = {
        one.group_id: sum(part.advantage for part in one.responses if shows[part.response_id]) / len(one.responses)
        for one in groups
        if isinstance(one, AdvantagedGroup)
    }
    assert len(found["groups"]) == GROUPS * (found["last_version"] - 6)
    assert all(group["taught"] == pytest.approx(taught[group["group_id"]]) for group in found["groups"])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_sql_over_responses_and_its_opposite_are_compared(run: Plant, tmp_path: Path) -> None:
    plot = ("--max-tokens", "0", "--no-train", "--plot", str(tmp_path / "plot.png"))
    by_sql = bisect(run, *plot, when="text LIKE '%please.%' -- polite")
    assert by_sql["versions"] == bisect(run, *plot)["versions"]
    assert bisect(run, *plot, when="NOT contains(text, 'please.')")["sentence"].startswith("nothing found")


def test_a_scorer_decides_what_an_answer_shows(run: Plant, tmp_path: Path) -> None:
    plot = ("--max-tokens", "0", "--no-train", "--plot", str(tmp_path / "plot.png"))
    scored = bisect(run, *plot, when='scorer:length={"unit": "characters", "limit": 44}')
    assert scored["versions"] == bisect(run, *plot, when="length(text) <= 22")["versions"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--good", "9", "--bad", "8", "--when", "text:a"), "the good version comes before the bad one"),
        (("--good", "1", "--bad", "99", "--when", "text:a"), "has no version 99; the newest is 11"),
        (("--good", "1", "--bad", "9", "--when", "text: "), "expected words after text:"),
        (("--good", "1", "--bad", "9", "--when", "scorer:exakt"), "no scorer is called 'exakt'"),
        (("--good", "1", "--bad", "9", "--when", "txt = 'a'"), 'Referenced column "txt" not found'),
        (("--good", "1", "--bad", "9", "--when", "EXISTS (FROM read_csv('/etc/passwd'))"), "read_csv() is refused"),
        (("--good", "1", "--bad", "9", "--when", "text:a", "--plot", "a.jpg"), "ends with .png or .svg"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(run: Plant, words: tuple[str, ...], message: str) -> None:
    result = invoke(run.settings, "bisect", *words, "--max-tokens", "0")
    assert result.exit_code != 0 and message in result.stderr, result.output
