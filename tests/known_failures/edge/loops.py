"""Situations F105 to F114 at the edge: failures that other projects' trackers describe, run here."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

BATCHES, TRAINER = "tests/unit/test_batches.py", "tests/pipeline/test_trainer.py"
APP, RETENTION = "tests/log/test_app.py", "tests/log/test_retention.py"
CALLS, FALLBACK = "tests/plugins/tinker/test_tinker_api.py", "tests/plugins/fallback/test_fallback_chain.py"

TITLE = "What other loops lost"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F105",
        what="One group of 150 takes so long that it is stale when it comes. Elsewhere its number held the place "
        "to resume for the rest of the run, and a restart sampled and trained on everything after it again "
        "(TRL 7274).",
        result="The place to resume is an offset of the log, and says nothing of groups. 148 of the 149 others are "
        "in 74 batches, each once, one waits for its batch, and the stale one is named in the next batch, "
        "with a restart in between.",
        tests=(
            f"{BATCHES}::test_a_stale_group_does_not_hold_back_the_place_at_which_a_restart_continues",
            f"{BATCHES}::test_every_train_group_is_in_one_batch_or_named_as_dropped",
        ),
    ),
    Situation(
        number="F106",
        what="Answers to 0 to 7 are sampled ahead, two are trained on, and the loop is restarted from its "
        "checkpoint. Elsewhere the answers sampled ahead were in memory, so 2 and 3 were skipped (OpenRLHF "
        "1322).",
        result="Answers are in the log before they are trained on. With a restart after any number of them the "
        "batches are 0 1, 2 3, 4 5, 6 7, and a trainer that dies after any part of a step ends with the "
        "same bytes.",
        tests=(
            f"{BATCHES}::test_of_eight_groups_sampled_ahead_a_restart_skips_none_and_repeats_none",
            f"{BATCHES}::test_a_restart_anywhere_cuts_the_same_batches",
            f"{TRAINER}::test_a_trainer_that_dies_after_any_part_of_a_step_ends_with_the_same_bytes",
        ),
    ),
    Situation(
        number="F107",
        what="The trainer is killed after it has published its weights and before they are committed. Elsewhere "
        "the next start built another batch, which contradicted the published one, and nothing continued "
        "without an operator (reef 332).",
        result="A batch is a record, so the next start trains the same one. Killed after the step, the checkpoint, "
        "the store or the event, it announces the version once, with the same bytes.",
        tests=(
            f"{TRAINER}::test_a_trainer_that_dies_after_any_part_of_a_step_ends_with_the_same_bytes",
            f"{TRAINER}::test_a_version_has_the_trace_and_the_agents_of_its_batch_even_if_it_is_announced_only_after_a_crash",
            "tests/plugins/tinker/test_call_worker.py::"
            "test_a_worker_that_ends_anywhere_is_continued_by_one_that_gives_the_same_bytes",
        ),
    ),
    Situation(
        number="F108",
        what="Retention deletes records below the committed offset of a stateful application. Elsewhere it "
        "stayed alive and processed nothing (Quix Streams 1114).",
        result="Each reader exits with code 5, the number of lost records, and the choice: restore them, or accept "
        "the loss with `admin offsets skip`; so does the next start.",
        tests=(
            f"{RETENTION}::test_a_commit_that_retention_has_cut_is_an_error_that_counts_the_loss_and_names_the_choice",
            f"{RETENTION}::test_an_agent_whose_responses_were_cut_ends_with_that_error",
            "tests/log/test_changelogs.py::test_retention_that_overtakes_a_worker_ends_it_with_5_and_so_the_next",
        ),
    ),
    Situation(
        number="F109",
        what="A join is restarted while one of its two inputs has no new record. Elsewhere the other input was "
        "read and never processed (Quix Streams 1116).",
        result="No input waits for another: what has come is in the state. 40 of 40 groups are joined, with both "
        "drivers.",
        tests=(f"{APP}::test_an_input_that_was_read_to_its_end_does_not_hold_up_the_other_after_a_restart",),
    ),
    Situation(
        number="F110",
        what="Partitions move to other workers while these read their changelogs, as when several start at once. "
        "Elsewhere each worker that joined crashed the others (Quix Streams 1146).",
        result="A worker frozen in the middle of 40 MB loses its partitions to a second, comes back, and a third "
        "joins: 40 of 40 groups are joined with the same parts, with both drivers.",
        tests=(
            f"{APP}::test_partitions_that_move_while_changelogs_are_read_lose_nothing",
            f"{APP}::test_two_workers_killed_under_traffic_lose_nothing_and_keep_the_order",
        ),
    ),
    Situation(
        number="F111",
        what="A client of the Tinker API sends 208 training calls of 3.3 MB at once. Elsewhere writes filled the "
        "connections to a database, calls were missing, and heartbeats were blocked (SkyRL 2060).",
        result="`python -m tests.benchmarks call_burst`: 208 of 208 are acknowledged and in the log in 12.9 s, and "
        "all 30 heartbeats meanwhile are answered, p95 0.67 s, the longest 0.71 s, on two cores that "
        "clients, server, broker and other work share. SkyRL states 26.8 s and 0.11 s after its repair, on "
        "another machine.",
        tests=(
            f"{CALLS}::test_many_large_calls_at_once_are_all_in_the_log_and_heartbeats_are_answered_meanwhile",
            f"{CALLS}::test_a_call_that_is_sent_again_is_one_call_in_the_log_and_has_one_id",
        ),
    ),
    Situation(
        number="F112",
        what="A stream breaks off after its first tokens, and a fallback is set. Elsewhere the second model "
        "continued the text of the first, or the tokens of the first were in no record (LiteLLM 35578, "
        "18229, 39462).",
        result="After the first token no fallback answers. The stream ends with an error, the turn has the tokens "
        "that were sampled, and a retry is a call of its own.",
        tests=(
            f"{FALLBACK}::test_a_stream_that_breaks_off_has_no_text_of_another_model_and_its_turn_keeps_what_was_sampled",
            f"{FALLBACK}::test_nothing_is_tried_again_after_the_first_token",
        ),
    ),
)
