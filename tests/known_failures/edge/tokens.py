"""Situations F45 to F54 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Ends of an answer, and tokens that may be drawn"
FAMILIES = "tests/unit/test_families.py"
TABLE = "tests/unit/test_token_table.py"
ENGINES = "tests/unit/test_engines.py"
VLLM = "tests/unit/test_vllm_engine.py"
ONLY_TOKENS = f"{FAMILIES}::test_only_ids_with_a_token_are_drawn_by_both_engines_and_only_they_have_a_share"
ENDS = f"{FAMILIES}::test_an_answer_ends_where_the_family_ends_one_and_its_text_has_nothing_of_that"
ODDITIES = f"{TABLE}::test_doctor_names_each_oddity_of_a_template"
SITUATIONS: tuple[Situation, ...] = (
    Situation(
        number="F45",
        what="A head has more rows than the tokenizer has ids, as with Qwen and Gemma, whose heads are padded for "
        "speed.",
        result="The extra rows are excluded: no engine samples one, and neither engine nor trainer gives them "
        "probability. `doctor` and `doctor --model` name them.",
        tests=(
            f"{ENGINES}::test_ids_that_the_tokenizer_does_not_have_are_never_drawn_and_have_no_share",
            ONLY_TOKENS,
            f"{FAMILIES}::test_doctor_shows_the_table_and_every_oddity_without_settings_and_broker",
        ),
    ),
    Situation(
        number="F46",
        what="Ids in the middle have no token, as with tokenizers made from tiktoken's, so truncating the head does "
        "not help.",
        result="Their logits are lowered until their probability is 0, in both engines and in the trainer. A recorded "
        "group with such an id is refused with its coordinates.",
        tests=(
            ONLY_TOKENS,
            f"{TABLE}::test_an_id_without_a_token_amid_the_others_is_in_no_group_that_is_trained_on",
        ),
    ),
    Situation(
        number="F47",
        what="The head of a model that vLLM serves has rows without a token. vLLM draws from them, and its "
        "logprobs include their share.",
        result="Each request has a `logit_bias` for these ids. A server that reports logprobs before the bias is "
        "refused at the start, with the option to set; an answer that still has such an id is rejected.",
        tests=(
            f"{VLLM}::test_a_server_is_kept_from_drawing_ids_without_a_token",
            f"{VLLM}::test_a_server_whose_logprobs_have_a_share_of_such_ids_is_refused_at_the_start",
            f"{VLLM}::test_an_answer_with_such_an_id_is_none",
        ),
    ),
    Situation(
        number="F48",
        what="Tokens were added to a tokenizer (ChatML's, or a pad) without resizing the model: their embeddings are "
        "out of range.",
        result="A model whose template writes such a token is refused at load, with name and id; otherwise only "
        "prompts that have one fail. A pad without a row is never used.",
        tests=(
            f"{TABLE}::test_a_template_with_a_token_that_the_model_has_no_row_for_is_refused_at_load",
            f"{TABLE}::test_a_prompt_with_a_token_that_the_model_has_no_row_for_is_refused_and_a_pad_that_is_one_is_never_used",
        ),
    ),
    Situation(
        number="F49",
        what="The tokenizer's end differs from the template's, and the generation config has a third, or none, as "
        "with Llama 3, Gemma and Phi. The answer continues past its end, with an invented question.",
        result="All three end an answer, in every engine, and `doctor --model` shows the source of each.",
        tests=(ENDS, f"{FAMILIES}::test_a_table_read_from_files_is_that_of_the_loaded_model"),
    ),
    Situation(
        number="F50",
        what="A template writes the end of an answer only if another message follows, or never.",
        result="An end that appears only in the history ends an answer, too. `doctor --model` warns that the last "
        "answer of a tuning example has none.",
        tests=(ENDS, f"{TABLE}::test_an_end_that_only_the_history_shows_ends_an_answer"),
    ),
    Situation(
        number="F51",
        what="A generation config names an end that is not a token, or no part of the model names one.",
        result="It is ignored, since vLLM and grammars fail with it, and `doctor --model` names it; without any end "
        "it warns that every answer runs to `max_tokens`.",
        tests=(
            f"{TABLE}::test_an_end_of_the_generation_config_that_is_no_token_is_left_out_and_named",
            f"{TABLE}::test_a_model_without_any_end_is_named",
        ),
    ),
    Situation(
        number="F52",
        what="The pad is the end, as with SmolLM2 and Phi, so masking the pad masks the end, and the model "
        "unlearns to stop.",
        result="Loss goes by position, not by id: an end has loss once, and padding none.",
        tests=("tests/unit/test_grpo.py::test_an_end_that_is_the_pad_bears_loss_once_and_padding_none",),
    ),
    Situation(
        number="F53",
        what="A template refuses system messages or non-alternating roles, or silently drops system messages, tools, "
        "calls or results, so that two histories give one prompt.",
        result="`tasks submit`, `up`, `jobs start` and HTTP refuse such a prompt with the template's own message, or "
        "name the dropped parts, before any sample is paid for; so does tuning, with the line, for a job already when "
        "it is ordered. `doctor --model` names all of them.",
        tests=(
            "tests/unit/test_rendering.py::test_what_a_template_leaves_out_of_a_call_is_named",
            "tests/plugins/tuning/test_tuning_orders.py::test_a_line_that_the_model_here_cannot_be_tuned_on_is_refused_when_the_job_is_"
            "ordered",
            "tests/unit/test_prompt_check.py::test_a_prompt_of_which_the_template_leaves_out_a_call_is_refused_before_and_"
            "when_it_is_answered",
            "tests/unit/test_prompt_check.py::test_messages_that_the_template_refuses_are_named_with_its_own_words",
            f"{FAMILIES}::test_doctor_shows_the_table_and_every_oddity_without_settings_and_broker",
        ),
    ),
    Situation(
        number="F54",
        what="A template has no generation prompt, or writes one after the last answer, too; or it rewrites the "
        "history, without reasoning or with another date.",
        result="`doctor --model` names each with the text that is missing or changed. A call with a rewritten history "
        "begins its own trajectory, and tuning refuses such an example by its line.",
        tests=(
            ODDITIES,
            "tests/unit/test_rendering.py::test_template_that_changes_history_is_a_reason",
            "tests/unit/test_examples.py::test_a_template_that_rewrites_what_was_said_before_is_not_trained_on",
        ),
    ),
)
