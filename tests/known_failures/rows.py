"""The failures, one row each: what others get wrong, what prevents it here, and which tests hold that.

    Failure(number, others, measure, proofs, naive)   the proofs fail under the naive way (sabotage.py)
    Failure(number, others, never, ...)               it cannot occur, and why

`elsewhere` are tests against a real log or a real model, or of other parts of the same measure; they are not sabotaged.
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT, LOG, AGENTS = "tests/unit/test_", "tests/log/test_", "tests/plugins/agents/test_"
CALLS, FOLD, RENDER = f"{UNIT}captured_calls.py", f"{UNIT}agent_fold.py", f"{UNIT}rendering.py"
EVENTS, PARAMETERS, JOIN = f"{UNIT}protocol_events.py", f"{UNIT}protocols.py", f"{UNIT}join.py"
STRUCTURE = f"{UNIT}text_and_structure.py"
SERVE, SERVED = f"{LOG}serve.py", f"{LOG}protocols_served.py"
STUCK, AUDIT_LOG, TRANSACTIONS = f"{LOG}stuck_workers.py", f"{LOG}cli_audit.py", f"{LOG}transactions.py"
OF_TEMPLATES = f"{CALLS}::test_a_template_that_changes_history_begins_a_chain_and_what_was_sampled_before_keeps_its_own"
UNREADABLE = f"{CALLS}::test_a_call_that_cannot_be_read_is_text_with_the_tokens_that_were_sampled"


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One way in which it goes wrong."""

    number: str
    others: str
    """What was seen elsewhere."""
    measure: str = ""
    """What prevents it here."""
    proofs: tuple[str, ...] = ()
    """Tests that fail under `naive`; `[case]` for one case of a test."""
    naive: str = ""
    """The function of sabotage.py that takes the measure away."""
    elsewhere: tuple[str, ...] = ()
    never: str = ""
    """Why it cannot occur here."""


