"""Situations F75 to F84 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Offsets have holes"

RECREATED = "tests/log/test_recreated.py"
TRANSACTIONS = "tests/log/test_transactions.py"
HOLES = "tests/log/test_holes.py"
FOREIGN = "tests/pipeline/test_foreign_transactions.py"
TIME = "tests/unit/test_join_time.py"

SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F77",
        what="A topic is deleted and recreated while processes read it, and gets at least as many records. librdkafka "
        "and aiokafka continue at the offset reached in the old topic, without an error, and the next commit makes "
        "that permanent: in a trial with both, the first records of the new topic were never read.",
        result="Readers compare the topic's id every ten seconds, and exit with code 5 and its name. Each commit has "
        "the id in its metadata; a commit for another id is ignored, so the next start reads the new topic from its "
        "first record, with both drivers. `admin offsets list` says `recreated`.",
        tests=(
            f"{RECREATED}::test_a_worker_joins_all_of_a_topic_that_was_made_anew_while_it_ran",
            f"{RECREATED}::test_a_member_that_lives_on_leaves_out_no_record_of_the_new_topic",
            f"{RECREATED}::test_a_commit_in_a_topic_that_was_deleted_counts_for_nothing",
            f"{RECREATED}::test_a_reader_without_a_group_says_that_its_topic_was_made_anew",
        ),
    ),
    Situation(
        number="F78",
        what="An archived topic is recreated with exactly as many records. No offset differs: `admin archive sync` "
        "reported that it was up to date, and queries returned the old records instead of the new ones.",
        result="`admin archive sync`, `query` and replays compare the last archived record with the one in the log, "
        "even if nothing is new or the last offsets are markers, and exit with code 5 and its coordinates.",
        tests=(
            f"{RECREATED}::test_an_archive_is_not_continued_by_another_log_of_the_same_length",
            f"{RECREATED}::test_an_archive_that_follows_notices_another_log_that_has_nothing_new",
        ),
    ),
    Situation(
        number="F79",
        what="A producer writes record times in seconds, from 40 days ago, or from tomorrow. Kafka accepted the first "
        "two, and retention deleted such a record within a minute, possibly unread.",
        result="The broker refuses each with INVALID_TIMESTAMP, which the producer receives: topics accept no record "
        "older than their retention, or more than an hour ahead. The Helm chart's topics do the same. A restore lifts "
        "the limits and resets them afterwards.",
        tests=(
            f"{TRANSACTIONS}::test_a_record_whose_time_is_far_from_the_clock_is_refused_and_its_producer_told",
            "tests/log/test_restore.py::test_what_is_restored_is_what_was_there_offsets_and_all",
            "tests/deploy/test_chart_parts.py::test_kafka_topics_are_those_of_the_program",
        ),
    ),
    Situation(
        number="F80",
        what="A topic without time limits has a task whose record time is in seconds, or a record from the year 57000.",
        result="Every reader logs its offset, and `doctor` names the topic. The deadline of such a task counts from "
        "its `created_at`: by its record time it would have passed before the task was read. It does not count as a "
        "backlog.",
        tests=(
            f"{TRANSACTIONS}::test_a_record_whose_time_is_in_seconds_is_named_where_it_is_read",
            f"{TRANSACTIONS}::test_a_record_from_the_future_is_named_where_a_topic_takes_it",
            f"{TIME}::test_the_deadline_of_a_task_whose_record_time_is_none_counts_from_its_creation",
        ),
    ),
    Situation(
        number="F81",
        what="Another program died with an open transaction in `tasks`. Later records are not read, and `status` "
        "showed a loop that waits for tasks.",
        result="`status` and `doctor` name topic, partition, offset, producer and start time; readers log the place.",
        tests=(
            f"{TRANSACTIONS}::test_status_names_the_partition_and_the_producer_of_an_open_transaction",
            f"{TRANSACTIONS}::test_doctor_names_the_partition_and_the_producer_of_an_open_transaction",
        ),
    ),
    Situation(
        number="F82",
        what="A topic with markers and aborted records was archived, deleted, and restored. No client can choose the "
        "offset of a record, so the restore was refused.",
        result="Every record returns to its offset. Aborted transactions fill the holes; a hole of one offset is the "
        "marker of a transaction with the preceding record.",
        tests=(f"{TRANSACTIONS}::test_archive_sync_says_that_a_topic_has_holes_and_restore_makes_them_again",),
    ),
    Situation(
        number="F83",
        what="A topic was set to cleanup.policy=compact, and its first records were deleted: it has holes in the "
        "middle and at the start.",
        result="Both drivers pass them, their lag becomes 0, and no watchdog ends them. `events tail --until-end`, "
        "SQL over archive and log, and the archive have the remaining records. `doctor` reports that it is compacted.",
        tests=(
            f"{HOLES}::test_a_worker_passes_compacted_and_deleted_ranges",
            f"{HOLES}::test_tools_read_a_topic_with_compacted_and_deleted_ranges",
        ),
    ),
    Situation(
        number="F84",
        what="A program with only confluent-kafka and fastavro writes tasks and rewards in transactions: aborted, "
        "committed, and one that stays open while the rest is answered.",
        result="No reader sees aborted tasks and scores, records after the open one count once it is committed, and a "
        "recount by that program agrees with `audit`, with both drivers.",
        tests=(
            "tests/pipeline/test_foreign_transactions.py::test_a_log_with_transactions_comes_to_what_the_audit_says",
        ),
    ),
)
