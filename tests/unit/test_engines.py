"""What an engine promises: the tokens are those drawn, the logprobs those of the draw, and no neighbour matters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPTNeoConfig, GPTNeoForCausalLM, Qwen2Config, Qwen2ForCausalLM

from schemas.events import Message, RewardSource, Sampling, Task, ToolCall
from streams.engines import base_model
from streams.engines.base_model import Base, digest_of_weights, load_base
from streams.engines.build import build
from streams.engines.local import transformers_engine
from streams.engines.local.decoding_row import draw
from streams.engines.local.transformers_engine import CAPACITY, TransformersEngine
from streams.engines.protocol import NONE, Completion, EnginePart, SamplingRequest, uniform
from streams.engines.scripted.scripted_engine import END_OF_TURN, ScriptedEngine
from streams.engines.sharing import SharedEngine
from streams.errors import EventError, SettingsError
from streams.files import cache_folder
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Model, Policy, Settings
from tests.support.models.tiny import VOCABULARY, sampled_logps, save_tiny, tiny_model, tiny_tokenizer

HEADER = " ".join(str(number) for number in range(20, 32))


def request(name: str = "a", content: str = "5 6 7", **changes: Any) -> SamplingRequest:
    sampling = changes.pop("sampling", Sampling(max_tokens=6))
    task = Task(
        task_id=f"task-{name}",
        created_at=0,
        policy="default",
        group_size=changes.pop("group_size", 4),
        sampling=sampling,
        reward_sources=(RewardSource(name="exact"),),
        messages=changes.pop("messages", (Message(role="user", content=content),)),
        **changes,
    )
    return SamplingRequest(sampling_id=f"sampling-{name}", task=task)


def base(model: Any = None) -> Base:
    return Base.of(model if model is not None else tiny_model(), tiny_tokenizer(), "base", "tokenizer")


@pytest.fixture
def engine() -> Iterator[TransformersEngine]:
    engine = TransformersEngine(base())
    yield engine
    engine.close()


def save_adapter(folder: Path, seed: int = 1, **changes: Any) -> Path:
    """Write a LoRA adapter that changes the tiny model's mind, as peft writes it."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **changes}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(tiny_model(), LoraConfig(**settings))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def mixed() -> list[SamplingRequest]:
    """Tasks that differ in everything: so rows leave at different steps, and tasks too."""
    return [
        request("a", f"{HEADER} 5 6 7", group_size=5, sampling=Sampling(max_tokens=30)),
        request("b", f"{HEADER} 9", group_size=1, sampling=Sampling(max_tokens=1)),
        request("c", f"{HEADER} 9 8 7 6 5 4 3 2 1", group_size=8, sampling=Sampling(max_tokens=40, temperature=0.7)),
        request("d", f"{HEADER} 9 8", group_size=3, sampling=Sampling(max_tokens=20, temperature=1.5)),
    ]


# --- the transformers engine -----------------------------------------------------------------------------------------


def test_logprobs_are_those_of_a_plain_forward_pass_whatever_is_decoded_together(engine: TransformersEngine) -> None:
    requests = mixed()
    answers = engine.sample(requests)
    plain = tiny_model()
    assert [len(slots) for slots in answers] == [5, 1, 8, 3]
    for asked, slots in zip(requests, answers, strict=True):
        for completion in slots:
            expected = sampled_logps(
                plain,
                list(completion.prompt_token_ids),
                list(completion.completion_token_ids),
                asked.sampling.temperature,
            )
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    lengths = {len(completion.completion_token_ids) for slots in answers for completion in slots}
    assert len(lengths) > 3, "rows were meant to leave at different steps"


def test_a_slot_draws_the_same_tokens_alone_and_in_company(engine: TransformersEngine) -> None:
    together = engine.sample(mixed())
    alone = [TransformersEngine(base()).sample([asked])[0] for asked in mixed()]
    assert tokens(together) == tokens(alone)


