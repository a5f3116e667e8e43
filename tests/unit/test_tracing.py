"""Spans: which trace an event carries, what is told of it, and that no receiver can hold up the loop."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations

import pytest

from schemas.events import AdapterEvent, Batch, Coordinates, DeadLetter, GroupControl, Response
from schemas.serde import encode
from streams.errors import SettingsError
from streams.kafka.record import Record, dead_letter, trace_of
from streams.observability import catalog, trace_context
from streams.observability.metrics import Meter
from streams.observability.trace_context import Context, child, of_headers, parse
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.spans import Span
from streams.observability.tracing.tracer import OFF, Trace, Traced, Tracer
from streams.settings.model import Batches, Settings, Topics, Tracing
from streams.stages import batches
from streams.stages.advantages import rows as group_rows
from streams.stages.advantages.incoming import Incoming
from streams.stages.advantages.live import group_trace
from streams.stages.advantages.stage import AdvantageStage
from streams.stages.advantages.state import EmitGroup
from streams.stages.batches import BatchWindow, Cutter, Entry
from tests.support.doubles.otlp_receiver import Receiver, receiving
from tests.support.factories import T0, group, one_of_each, response, reward, task
from tests.support.log.join_partition import Log, answers, scores

CAME = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
AT = Coordinates("streamward.tasks", 3, 41)
WITHOUT = Settings(tracing=Tracing(otlp_endpoint="http://nowhere", sample_ratio=0.0))
TRACED: list[Traced] = [e for e in one_of_each() if isinstance(e, Traced)]


def tracer(spans: list[Span] | None = None, settings: Settings | None = None) -> Tracer:
    return Tracer(settings or Settings(), (spans if spans is not None else []).append)


# --- which trace ------------------------------------------------------------------------------------------------------


def test_without_a_receiver_what_came_goes_on_as_it_is_and_nothing_begins() -> None:
    assert OFF.follows(CAME, "r1") == Trace(CAME)
    assert OFF.joins(CAME, "b1", T0, [CAME, child(CAME, "x")]) == Trace(CAME)
    assert OFF.of_task(task(), CAME) == OFF.begins(task(), CAME) == Trace(CAME)
    assert OFF.of_task(task(), None) is OFF.begins(task()) is OFF.follows(None, "r1") is None
    assert OFF.joins(None, "b1", T0, [CAME]) is None
    assert OFF.on_ack(task(), Trace(CAME)) is None
    assert tracing.headers_of(None) == {}


def test_whoever_writes_an_event_again_writes_the_same_header() -> None:
    def headers() -> list[dict[str, bytes]]:
        one, causes = tracer(), [child(CAME, "g1"), None, CAME]
        made = [one.begins(task()), one.follows(CAME, "r1"), one.joins(CAME, "b1", T0, causes)]
        return [tracing.headers_of(trace) for trace in made]

    assert headers() == headers()
    assert len({str(one) for one in headers()}) == 3


def test_a_task_belongs_to_its_header_then_to_its_own_field_then_to_its_submitter_and_else_begins_a_trace() -> None:
    named, other = child(CAME, "named"), child(CAME, "other")
    one = tracer()
    assert one.of_task(task(traceparent=named.traceparent), CAME) == Trace(CAME)
    assert one.of_task(task(traceparent=named.traceparent), None) == Trace(child(named, "t1"), named)
    assert one.begins(task(traceparent=named.traceparent), other) == Trace(child(named, "t1"), named)
    assert one.begins(task(traceparent="00-a-b-01"), other) == Trace(child(other, "t1"), other)
    begun = one.begins(task())
    assert begun is not None and begun.parent is None and begun == one.of_task(task(), None)


def test_a_task_that_is_not_sampled_has_no_trace_and_one_that_came_with_a_trace_keeps_it() -> None:
    one = tracer(settings=WITHOUT)
    assert one.begins(task()) is None
    assert one.follows(CAME, "r1") == Trace(child(CAME, "r1"), CAME)
    told: list[Span] = []
    silent = CAME._replace(flags=0)
    trace = tracer(told).follows(silent, "r1")
    assert trace is not None and tracing.headers_of(trace)["traceparent"].endswith(b"-00")
    tracer(told).report(response(), trace, AT)
    assert (told, tracer(told).on_ack(response(), trace)) == ([], None)


def test_what_joins_many_traces_begins_its_own_and_links_to_each_once() -> None:
    other = trace_context.beginning("p.", "t2", T0, sampled=False)
    joined = tracer().joins(CAME, "b1", T0, [other, None, CAME, other])
    assert joined is not None and joined.parent is None
    assert joined.links == (other, CAME) and joined.context.sampled
    assert joined.context.trace_id not in {CAME.trace_id, other.trace_id}
    assert tracer().joins(None, "b1", T0, [None]) is None
    quiet = tracer().joins(other, "b1", T0, [other])
    assert quiet is not None and not quiet.context.sampled


def test_the_same_policy_in_two_logs_has_traces_of_its_own_in_each() -> None:
    logs = [tracer(settings=Settings(topics=Topics(prefix=prefix))) for prefix in ("a.", "b.")]
    begun = [one.begins(task()) for one in logs]
    assert begun[0] != begun[1]


# --- through the state of the stages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_group_has_the_trace_of_its_task_in_whatever_order_its_events_are_read(order: tuple[int, ...]) -> None:
    slots = answers(2)
    kinds = [[task(group_size=2)], slots, scores(slots, [0.0, 1.0])]
    stage, state, closes = AdvantageStage(Settings(), tracer()), None, []
    for kind in order:
        for offset, event in enumerate(kinds[kind]):
            topic = f"streamward.{('tasks', 'responses', 'rewards')[kind]}"
            headers = tuple(trace_context.headers_of(CAME).items()) if kind == 0 else ()
            record = Record(Coordinates(topic, 0, offset), event.created_at, b"t1", encode(event), headers)
            came = stage.decode(record)
            assert isinstance(came, Incoming)
            state, effects = stage.reduce(state and group_rows.load(group_rows.dump(state)), came, record)
            closes += [effect for effect in effects if isinstance(effect, EmitGroup)]
    (close,) = closes
    assert close.trace == CAME.traceparent
    left = group(responses=())
    trace = group_trace(tracer(), close, left)
    assert trace is not None and (trace.context, trace.parent) == (child(CAME, left.group_id), CAME)
    ids = [reward(slot).reward_id for slot in slots]
    assert [link.span_id for link in trace.links] == [trace_context.span_id_of(one) for one in ids]
    assert group_trace(OFF, close, left) == Trace(CAME)


def test_a_trace_changes_nothing_of_what_a_stage_writes_and_no_trace_changes_nothing_of_its_rows() -> None:
    plain, traced, asked = Log(), Log(), Incoming("t1", task())
    for log, trace in ((plain, ""), (traced, CAME.traceparent)):
        log.state, _ = log.reducer.reduce(None, asked, Coordinates("tasks", 5, 0), T0, trace=trace)
        log.read_all([*answers(), *scores(answers())])
    assert encode(plain.group()) == encode(traced.group())
    assert "trace" not in group_rows.dump(Log().reducer.reduce(None, asked, AT, T0)[0]).decode().replace(
        "traceparent", ""
    )  # type: ignore[arg-type]


def test_a_window_remembers_the_traces_of_its_groups() -> None:
    cutter, window = Cutter(Batches(groups=2)), BatchWindow()
    window, _ = cutter.reduce(window, group(), Coordinates("groups", 3, 7), doubled=False, trace=CAME.traceparent)
    row = batches.dump(window)
    assert batches.load(row) == window
    assert window.entries[0].trace == CAME.traceparent
    untraced = replace(window, entries=(replace(window.entries[0], trace=""),))
    assert batches.load(batches.dump(untraced)) == untraced
    made = [
        cutter.reduce(one, group(task_id="t2"), Coordinates("groups", 3, 8), doubled=False)
        for one in (window, untraced)
    ]
    assert encode(made[0][1][0]) == encode(made[1][1][0])
    assert Entry(7, 0, 2, 4, T0).trace == ""


@pytest.mark.parametrize("header", [CAME.traceparent.encode(), b"no trace", None, b"\xff"])
def test_a_dead_letter_has_the_trace_of_the_record_that_it_is_about(header: bytes | None) -> None:
    record = Record(AT, T0, b"t1", b"no task", (("traceparent", header), ("other", b"1")))
    letter = dead_letter(record, stage="s", reason="not_avro", error="e")
    assert of_headers(trace_of(letter).items()) == parse(header)


def test_a_dead_letter_with_headers_that_are_not_base64_has_no_trace() -> None:
    (letter,) = (event for event in one_of_each() if isinstance(event, DeadLetter))
    assert trace_of(replace(letter, headers={"traceparent": "%"})) == trace_of(letter) == {}


# --- spans, as a receiver gets them -----------------------------------------------------------------------------------


@contextmanager
def sending(receiver: Receiver, meter: Meter | None = None, **rule: object) -> Iterator[Tracer]:
    settings = Settings.model_validate({"tracing": {"otlp_endpoint": receiver.url, **rule}})
    with tracing.open_tracer(settings, "test", meter or Meter("policy")) as one:
        yield one


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_event_comes_as_a_span_that_its_header_names() -> None:
    with receiving() as receiver, sending(receiver) as one:
        sent = {}
        for event in TRACED:
            trace = one.follows(CAME, str(event.created_at) + type(event).__name__)
            assert trace is not None
            one.report(event, trace, AT, began_ms=T0 - 5, ended_ms=T0 + 5)
            sent[trace.context.span_id] = type(event).__name__
        until(lambda: len(receiver.spans) == len(TRACED))
    assert {sent[span.span_id]: span.name for span in receiver.spans} == {
        "Task": "submit",
        "Response": "rl.sample",
        "Reward": "rl.reward",
        "AdvantagedGroup": "join",
        "Batch": "batch",
        "AdapterEvent": "rl.train",
    }
    for span in receiver.spans:
        assert (span.trace_id, span.parent_id, span.service) == (CAME.trace_id, CAME.span_id, "streamward-test")
        assert span.attributes["messaging.destination.name"] == AT.topic
        assert span.attributes["messaging.destination.partition.id"] == "3"
        assert span.attributes["messaging.kafka.offset"] == 41
        assert span.attributes["streamward.policy"] == "default"
        assert not span.failed and span.began_ns <= span.ended_ns


def test_a_response_says_who_answered_how_long_it_took_and_what_it_cost_but_not_what_it_says() -> None:
    said = response(text="secret", latency_ms=12.5, finish_reason="length")
    with receiving() as receiver, sending(receiver) as one:
        one.report(said, one.follows(CAME, said.response_id), AT)
    (span,) = receiver.spans
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.response.model": "default/0",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.request.max_tokens": 12,
        "streamward.slot": 0,
        "rl.sample.batch_size": said.group_size,
    }
    assert wanted.items() <= span.attributes.items()
    assert [one.string_value for one in span.attributes["gen_ai.response.finish_reasons"].values] == ["length"]
    assert (span.ended_ns - span.began_ns, span.ended_ns) == (12_500_000, said.created_at * 1_000_000)
    assert "secret" not in repr(span)


def test_what_failed_is_said_to_have_failed() -> None:
    events = [response(error="oom"), reward(error="no"), group(dropped_reason="unanswered", responses=()), response()]
    with receiving() as receiver, sending(receiver) as one:
        for number, event in enumerate(events):
            one.report(event, one.follows(CAME, str(number)), AT)
    found = {span.attributes.get("error.type"): span.failed for span in receiver.spans}
    assert found == {"response_failed": True, "score_failed": True, "unanswered": True, None: False}


def test_a_batch_comes_as_a_root_with_its_links_in_order() -> None:
    (batch,) = (event for event in TRACED if isinstance(event, Batch))
    other = trace_context.beginning("p.", "t2", T0)
    with receiving() as receiver, sending(receiver) as one:
        one.report(batch, one.joins(CAME, batch.batch_id, T0, [other, CAME]), AT)
    (span,) = receiver.spans
    assert span.parent_id == ""
    assert span.links == ((other.trace_id, other.span_id), (CAME.trace_id, CAME.span_id))


def test_a_decision_is_named_by_what_it_is_and_a_step_says_its_metrics() -> None:
    (trained,) = (event for event in TRACED if isinstance(event, AdapterEvent))
    promoted = replace(trained, kind="promoted", expected_version=0)
    with receiving() as receiver, sending(receiver) as one:
        for number, event in enumerate((trained, promoted)):
            one.report(event, one.follows(CAME, str(number)), AT)
    train, decide = sorted(receiver.spans, key=lambda span: span.name, reverse=True)
    assert (train.name, train.attributes["streamward.step.loss"]) == ("rl.train", 0.25)
    assert train.attributes["rl.train.loss"] == 0.25
    assert (decide.name, decide.attributes["streamward.kind"]) == ("decide", "promoted")


def test_an_iteration_is_the_root_of_its_batch_and_the_load_of_its_version_is_below_its_step() -> None:
    batch, trained = (next(event for event in TRACED if isinstance(event, kind)) for kind in (Batch, AdapterEvent))
    assert isinstance(batch, Batch) and isinstance(trained, AdapterEvent)
    trained = replace(trained, first_batch=0, last_batch=3)
    with receiving() as receiver, sending(receiver) as one:
        of_batch = one.of_batch(batch, CAME, [CAME])
        assert of_batch is not None
        of_version = one.follows(of_batch.context, trained.event_id)
        assert of_version is not None
        one.report(batch, of_batch, AT)
        one.report(trained, of_version, AT)
        one.report_loop(trained, of_batch.context, T0)
        one.report_sync(of_version.context, {"rl.sync.bytes": 7}, T0, None)
        one.report_sync(of_version.context, {}, T0, "bad_adapter")
        for unsampled in (None, CAME._replace(flags=0)):  # nothing is sent of these
            one.report_loop(trained, unsampled, T0)
            one.report_sync(unsampled, {}, T0, None)
    (loop,), (cut,), (train,) = (receiver.named(name) for name in ("rl.loop", "batch", "rl.train"))
    loaded, failed = receiver.named("rl.sync")
    assert len(receiver.spans) == 5 and {span.trace_id for span in receiver.spans} == {of_batch.context.trace_id}
    assert (loop.parent_id, cut.parent_id, train.parent_id) == ("", loop.span_id, cut.span_id)
    assert loaded.parent_id == failed.parent_id == train.span_id and (loaded.failed, failed.failed) == (False, True)
    assert loop.attributes["rl.loop.iteration"] == 3 and loaded.attributes["rl.sync.bytes"] == 7
    assert {span.run for span in receiver.spans} == {("streamward", "streamward", Settings().model.base)}


def test_without_a_receiver_neither_an_iteration_nor_a_load_is_reported() -> None:
    batch, trained = (next(event for event in TRACED if isinstance(event, kind)) for kind in (Batch, AdapterEvent))
    assert isinstance(batch, Batch) and isinstance(trained, AdapterEvent)
    assert OFF.of_batch(batch, CAME, [CAME]) == Trace(CAME)
    OFF.report_loop(trained, CAME, T0)
    OFF.report_sync(CAME, {}, T0, None)


# --- a receiver that does not do what it should -----------------------------------------------------------------------


def dropped(meter: Meter) -> dict[str, float]:
    reasons = ("queue_full", "refused", "unsent")
    return {one: value for one in reasons if (value := meter.value(catalog.SPANS_DROPPED, one)) is not None}


def tell(one: Tracer, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        one.report(response(), one.follows(CAME, str(number)), AT)


def test_a_receiver_that_hangs_holds_up_nobody_and_what_no_longer_fits_is_counted() -> None:
    meter = Meter("policy")
    with receiving() as receiver:
        receiver.open.clear()
        with sending(receiver, meter, queue_spans=10) as one:
            tell(one, 1)
            until(lambda: receiver.requests == 1)
            tell(one, 25, first=1)
            assert dropped(meter) == {"queue_full": 15}
            receiver.open.set()
        assert len(receiver.spans) == 11


def test_a_process_that_ends_waits_for_a_receiver_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.observability.tracing.export.CLOSE_S", 0.2)
    meter = Meter("policy")
    with receiving() as receiver:
        receiver.open.clear()
        with sending(receiver, meter) as one:
            tell(one, 1)
            until(lambda: receiver.requests == 1)
            tell(one, 5, first=1)
        assert dropped(meter)["unsent"] == 5


def test_spans_that_a_receiver_refuses_are_counted_and_the_next_are_sent() -> None:
    meter = Meter("policy")
    with receiving() as receiver:
        receiver.status = 400
        with sending(receiver, meter) as one:
            tell(one, 3)
            until(lambda: dropped(meter) == {"refused": 3})
            receiver.status = 200
            tell(one, 2)
        assert len(receiver.spans) == 2


def test_nobody_who_listens_is_no_error() -> None:
    meter = Meter("policy")
    with sending(Receiver("http://127.0.0.1:1"), meter, timeout_s=0.1) as one:
        tell(one, 3)
        until(lambda: dropped(meter) == {"refused": 3})


def test_without_the_packages_an_endpoint_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "streams.observability.tracing.export", raising=False)  # another test loaded it
    monkeypatch.delattr("streams.observability.tracing.export", raising=False)
    with (
        pytest.raises(SettingsError, match=r"Install the extra, streamward\[tracing\], or leave tracing.otlp_endpoint"),
        sending(Receiver("http://127.0.0.1:1")),
    ):
        pass


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\n"
        "from streams.stages.policy import policy_agent\n"
        "from streams.stages.scoring import scoring_agent\n"
        "from streams.stages.tasks import submit\n"
        "from streams.observability.tracing import tracer as tracing\n"
        "from streams.settings.model import Settings\n"
        "with tracing.open_tracer(Settings(), 'policy') as tracer: assert not tracer.on\n"
        "heavy = ('opentelemetry', 'streams.observability.tracing.export')\n"
        "assert not [name for name in sys.modules if name.startswith(heavy)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_would_have_no_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="sample_ratio has no effect without otlp_endpoint"):
        Tracing(sample_ratio=0.5)
    with pytest.raises(ValueError, match="is no URL; write it as http://host:4318"):
        Tracing(otlp_endpoint="collector:4317")


def test_an_event_without_a_span_is_a_mistake_of_ours() -> None:
    (control,) = (event for event in one_of_each() if isinstance(event, GroupControl))
    with pytest.raises(TypeError, match="GroupControl has no span"):
        tracer().report(control, Trace(CAME), AT)  # type: ignore[arg-type]
    assert isinstance(response(), Response)
