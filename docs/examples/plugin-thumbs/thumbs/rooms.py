"""The route `POST /thumbs`, which is a command and a tool of MCP, too."""

from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import TASKS_LISTED, actor_of
from gateway.http.route import REST
from schemas.event_types import derive_id
from streams.kafka.producer import Producer
from streams.kafka.times import now_ms
from thumbs.shown import THUMBS
from thumbs.topics import Thumb


class ThumbBody(Body):
    task_id: str
    answer_id: str
    up: bool


class ThumbAnswer(Answer):
    thumb_id: str


class Thumbs:
    def __init__(self, settings, log):
        self.settings, self.log = settings, log

    @REST.post("/thumbs", may="feedback.give", ids=TASKS_LISTED, example=ThumbAnswer(thumb_id="a"), tools={"rate": ""})
    def rate_answer(self, request: Request, body: ThumbBody) -> ThumbAnswer:
        """Rate an answer with a thumb up or down."""
        self.log.find_task(request, body.task_id)
        actor, now = actor_of(request), now_ms()
        thumb = Thumb(thumb_id=derive_id(body.answer_id, actor, now), actor=actor, created_at=now, **body.model_dump())
        with Producer(self.settings) as producer:
            producer.send(thumb)
        self.log.meter.add(THUMBS, "up" if body.up else "down")
        return ThumbAnswer(thumb_id=thumb.thumb_id)


ROOMS = (Thumbs,)
