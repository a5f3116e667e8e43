"""Every figure on the overview, on a task and on a policy is what `streamward query` answers for the same log.

The statements are written anew here: one that the page and the test had in common would agree with itself.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import count
from typing import Any

import pytest
from starlette.testclient import TestClient

from plugins.page import app
from plugins.page.render import number
from streams.settings.model import Archive, Settings
from streams.tools.query import formats
from streams.tools.query.session import Session
from streams.tools.views import task
from streams.tools.views.log_view import LogView
from tests.support.factories import T0
from tests.support.log import page_log
from tests.support.log.archive_of import archived

PLACES = """
WITH train AS (FROM tasks WHERE purpose = 'train'), learned AS (SELECT task_id FROM lineage WHERE task_id IS NOT NULL),
cut AS (SELECT groups_partition AS _partition, unnest(groups_offsets) AS _offset FROM batches),
passed AS (SELECT groups_partition AS _partition, unnest(dropped).offset AS _offset FROM batches),
batched AS (SELECT task_id FROM groups SEMI JOIN cut USING (_partition, _offset)),
out AS (SELECT task_id FROM groups SEMI JOIN passed USING (_partition, _offset)
    UNION SELECT task_id FROM groups WHERE dropped_reason IS NOT NULL),
answers AS (SELECT task_id, count(*) AS n FROM responses GROUP BY task_id),
scores AS (SELECT task_id, count(*) AS n FROM rewards GROUP BY task_id),
open AS (SELECT task_id, group_size, coalesce(a.n, 0) AS answers, coalesce(s.n, 0) AS scores FROM train
    ANTI JOIN groups USING (task_id) LEFT JOIN answers AS a USING (task_id) LEFT JOIN scores AS s USING (task_id))
SELECT train.policy,
    count(*) FILTER (task_id IN (FROM learned)) AS trained,
    count(*) FILTER (task_id IN (FROM batched) AND task_id NOT IN (FROM learned)) AS batched,
    count(*) FILTER (task_id IN (FROM out) AND task_id NOT IN (FROM batched)) AS "left out",
    count(*) FILTER (task_id IN (SELECT task_id FROM groups) AND task_id NOT IN (FROM batched)
        AND task_id NOT IN (FROM out)) AS grouped,
    count(*) FILTER (task_id IN (SELECT task_id FROM open WHERE scores >= group_size)) AS scored,
    count(*) FILTER (task_id IN (SELECT task_id FROM open WHERE answers >= group_size AND scores < group_size))
        AS sampled,
    count(*) FILTER (task_id IN (SELECT task_id FROM open WHERE answers < group_size)) AS waiting
FROM train GROUP BY train.policy ORDER BY train.policy
"""
TOPICS = ("tasks", "responses", "rewards", "groups", "batches", "adapters", "turns", "jobs")
SLOTS = re.compile(
    r"slot (\d+) . (\S+) \w+ reward (\S+) .*?exact (\S+) .*?(\d+) tokens ends by (\w+) version (\d+)", re.DOTALL
)
FACTS = re.compile(r"version (\S+) scenario (\S+) mean reward (\S+) spread (\S+) formula")
CHART = re.compile(r'aria-label="([^"]+) of \w+ by version">(.*?)</svg>', re.DOTALL)
DOTS = re.compile(r"<title>([^<]+) of version (\d+): (\S+)</title>")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogView]:
    settings = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("figures") / "archive")))
    archived(settings, page_log.pictured_log(), count(T0, 1000))
    found = LogView(settings, "archive")
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(view: LogView) -> TestClient:
    return TestClient(app.create_app(view), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def session(view: LogView) -> Iterator[Session]:
    """What `streamward query` opens for each statement."""
    with Session(view.settings, source="archive") as session:
        yield session


def asked(session: Session, sql: str) -> list[dict[str, Any]]:
    """Return what `streamward query` prints for a statement."""
    out = io.StringIO()
    formats.write(session.run(sql), "json", out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


class Tables(HTMLParser):
    """The tables of a page: rows by the label of their region, cells by the name of their column; and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.said: list[str] = []
        self._region, self._cell = "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("role") == "region":
            self._region = given.get("aria-label") or ""
        elif tag == "tr":
            self.rows[self._region].append({})
        elif tag in ("td", "th"):
            self._cell = given.get("data-label") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data: str) -> None:
        self.said.append(data)
        if self._cell and self.rows[self._region]:
            row = self.rows[self._region][-1]
            row[self._cell] = " ".join(f"{row.get(self._cell, '')} {data}".split())

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.said))

    def column(self, region: str, *names: str) -> list[tuple[str, ...]]:
        """Return these cells of each row that has them."""
        return [tuple(row.get(name, "") for name in names) for row in self.rows[region] if names[0] in row]


