"""A queue of samples on a real log: what was acknowledged is there after a kill, what was cleared stays gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugins.verl.queue_log import QUEUES, QueueLog
from plugins.verl.queue_opener import QueueOpener, RestoredQueue
from plugins.verl.sample_queue import FieldValue, SamplePut, SampleQueue
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.factories import queue_event
from tests.support.log.registry_cases import Case, check_case
from tests.support.log.shared_node import own_topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka_bootstrap: str) -> Settings:
    return own_topics(kafka_bootstrap, {"max_record_bytes": 16 * 1024})


@pytest.fixture
def queue_log(settings: Settings) -> Iterator[QueueLog]:
    with QueueLog(settings) as log:
        yield log


def opened(settings: Settings, log: QueueLog, queue: str = "q") -> RestoredQueue:
    return QueueOpener(settings, log, queue).open("a test")


def put(number: int, text: str = "", **changes: object) -> SamplePut:
    """Return the put of one field into a sample."""
    value = FieldValue("json", (text or f'"{number}"').encode())
    whole = SamplePut(f"q/1.{number}", "train", {"text": value}, key=f"k{number}")
    return whole._replace(**changes)  # type: ignore[arg-type]


def texts(queue: SampleQueue, restored: RestoredQueue) -> dict[str, str]:
    """Return the text of each sample by its id."""
    samples = restored.samples
    values = queue.get([("text", sample.fields["text"].places) for sample in samples.values()])
    return dict(zip(samples, (value.data.decode() for value in values), strict=True))


def test_what_was_put_is_there_for_another_process_and_after_the_queue_is_opened_again(
    settings: Settings, queue_log: QueueLog
) -> None:
    epoch = opened(settings, queue_log).event.epoch
    with SampleQueue(settings, "q", epoch) as writer, SampleQueue(settings, "q", epoch) as reader:
        places = writer.put([put(0), put(1, tags='{"a":1}')])
        values = reader.get([("text", each["text"]) for each in places])
    assert [value.data for value in values] == [b'"0"', b'"1"']
    again = opened(settings, queue_log)
    assert (again.event.epoch, again.event.samples, again.event.counts) == (2, 2, {})
    assert again.samples["q/1.1"].tags == '{"a":1}' and again.samples["q/1.1"].key == "k1"
    with SampleQueue(settings, "q", again.event.epoch) as later:
        assert texts(later, again) == {"q/1.0": '"0"', "q/1.1": '"1"'}


def test_of_two_that_take_a_queue_at_once_the_first_in_the_log_has_it(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    first, rival = queue_event(), queue_event(writer="v")
    case = Case(QUEUES, first, rival, lambda state: state.writer, lambda event: event.writer)
    check_case(settings, case, caplog)


def test_a_field_that_is_put_again_is_replaced_and_others_stay(settings: Settings, queue_log: QueueLog) -> None:
    epoch = opened(settings, queue_log).event.epoch
    with SampleQueue(settings, "q", epoch) as queue:
        queue.put([put(0)])
        queue.put([put(0, fields={"score": FieldValue("json", b"1.0")})])
        queue.put([put(0, '"new"')])
        queue.tag([put(0, tags='{"status":"finished"}')])
        again = opened(settings, queue_log)
        assert set(again.samples["q/1.0"].fields) == {"text", "score"}
        assert again.samples["q/1.0"].tags == '{"status":"finished"}'
        assert texts(queue, again) == {"q/1.0": '"new"'}


def test_what_was_cleared_does_not_return(settings: Settings, queue_log: QueueLog) -> None:
    epoch = opened(settings, queue_log).event.epoch
    with SampleQueue(settings, "q", epoch) as queue:
        queue.put([put(number) for number in range(4)])
        queue.clear([put(0), put(3)])
    first, second = opened(settings, queue_log), opened(settings, queue_log)
    assert set(first.samples) == set(second.samples) == {"q/1.1", "q/1.2"}
    assert str(first) == "queue q has 2 samples (2 cleared)"


def test_a_field_larger_than_a_record_comes_back_whole(settings: Settings, queue_log: QueueLog) -> None:
    epoch = opened(settings, queue_log).event.epoch
    large = FieldValue("tensor", bytes(range(256)) * 200, "uint8", (200, 256))
    with SampleQueue(settings, "q", epoch) as queue:
        (places,) = queue.put(
            [put(0, fields={"a": FieldValue("json", b"1"), "large": large, "empty": large._replace(data=b"")})]
        )
        assert len(places["large"]) == 4 and len(places["a"]) == 1
        assert queue.get([("large", places["large"]), ("empty", places["empty"])]) == [large, large._replace(data=b"")]
        again = opened(settings, queue_log)
        assert again.samples["q/1.0"].fields["large"].places == places["large"]


def test_a_writer_that_was_superseded_is_told_and_what_it_wrote_counts_nowhere(
    settings: Settings, queue_log: QueueLog
) -> None:
    first = opened(settings, queue_log).event.epoch
    with SampleQueue(settings, "q", first) as zombie:
        zombie.put([put(0)])
        second = opened(settings, queue_log).event.epoch
        with pytest.raises(RefusedError, match=r"was opened as epoch 2 by .*, and this process writes as epoch 1"):
            zombie.put([put(1)])
        with pytest.raises(RefusedError, match="was opened as epoch 2"):
            zombie.clear([put(0)])
    with SampleQueue(settings, "q", second) as queue:
        queue.put([put(2, sample_id="q/2.2")])
    third = opened(settings, queue_log)
    assert set(third.samples) == {"q/1.0", "q/2.2"}
    assert third.event.counts == {"superseded": 2}


def test_queues_of_one_log_know_nothing_of_each_other(settings: Settings, queue_log: QueueLog) -> None:
    epoch = opened(settings, queue_log).event.epoch
    with SampleQueue(settings, "q", epoch) as queue:
        queue.put([put(0)])
    assert opened(settings, queue_log, "other").samples == {}
    with pytest.raises(SettingsError, match="queue 'a/b': expected 1 to 200 letters"):
        opened(settings, queue_log, "a/b")


def test_a_checkpoint_has_again_what_was_cleared_since_and_not_what_was_put_since(
    settings: Settings, queue_log: QueueLog
) -> None:
    opener = QueueOpener(settings, queue_log, "q")
    epoch = opener.open("a test").event.epoch
    with SampleQueue(settings, "q", epoch) as queue:
        queue.put([put(0), put(1)])
        saved = opener.save(epoch, "step 1")
        queue.clear([put(0)])
        queue.put([put(1, '"newer"'), put(2)])
        newest = opener.open("after a crash")
        assert texts(queue, newest) == {"q/1.1": '"newer"', "q/1.2": '"2"'}
        back = opener.restore(newest.event.epoch, "step 1 again", saved.event.event_id)
        assert texts(queue, back) == {"q/1.0": '"0"', "q/1.1": '"1"'}
        assert str(back) == "queue q has 2 samples (1 returned, 1 dropped)"
    with SampleQueue(settings, "q", newest.event.epoch) as queue:
        queue.put([put(3, sample_id="q/2.3")])
        queue.clear([put(1)])
    assert set(opener.open("another crash").samples) == {"q/1.0", "q/2.3"}
    with pytest.raises(NotFoundError, match="queue q has no saved state unknown"):
        opener.restore(3, "no such state", "unknown")


def test_a_checkpoint_of_which_retention_has_deleted_a_sample_is_refused(
    settings: Settings, queue_log: QueueLog
) -> None:
    opener = QueueOpener(settings, queue_log, "q")
    epoch = opener.open("a test").event.epoch
    with SampleQueue(settings, "q", epoch) as queue:
        ((place,),) = [places.values() for places in queue.put([put(0)])]
        queue.put([put(number) for number in range(1, 9)])
        saved = opener.save(epoch, "step 1").event
    delete_before(settings, place[0][0], place[0][1] + 1)
    with pytest.raises(RefusedError, match="9 samples were saved, and the log has 8 of them"):
        opener.restore(epoch, "step 1 again", saved.event_id)
    assert opener.open("after that").event.counts == {"gone": 1}


def delete_before(settings: Settings, partition: int, offset: int) -> None:
    """Delete what is before an offset, as retention does."""
    from confluent_kafka import TopicPartition

    client = admin.connected(settings)
    place = TopicPartition(settings.topics.prefix + "samples", partition, offset)
    client.delete_records([place])[place].result()