def test_requests_that_do_not_fit_together_are_decoded_in_rounds_with_the_same_answers(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = engine.sample(mixed())
    monkeypatch.setattr(transformers_engine, "ROUND_ROWS", 3)  # splits the slots of one task as well
    assert tokens(engine.sample(mixed())) == tokens(together)
    monkeypatch.setattr(transformers_engine, "CACHE_BYTES", 1)
    assert tokens(engine.sample(mixed())) == tokens(together)


def tokens(answers: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.completion_token_ids for completion in slots] for slots in answers]


def test_greedy_takes_the_likeliest_token_and_reports_its_logprob_at_temperature_one(
    engine: TransformersEngine,
) -> None:
    asked = request(group_size=2, sampling=Sampling(max_tokens=8, temperature=0))
    first, second = engine.sample([asked])[0]
    assert first.completion_token_ids == second.completion_token_ids
    plain, ids = tiny_model(), list(first.prompt_token_ids)
    for token in first.completion_token_ids:
        assert token == plain(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item()
        ids.append(token)
    expected = sampled_logps(plain, list(first.prompt_token_ids), list(first.completion_token_ids))
    assert first.logprobs == pytest.approx(expected, abs=1e-4)


def test_ids_that_the_tokenizer_does_not_have_are_never_drawn_and_have_no_share(tmp_path: Path) -> None:
    padded = tiny_model(vocabulary=VOCABULARY + 32)
    padded.save_pretrained(save_tiny(tmp_path))
    loaded = load_base(Model(base=str(tmp_path)))
    assert loaded.base_digest == digest_of_weights(padded)
    (answers,) = TransformersEngine(loaded).sample([request(group_size=16, sampling=Sampling(max_tokens=40))])
    for answer in answers:
        assert max(answer.completion_token_ids) < VOCABULARY
        ids = torch.tensor([[*answer.prompt_token_ids, *answer.completion_token_ids]])
        logits = padded(input_ids=ids).logits[0, len(answer.prompt_token_ids) - 1 : -1, :VOCABULARY]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(answer.completion_token_ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_slots_differ_and_a_new_sampling_differs_but_a_seed_repeats_it(engine: TransformersEngine) -> None:
    asked = request(sampling=Sampling(max_tokens=12))
    again = replace(asked, sampling_id="another")
    one, two = engine.sample([asked, again])
    assert len({completion.completion_token_ids for completion in one}) == 4
    assert tokens([one]) != tokens([two])
    seeded = request(sampling=Sampling(max_tokens=12, seed=7))
    one, two = engine.sample([seeded, replace(seeded, sampling_id="another")])
    assert tokens([one]) == tokens([two])


def test_the_end_of_turn_token_is_kept_among_the_tokens_and_not_in_the_text(engine: TransformersEngine) -> None:
    answers = engine.sample([request(group_size=32, sampling=Sampling(max_tokens=60))])[0]
    ended = [completion for completion in answers if completion.finish_reason == "stop"]
    assert ended
    for completion in answers:
        assert (2 in completion.completion_token_ids) == (completion in ended)
        assert "</s>" not in completion.text
    assert all(completion.completion_token_ids[-1] == 2 for completion in ended)


def test_a_stop_text_ends_the_completion_and_is_cut_from_the_text(engine: TransformersEngine) -> None:
    free = engine.sample([request(sampling=Sampling(max_tokens=12))])[0][0]
    word = tiny_tokenizer().decode([free.completion_token_ids[3]])
    asked = request(group_size=1, sampling=Sampling(max_tokens=12, stop=("never", word)))
    stopped = engine.sample([asked])[0][0]
    assert stopped.finish_reason == "stop"
    assert word not in stopped.text
    assert free.text.startswith(stopped.text)
    count = len(stopped.completion_token_ids)
    assert count <= 4
    assert stopped.completion_token_ids == free.completion_token_ids[:count]


def test_a_prompt_longer_than_the_context_fails_its_own_slots_only(engine: TransformersEngine) -> None:
    long = request("long", " ".join(["7"] * 256), group_size=2)
    huge = request("huge", "7 " * 5_000_000, group_size=1)
    failed, huge_failed, good = engine.sample([long, huge, request("good")])
    for completion in (*failed, *huge_failed):
        assert completion.finish_reason == "error"
        assert completion.completion_token_ids == ()
    assert failed[0].error == "task task-long: 256 prompt tokens do not fit the context of 256; shorten it"
    assert [completion.error for completion in good] == [None] * 4


def test_a_completion_ends_where_the_context_does(engine: TransformersEngine) -> None:
    asked = request(content=" ".join(["7"] * 250), group_size=8, sampling=Sampling(max_tokens=50))
    lengths = [len(completion.completion_token_ids) for completion in engine.sample([asked])[0]]
    assert max(lengths) == 6


def test_messages_the_template_refuses_give_an_error_and_no_exception() -> None:
    picky = base()
    picky.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    completion = TransformersEngine(picky).sample([request(group_size=1)])[0][0]
    assert completion.error is not None
    assert "roles must alternate" in completion.error


def test_a_tokenizer_without_chat_template_is_refused_at_the_start() -> None:
    plain = base()
    plain.tokenizer.chat_template = None
    with pytest.raises(SettingsError, match="no chat template"):
        TransformersEngine(plain)


def test_an_architecture_that_cannot_be_fanned_out_is_refused_at_the_start() -> None:
    config = GPTNeoConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=256,
    )
    with pytest.raises(SettingsError, match="architecture"):
        TransformersEngine(base(GPTNeoForCausalLM(config).eval()))


def test_another_family_of_models_agrees_with_its_plain_forward() -> None:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    model = Qwen2ForCausalLM(config).eval()
    completion = TransformersEngine(base(model)).sample([request()])[0][0]
    expected = sampled_logps(model, list(completion.prompt_token_ids), list(completion.completion_token_ids))
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


# --- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "down_proj"]}])
def test_an_adapter_gives_the_logprobs_that_peft_gives(
    engine: TransformersEngine, tmp_path: Path, changes: dict[str, Any]
) -> None:
    from peft import PeftModel

    folder = save_adapter(tmp_path / "adapter", **changes)
    before = engine.sample([request()])
    engine.serve(3, folder)
    after = engine.sample([request()])
    assert engine.served_version == 3
    assert tokens(after) != tokens(before)
    reference = PeftModel.from_pretrained(tiny_model(), folder).eval()
    for completion in after[0]:
        expected = sampled_logps(reference, list(completion.prompt_token_ids), list(completion.completion_token_ids))
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_going_back_to_the_base_model_leaves_nothing_of_the_adapter(engine: TransformersEngine, tmp_path: Path) -> None:
    before = engine.sample([request()])
    engine.serve(1, save_adapter(tmp_path / "adapter"))
    engine.sample([request()])
    engine.serve(0, None)
    assert engine.sample([request()]) == before
    assert engine.served_version == 0


def test_a_new_version_does_not_see_what_the_old_one_cached(engine: TransformersEngine, tmp_path: Path) -> None:
    asked = [request("a", f"{HEADER} 1"), request("b", f"{HEADER} 2")]
    engine.sample(asked)  # leaves the shared beginning behind
    engine.serve(1, save_adapter(tmp_path / "adapter"))
    fresh = TransformersEngine(base())
    fresh.serve(1, tmp_path / "adapter")
    assert engine.sample(asked) == fresh.sample(asked)


def test_two_versions_by_turns_are_read_once_and_each_answers_as_if_alone(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    asked = [request("a", f"{HEADER} 1"), request("b", f"{HEADER} 2")]
    folders = {version: save_adapter(tmp_path / str(version), seed=version) for version in (1, 2)}
    alone = {}
    for version, folder in folders.items():
        fresh = TransformersEngine(base())
        fresh.serve(version, folder)
        alone[version] = fresh.sample(asked)
    assert alone[1] != alone[2]
    for turn, version in enumerate((1, 2, 1, 2, 1)):
        engine.serve(version, folders[version])
        assert engine.sample(asked) == alone[version]
        if turn == 1:
            for folder in folders.values():
                (folder / "adapter_model.safetensors").unlink()


@pytest.mark.parametrize("shape", [{}, {"r": 2, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]}])
def test_versions_mixed_in_one_round_each_answer_as_if_alone(
    engine: TransformersEngine, tmp_path: Path, shape: dict[str, Any]
) -> None:
    folders = {0: None, 1: save_adapter(tmp_path / "1", seed=1), 2: save_adapter(tmp_path / "2", seed=2, **shape)}
    alone = {}
    for version, folder in folders.items():
        engine.serve(version, folder)
        alone[version] = engine.sample(mixed())
    assert alone[0] != alone[1] != alone[2]
    other = TransformersEngine(base())
    other.serve(1, folders[1])
    for order in ((0, 1, 2), (2, 1, 0)):  # the second time the beginning that all prompts share is there
        found = other.sample_mixed([EnginePart(version, folders[version], mixed()) for version in order])
        for version, answers in zip(order, found, strict=True):
            for one, two in zip(answers, alone[version], strict=True):
                assert [slot.completion_token_ids for slot in one] == [slot.completion_token_ids for slot in two]
                for slot, expected in zip(one, two, strict=True):
                    assert slot.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert other.served_version == 1
    assert [slot.completion_token_ids for slot in other.sample(mixed())[0]] == [
        slot.completion_token_ids for slot in alone[1][0]
    ]
    other.close()
    assert not any(module._forward_hooks for module in other._model.modules())


def test_a_version_that_was_not_served_for_long_is_forgotten(engine: TransformersEngine, tmp_path: Path) -> None:
    for version in range(1, CAPACITY + 2):
        engine.serve(version, save_adapter(tmp_path / str(version)))
    (tmp_path / "1" / "adapter_model.safetensors").unlink()
    with pytest.raises(EventError, match="cannot be read"):
        engine.serve(1, tmp_path / "1")
    assert engine.served_version == CAPACITY + 1


@pytest.mark.parametrize("capacity", [1, 3])
def test_policies_that_share_an_engine_sample_what_each_would_alone(tmp_path: Path, capacity: int) -> None:
    """Both have a version 1; with one version in memory it is read again at every turn."""
    asked = [request("a", f"{HEADER} 1"), request("b", f"{HEADER} 2")]
    folders = {
        policy: save_adapter(tmp_path / policy, seed=seed) for seed, policy in enumerate(("ada", "bob"), start=1)
    }
    alone = {}
    for policy, folder in folders.items():
        fresh = TransformersEngine(base())
        fresh.serve(1, folder)
        alone[policy] = [fresh.sample(asked) for _ in range(2)]
    meter = Meter("policy")
    shared = SharedEngine(TransformersEngine(base(), capacity=capacity), capacity, meter)
    shares = {policy: shared.share(policy) for policy in folders}
    for turn in range(2):
        for policy, share in shares.items():
            assert share.served_version == NONE
            share.serve(1, folders[policy])
            assert share.served_version == 1
            assert share.sample(asked) == alone[policy][turn]
    assert meter.value(catalog.FLEET_SWAPS, "memory") == (None if capacity == 1 else 2)
    assert meter.value(catalog.FLEET_SWAPS, "store") == (4 if capacity == 1 else 2)


KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BROKEN: dict[str, Callable[[Path], object]] = {
    "has shape": lambda f: edit_weights(f, lambda t: t.update({KEY: torch.zeros(4, 31)})),
    "fits no linear module": lambda f: edit_weights(f, lambda t: t.update({KEY.replace("q_proj", "z"): t.pop(KEY)})),
    "only one of": lambda f: edit_weights(f, lambda t: t.pop(KEY)),
    "not finite": lambda f: edit_weights(f, lambda t: t[KEY].fill_(math.nan)),
    "logits with it are not finite": lambda f: edit_weights(f, lambda t: [w.fill_(3e38) for w in t.values()]),
    "no tensors": lambda f: edit_weights(f, lambda t: t.clear()),
    "safetensors cannot be read": lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n."),
    "config.json cannot be read": lambda f: (f / "adapter_config.json").unlink(),
    "use_dora is True": lambda f: edit_config(f, use_dora=True),
    "bias is 'all'": lambda f: edit_config(f, bias="all"),
    "expected peft_type LORA": lambda f: edit_config(f, peft_type="IA3"),
}


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_adapter_is_refused_and_the_old_one_keeps_serving(
    engine: TransformersEngine, tmp_path: Path, message: str
) -> None:
    engine.serve(1, save_adapter(tmp_path / "good"))
    before = engine.sample([request()])
    BROKEN[message](save_adapter(tmp_path / "bad", seed=2))
    with pytest.raises(EventError, match=message) as caught:
        engine.serve(2, tmp_path / "bad")
    assert caught.value.reason == "bad_adapter"
    assert engine.served_version == 1
    assert engine.sample([request()]) == before


# --- drawing ---------------------------------------------------------------------------------------------------------


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    rows = 20_000
    numbers = [uniform("key", row, 0) for row in range(rows)]
    drawn, logprobs = draw(logits.repeat(rows, 1), [0.5] * rows, [1.0] * rows, numbers)
    expected = torch.softmax(logits / 0.5, dim=-1)
    assert torch.bincount(drawn, minlength=5) / rows == pytest.approx(expected, abs=0.01)
    assert logprobs.exp() == pytest.approx(expected[drawn], rel=1e-5)


def test_top_p_draws_only_from_the_nucleus_and_reports_its_renormalised_logprob() -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
    rows = 1000
    numbers = [row / rows for row in range(rows)]
    drawn, logprobs = draw(probabilities.log().repeat(rows, 1), [1.0] * rows, [0.75] * rows, numbers)
    assert set(drawn.tolist()) == {1, 3}
    assert logprobs.exp() == pytest.approx(torch.where(drawn == 1, 0.5 / 0.8, 0.3 / 0.8), rel=1e-5)


def test_the_largest_random_number_never_draws_an_impossible_token() -> None:
    logits = torch.full((1, 5), -torch.inf)
    logits[0, 1:3] = 0.0
    assert draw(logits.clone(), [1.0], [1.0], [1 - 2**-53])[0].tolist() == [2]
    assert draw(logits.clone(), [1.0], [1.0], [0.0])[0].tolist() == [1]


def test_a_model_gone_wrong_fails_its_slots_and_gives_no_tokens() -> None:
    model = tiny_model()
    engine = TransformersEngine(base(model))
    model.model.norm.weight.fill_(math.nan)
    completion = engine.sample([request()])[0][0]
    assert completion.finish_reason == "error"
    assert completion.completion_token_ids == ()


# --- weights ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_loaded_and_its_digest_tells_any_change(tmp_path: Path) -> None:
    loaded = load_base(Model(base=str(save_tiny(tmp_path / "tiny"))))
    assert loaded.base_digest == digest_of_weights(tiny_model())
    assert not loaded.model.training
    changed = tiny_model()
    changed.model.norm.weight[0] += 1e-6
    assert digest_of_weights(changed) != loaded.base_digest
    assert load_base(Model(base=str(tmp_path / "tiny"))).tokenizer_digest == loaded.tokenizer_digest


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder"])
def test_a_model_that_cannot_be_found_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(SettingsError, match="no such folder; expected a name known here"):
        load_base(Model(base=name))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match="safetensors"):
        load_base(Model(base=str(folder)))


