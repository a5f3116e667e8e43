"""Situations F95 to F104 at the edge: what assistants, other agents and web pages send, and rows that address them."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

QUERY, REST = "tests/unit/test_query.py", "tests/unit/test_log_rest.py"
DENIED, INJECTION = "tests/unit/test_denied_everywhere.py", "tests/unit/test_mcp_injection.py"
MCP, OWN_MACHINE = "tests/log/test_mcp.py", "tests/log/test_own_machine.py"
LEAVE = "tests/log/test_mcp_clients_that_leave.py"

TITLE = "Assistants and other agents"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F95",
        what="A query of the log is followed by a second statement, an EXPLAIN ANALYZE of a write, or has a COPY, "
        "INSERT, UPDATE or DELETE as a CTE, which DuckDB treats as a SELECT. With USE_TMP_FILE false such a COPY "
        "overwrote a segment of the archive.",
        result="Only one statement runs, and all its queries must be read-only; the rest is refused by name, and "
        "nothing is written.",
        tests=(
            f"{QUERY}::test_what_does_not_only_read_is_refused",
            f"{QUERY}::test_one_statement_is_run_at_a_time",
            f"{REST}::test_no_statement_writes_into_the_archive_whose_files_it_may_read",
            f"{MCP}::test_a_statement_that_does_not_only_read_is_refused_in_the_words_of_the_route",
        ),
    ),
    Situation(
        number="F96",
        what="A SELECT opens files (read_text, glob, FROM 'file', s3://), reads a variable of the Python program or "
        "DuckDB's settings, or requests a plan that contains them (json_serialize_plan).",
        result="Only listed table functions and names are allowed; DuckDB is locked, too.",
        tests=(
            f"{QUERY}::test_a_statement_that_reads_cannot_read_files",
            f"{QUERY}::test_a_statement_calls_no_function_that_is_about_more_than_its_rows",
            f"{QUERY}::test_a_statement_reads_no_table_but_the_views_of_the_log",
            f"{QUERY}::test_a_variable_of_the_program_is_no_table",
        ),
    ),
    Situation(
        number="F97",
        what="A statement would exhaust time or memory: endless recursion, a cross join, a list or a text of a "
        "terabyte; a result has 100 MB.",
        result="It ends at a limit, which the error names, and the next one is answered. A long result is truncated "
        "with a count.",
        tests=(
            f"{REST}::test_a_statement_that_would_hold_the_machine_ends_within_its_bounds_and_says_which",
            f"{REST}::test_a_statement_that_runs_too_long_is_ended",
            f"{MCP}::test_text_of_the_log_comes_as_data_and_a_long_result_is_cut_with_a_count",
        ),
    ),
    Situation(
        number="F98",
        what="A client guesses the name of a tool hidden from its key, requests it through another tool set or "
        "standard input, calls it as a method of JSON-RPC or A2A, or names a tool `..`.",
        result="Every interface denies what REST denies, with the same message; tests compare routes, tools and "
        "methods with the table of rights for every kind of key.",
        tests=(
            f"{DENIED}::test_a_tool_is_denied_over_http_in_the_words_of_its_route_and_not_listed_then",
            f"{DENIED}::test_a_tool_is_denied_on_standard_input_and_output_too",
            "tests/plugins/jobs/test_job_rights.py::test_a_method_of_json_rpc_is_denied_where_its_route_is",
            f"{DENIED}::test_a_route_answers_whom_its_right_allows_under_each_of_its_paths",
            f"{MCP}::test_a_name_that_would_lead_to_another_route_is_the_name_of_nothing",
        ),
    ),
    Situation(
        number="F99",
        what="One of our tokens for another audience, an invalid key, or one that is revoked between two calls.",
        result="401 at every interface.",
        tests=(
            "tests/plugins/people/test_tenants.py::test_a_token_of_ours_for_another_audience_opens_no_entrance",
            f"{DENIED}::test_no_route_answers_without_a_key_or_to_one_that_is_none",
            f"{MCP}::test_a_key_that_is_revoked_between_two_calls_opens_nothing_from_then_on",
            "tests/plugins/people/test_people.py::test_a_forged_token_is_none",
        ),
    ),
    Situation(
        number="F100",
        what="A web page reaches a server without keys on its visitor's machine: from another site, or under a name "
        "that resolves to the machine (DNS rebinding).",
        result="On every path 421 for a foreign Host and 403 for a foreign Origin, without any effect.",
        tests=(
            f"{OWN_MACHINE}::test_no_path_answers_under_a_foreign_name_or_to_a_page_of_another_site",
            f"{OWN_MACHINE}::test_what_is_none_of_this_machine_s_names_is_refused_whatever_else_is_sent",
            f"{OWN_MACHINE}::test_a_page_that_is_not_of_this_machine_submits_nothing",
        ),
    ),
    Situation(
        number="F101",
        what="An MCP request without a version, with an unknown version, with a method that its revision lacks, or "
        "with headers that contradict its body.",
        result="Without a version the earlier revision applies; the others are refused with the protocol's own code, "
        "without any effect.",
        tests=(
            f"{MCP}::test_both_revisions_are_spoken_and_unknown_ones_are_refused",
            f"{MCP}::test_a_method_that_a_revision_does_not_have_is_told_so",
            f"{MCP}::test_a_request_whose_headers_say_something_else_than_its_body_is_not_done",
            f"{MCP}::test_a_request_without_a_version_is_answered_as_of_the_earlier_revision",
        ),
    ),
    Situation(
        number="F102",
        what="A row, a name or a reason in the log orders the assistant to do something, claims to end the data, "
        "imitates the truncation notice, or has invisible text.",
        result="Every result is JSON after a part that announces it as data; invisible characters are escaped; the id "
        "in a prompt is quoted.",
        tests=(
            f"{INJECTION}::test_whatever_a_row_says_is_inside_the_json_that_was_announced",
            f"{INJECTION}::test_every_tool_announces_its_result_as_names_and_reasons_are_texts_too",
            f"{INJECTION}::test_a_resource_of_the_log_is_json_after_a_part_that_announces_it",
            f"{INJECTION}::test_the_id_in_a_prompt_is_a_quotation",
            f"{INJECTION}::test_no_description_of_ours_has_a_word_of_the_log",
        ),
    ),
    Situation(
        number="F103",
        what="A `requestState`, a cursor or a page token that the server did not issue.",
        result="Refused without any effect: the server requests no input, and its lists have one page.",
        tests=(
            f"{MCP}::test_a_state_that_this_server_did_not_give_is_refused_before_anything_is_done",
            f"{MCP}::test_a_cursor_that_this_server_did_not_give_is_refused",
        ),
    ),
    Situation(
        number="F104",
        what="A client leaves while its tool works, or the assistant that started `streamward mcp` ends.",
        result="Its request is cancelled, and recorded once as not delivered; the key's slot is free again.",
        tests=(
            f"{LEAVE}::test_a_call_whose_client_leaves_ends_is_recorded_once_and_gives_its_place_to_the_next",
            f"{LEAVE}::test_calls_over_standard_input_end_with_the_assistant_that_made_them",
        ),
    ),
)
