"""Situations F85 to F94 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

FILTERS = "tests/unit/test_archive_filters.py"
SETTINGS = "tests/unit/test_settings.py"
STORE = "tests/unit/test_archive_store.py"
SYNC = "tests/log/test_archive.py"
EXPORT = "tests/unit/test_export.py"

TITLE = "The archive in every engine"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F85",
        what="A filter in Polars, DuckDB, pandas or pyarrow, on a column that has no bounds in the Delta log, or that "
        "an older release's table lacks.",
        result="The rows equal those of SQL over the records. The table names the columns with bounds; an older table "
        "gets that list at its next `admin archive sync`.",
        tests=(
            f"{FILTERS}::test_a_filter_on_any_column_finds_what_sql_over_the_records_finds",
            f"{FILTERS}::test_every_comparison_finds_the_same_before_and_after_compaction",
            f"{FILTERS}::test_a_table_without_the_property_is_filtered_rightly_once_it_is_upgraded",
            f"{FILTERS}::test_rows_of_a_release_whose_events_had_fewer_fields_are_found_once_the_table_has_them",
        ),
    ),
    Situation(
        number="F86",
        what="Spark's SQL over an archive: text, bytes, times with a zone, days, numbers and nulls, in the table's "
        "versions before and after `admin archive compact`.",
        result="The same rows as above, by a filter on every column of every topic (`make test-spark`).",
        tests=(
            "tests/log/test_spark_filters.py::test_a_filter_on_any_column_finds_its_rows_before_and_after_compaction",
        ),
    ),
    Situation(
        number="F87",
        what="Offsets beyond 2^53, numbers beyond 32 bits, and record times before the year 1 and after 9999.",
        result="Every engine finds each by its exact value. A time outside an engine's range is the nearest one "
        "inside; `_time_ms` has the real one.",
        tests=(
            f"{FILTERS}::test_offsets_and_values_beyond_32_bits_and_the_whole_numbers_of_a_float_are_found",
            f"{FILTERS}::test_times_at_the_ends_of_what_engines_know_are_found",
        ),
    ),
    Situation(
        number="F88",
        what="Ranges of offsets without a record, from an aborted transaction; then `admin archive compact` and "
        "`admin archive expire`.",
        result="A range is archived with or without records, so no record is missed. `admin archive sync` counts such "
        "offsets, and `admin archive restore` leaves them empty again.",
        tests=(
            f"{FILTERS}::test_ranges_without_a_record_hide_none_before_and_after_compaction_and_expiry",
            "tests/log/test_transactions.py::test_archive_sync_says_that_a_topic_has_holes_and_restore_makes_them_again",
        ),
    ),
    Situation(
        number="F89",
        what="`archive.store` is a URL: `file:///my%20archive`, `file:/`, `file://localhost/`, `FILE://`, `S3://`; a "
        "file URL without a path; an empty variable.",
        result="All spellings give the same folder: escapes are decoded, and a scheme may be upper case. A URL "
        "without a path is refused, and so is an empty value, which used to mean the current folder.",
        tests=(
            f"{SETTINGS}::test_a_file_url_names_the_same_folder_as_its_path",
            f"{SETTINGS}::test_a_file_url_without_a_path_is_refused",
            f"{SETTINGS}::test_a_store_without_a_name_is_refused_and_the_scheme_of_a_url_may_have_capitals",
        ),
    ),
    Situation(
        number="F90",
        what="A folder with a bracket, `^`, a bar, a backslash or `%41` in its path, for which Delta's driver crashes "
        "or uses another folder; a bucket's URL with `#` or `?`, where the driver truncates it.",
        result="Refused, and the message names the character. Spaces, `#`, `%`, quotes and non-ASCII characters work.",
        tests=(
            f"{STORE}::test_a_folder_that_delta_s_driver_does_not_take_is_a_wrong_setting",
            f"{STORE}::test_an_archive_s_files_and_its_log_are_in_the_one_folder_that_its_setting_names",
            f"{SETTINGS}::test_what_ends_the_path_of_an_archive_s_url_is_refused",
        ),
    ),
    Situation(
        number="F91",
        what="Two concurrent `admin archive sync`, with two spellings of the folder; one is killed with -9 at any "
        "moment.",
        result="Each record is archived once, and each command counts its own. A killed one leaves nothing visible to "
        "engines.",
        tests=(
            f"{SYNC}::test_two_syncs_at_once_archive_each_record_once",
            f"{SYNC}::test_a_killed_sync_leaves_nothing_that_the_next_one_does_not_put_right",
        ),
    ),
    Situation(
        number="F92",
        what="A task, response, reward or group was written twice, by `admin dlq retry` or a producer's retry, and a "
        "query joins or counts them.",
        result="The views, and `unique_tasks`, `unique_responses`, `unique_rewards` and `unique_groups`, have each "
        "once; every query of queries.md gives the same result on a log in which each was written twice.",
        tests=("tests/log/test_queries.py::test_a_record_that_was_written_again_counts_once",),
    ),
    Situation(
        number="F93",
        what="A prompt or an answer with U+2028, U+2029, U+0085, NUL or a byte order mark, in an exported line, in "
        "`--output jsonl` or in a log line.",
        result="A line is one line to every reader, including Python's `splitlines`; the text is restored unchanged.",
        tests=(f"{EXPORT}::test_a_line_of_a_data_set_is_one_line_to_every_reader",),
    ),
    Situation(
        number="F94",
        what="The first tool call, feedback or agent of a data set comes after the chunk from which `load_dataset` "
        "infers the types.",
        result="`README.md` has the types, so chunks of 1 byte and of 10 MiB give the same rows.",
        tests=(
            f"{EXPORT}::test_hugging_face_datasets_reads_calls_that_come_late_in_any_chunks",
            "tests/unit/test_finished.py::test_hugging_face_datasets_reads_interactions_in_any_chunks",
        ),
    ),
)
