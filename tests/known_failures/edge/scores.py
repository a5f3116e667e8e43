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
        what="An answer with invisible differences: NFC and NFD, a no-break space, a byte order mark, a zero-width "
        "character, a soft hyphen, \\r\\n; and one with a curly quote, full-width digits or x² for x2.",
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
        result="0: a number is never extracted from a longer expression, whatever text surrounds it. Arabic and "
        "full-width digits are read.",
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
        result="0. Several candidates do not count as an answer.",
        tests=(
            f"{ANSWERS}::test_numeric_never_cuts_the_last_number_out_of_a_longer_expression",
            f"{ANSWERS}::test_a_number_in_a_longer_expression_is_not_the_answer",
        ),
    ),
    Situation(
        number="F69",
        what="A task that its scorer cannot use: a non-numeric answer for `numeric`, half a formula for `math`, an "
        "empty answer or one of zero-width characters only; a pattern that does not compile.",
        result="Refused with the place and the answer by `tasks submit`, `up`, `jobs start`, `POST /tasks` and `POST "
        "/score`, with the same message.",
        tests=(
            f"{ANSWERS}::test_an_answer_that_a_scorer_cannot_use_is_a_problem_of_the_task",
            f"{SCORERS}::test_bad_settings_are_found_before_anybody_answers",
        ),
    ),
    Situation(
        number="F70",
        what="A scorer's module with the name of an installed one, without the named function, or with a missing "
        "import; and a file with a hyphen in its name.",
        result="Refused by every interface before the first sample, with the imported file and a remedy. If only the "
        "scoring agents' settings could resolve it, it is a warning.",
        tests=(
            f"{CHECK}::test_a_function_that_cannot_be_loaded_is_refused_at_every_entrance",
            f"{CHECK}::test_a_scorer_that_other_settings_may_have_is_doubtful",
            f"{WORKERS}::test_a_name_that_is_no_entry_point_is_an_unknown_scorer",
        ),
    ),
    Situation(
        number="F71",
        what="A scorer overrides the alarm signal, or blocks all signals, and computes while the agent is killed with "
        "SIGKILL.",
        result="Its worker ends within 3 s.",
        tests=(f"{WORKERS}::test_a_scorer_that_is_deaf_to_signals_does_not_outlive_a_killed_agent",),
    ),
    Situation(
        number="F72",
        what="A judge that refuses a parameter (max_tokens, temperature, response_format), whose budget is spent "
        "(402, insufficient_quota, `credit balance is too low`), or that does not accept 512 tokens.",
        result="Not retried. The first two pause the judge immediately, and the message names the setting to change "
        "or the missing budget; responses are held. A rate limit is retried.",
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
        result="Its reasoning is not a verdict, parts are read, and the other cases are failed scores with their "
        "cause.",
        tests=(
            f"{JUDGE}::test_what_the_judge_thinks_is_no_verdict",
            f"{JUDGE}::test_a_message_without_a_verdict_is_named",
            f"{JUDGE}::test_a_message_in_parts_and_other_words_for_its_end_are_read",
            f"{JUDGE}::test_a_judge_that_did_not_end_by_itself_is_named",
        ),
    ),
    Situation(
        number="F74",
        what="A judge that needs three attempts, or never gives a verdict.",
        result="The reward, or the failed score, has its model, and as components the attempts and their total tokens "
        "and cost.",
        tests=(f"{JUDGE}::test_a_reward_has_the_tokens_and_the_cost_of_every_try",),
    ),
)