def dots(html: str, *titles: str) -> list[tuple[str, ...]]:
    """Return the points of these charts: the name of the curve, the version, the value."""
    return sorted(dot for title, drawing in CHART.findall(html) if title in titles for dot in DOTS.findall(drawing))


def test_figures_of_the_overview_are_those_of_streamward_query(session: Session, client: TestClient) -> None:
    page = client.get("/").text
    found = re.findall(r'tasks of (\w+) by place|"count">(\d+)</span><span class="name">([\w ]+)<', page)
    shown: dict[str, dict[str, int]] = {}
    for policy, counted, name in found:
        if name:
            shown[[*shown][-1]][name] = int(counted)
        else:
            shown[policy] = {}
    assert {row.pop("policy"): row for row in asked(session, PLACES)} == shown
    counts = " UNION ALL ".join(f"SELECT '{name}' AS topic, count(*) AS n FROM {name}" for name in TOPICS)  # noqa: S608
    records = {(row["topic"], number(row["n"])) for row in asked(session, counts)}
    assert records <= {*Tables(page).column("Records by topic", "topic", "records")}


GROUPS = """
WITH answers AS (SELECT task_id, avg(completion_tokens) AS tokens, max(completion_tokens) AS longest
    FROM responses WHERE error IS NULL GROUP BY task_id)
SELECT g.task_id, g.reward_mean, g.reward_std, a.tokens, a.longest, g.adapter_version
FROM groups AS g JOIN answers AS a USING (task_id)
WHERE {} ORDER BY g._timestamp DESC, g._partition, g._offset DESC LIMIT 100
"""


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("policy=learner&version=7", "g.policy = 'learner' AND g.adapter_version = 7"),
        ("policy=learner&scenario=sums", "g.policy = 'learner' AND g.scenario = 'sums'"),
        ("reward_from=0.2&reward_to=0.5&tokens_to=5", "g.reward_mean BETWEEN 0.2 AND 0.5 AND a.tokens <= 5"),
        ("spread_to=0.41&text=6+%2B+7", "g.reward_std <= 0.41 AND g.task_id LIKE 'learner-%'"),
    ],
)
def test_figures_of_the_list_of_groups_are_those_of_streamward_query(
    session: Session, client: TestClient, query: str, condition: str
) -> None:
    page = Tables(client.get(f"/groups?{query}").text)
    groups = asked(session, GROUPS.format(condition))
    assert len(groups) > 3
    assert page.column("Groups", "task", "mean reward", "spread", "mean tokens", "longest", "version") == [
        (
            row["task_id"][:8], number(row["reward_mean"]), number(row["reward_std"]), number(row["tokens"]),
            number(row["longest"]), str(row["adapter_version"]),
        )
        for row in groups
    ]  # fmt: skip


@pytest.mark.parametrize(("task_id", "most"), [("taught", 200), ("learner-7-2", 200), ("learner-7-2", 40)])
def test_figures_of_a_task_are_those_of_streamward_query(
    session: Session, client: TestClient, task_id: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "SAME_QUESTION_ROWS", most)
    page = Tables(client.get(f"/tasks/{task_id}").text)
    slots = asked(
        session,
        "SELECT g.slot, g.advantage, g.reward, r.value, g.completion_tokens, g.finish_reason, g.adapter_version "  # noqa: S608
        f"FROM group_responses AS g JOIN rewards AS r USING (response_id) WHERE g.task_id = '{task_id}' ORDER BY slot",
    )
    assert SLOTS.findall(page.text) == [
        (
            str(row["slot"]), f"{row['advantage']:+.3g}" if row["advantage"] else "0", number(row["reward"]),
            number(row["value"]), str(row["completion_tokens"]), row["finish_reason"], str(row["adapter_version"]),
        )
        for row in slots
    ]  # fmt: skip
    (group,) = asked(session, f"FROM groups WHERE task_id = '{task_id}'")
    facts = (group["adapter_version"], group["scenario"], number(group["reward_mean"]), number(group["reward_std"]))
    assert FACTS.findall(page.text) == [tuple(map(str, facts))]
    same = asked(
        session,
        "SELECT g.adapter_version, g.reward_mean, list_transform(g.members, lambda m: m.reward) AS rewards "  # noqa: S608
        "FROM groups AS g JOIN tasks AS t USING (task_id) JOIN tasks AS this ON t.messages = this.messages "
        f"AND t.policy = this.policy WHERE this.task_id = '{task_id}' ORDER BY g.adapter_version, g._offset",
    )
    assert page.column("The same question over versions", "version", "mean reward", "rewards by slot") == [
        (str(row["adapter_version"]), number(row["reward_mean"]), " ".join(map(number, row["rewards"])))
        for row in same[:most]
    ]


