"""Situations F55 to F64 at the edge."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text, tables and messages"
TASKS = "tests/unit/test_tasks.py::"
TEXT = "tests/unit/test_file_text.py::"
CONVERSATION = "tests/unit/test_conversation.py::"
SITUATIONS = (
    Situation(
        number="F55",
        what="A file begins with a byte order mark, has Windows or old Mac line ends, is a concatenation of two such "
        "files, or comes through stdin.",
        result="The same tasks with the same ids, questions, examples and settings.",
        tests=(
            f"{TEXT}test_marks_and_line_ends_change_nothing",
            f"{TEXT}test_settings_and_suites_are_read_with_a_mark_and_stray_bytes_are_named_with_their_line",
        ),
    ),
    Situation(
        number="F56",
        what="A file is UTF-16, compressed, a spreadsheet, Windows-1252, truncated in its last line, JSON over "
        "several lines, or has the wrong extension.",
        result="One message for the file or line, with the command or name that fixes it; the same for tasks, "
        "questions, examples and uploads.",
        tests=(
            f"{TEXT}test_a_file_that_is_no_text_is_one_error_that_names_it",
            f"{TEXT}test_a_line_that_has_no_object_is_named_in_the_same_words_everywhere",
            f"{TASKS}test_a_file_that_is_not_what_its_name_says_is_refused",
        ),
    ),
    Situation(
        number="F57",
        what="A CSV file as spreadsheets write it: `sep=;` before the header, semicolons or pipes, blank lines"
        " as `,,,`, an index without a name, a quote that is never closed.",
        result="It is read with the same ids as the plain file; the error about the quote names the place where it "
        "opens, and no other row is swallowed.",
        tests=(
            f"{TASKS}test_a_table_as_spreadsheets_write_it_is_the_same_tasks",
            f"{TASKS}test_the_same_tasks_come_from_every_format_with_the_same_ids",
            f"{TASKS}test_a_quote_that_is_open_at_the_end_of_the_file_is_named_where_it_opens",
        ),
    ),
    Situation(
        number="F58",
        what="A JSON object has a duplicate key: in a line, a cell, a request, or the arguments of a call.",
        result="Refused with file, line and key; neither value is used.",
        tests=(
            f"{TEXT}test_a_line_that_has_no_object_is_named_in_the_same_words_everywhere",
            "tests/unit/test_protocols.py::test_a_key_that_is_there_twice_is_refused_by_its_name",
            f"{CONVERSATION}test_what_one_entrance_refuses_all_refuse_in_the_same_words",
        ),
    ),
    Situation(
        number="F59",
        what="A table of verl: the prompt is a list of messages, or its JSON text, and the answer is inside a record.",
        result="The first error is one sentence with the `--map` that reads it. A null that Arrow writes for keys of "
        "other rows counts as absent; a null in a line is a value.",
        tests=(
            f"{TASKS}test_the_first_error_gives_the_map_that_reads_a_known_shape",
            f"{TASKS}test_messages_in_json_text_are_read_where_a_map_says_so",
            f"{TASKS}test_null_that_arrow_writes_for_keys_of_other_rows_is_absent_and_null_in_a_line_is_a_value",
        ),
    ),
    Situation(
        number="F60",
        what="Messages as OpenAI's clients send them: `developer`, null content next to calls, content in parts, "
        "empty arguments, null for all missing fields.",
        result="The same messages from tasks, requests and examples, and the same task id from JSON lines, CSV, "
        "Parquet and REST, however a call is written.",
        tests=(
            f"{CONVERSATION}test_a_conversation_is_the_same_messages_at_every_entrance",
            f"{CONVERSATION}test_a_conversation_is_the_same_task_from_every_file_and_over_http",
            f"{CONVERSATION}test_a_task_has_one_id_however_its_messages_and_tools_are_written",
        ),
    ),
    Situation(
        number="F61",
        what="Messages that the model cannot read as intended: an image, a refusal, an unknown role, arguments that "
        "are not an object, calls by a user.",
        result="Every interface refuses them, with the same path and message.",
        tests=(
            f"{CONVERSATION}test_what_one_entrance_refuses_all_refuse_in_the_same_words",
            f"{CONVERSATION}test_any_conversation_gets_one_verdict_at_every_entrance",
            f"{CONVERSATION}test_images_and_odd_arguments_are_refused_in_the_same_words_in_every_protocol",
        ),
    ),
    Situation(
        number="F62",
        what="A file asks one question three times with two answers, or ends each conversation with its "
        "answer, or is empty.",
        result="It is submitted, and each fault is reported with its count and lines.",
        tests=(
            f"{TASKS}test_lines_that_ask_the_same_under_another_id_or_with_another_answer_are_counted_and_named",
            f"{TASKS}test_a_conversation_that_ends_with_its_answer_is_named",
        ),
    ),
    Situation(
        number="F63",
        what="Train tasks that cannot teach: one response each, fewer than a step needs, a scorer that cannot be "
        "loaded, a prompt longer than the context or refused by the template.",
        result="Refused, or reported with their number, before any sample is paid for.",
        tests=(
            f"{TASKS}test_a_train_task_of_one_response_is_refused_before_it_is_paid_for",
            "tests/unit/test_before_samples.py::test_fewer_train_tasks_than_a_step_takes_are_counted_for_each_policy",
            "tests/unit/test_before_samples.py::test_a_scorer_that_cannot_be_loaded_is_said_when_tasks_are_submitted",
            "tests/unit/test_prompt_check.py::test_a_prompt_longer_than_the_context_is_refused_at_every_entrance",
        ),
    ),
    Situation(
        number="F64",
        what="A coding agent's conversation outgrows the context, and its client compacts only on a known error code "
        "or message.",
        result="400 with the code `context_length_exceeded` and `prompt is too long: N tokens > M maximum`, "
        "before any stream.",
        tests=(
            "tests/log/test_recorder.py::"
            "test_a_prompt_is_rendered_beside_the_event_loop_and_one_that_never_fits_is_not",
        ),
    ),
)
