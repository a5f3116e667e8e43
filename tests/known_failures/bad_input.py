"""What clients and agents send or do that nobody asked for: what they get, what the log has, and the tests of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.known_failures.rows import AGENTS, CALLS, FOLD, LOG, OF_TEMPLATES, PARAMETERS, RENDER, SERVE, SERVED

RECORDER, RUNS, PROCESSES = f"{LOG}recorder.py", f"{AGENTS}agent_runs.py", f"{AGENTS}agent_processes.py"
REFUSED = f"{SERVED}::test_bad_input_gets_an_error_in_the_words_of_the_protocol_and_leaves_nothing_in_the_log"
ACTING = "tests/plugins/threads/test_acting_runs.py"
REMOTE = "tests/plugins/threads/test_remote_agents.py"
CACHE = "tests/plugins/cache"
FALLBACK = "tests/plugins/fallback/test_fallback_chain.py"
CHILDREN = "tests/plugins/threads/test_child_runs.py"
AUDIT_THREADS = "tests/plugins/threads/test_audit_threads.py"
"""One call of each kind in every protocol, and then a good one, which is answered and is the only turn in the log."""


@dataclass(frozen=True, kw_only=True)
class BadInput:
    """One kind of it."""

    what: str
    answer: str
    """What the client gets, or how the run ends."""
    log: str
    """What the log has of it."""
    tests: tuple[str, ...]


INPUTS = (
    BadInput(
        what="a body that is not JSON",
        answer="400",
        log="nothing",
        tests=(REFUSED, f"{PARAMETERS}::test_a_body_that_is_no_json_is_refused"),
    ),
    BadInput(
        what="10 MB of messages",
        answer="413 with the name of the limit, before anything is sampled",
        log="nothing",
        tests=(
            REFUSED,
            f"{CALLS}::test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read",
            f"{CALLS}::test_a_call_too_large_to_be_recorded_is_refused_before_anything_is_sampled",
        ),
    ),
    BadInput(
        what="an unknown model, or an unknown version of it",
        answer="404 with the existing ones",
        log="nothing",
        tests=(REFUSED, f"{SERVE}::test_what_cannot_be_answered_says_why_in_the_format_of_the_api"),
    ),
    BadInput(
        what="an unknown parameter",
        answer="400 with its name",
        log="nothing",
        tests=(REFUSED, f"{CALLS}::test_a_parameter_that_nobody_knows_is_refused_by_its_name_and_nothing_is_sampled"),
    ),
    BadInput(
        what="a tool with an invalid schema",
        answer="400 with its place in the body",
        log="nothing",
        tests=(REFUSED, f"{PARAMETERS}::test_what_is_wrong_is_refused_by_its_name"),
    ),
    BadInput(
        what="a tool call of the model that does not parse",
        answer="the text, without a call",
        log="the turn with its tokens and the reason",
        tests=(
            f"{SERVED}::test_a_tool_call_that_does_not_parse_stays_text_and_the_turn_says_so",
            f"{RENDER}::test_a_call_that_cannot_be_read_stays_text_and_says_why",
        ),
    ),
    BadInput(
        what="a tool call that a client sends back with arguments that are not a JSON object",
        answer="400 with its place in the body",
        log="nothing",
        tests=(f"{PARAMETERS}::test_what_is_wrong_is_refused_by_its_name",),
    ),
    BadInput(
        what="a client that hangs up in the middle of a stream",
        answer="",
        log="the turn with the sampled tokens, as not delivered",
        tests=(f"{SERVE}::test_an_answer_whose_client_hangs_up_is_recorded_and_not_delivered",),
    ),
    BadInput(
        what="two concurrent calls of one agent",
        answer="both answers; under one `Idempotency-Key` the same one",
        log="a turn for each answer",
        tests=(
            f"{SERVE}::test_calls_at_once_are_answered_side_by_side",
            f"{SERVE}::test_calls_at_once_with_the_same_body_share_an_answer_only_under_the_same_key",
        ),
    ),
    BadInput(
        what="a call after the end",
        answer="the answer; 409 once the trajectory is forgotten",
        log="the turn, which is left out as late",
        tests=(
            f"{RECORDER}::test_a_call_after_the_end_is_answered_and_late_and_a_history_that_parts_is_a_fork",
            f"{CALLS}::test_a_trajectory_that_is_remembered_no_longer_is_refused_in_the_words_of_each_protocol",
        ),
    ),
    BadInput(
        what="an agent that forks its conversation",
        answer="the answer",
        log="a branch, with the reason",
        tests=(
            f"{RECORDER}::test_a_call_after_the_end_is_answered_and_late_and_a_history_that_parts_is_a_fork",
            f"{FOLD}::test_a_reply_that_the_agent_trimmed_forks_and_the_sampled_one_is_trained_on_once",
        ),
    ),
    BadInput(
        what="an agent that loops forever",
        answer="400 at call `max_turns` + 1; its processes end at `--time-limit`",
        log="a response with its turns so far; beyond the time limit, one with an error",
        tests=(
            f"{RUNS}::test_a_call_too_many_is_refused_and_the_run_ends_with_what_there_is",
            f"{RUNS}::test_an_end_cancels_what_is_still_answered_and_counts_it",
            f"{PROCESSES}::test_a_program_that_hangs_ends_at_its_limit_even_if_it_ignores_sigterm",
        ),
    ),
    BadInput(
        what="an agent that writes gigabytes",
        answer="it is killed when its folder exceeds a limit; its output is truncated",
        log="`ended`, with the reason",
        tests=(
            f"{PROCESSES}::test_a_program_that_fills_its_folder_is_ended",
            f"{PROCESSES}::test_what_is_printed_is_kept_up_to_a_limit",
        ),
    ),
    BadInput(
        what="an agent that leaves child processes",
        answer="they are killed at the end of the run",
        log="`ended`, as usual",
        tests=(
            f"{PROCESSES}::test_nothing_that_a_program_leaves_behind_goes_on",
            f"{PROCESSES}::test_kill_9_of_the_manager_or_of_what_watches_ends_the_program",
        ),
    ),
    BadInput(
        what="a template that changes history",
        answer="the answer",
        log="a separate chain, with the reason",
        tests=(OF_TEMPLATES, f"{RENDER}::test_template_that_changes_history_is_a_reason"),
    ),
    BadInput(
        what="a tool that fails, hangs, or ends with the server that calls it for a run",
        answer="the model reads why; after a kill the call is made again only if its tool is idempotent, or a person "
        "says that it was not made",
        log="`call_ended` with the error; a call without an end, and the run waits",
        tests=(
            f"{ACTING}::test_a_tool_that_fails_is_a_result_that_the_model_reads",
            f"{ACTING}::test_a_cancelled_run_stops_the_call_in_progress",
            f"{ACTING}::test_after_kill_9_in_mid_call_no_step_is_lost_and_none_is_made_twice",
            f"{AUDIT_THREADS}::test_a_step_that_is_dropped_or_made_twice_is_missed",
        ),
    ),
    BadInput(
        what="agents that call each other in a circle, or a server that is killed while one answers another",
        answer="the call below `threads.max_depth` is refused, and its model reads why; after a kill the child is the "
        "same run",
        log="`call_ended` with `max_depth`; one `run_requested` for each call",
        tests=(
            f"{CHILDREN}::test_a_circle_of_agents_and_a_child_without_an_answer_end_by_name",
            f"{CHILDREN}::test_after_kill_9_in_mid_child_it_is_the_same_run",
        ),
    ),
    BadInput(
        what="an agent of another server that changes its card, sends calls elsewhere, is unreachable, or never ends",
        answer="a changed card is refused until a person accepts it, and another host always; a task is continued by "
        "the next server, waited for while its own is unreachable, and cancelled with its run",
        log="`changed` in `tools`; `call_accepted` with the task, `call_ended` with the error",
        tests=(
            f"{REMOTE}::test_a_changed_card_is_refused_until_a_person_accepts_it",
            f"{REMOTE}::test_after_kill_9_the_next_server_continues_the_same_task",
            f"{REMOTE}::test_a_task_ends_with_the_time_of_its_run_and_its_answer_may_be_that_of_the_run",
        ),
    ),
    BadInput(
        what="the same question again: of another tenant, version or prompt, by a hundred clients at once, or almost "
        "the same with the opposite, another number or unit",
        answer="its own answer unless all is equal; equal ones are sampled once, an almost equal one is not given, and "
        "what is trained on or measured is always sampled",
        log="a turn for each, with `origin.cached_from` if it was given again",
        tests=(
            f"{CACHE}/test_cache_rules.py::test_another_version_policy_prompt_form_or_tenant_is_sampled",
            f"{CACHE}/test_answer_cache.py::test_a_hundred_equal_questions_at_once_are_sampled_once",
            f"{CACHE}/test_cache_rules.py::test_tasks_that_something_is_learned_from_are_always_sampled",
            f"{CACHE}/test_similar_questions.py::"
            "test_opposites_other_numbers_other_units_and_other_orders_are_not_similar",
        ),
    ),
    BadInput(
        what="calls while the engine is unreachable, that break it, or that it leaves after the first token",
        answer="another engine or version before the first token, named in header and body; the failures of one tenant "
        "pause no engine for another; a stream that breaks off is an error",
        log="the version that answered, with `origin.asked_version` and the reason",
        tests=(
            f"{FALLBACK}::test_every_call_is_answered_while_the_engine_is_unreachable",
            f"{FALLBACK}::test_header_body_and_turn_say_who_answered",
            f"{FALLBACK}::test_no_tenants_failures_pause_the_engine_for_another",
            f"{FALLBACK}::test_nothing_is_tried_again_after_the_first_token",
            f"{FALLBACK}::test_tasks_that_something_is_learned_from_get_no_fallback",
        ),
    ),
)