@pytest.mark.parametrize("policy", ["default", "learner"])
def test_figures_of_a_policy_are_those_of_streamward_query(session: Session, client: TestClient, policy: str) -> None:
    html = client.get(f"/policies/{policy}").text
    page = Tables(html)
    answered = asked(
        session,
        "SELECT adapter_version AS version, count(*) AS groups, avg(reward_mean) AS reward FROM groups "  # noqa: S608
        f"WHERE policy = '{policy}' AND purpose = 'train' AND adapter_version >= 0 GROUP BY ALL ORDER BY 1 DESC",
    )
    assert [
        row for row in page.column("Versions", "version", "groups answered", "their mean reward") if row[1] != "–"
    ] == [(str(row["version"]), number(row["groups"]), number(row["reward"])) for row in answered]
    measured = asked(
        session,
        "SELECT version, metrics['exact'] AS exact, suite, metrics['n'] AS n FROM adapters "  # noqa: S608
        f"WHERE policy = '{policy}' AND kind = 'evaluated' ORDER BY version DESC",
    )
    assert [row for row in page.column("Versions", "version", "held out") if row[1]] == [
        (str(row["version"]), f"{number(row['exact'])} {row['suite']}, {int(row['n'])} tasks") for row in measured
    ]
    said = asked(
        session,
        "SELECT kind, version, effect, primary_version, candidate_version, share FROM rollout "  # noqa: S608
        f"WHERE policy = '{policy}' AND kind NOT IN ('trained', 'evaluated') ORDER BY _offset DESC",
    )
    assert page.column("Decisions", "what", "version", "effect", "then answers") == [
        (row["kind"].replace("_", " "), str(row["version"]), row["effect"], str(row["primary_version"])) for row in said
    ]
    assert said and f"Version {said[0]['primary_version']} answers" in page.text
    curves = asked(
        session,
        "SELECT scenario AS name, adapter_version AS version, avg(reward_mean) AS value FROM groups "  # noqa: S608
        f"WHERE policy = '{policy}' AND purpose = 'train' AND reward_mean IS NOT NULL GROUP BY ALL "
        f"UNION ALL SELECT suite, version, metrics['exact'] FROM adapters WHERE policy = '{policy}' "
        "AND kind = 'evaluated'",
    )
    assert dots(html, "Held-out score", "Train reward") == sorted(
        (row["name"], str(row["version"]), f"{row['value']:.4g}") for row in curves
    )