FAILURES = (
    KnownFailure(
        number="F1",
        others="The text of an answer is tokenized again, into tokens that were never sampled.",
        measure="The next prompt begins with the recorded tokens, and only new messages are rendered.",
        proofs=(f"{CALLS}::test_the_next_prompt_has_what_was_sampled_though_a_tokenizer_writes_it_otherwise",),
        naive="the_whole_history_is_tokenized_again",
        elsewhere=(
            f"{RENDER}::test_every_sampled_token_is_in_the_last_prompt_as_it_was_sampled",
            f"{SERVE}::test_what_smollm2_drew_is_what_is_recorded_and_each_prompt_begins_with_it",
        ),
    ),
    KnownFailure(
        number="F2",
        others="Every turn tokenizes the whole conversation, so a long one costs the square of its length.",
        measure="Only the text after the last answer is tokenized, however long the history is.",
        proofs=(f"{RENDER}::test_what_comes_behind_does_not_depend_on_the_length_of_history",),
        naive="all_text_is_tokenized_to_find_what_is_new",
    ),
    KnownFailure(
        number="F3",
        others="The template ends earlier turns with another token than the sampled one.",
        measure="The sampled end of a turn stays, and the template's is not added.",
        proofs=(f"{RENDER}::test_end_that_was_sampled_stays_alone_whichever_the_template_writes",),
        naive="the_template_s_end_follows_the_sampled_one",
    ),
    KnownFailure(
        number="F4",
        others="The template leaves out the reasoning of earlier turns.",
        measure="The template's rendering of earlier turns is checked with every call; if it differs from the record, "
        "the call begins its own chain, with the reason.",
        proofs=(f"{OF_TEMPLATES}[reasoning left out]",),
        naive="no_template_is_checked",
        elsewhere=(f"{RENDER}::test_template_that_changes_history_is_a_reason",),
    ),
    KnownFailure(
        number="F5",
        others="The template writes the text next to a tool call twice, in another place, or not at all.",
        measure="The same check.",
        proofs=(f"{OF_TEMPLATES}[text twice]", f"{OF_TEMPLATES}[text left out]"),
        naive="no_template_is_checked",
        elsewhere=(f"{RENDER}::test_template_that_changes_history_is_a_reason",),
    ),
    KnownFailure(
        number="F6",
        others="System prompt, date or the beginning of an answer changes in each turn, through the template or an "
        "agent's nonce.",
        measure="The same check for the template. System prompts are compared like any message; a call with a "
        "different one counts as a rewrite of the history, with this reason. Such an agent is recorded exactly, one "
        "chain per call.",
        proofs=(
            f"{OF_TEMPLATES}[system prompt changes]",
            f"{OF_TEMPLATES}[generation prompt changes]",
            f"{FOLD}::test_a_system_prompt_that_changes_with_every_call_rewrites_and_says_so",
        ),
        naive="system_messages_are_not_compared",
    ),
    KnownFailure(
        number="F7",
        others="Template or tokenizer have changed since sampling.",
        measure="Each turn has the digests of both. A server with different ones does not continue it, and the fold "
        "leaves out a turn that claims to.",
        proofs=(
            f"{CALLS}::test_a_server_with_another_template_or_tokenizer_does_not_continue_tokens_of_the_one_before",
            f"{FOLD}::test_a_turn_whose_tokens_do_not_fit_is_left_out_with_all_behind_it",
        ),
        naive="digests_are_not_compared",
        elsewhere=(f"{RENDER}::test_digest_tells_templates_apart",),
    ),
    KnownFailure(
        number="F8",
        others="The parser drops or repairs a tool call, so that text and tokens disagree.",
        measure="An unreadable call stays text, with the reason in the turn. Nothing is repaired, and the tokens are "
        "always the sampled ones.",
        proofs=(f"{UNREADABLE}[not closed]",),
        naive="calls_are_repaired",
        elsewhere=(f"{SERVED}::test_a_tool_call_that_does_not_parse_stays_text_and_the_turn_says_so",),
    ),
    KnownFailure(
        number="F9",
        others="Training reads calls more leniently than serving, and rewards those that never ran.",
        never="An answer is parsed once, when it is given, and the turn has what the agent received. Scorers and "
        "trainer have no parser.",
        elsewhere=("tests/lint/test_layers.py::test_only_the_engines_read_tool_calls",),
    ),
    KnownFailure(
        number="F10",
        others="Arguments that are not JSON crash the run.",
        measure="Any text is an answer; an invalid call is text. Arguments that a client sends back must be a JSON "
        "object, or the call gets status 400.",
        proofs=(f"{UNREADABLE}[not JSON]", f"{UNREADABLE}[nested too deeply]"),
        naive="calls_are_taken_for_json",
        elsewhere=(f"{PARAMETERS}::test_what_is_wrong_is_refused_by_its_name",),
    ),
    KnownFailure(
        number="F11",
        others="A client or proxy changes the ids or the JSON formatting of tool calls, and the history matches no "
        "turn any more.",
        measure="Ids are not compared, and arguments are compared as JSON, where 1.0 is 1.",
        proofs=(f"{FOLD}::test_ids_of_tool_calls_that_a_client_replaced_and_json_that_it_wrote_anew_do_not_matter",),
        naive="replies_are_compared_as_they_are_written",
        elsewhere=(f"{SERVE}::test_a_tool_call_comes_whole_and_its_result_continues_the_turn",),
    ),
    KnownFailure(
        number="F12",
        others="A streamed answer with tool calls lacks some or all logprobs.",
        measure="Tokens whose text is held back come with the end of the answer, each with its logprob.",
        proofs=(f"{CALLS}::test_a_streamed_call_has_the_logprob_of_every_token",),
        naive="logprobs_of_calls_are_not_streamed",
        elsewhere=(f"{SERVE}::test_a_stream_gives_the_text_and_logprobs_of_the_whole_answer",),
    ),
    KnownFailure(
        number="F13",
        others="A component between engine and recorder drops the token ids, which are then derived from the text.",
        measure="The process that samples also records: ids and logprobs come from the engine, never from a client.",
        proofs=(f"{CALLS}::test_what_is_in_the_log_are_the_tokens_and_logprobs_of_the_engine",),
        naive="tokens_are_made_of_the_answer_s_text",
    ),
    KnownFailure(
        number="F14",
        others="Ids and names of several calls in a streamed answer are lost or merged.",
        measure="A call is streamed whole, under its own number.",
        proofs=(f"{EVENTS}::test_chat_streams_and_adds_up[text and two calls]",),
        naive="calls_are_streamed_without_their_number",
        elsewhere=(
            f"{EVENTS}::test_a_message_streams_in_order_and_adds_up",
            f"{EVENTS}::test_the_events_of_a_response_with_a_call_are_the_official_ones",
        ),
    ),
    KnownFailure(
        number="F15",
        others="The stream starts only when the answer is complete, so clients time out.",
        measure="Text is sent as it is sampled.",
        proofs=(f"{CALLS}::test_a_stream_gives_text_before_the_answer_is_complete",),
        naive="text_is_sent_when_the_answer_is_complete",
    ),
    KnownFailure(
        number="F16",
        others="A client hangs up, and its turn is lost, or counts as read.",
        measure="Its row ends, the sampled tokens are recorded, and the turn is marked as not delivered. It bears "
        "loss only if a later call continues it.",
        proofs=(f"{CALLS}::test_what_a_client_left_is_recorded_as_not_delivered_and_its_row_ends",),
        naive="every_answer_counts_as_delivered",
        elsewhere=(
            f"{SERVE}::test_an_answer_whose_client_hangs_up_is_recorded_and_not_delivered",
            f"{FOLD}::test_an_answer_that_nobody_got_is_left_out_and_its_second_try_extends",
        ),
    ),
    KnownFailure(
        number="F17",
        others="The retry of a finished call makes a second branch.",
        measure="Under the same key the answer comes from the log. A client's own retry without a key gets the unread "
        "answer, even if that had reached the client's machine when the client left.",
        proofs=(f"{CALLS}::test_a_call_that_is_sent_again_under_its_key_is_one_turn",),
        naive="no_call_is_a_retry",
        elsewhere=(
            f"{SERVE}::test_a_retry_gets_the_same_answer_and_no_second_turn",
            f"{SERVE}::test_a_retry_gets_the_answer_that_reached_its_client_and_was_not_read",
            f"{UNIT}conversations.py::test_a_retry_without_a_key_gets_a_recent_answer_that_nobody_has_read_to_its_end",
        ),
    ),
    KnownFailure(
        number="F18",
        others="The agent edits an answer (strips, repairs, shortens it) and continues from that.",
        measure="The call forks from the previous turn, with the reason; the sampled answer keeps its own branch. "
        "Without a trajectory in its path it does so if the answers that it repeats are those of one open trajectory, "
        "ignoring surrounding spaces; otherwise it begins a new one.",
        proofs=(f"{FOLD}::test_a_reply_that_the_agent_trimmed_forks_and_the_sampled_one_is_trained_on_once",),
        naive="what_an_agent_made_of_a_reply_does_not_matter",
        elsewhere=(
            f"{FOLD}::test_other_arguments_are_another_reply",
            f"{UNIT}conversations.py::test_a_call_without_a_name_that_repeats_answers_of_one_trajectory_rewrites_it",
        ),
    ),
    KnownFailure(
        number="F19",
        others="A client continues an earlier one of several answers to a call, but the recorder follows the newest.",
        measure="A call continues the turn whose answer it repeats, wherever that is in the tree.",
        proofs=(f"{FOLD}::test_of_several_answers_to_one_call_the_one_that_is_continued_is_the_conversation",),
        naive="a_call_continues_the_newest_turn",
        elsewhere=(f"{FOLD}::test_every_sampled_token_has_one_owner_or_a_reason",),
    ),
    KnownFailure(
        number="F20",
        others="Concurrent sub-agents are merged into one conversation.",
        measure="The same; each is its own chain.",
        proofs=(f"{FOLD}::test_sub_agents_that_work_at_the_same_time_are_chains_of_their_own",),
        naive="a_call_continues_the_newest_turn",
    ),
    KnownFailure(
        number="F21",
        others="Calls for a title or a summary are trained on as if they were the task.",
        measure="A first call with another system prompt and without tools is auxiliary, with all calls that continue "
        "it. So is one with the agent's own system prompt and without tools, if the trajectory ends and no later call "
        "contains its answer. Without a trajectory in its path a title is a separate trajectory.",
        proofs=(
            f"{FOLD}::test_a_title_is_auxiliary_whether_it_is_asked_for_before_the_first_call_or_after",
            f"{FOLD}::test_every_call_of_an_auxiliary_chain_is_auxiliary",
        ),
        naive="every_call_is_the_conversation_s",
        elsewhere=(
            f"{FOLD}::test_a_summary_under_the_agents_own_system_prompt_is_auxiliary_once_nothing_has_continued_it",
        ),
    ),
    KnownFailure(
        number="F22",
        others="A compacted history is taken for another run, or for the end of this one.",
        measure="It is a new chain of the same run, and the conversation continues there. Without a trajectory in its "
        "path this holds only if it repeats answers of one open trajectory; a summary alone begins another.",
        proofs=(f"{FOLD}::test_a_compacted_history_is_rewritten_and_goes_on_as_the_conversation",),
        naive="the_first_chain_is_the_conversation",
        elsewhere=(
            f"{UNIT}run_answer.py::test_an_answer_that_another_agent_repeats_is_in_doubt_and_both_are_named",
            f"{UNIT}run_answer.py::test_a_handoff_is_in_no_doubt_since_it_is_a_call_of_a_tool",
        ),
    ),
    KnownFailure(
        number="F23",
        others="A run becomes several samples, and counts several times in baseline and loss.",
        never="A run has one response, whose id is that of its slot, and a group has one reward for each slot. Other "
        "chains are branches of that response, and every sampled token is owned by one of them.",
        elsewhere=(
            f"{FOLD}::test_a_run_of_several_chains_is_one_response_which_its_group_counts_once",
            f"{FOLD}::test_every_sampled_token_bears_loss_once_in_the_response_and_no_other_does",
        ),
    ),
    KnownFailure(
        number="F24",
        others="An unfinished run has no tokens to learn from, but still affects the baseline.",
        measure="Its response has an error, and failed slots are excluded from all means.",
        proofs=(f"{JOIN}::test_a_failed_slot_is_left_out_of_the_baseline_and_listed",),
        naive="what_failed_counts_as_zero",
        elsewhere=(f"{FOLD}::test_what_could_only_be_guessed_at_has_an_error_and_no_tokens",),
    ),
    KnownFailure(
        number="F25",
        others="The weights change in the middle of a run, or of an answer.",
        measure="An answer is sampled by one version from its first token to its last, and the turn names it. A "
        "task's runs are pinned to one version; a run with several has an error.",
        proofs=(f"{FOLD}::test_what_could_only_be_guessed_at_has_an_error_and_no_tokens",),
        naive="versions_are_not_compared",
        elsewhere=(
            f"{AGENTS}agent_runs.py::test_the_runs_of_a_sampling_have_one_version_and_no_client_gets_another",
            f"{UNIT}continuous.py::test_versions_side_by_side_each_answer_as_if_alone",
        ),
    ),
    KnownFailure(
        number="F26",
        others="A truncated answer is continued as if it had ended.",
        measure="The missing end is written before the new messages, and is not among the sampled tokens.",
        proofs=(
            f"{CALLS}::test_an_answer_that_was_cut_off_is_ended_before_the_conversation_continues",
            f"{RENDER}::test_answer_without_an_end_gets_the_template_s",
        ),
        naive="every_answer_counts_as_ended",
        elsewhere=(f"{FOLD}::test_a_turn_that_was_cut_off_by_its_length_is_continued",),
    ),
    KnownFailure(
        number="F27",
        others="Responses: `previous_response_id` leads nowhere, or one response is several generations.",
        measure="A response is one turn with the same id, by which the recorded conversation continues. Server-side "
        "tools are refused.",
        proofs=(f"{CALLS}::test_a_response_continues_the_recorded_conversation_of_the_one_before",),
        naive="responses_are_not_continued",
        elsewhere=(f"{SERVED}::test_the_same_agent_leaves_the_same_tokens_in_every_protocol",),
    ),
    KnownFailure(
        number="F28",
        others="Anthropic's messages: tool results in another order, cache marks, counted tokens, unknown fields.",
        measure="A conversation becomes the same messages in every protocol; `cache_control` is reported as ignored; "
        "thinking blocks and unknown fields are refused by name; tokens are counted by the same rendering.",
        proofs=(f"{PARAMETERS}::test_the_same_conversation_is_the_same_messages_in_every_protocol",),
        naive="results_stand_where_their_message_does",
        elsewhere=(
            f"{CALLS}::test_an_anthropic_client_gets_its_own_blocks_counted_and_refused_by_name",
            f"{PARAMETERS}::test_every_parameter_of_the_official_client_is_in_the_table",
        ),
    ),
    KnownFailure(
        number="F29",
        others="A client behaves differently when its base URL is not its vendor's.",
        never="No server can see or prevent it, and the record stays correct: the agent is trained on the requests "
        "that it really sends to this address, and is served at the same address.",
    ),
    KnownFailure(
        number="F30",
        others="Client, proxy and server time out at different moments, and a late answer belongs to no call.",
        measure="An answer that is not recorded within `serve.acknowledge_s` is not sent, and the retry finds it. A "
        "turn after the end of its run is marked late.",
        proofs=(
            f"{CALLS}::test_an_answer_that_is_not_recorded_in_time_is_not_given_and_its_retry_gets_it",
            f"{FOLD}::test_a_late_turn_a_number_given_twice_and_a_failed_call_are_left_out_by_name",
        ),
        naive="answers_do_not_wait_for_the_log",
        elsewhere=(f"{LOG}outages.py::test_a_call_that_cannot_be_recorded_gets_503_and_its_retry_the_one_answer",),
    ),
    KnownFailure(
        number="F31",
        others="Long bodies are refused by a fixed limit.",
        measure="A turn contains only new messages, so a conversation may be longer than a record. The body limit is "
        "`serve.max_body_mb`, which the error names.",
        proofs=(f"{CALLS}::test_a_conversation_longer_than_a_record_is_recorded_turn_by_turn",),
        naive="a_turn_holds_the_whole_request",
        elsewhere=(f"{CALLS}::test_a_body_that_is_too_long_is_refused_by_the_name_of_its_limit",),
    ),
    KnownFailure(
        number="F32",
        others="Unknown parameters are dropped silently.",
        measure="They are refused by name; the few without effect on answers are listed in the answer and in the turn.",
        proofs=(f"{CALLS}::test_a_parameter_that_nobody_knows_is_refused_by_its_name_and_nothing_is_sampled",),
        naive="what_is_unknown_is_dropped",
        elsewhere=(
            f"{CALLS}::test_parameters_that_say_how_tokens_are_drawn_reach_the_engine_and_the_log",
            f"{PARAMETERS}::test_every_parameter_says_what_becomes_of_it",
        ),
    ),
    KnownFailure(
        number="F33",
        others="Logprobs are taken before temperature and top_p, but the trainer expects them after, or vice versa.",
        measure="They are always those of the sampled distribution, and the turn has temperature and top_p. "
        "Parameters that would shift them in other ways are refused, and an answer of a forced form bears no loss.",
        proofs=(f"{UNIT}engines.py::test_top_p_draws_only_from_the_nucleus_and_reports_its_renormalised_logprob",),
        naive="logprobs_are_those_of_the_model_before_sampling",
        elsewhere=(
            f"{UNIT}collate.py::test_micro_batches_keep_order_and_never_mix_temperatures",
            f"{FOLD}::test_an_answer_of_a_forced_form_is_there_for_who_scores_and_bears_no_loss",
        ),
    ),
    KnownFailure(
        number="F34",
        others="A reward comes twice, after its group is closed, or for an unrecorded run.",
        measure="Repeating a reward has no effect; another value is contradictory, and the first counts. A late "
        "reward, or one for an unknown response, is a dead letter; feedback on an unknown answer gets status 404.",
        proofs=(
            f"{JOIN}::test_a_reward_delivered_twice_counts_once",
            f"{JOIN}::test_another_value_under_the_same_reward_id_is_contradictory_and_the_first_wins",
        ),
        naive="rewards_are_added_up",
        elsewhere=(
            f"{UNIT}join_order.py::test_what_is_read_after_the_group_left_is_judged_as_before",
            f"{CALLS}::test_an_opinion_of_an_answer_that_nobody_recorded_is_refused",
            f"{SERVE}::test_feedback_on_an_answer_becomes_one_reward_however_often_it_is_sent",
        ),
    ),
    KnownFailure(
        number="F35",
        others="A message, a tool's result, a name or an argument that contains <|im_end|> becomes a separate turn.",
        measure="Each character of a rendered conversation comes from the template or a message, and a message's "
        "characters never become a control token, in sampling, serving, counting or tuning.",
        proofs=(
            f"{STRUCTURE}::test_no_name_of_a_control_token_in_a_message_becomes_one[chatml]",
            f"{STRUCTURE}::test_what_a_tool_says_after_an_answer_is_text",
        ),
        naive="names_of_control_tokens_become_them",
        elsewhere=(
            f"{STRUCTURE}::test_no_name_of_a_control_token_of_smollm2_becomes_one",
            f"{STRUCTURE}::test_every_entrance_makes_the_same_tokens_of_the_same_messages",
        ),
    ),
    KnownFailure(
        number="F36",
        others="Messages are searched for such names, but the template assembles one, from a name and adjacent text, "
        "from upper case, or from a role.",
        measure="The rendered text is checked, not the messages, and characters are tracked through the template.",
        proofs=(f"{STRUCTURE}::test_a_name_that_a_template_puts_together_from_what_messages_say_is_text",),
        naive="whole_names_alone_are_text",
    ),
    KnownFailure(
        number="F37",
        others="Names of control tokens are cut or escaped wherever they are, and <think> in the answers of a data "
        "set is no longer a token.",
        measure="In an answer only special tokens become text. Added tokens that are not special, such as <think>, "
        "stay tokens.",
        proofs=(
            f"{STRUCTURE}::test_reasoning_that_a_template_takes_out_of_an_answer_is_read_and_a_special_token_beside_it_is_text",
        ),
        naive="names_of_control_tokens_become_them",
    ),
    KnownFailure(
        number="F38",
        others="Special tokens are disabled, but the model's vocabulary still has </s> as one token, or a space is "
        "added where the text was cut.",
        measure="Such text is tokenized in place by a copy of the tokenizer without these names in its vocabulary.",
        proofs=(
            f"{STRUCTURE}::test_a_vocabulary_that_has_the_names_writes_them_in_pieces_and_adds_no_space",
            f"{STRUCTURE}::test_names_that_the_tiny_models_vocabulary_has_as_words_are_unknown_words",
        ),
        naive="text_is_written_with_the_model_s_whole_vocabulary",
    ),
    KnownFailure(
        number="F39",
        others="A template looks for a control token in messages, so a message can change the structure.",
        measure="Such a message is refused by the token's name, which is logged when the model is loaded.",
        proofs=(
            f"{STRUCTURE}::test_a_name_that_a_template_looks_for_in_a_message_is_refused_by_name_and_said_beforehand",
        ),
        naive="names_of_control_tokens_become_them",
    ),
    KnownFailure(
        number="F75",
        others="One reader of a topic gets aborted records, and others do not; or their offsets count as lost records.",
        measure="Every reader has the isolation level `read_committed`, the Faust worker too. The audit examines "
        "gaps: markers and aborted records are not losses, any other offset without a record is.",
        proofs=(f"{UNIT}audit.py::test_an_offset_without_a_record_is_lost_unless_a_transaction_left_it",),
        naive="every_offset_without_a_record_is_lost",
        elsewhere=(
            f"{STUCK}::test_aborted_and_open_transactions_of_others_lose_nothing_and_hold_up_no_worker",
            f"{AUDIT_LOG}::test_markers_and_aborted_records_of_others_are_no_lost_records",
            f"{TRANSACTIONS}::test_archive_sync_says_that_a_topic_has_holes_and_restore_makes_them_again",
        ),
    ),
    KnownFailure(
        number="F76",
        others="A reader waits forever for the last offset of a topic, which is a marker, an aborted record or an "
        "open transaction. Its lag never becomes 0, its watchdog ends it, and no message says why.",
        measure="A partition ends at its last stable offset, and is fully read when the client's position reaches it. "
        "A waiting reader logs the place of an open transaction, and `doctor` names its producer.",
        proofs=(f"{UNIT}reading.py::test_markers_behind_the_last_record_are_done_with_it",),
        naive="a_partition_ends_with_its_last_record",
        elsewhere=(
            f"{TRANSACTIONS}::test_an_aborted_transaction_at_the_end_keeps_no_reader_waiting",
            f"{TRANSACTIONS}::test_a_group_is_done_with_a_partition_that_ends_with_markers",
            f"{TRANSACTIONS}::test_a_partition_ends_where_an_open_transaction_begins_and_goes_on_when_it_ends",
            f"{TRANSACTIONS}::test_doctor_names_the_partition_and_the_producer_of_an_open_transaction",
            f"{STUCK}::test_holes_in_a_source_topic_are_passed_and_committed",
        ),
    ),
)
