"""Situations F35 to F44 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text never becomes structure"
STRUCTURE = "tests/unit/test_text_and_structure.py"
SERVED = "tests/unit/test_served_structure.py"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F40",
        what="A look-alike of a token's name, ＜think＞, <THINK> or <thínk>, with a tokenizer that normalizes text "
        "before matching tokens.",
        result="Text. Only the exact name is the token, and only if the template writes it or, for tokens such as "
        "<think>, an earlier answer.",
        tests=(
            f"{STRUCTURE}::test_a_look_alike_that_a_tokenizer_normalizes_to_the_name_of_a_control_token_is_text",
            f"{STRUCTURE}::test_a_template_s_own_marks_stay_tokens_of_a_tokenizer_that_normalizes",
        ),
    ),
    Situation(
        number="F41",
        what="A marker in the name of a tool, in a key, an enum or a default of its schema, or in the id of a call.",
        result="Text, with every template here that writes tools.",
        tests=(f"{STRUCTURE}::test_no_name_of_a_control_token_in_a_message_becomes_one",),
    ),
    Situation(
        number="F42",
        what="A marker split across parts of a content, blocks of a system prompt, or the end of a message.",
        result="Text, in chat completions, Responses and Anthropic's messages alike, and `count_tokens` counts the "
        "same prompt tokens as sampling.",
        tests=(f"{SERVED}::test_a_forged_turn_is_text_in_every_protocol_and_field_and_is_counted_so",),
    ),
    Situation(
        number="F43",
        what="A model writes <|im_end|> character by character, and its answer is continued by "
        "`previous_response_id`, or by a "
        "client that sends it back.",
        result="The sampled tokens are unchanged: nothing in them becomes the end of a turn later.",
        tests=(f"{SERVED}::test_names_that_a_model_writes_as_text_stay_text_in_what_follows",),
    ),
    Situation(
        number="F44",
        what="A line of a tuning file with <|im_end|> in its answer, question, tool call or tool result.",
        result="Text in context and answer. Only the last token of an answer is its end, and bears loss as such.",
        tests=(f"{SERVED}::test_a_forged_turn_in_a_tuning_file_is_text_and_only_the_last_token_ends_an_answer",),
    ),
)