FIGURES = {
    "Groups that taught something": """
        WITH batched AS (SELECT groups_partition AS _partition, unnest(dropped) AS d FROM batches)
        SELECT adapter_version AS version, count(*) FILTER (dropped_reason IS NULL AND d IS NULL
            AND len(list_filter(members, lambda m: m.advantage <> 0)) > 0) / count(*) AS value
        FROM groups AS g LEFT JOIN batched AS b ON b._partition = g._partition AND b.d.offset = g._offset
        WHERE policy = '{policy}' AND purpose = 'train' AND adapter_version >= 0 GROUP BY ALL
    """,
    "Length of answers": """
        SELECT adapter_version AS version, avg(completion_tokens) AS value FROM group_responses
        WHERE policy = '{policy}' AND purpose = 'train' GROUP BY ALL
    """,
    "Cut answers": """
        SELECT adapter_version AS version, count(*) FILTER (finish_reason = 'length') / count(*) AS value
        FROM group_responses WHERE policy = '{policy}' AND purpose = 'train' GROUP BY ALL
    """,
    "Distinct answers": """
        SELECT version, metrics['answers_distinct'] / metrics['responses'] AS value FROM adapters
        WHERE policy = '{policy}' AND kind = 'trained' AND value IS NOT NULL
    """,
    "Lag": """
        SELECT a.version, sum(l.lag * l.groups) / sum(l.groups) AS value
        FROM (SELECT policy, sequence, unnest(lags) AS l FROM batches) AS b
        JOIN adapters AS a ON a.policy = b.policy AND a.last_batch = b.sequence AND a.kind = 'trained'
        WHERE a.policy = '{policy}' GROUP BY ALL
    """,
    "Answers a minute": """
        SELECT a.version, b.responses / (epoch_ms(a._timestamp) - epoch_ms(p._timestamp)) * 60000 AS value
        FROM adapters AS a JOIN adapters AS p ON p.policy = a.policy AND p.version = a.version - 1
        JOIN batches AS b ON b.policy = a.policy AND b.sequence = a.last_batch
        WHERE a.policy = '{policy}' AND a.kind = 'trained' AND p.kind = 'trained'
    """,
    "Tokens a second": """
        SELECT version, metrics['tokens'] / metrics['step_s'] AS value FROM adapters
        WHERE policy = '{policy}' AND kind = 'trained' AND value IS NOT NULL
    """,
} | {
    title: ("SELECT version, metrics['NAME'] AS value FROM adapters WHERE policy = '{policy}' AND kind = 'trained' "
    "AND value IS NOT NULL").replace("NAME", name)
    for title, name in (
        ("Loss", "loss"), ("KL to the sampler", "kl"), ("Entropy", "entropy"), ("Norm of the gradient", "grad_norm"),
        ("Tokens clipped", "clipped"), ("Effective tokens", "effective"),
    )
}  # fmt: skip
"""What each chart with one curve shows, as a statement."""


@pytest.mark.parametrize("policy", ["default", "learner"])
@pytest.mark.parametrize("title", FIGURES)
def test_curves_of_a_policy_are_those_of_streamward_query(
    session: Session, client: TestClient, policy: str, title: str
) -> None:
    rows = asked(session, FIGURES[title].format(policy=policy))
    expected = sorted((title, str(row["version"]), f"{row['value']:.4g}") for row in rows)
    assert dots(client.get(f"/policies/{policy}").text, title) == expected
    assert expected or policy == "default"


def test_what_flipped_among_held_out_questions_is_what_streamward_query_says(
    session: Session, client: TestClient
) -> None:
    page = Tables(client.get("/policies/learner").text)
    versions = [1, *range(14, 21)]
    rows = asked(
        session,
        "WITH asked AS (SELECT version, unnest(outcomes) AS o FROM adapters WHERE policy = 'learner' "  # noqa: S608
        f"AND kind = 'evaluated' AND version IN ({', '.join(map(str, versions))})) "
        "SELECT version, o.index AS number, o.success > 0.5 AS is_right, "
        "lag(o.success > 0.5) OVER (PARTITION BY o.index ORDER BY version) AS before FROM asked",
    )
    of_version = {version: [row for row in rows if row["version"] == version] for version in versions}
    sums = page.rows["Held-out questions"][1]
    for version, outcomes in of_version.items():
        right = sum(row["is_right"] for row in outcomes)
        better = sum(row["is_right"] and row["before"] is False for row in outcomes)
        worse = sum(not row["is_right"] and row["before"] is True for row in outcomes)
        flips = f" ▲ {better} ▼ {worse}" if version != versions[0] else ""
        assert sums[f"version {version}"] == f"{right} of {len(outcomes)}{flips}"
    texts = {row["question"] for row in page.rows["Held-out questions"] if "question" in row}
    tasks = asked(
        session, "SELECT DISTINCT messages[-1].content AS text FROM tasks WHERE starts_with(task_id, 'held-')"
    )
    assert {row["text"] for row in tasks} < texts


def test_a_policy_of_many_versions_leads_to_the_older_ones(client: TestClient) -> None:
    page = client.get("/policies/learner?from=5").text
    found = Tables(page)
    assert [version for (version,) in found.column("Versions", "version")] == [str(n) for n in range(15, -1, -1)]
    assert [version for (version,) in found.column("Decisions", "version")] == [str(n) for n in range(15, 0, -1)]
    assert "Version 20 answers" in found.text and "?over=version&amp;from=0" in page and "from=105" not in page
    assert {version for _, version, _ in dots(page, "Train reward")} == {str(n) for n in range(21)}, "curves are whole"
