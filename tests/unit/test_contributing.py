"""Recipes of CONTRIBUTING.md, followed in a copy of the tree: for a formula, an option, a topic, a view, a plugin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
THUMBS = ROOT / "docs" / "examples" / "plugin-thumbs" / "thumbs"
"""A stranger's plugin, which becomes a folder of ours."""


class Step(NamedTuple):
    """Lines that go before, or instead of, those that a file has."""

    recipe: str
    file: str
    before: str
    lines: str


STEPS = (
    Step(
        "Add an advantage formula",
        "streams/advantage_formulas.py",
        "FORMULAS: dict[str, Formula] = {\n",
        """
def halves(rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    mean, _ = mean_and_std(rewards, ddof)
    return [(reward - mean) / 2 for reward in rewards]

FORMULAS: dict[str, Formula] = {
    "halves": Formula(halves, lambda distance, n, std, eps: distance / 2),
""",
    ),
    Step(
        "Add a training option",
        "streams/settings/model.py",
        "    micro_groups: int",
        '    advantage_cap: float = Field(0.0, ge=0, description="cap of advantages; 0: none")\n    micro_groups: int',
    ),
    Step(
        "Add a topic",
        "schemas/events.py",
        "\nEvent = (\n",
        "from schemas.note_events import Note\n\nEvent = (\n    Note |",
    ),
    Step(
        "Add a topic",
        "streams/topics/loop_topics.py",
        "LOOP = (\n",
        """LOOP = (
    TopicShape(
        label="notes", event=events.Note, key="policy", kept=True, written_by="people", read_by="people",
        tenant=OWN_POLICY, reader=None, is_about="a note", audit="place", causes=(),
        line=lambda actor, text: f"{actor}: {text}", columns=(Column("text", lambda e: e.text),),
    ),
""",
    ),
    Step(
        "Add a view",
        "streams/tools/query/views.py",
        "JOINS = (\n",
        """JOINS = (
    SqlView("note_counts", "notes", "one per policy", OWN_POLICY, "SELECT policy, count(*) n FROM notes GROUP BY 1"),
""",
    ),
)
EVENT = '''"""Notes about policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.event_types import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note about a policy."""

    note_id: str
    policy: Annotated[str, "key of the record"]
    created_at: Millis
    actor: str
    text: str
'''
USED = """
from schemas.events import EVENTS, Note
from schemas.serde import decode, encode
from streams.advantage_formulas import FORMULAS, advantages
from streams.kafka.topics import SHAPES, topics
from streams.settings.load import build
from streams.tools.audit.reading import effects_first
from streams.tools.audit.recount import subject_recounts
from streams.tools.query.views import tenant_conditions, views
from streams.tools.views.rights import LogRights

settings = build({"advantages": {"formula": "halves"}, "trainer": {"advantage_cap": 1.5}})
assert settings.trainer.advantage_cap == 1.5
assert advantages("halves", [0.0, 4.0], eps=0.0, ddof=1) == [-1.0, 1.0]
assert FORMULAS["halves"].recount(2.0, 2, 1.0, 0.0) == 1.0
note = Note(note_id="1", policy="red.chat", created_at=1, actor="ann", text="good")
assert decode(encode(note), Note) == note and Note in EVENTS
assert topics(settings.topics)["notes"].event is Note and "notes" in effects_first(SHAPES)
assert {"notes", "note_counts"} <= {*views(settings)} & {*tenant_conditions()}
assert "note_counts AS (SELECT" in LogRights("red", access=False).restrict("FROM note_counts")
assert "answer_thumbs" in views(settings) and "thumbs" in effects_first(SHAPES)
thumb = SHAPES["thumbs"].event(thumb_id="1", task_id="t", answer_id="a", created_at=1, actor="ann", up=True)
assert decode(encode(thumb), type(thumb)) == thumb
assert [kind.labels for kind in subject_recounts() if "thumbs" in kind.labels] == [("thumbs", "responses")]
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed")
    for package in ("schemas", "streams"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "schemas" / "note_events.py").write_text(EVENT, encoding="utf-8")
    for step in STEPS:
        text = (folder / step.file).read_text(encoding="utf-8")
        assert text.count(step.before) == 1, step
        (folder / step.file).write_text(text.replace(step.before, step.lines), encoding="utf-8")
    plugin = folder / "plugins" / "thumbs"
    plugin.mkdir(parents=True)
    for source in THUMBS.glob("*.py"):
        text = re.sub(r'(from |")thumbs([.:])', r"\1plugins.thumbs\2", source.read_text(encoding="utf-8"))
        (plugin / source.name).write_text(text, encoding="utf-8")
    return folder


def test_a_recipe_names_each_module_that_it_changes() -> None:
    recipes = dict(
        part.split("\n", 1) for part in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## ")
    )
    for step in STEPS:
        assert step.file in recipes[step.recipe] or f"{Path(step.file).parent}/`" in recipes[step.recipe], step


def test_what_a_recipe_adds_is_there_without_another_module_of_the_program_being_changed(followed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(followed)}
    generate = ["-m", "schemas.generate"]
    for command in (generate, [*generate, "plugins.thumbs.topics:Thumb"], ["-c", USED]):
        done = subprocess.run([sys.executable, *command], cwd=followed, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
