"""A topic is declared once, and what is missing or contradicts its event is refused at once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from schemas.events import EVENTS
from streams.kafka.topics import SHAPES
from streams.tools.audit.reading import effects_first
from streams.tools.query.views import tenant_conditions
from streams.tools.views.rights import LogRights
from streams.topics.shape import ADMINS_ONLY, TopicShape
from tests.support.factories import one_of_each

OPTIONAL = ("effects", "metadata", "cost")
FACTS = {
    field.name: getattr(SHAPES["curation"], field.name) for field in fields(TopicShape) if field.name not in OPTIONAL
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_topic_without_one_of_its_facts_is_refused(fact: str) -> None:
    with pytest.raises(TypeError, match=fact):
        TopicShape(**{name: value for name, value in FACTS.items() if name != fact})


@pytest.mark.parametrize(
    ("fact", "value", "says"),
    [
        ("label", "Curation", "small letters"),
        ("key", "tsk_id", "reads tsk_id"),
        ("line", lambda verdict, referee: f"{verdict}{referee}", "reads referee"),
        ("audit", "sometimes", "expected one of"),
        *((fact, "", f"{fact} is empty") for fact in ("written_by", "read_by", "is_about", "columns")),
    ],
)
def test_a_fact_that_contradicts_the_event_is_refused(fact: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(SHAPES["curation"], **{fact: value})


def test_every_record_has_its_line_in_words() -> None:
    """Those of events in schemas/; a plugin with an event of its own has its own test."""
    by_type = {type(event): event for event in one_of_each()}
    lines = {
        label: shape.line(*(getattr(by_type[shape.event], name) for name in shape.fields))
        for label, shape in SHAPES.items()
        if shape.event in EVENTS
    }
    assert [label for label, line in lines.items() if not line] == []


def test_the_audit_reads_the_ends_of_effects_before_those_of_their_causes() -> None:
    order = effects_first(SHAPES)
    assert set(SHAPES) - set(order) == {label for label, shape in SHAPES.items() if shape.audit == "nothing"}
    assert order[0] == "dead-letters"
    late = [(shape.label, cause) for shape in SHAPES.values() for cause in shape.causes if cause in order]
    late += [(effect, shape.label) for shape in SHAPES.values() for effect in shape.effects]
    assert [pair for pair in late if order.index(pair[0]) > order.index(pair[1])] == []


def test_every_view_says_whose_its_rows_are_and_a_tenant_reads_no_other_name() -> None:
    sql = LogRights(tenant="shop").restrict("FROM tasks")
    hidden = LogRights(access=False).restrict("FROM tasks")
    for view, rows in tenant_conditions().items():
        assert f" {view} AS (" in sql
        assert (f" {view} AS (" in hidden) == (rows == ADMINS_ONLY)