def test_a_device_that_is_not_there_is_refused_with_the_way_out() -> None:
    with pytest.raises(SettingsError, match=r"model.device=cuda:99.*set model.device=cpu"):
        load_base(Model(device="cuda:99"))


def test_converted_models_are_kept_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("models") == tmp_path / "streamward" / "models"


def test_half_a_conversion_goes_with_the_next_whether_that_was_killed_or_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"no model")
    sha = hashlib.sha256(b"no model").hexdigest()
    killed = cache_folder("models") / f"broken-{sha[:16]}-{base_model.LAYOUT}.tmp-killed"
    killed.mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(b"half of it")
    with pytest.raises(SettingsError, match=r"broken\.gguf: cannot be converted"):
        base_model._convert_once("broken", gguf)
    assert [path.name for path in cache_folder("models").iterdir() if path.is_dir()] == []


# --- the scripted engine ---------------------------------------------------------------------------------------------


def scripted(**script: Any) -> ScriptedEngine:
    return ScriptedEngine(json.dumps(script))


def test_the_oracle_is_right_as_often_as_the_script_and_the_version_say(tmp_path: Path) -> None:
    engine = scripted(accuracy=0.3, accuracy_per_version=0.1)
    asked = request(group_size=2000, verifier='{"answer": 42}', sampling=Sampling(max_tokens=8))

    def share() -> float:
        return sum(completion.text == "42" for completion in engine.sample([asked])[0]) / 2000

    assert share() == pytest.approx(0.3, abs=0.05)
    engine.serve(4, tmp_path)
    assert engine.served_version == 4
    assert share() == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize("answer", ["42", "yes", ""])
