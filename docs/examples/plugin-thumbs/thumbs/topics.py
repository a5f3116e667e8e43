"""The topic `thumbs`: who liked which answer. `python -m schemas.generate thumbs.topics:Thumb` writes its schema."""

from dataclasses import dataclass
from typing import Annotated

from schemas.event_types import Millis
from streams.output import Column
from streams.topics.shape import OWN_TASK, TopicShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumb:
    """What somebody thinks of an answer."""

    thumb_id: Annotated[str, "uuid5(answer_id, actor, created_at)"]
    task_id: Annotated[str, "key of the record"]
    answer_id: Annotated[str, "a response_id"]
    created_at: Millis
    actor: str
    up: bool


TOPICS = (TopicShape(
    label="thumbs", event=Thumb, key="task_id", kept=False, written_by="`POST /thumbs`", read_by="people",
    tenant=OWN_TASK, reader=None, is_about="a thumb", audit="since", causes=("responses",),
    line=lambda actor, up, answer_id: f"{actor} {'likes' if up else 'dislikes'} answer {answer_id}",
    columns=(Column("answer", lambda thumb: thumb.answer_id), Column("up", lambda thumb: thumb.up)),
),)  # fmt: skip
