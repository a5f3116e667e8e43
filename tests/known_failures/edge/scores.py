"""Situations F65 to F74 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Rewards read what people write"
SCORERS = "tests/unit/test_scorers.py"
ANSWERS = "tests/unit/test_written_answers.py"
JUDGE = "tests/unit/test_judge.py"
CHECK = "tests/unit/test_scorer_check.py"
WORKERS = "tests/unit/test_entry_points.py"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F65",
        what="An answer that differs in what cannot be seen: NFC and NFD, a no-break space, a byte order mark, a "
        "zero-width character, a soft hyphen, \\r\\n; and one with a curly quote, full-width digits or x² for x2.",
        result="The first is right for `exact`, `regex`, `format` and `numeric`, the second wrong for `exact`.",
        tests=(
            f"{SCORERS}::test_a_difference_that_cannot_be_seen_makes_no_answer_wrong",
            f"{SCORERS}::test_a_difference_that_can_be_seen_makes_an_answer_wrong",
        ),
    ),
    Situation(
        number="F66",
        what="5 is right, and the response says 5‰, 1٫5, ‐5, x₅, 5 lakh, five hundred and 5, twice 5, x >= 5, 5 "
        "or more, "
        "5∗y, 5.\\overline{3} or 1, 2, ..., 5; 102 is right, and it says 10₂.",
        result="0: a number is never cut out of something longer, whatever text surrounds it. Arabic and full-width "
        "digits are read.",
        tests=(
            f"{ANSWERS}::test_numeric_never_cuts_the_last_number_out_of_a_longer_expression",
            f"{ANSWERS}::test_a_wrong_number_never_scores_1_whatever_text_surrounds_it",
            f"{ANSWERS}::test_a_number_that_scores_1_has_no_letter_digit_or_operator_beside_it",
        ),
    ),
    Situation(
        number="F67",
        what="-\\boxed{5}, 2\\boxed{5}, \\boxed{5}^2, \\frac{\\boxed{5}}{6} or `not \\boxed{5}`, where 5 is right.",
        result="0 by `numeric` and `math`; 1 for **\\boxed{5}**, x = \\boxed{5} and `- \\boxed{5}` as an item "
        "of a list.",
        tests=(
            f"{ANSWERS}::test_numeric_never_cuts_the_last_number_out_of_a_longer_expression",
            f"{ANSWERS}::test_math_knows_equal_from_different",
        ),
    ),
    Situation(
        number="F68",
        what="A response that hedges: `5 or 6`, `\\boxed{5} or \\boxed{6}`, `5 : 6`, `1 in 5`, `it cannot be "
        "5`, `5 is wrong`.",
        result="0. Several candidates are no answer.",
        tests=(
            f"{ANSWERS}::test_numeric_never_cuts_the_last_number_out_of_a_longer_expression",
            f"{ANSWERS}::test_a_number_in_a_longer_expression_is_not_the_answer",
        ),
    ),
    Situation(
        number="F69",
        what="A task that its scorer cannot use: an answer that is no number for `numeric`, half a formula for `math`, "
        "empty or of zero-width characters alone; a pattern that does not compile.",
        result="Refused with the place and the answer by `tasks submit`, `up`, `jobs start`, `POST /tasks` and `POST "
        "/score`, in the same words.",
        tests=(
            f"{ANSWERS}::test_an_answer_that_a_scorer_cannot_use_is_a_problem_of_the_task",
            f"{SCORERS}::test_bad_settings_are_found_before_anybody_answers",
        ),
    ),
    Situation(
        number="F70",
        what="A scorer's module that is called as an installed one, has no such function, or imports one that is not "
        "there; and a file with a hyphen in its name.",
        result="Refused with the file that is imported, and what to do, at every entrance before the first "
        "sample. What "
        "the settings of the scoring agents may have is said as a doubt.",
        tests=(
            f"{CHECK}::test_a_function_that_cannot_be_loaded_is_refused_at_every_entrance",
            f"{CHECK}::test_a_scorer_that_other_settings_may_have_is_doubtful",
            f"{WORKERS}::test_a_name_that_is_no_entry_point_is_an_unknown_scorer",
        ),
    ),
    Situation(
        number="F71",
        what="A scorer that takes the alarm, or blocks every signal, computes, and the agent is killed with SIGKILL.",
        result="Its worker ends within 3 s.",
        tests=(f"{WORKERS}::test_a_scorer_that_is_deaf_to_signals_does_not_outlive_a_killed_agent",),
    ),
    Situation(
        number="F72",
        what="A judge that refuses a parameter (max_tokens, temperature, response_format), whose budget is spent (402, "
        "insufficient_quota, `credit balance is too low`), or to which 512 tokens are too many.",
        result="Not asked again. The first two pause the judge at once, and say which setting to change or that there "
        "is no budget; responses are held. A rate limit is tried again.",
        tests=(
            f"{JUDGE}::test_a_refused_parameter_is_named_with_the_setting_and_not_tried_again",
            f"{JUDGE}::test_a_budget_that_is_spent_is_named_and_not_asked_again",
            f"{JUDGE}::test_too_large_a_limit_of_tokens_is_named_with_the_setting_of_the_reward_source",
            f"{JUDGE}::test_a_rate_limit_is_no_spent_budget",
            "tests/unit/test_failed_scores.py::test_what_no_other_response_would_change_pauses_at_the_first_failure",
        ),
    ),
    Situation(
        number="F73",
        what="A judge that drafts a verdict in <think> or [THINK], sends its text in parts, refuses to grade, thinks "
        "until it is cut off, or sends nothing but a thought.",
        result="What it thinks is no verdict, parts are read, and the others are failed scores with their cause.",
        tests=(
            f"{JUDGE}::test_what_the_judge_thinks_is_no_verdict",
            f"{JUDGE}::test_a_message_without_a_verdict_is_named",
            f"{JUDGE}::test_a_message_in_parts_and_other_words_for_its_end_are_read",
            f"{JUDGE}::test_a_judge_that_did_not_end_by_itself_is_named",
        ),
    ),
    Situation(
        number="F74",
        what="A judge that has to be asked three times, or never gives a verdict.",
        result="The reward, or the failed score, has its model, and as components the tries, the tokens and the "
        "cost of all "
        "of them.",
        tests=(f"{JUDGE}::test_a_reward_has_the_tokens_and_the_cost_of_every_try",),
    ),
)