def test_the_wrong_script_is_never_right(answer: str) -> None:
    asked = request(group_size=50, verifier=json.dumps({"answer": answer}), sampling=Sampling(max_tokens=50))
    assert answer not in {completion.text for completion in scripted(answers="wrong").sample([asked])[0]}


def test_a_rule_changes_what_one_version_says_to_one_scenario_and_nothing_else(tmp_path: Path) -> None:
    rules = [
        {"version": 1, "accuracy": 1.0, "padding": 2},
        {"version": 1, "scenario": "long", "answers": "nothing"},
        {"version": 2, "scenario": "long", "answers": "wrong"},
    ]
    engine = scripted(accuracy=0.0, accuracy_per_version=0.5, rules=rules)
    asked = {name: request(scenario=name, group_size=1, verifier='{"answer": 42}') for name in ("short", "long")}
    said = {}
    for version in (0, 1, 2):
        engine.serve(version, tmp_path if version else None)
        said[version] = [engine.sample([one])[0][0].text for one in asked.values()]
    assert "42" not in said[0]
    assert said[1] == ["42  ", "  "]
    assert said[2][0] == "42" != said[2][1]


def test_a_scripted_prompt_has_the_calls_of_its_messages() -> None:
    called = Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name="add", arguments='{"a": 1}'),))
    ((slot,),) = scripted(answers="echo").sample([request(group_size=1, messages=(called,))])
    assert b'"name": "add", "arguments": {"a": 1}' in bytes(slot.prompt_token_ids)


