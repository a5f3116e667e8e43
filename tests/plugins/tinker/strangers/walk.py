"""Call every public method of the SDK that a server answers, and print what each gave: in the strangers' environment.

clients of tinker ──► server ──► a line of JSON for each method: its name, and the shape of its result or the error
"""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tinker
from tinker import types
from tinker.proto import tinker_public_pb2

from plugins.tinker.api.protobuf import MESSAGES, message

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
DATUM = types.Datum(
    model_input=types.ModelInput.from_ints([1, 2, 3]),
    loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 1.0]},
)
PROMPT = types.ModelInput.from_ints([504, 2365, 314])
SHORT = types.SamplingParams(max_tokens=2, temperature=0.7, seed=3)


def tell(name: str, call: Callable[[], Any]) -> Any:
    """Print a call's name, and whether it gave something; return what."""
    try:
        result = call()
    except (tinker.APIStatusError, tinker.RequestFailedError) as exc:
        status = getattr(exc, "status_code", None)
        body = getattr(exc, "body", None) or {}
        text = str(body.get("detail", exc) if isinstance(body, dict) else exc).partition(":")[0]
        print(json.dumps([name, f"{type(exc).__name__} {status}", text[:80]]), flush=True)
        return None
    print(json.dumps([name, "works"]), flush=True)
    return result


def negative_loglikelihood(logprobs: Any, weights: Any) -> Any:
    """Return the loss of tokens by their weights."""
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss}


def client_side(data: Any, logprobs: Any) -> Any:
    """Return a loss that the SDK differentiates itself."""
    return sum(-each.sum() for each in logprobs), {"m:sum": 1.0}


def train(service: Any) -> Any:
    """Walk over TrainingClient."""
    model = tell("create_lora_training_client", lambda: service.create_lora_training_client(BASE, rank=4).result())
    tell("get_info", model.get_info)
    tell("get_tokenizer", model.get_tokenizer)
    tell("forward", lambda: model.forward([DATUM], "cross_entropy").result())
    tell("forward_backward", lambda: model.forward_backward([DATUM] * 2, "cross_entropy").result())
    tell("optim_step", lambda: model.optim_step(types.AdamParams(learning_rate=1e-4, weight_decay=0.1)).result())
    tell("forward_backward_custom", lambda: model.forward_backward_custom([DATUM], client_side).result())
    ranks = {"logprobs": 1, "weights": 1}
    handle = tell("create_custom_loss", lambda: service.create_custom_loss(negative_loglikelihood, ranks).result())
    tell("forward_backward_custom with a handle", lambda: model.forward_backward_custom([DATUM], handle).result())
    return model


def sample(service: Any, model: Any, path: str) -> None:
    """Walk over SamplingClient."""
    sampler = tell(
        "save_weights_and_get_sampling_client", lambda: model.save_weights_and_get_sampling_client().result()
    )
    tell("sample", lambda: sampler.sample(PROMPT, 2, SHORT).result())
    more = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 2}
    tell("sample with logprobs", lambda: sampler.sample(PROMPT, 1, SHORT, **more).result())
    tell("sample with prompt_alt_tokens_k", lambda: sampler.sample(PROMPT, 1, SHORT, prompt_alt_tokens_k=2).result())
    tell("compute_logprobs", lambda: sampler.compute_logprobs(PROMPT).result())
    saved = tell("create_sampling_client", lambda: service.create_sampling_client(model_path=path).result())
    copy = pickle.loads(pickle.dumps(saved))  # noqa: S301 - its own
    tell("sample by a copy in another process", lambda: copy.sample(PROMPT, 1, SHORT).result())
    tell("create_sampling_client of the base", lambda: service.create_sampling_client(base_model=BASE).result())


def look(rest: Any, service: Any, model: Any, path: str) -> None:
    """Walk over RestClient and AdminClient."""
    session = service.holder.get_session_id()
    run = model.model_id
    for name, call in {
        "get_training_run": lambda: rest.get_training_run(run).result(),
        "get_training_run_by_tinker_path": lambda: rest.get_training_run_by_tinker_path(path).result(),
        "list_training_runs": lambda: rest.list_training_runs().result(),
        "get_weights_info_by_tinker_path": lambda: rest.get_weights_info_by_tinker_path(path).result(),
        "list_checkpoints": lambda: rest.list_checkpoints(run).result(),
        "list_user_checkpoints": lambda: rest.list_user_checkpoints().result(),
        "get_session": lambda: rest.get_session(session).result(),
        "list_sessions": lambda: rest.list_sessions().result(),
        "get_sampler": lambda: rest.get_sampler(f"{session}:sample:0").result(),
        "set_checkpoint_ttl_from_tinker_path": lambda: rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(),
        "copy_weights": lambda: rest.copy_weights(path, "any").result(),
        "publish_checkpoint_from_tinker_path": lambda: rest.publish_checkpoint_from_tinker_path(path).result(),
        "unpublish_checkpoint_from_tinker_path": lambda: rest.unpublish_checkpoint_from_tinker_path(path).result(),
        "assign_session_project": lambda: rest.assign_session_project(session, "p").result(),
        "export_session_trace": lambda: rest.export_session_trace(session).result(),
        "search_sessions": lambda: rest.search_sessions(types.SessionSearchRequest()).result(),
        "get_audit_log": lambda: tinker.AdminClient().get_audit_log().result(),
        "delete_checkpoint_from_tinker_path": lambda: rest.delete_checkpoint_from_tinker_path(path).result(),
    }.items():
        tell(name, call)


def fields(descriptor: Any) -> list[tuple[Any, ...]]:
    """Return the fields of a message in protobuf, those of a kind that our table has."""
    return [
        (each.number, each.name, each.type, each.is_repeated, each.has_presence,
         each.message_type.name if each.message_type else each.enum_type.name if each.enum_type else None)
        for each in descriptor.fields
    ]  # fmt: skip


def main() -> None:
    """Walk over all clients."""
    warnings.simplefilter("ignore")
    other = [name for name in MESSAGES if fields(message(name).DESCRIPTOR) != [
        each for each in fields(getattr(tinker_public_pb2, name).DESCRIPTOR)
        if name != "ImageChunk" or each[1] == "data"
    ]]  # fmt: skip
    print(json.dumps(["messages that differ from the SDK's", other]), flush=True)
    rest = tinker.RestClient()
    tell("get_server_capabilities", lambda: rest.get_server_capabilities().result())
    service = tinker.ServiceClient(user_metadata={"a": "b"})
    model = train(service)
    state = tell("save_state", lambda: model.save_state("one", ttl_seconds=3600).result())
    path = tell("save_weights_for_sampler", lambda: model.save_weights_for_sampler("two").result()).path
    tell("save_weights_external", lambda: model.save_weights_external("three").result())
    sample(service, model, path)
    for name in ("create_training_client_from_state", "create_training_client_from_state_with_optimizer"):
        create = getattr(service, name)
        tell(name, lambda create=create: create(state.path).result())
    look(rest, service, model, path)
    tell("close", lambda: service.close("success").result())


if __name__ == "__main__":
    Path(os.environ.get("HF_HOME", ".")).mkdir(parents=True, exist_ok=True)
    main()