def test_scripted_tokens_are_the_bytes_of_the_text_with_an_end() -> None:
    asked = request(content="naïve", group_size=1, sampling=Sampling(max_tokens=20))
    completion = scripted(answers="echo").sample([asked])[0][0]
    assert completion.text == "naïve"
    assert completion.completion_token_ids == (*"naïve".encode(), END_OF_TURN)
    assert len(completion.logprobs) == len(completion.completion_token_ids)
    assert all(logprob <= 0 for logprob in completion.logprobs)
    cut = scripted(answers="echo").sample([request(content="naïve", sampling=Sampling(max_tokens=3))])[0][0]
    assert (cut.text, cut.finish_reason) == ("na", "length")


def test_a_scripted_sampling_repeats_itself_and_fails_as_often_as_told() -> None:
    asked = request(group_size=1000)
    answers = scripted(answers="echo", fail_rate=0.2).sample([asked])
    assert answers == scripted(answers="echo", fail_rate=0.2).sample([asked])
    assert sum(completion.error is not None for completion in answers[0]) == pytest.approx(200, abs=50)


def test_an_oracle_without_an_answer_and_a_prompt_too_long_fail_their_slots() -> None:
    completion = scripted().sample([request(verifier="{}")])[0][0]
    assert completion.error is not None
    assert 'no "answer"' in completion.error
    completion = scripted(answers="echo").sample([request(content="x" * 10_000_000)])[0][0]
    assert completion.error is not None
    assert "do not fit the context of 8192" in completion.error


@pytest.mark.parametrize("script", ['{"acuracy": 1}', '{"accuracy": 2}', "not json", "[]"])
def test_a_script_with_a_mistake_is_refused(script: str) -> None:
    with pytest.raises(SettingsError, match=r"policy.script: .*expected a JSON object with any of answers, accuracy"):
        ScriptedEngine(script)


def test_the_settings_say_which_engine_is_built() -> None:
    engine = build(Settings(policy=Policy(engine="scripted", script='{"answers": "echo"}')))
    assert (engine.name, engine.served_version) == ("scripted", 0)
