"""The Tinker API on a real log: what a training loop sends becomes calls there, and their results its futures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.http.application import Application
from gateway.http.principal import PRINCIPAL
from plugins.jobs.log.job_log import JobLog
from plugins.jobs.orders.job_settings import Jobs
from plugins.tinker.api import futures, protobuf
from plugins.tinker.api.call_log import CallLog, OpenCalls
from plugins.tinker.api.call_part import tinker_rooms
from plugins.tinker.api.tensors import read_tensors, tensor_bytes
from plugins.tinker.calls.call_rules import line_refusal
from schemas.events import TrainingCall, TrainingResult
from schemas.tokens import Octets
from streams.adapters import stored_tensors
from streams.kafka import times
from streams.settings.model import Adapters, Prices, Settings
from tests.plugins.tinker.pass_messages import PROTOBUF, pass_message
from tests.support.callers import Caller, key
from tests.support.factories import T0
from tests.support.log.shared_node import own_topics
from tests.support.processes import read, write

pytestmark = pytest.mark.kafka
BASE = "smollm2-135m-instruct"
DATUM = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}, {"type": "encoded_text", "tokens": [3]}]},
    "loss_fn_inputs": {
        "target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]},
        "weights": {"data": [0.0, 1.0, 0.5], "dtype": "float32"},
    },
}


class Loop:
    """A training loop's side of a server, and the log behind it."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self.settings, self._calls = settings, calls
        self._app = Application(tinker_rooms(settings, calls), version="0", max_body_bytes=16_000_000)
        self.principal: Caller | None = None

    @property
    def log(self) -> CallLog:
        return self._calls.log

    def client(self) -> httpx.AsyncClient:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if self.principal is not None:
                scope[PRINCIPAL] = self.principal
            await self._app(scope, receive, send)

        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/api/v1", timeout=300)

    def send(self, path: str, body: Any = None, *, method: str = "POST", **how: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **({"json": body} | how if body is not None else how))

        return asyncio.run(request())

    def ask(self, path: str, body: Any = None, **how: Any) -> Any:
        answer = self.send(path, body, **how)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def session(self) -> str:
        return str(self.ask("create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"})["session_id"])

    def model(self, **fields: Any) -> str:
        body = {"session_id": self.session(), "model_seq_id": 0, "base_model": BASE, "lora_config": {"rank": 4}}
        return str(self.ask("create_model", body | fields)["request_id"])

    def calls(self) -> list[TrainingCall]:
        return [call for _, call in read(self.settings, TrainingCall)]

    def end(self, call_id: str, **fields: Any) -> None:
        """Write the result of a call, as the worker does, and return once the server has it."""
        call = next(call for call in self.calls() if call.call_id == call_id)
        result = TrainingResult(
            call_id=call_id, model=call.model, kind=call.kind, session_id=call.session_id, seq_id=call.seq_id,
            tenant=call.tenant, source_partition=0, source_offset=0, **{"created_at": T0} | fields,
        )  # fmt: skip
        write(self.settings, result)
        while not self._calls.log.has_result(call_id):
            pass


@contextmanager
def serving(settings: Settings) -> Iterator[Loop]:
    with JobLog(settings) as jobs, OpenCalls(settings, jobs.month) as calls:
        yield Loop(settings, calls)


@pytest.fixture(scope="module")
def settings(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return own_topics(
        kafka_bootstrap,
        {"policy_partitions": 1, "max_record_bytes": 65_536},
        adapters=Adapters(store=str(tmp_path_factory.mktemp("store"))),
    )


@pytest.fixture(scope="module")
def loop(settings: Settings) -> Iterator[Loop]:
    with serving(settings) as made:
        yield made


def forward_backward(model: str, seq_id: int, *data: Any, loss: str = "cross_entropy") -> dict[str, Any]:
    return {
        "forward_backward_input": {"data": data or [DATUM], "loss_fn": loss, "loss_fn_config": {}},
        "model_id": model,
        "seq_id": seq_id,
    }


def test_a_call_that_is_sent_again_is_one_call_in_the_log_and_has_one_id(loop: Loop) -> None:
    model = loop.model()
    first, again = (loop.ask("forward_backward", forward_backward(model, 1)) for _ in range(2))
    assert first == again == {"request_id": f"{model}:1", "model_id": model}
    [call] = [call for call in loop.calls() if call.kind == "forward_backward" and call.model == model]
    assert (call.seq_id, call.loss, json.loads(call.loss_config), call.examples, call.tokens) == (
        1, "cross_entropy", {}, 1, 3,
    )  # fmt: skip
    tensors = read_tensors(call.data.data)
    assert {name: (array.dtype.str, array.tolist()) for name, array in tensors.items()} == {
        "0.tokens": ("<i4", [1, 2, 3]),
        "0.target_tokens": ("<i8", [2, 3, 4]),
        "0.weights": ("<f4", [0.0, 1.0, 0.5]),
    }


def test_another_call_under_a_number_that_was_used_is_refused_once_and_for_all(loop: Loop) -> None:
    """The SDK sends again what got 409, for five minutes."""
    model = loop.model()
    loop.ask("forward_backward", forward_backward(model, 1))
    refused = loop.send("forward_backward", forward_backward(model, 1, DATUM, DATUM))
    assert refused.status_code == 400
    assert refused.json() == {
        "detail": f"forward_backward: {model}:1 was sent before with another content; take the next seq_id",
        "category": "user",
        "param": "seq_id",
    }


def message_of(model: str, seq_id: int) -> Any:
    """Return DATUM's call as the SDK has it on the wire."""
    message = protobuf.message("ForwardBackwardRequest", model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    datum = message.data.add()
    for tokens in ([1, 2], [3]):
        datum.model_input.add().encoded_text.tokens = np.array(tokens, "<i4").tobytes()
    for name, values, dtype in (("target_tokens", [2, 3, 4], "<i8"), ("weights", [0.0, 1.0, 0.5], "<f4")):
        tensor = datum.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = np.array(values, dtype).tobytes(), 2 if dtype == "<i8" else 1
        tensor.shape.append(3)
    return message


def test_protobuf_and_json_are_the_same_call(loop: Loop) -> None:
    model = loop.model()
    raw = message_of(model, 1).SerializeToString()
    first = loop.ask("forward_backward", content=raw, headers=PROTOBUF)
    assert loop.ask("forward_backward", forward_backward(model, 1)) == first


def test_many_large_calls_at_once_are_all_in_the_log_and_heartbeats_are_answered_meanwhile(loop: Loop) -> None:
    """A burst filled the connections of a server that stores calls in a database; some numbers were missing then."""
    model, session = loop.model(), loop.session()
    bodies = [pass_message(model, number, 2, 1500).SerializeToString() for number in range(1, 33)]  # 48 KB each

    async def burst() -> tuple[list[httpx.Response], list[int]]:
        async with loop.client() as client:
            calls = [client.post("forward_backward", content=raw, headers=PROTOBUF) for raw in reversed(bodies)]
            sent, beats = asyncio.gather(*calls), list[int]()
            while not sent.done():
                beat = await client.post("session_heartbeat", json={"session_id": session})
                beats.append(beat.status_code)
            return await sent, beats

    answers, beats = asyncio.run(burst())
    assert [answer.status_code for answer in answers] == [200] * 32, answers[0].text
    assert set(beats) == {200}
    stored = [call.seq_id for call in loop.calls() if call.model == model and call.kind == "forward_backward"]
    assert sorted(number for number in stored if number is not None) == [*range(1, 33)]


def test_a_sparse_input_is_in_the_log_with_every_value(loop: Loop) -> None:
    model = loop.model()
    sparse = {"data": [7, 8], "dtype": "int64", "shape": [3, 3], "sparse_crow_indices": [0, 1, 2, 2],
              "sparse_col_indices": [2, 0]}  # fmt: skip
    loop.ask("forward_backward", forward_backward(model, 1, DATUM | {"loss_fn_inputs": {"target_tokens": sparse}}))
    [call] = [call for call in loop.calls() if call.model == model and call.kind == "forward_backward"]
    assert read_tensors(call.data.data)["0.target_tokens"].tolist() == [[0, 0, 7], [8, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sparse_crow_indices": [0, 1], "sparse_col_indices": [2, 0]}, "2 row pointers and 2 columns are none"),
        ({"sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [2, 3]}, "3 row pointers and 2 columns are none"),
        ({"shape": [2, 2]}, "shape [2, 2] has 4 values, and 2 were sent"),
    ],
)
def test_a_tensor_that_is_none_is_named(loop: Loop, change: dict[str, Any], says: str) -> None:
    tensor = {"data": [7, 8], "dtype": "int64", "shape": [2, 3], **change}
    answer = loop.send("forward_backward", forward_backward("any", 1, DATUM | {"loss_fn_inputs": {"x": tensor}}))
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("data[0].loss_fn_inputs.x: ") and says in answer.json()["detail"]


def test_tensors_beyond_the_limit_of_records_are_beside_the_log_with_their_hash(loop: Loop) -> None:
    model = loop.model()
    count = 10_000
    long = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1] * count}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": [2] * count, "dtype": "int64"},
            "weights": {"data": [0.25] * count, "dtype": "float32"},
        },
    }
    loop.ask("forward_backward", forward_backward(model, 1, long))
    [call] = [call for call in loop.calls() if call.model == model and call.kind == "forward_backward"]
    assert call.data_uri is not None and call.data_sha256 is not None and not len(call.data)
    content = stored_tensors.get(loop.settings.adapters.store, call.data_uri, call.data_sha256)
    assert read_tensors(content)["0.weights"].tolist() == [0.25] * count
    Path(call.data_uri.removeprefix("file://")).write_bytes(b"other")
    with pytest.raises(Exception, match="another sha256"):
        stored_tensors.get(loop.settings.adapters.store, call.data_uri, call.data_sha256)


def test_a_server_that_was_killed_knows_models_and_answers_their_futures(settings: Settings) -> None:
    with serving(settings) as before:
        model = before.model()
        before.ask("forward_backward", forward_backward(model, 1))
    with serving(settings) as after:
        assert after.ask("get_info", {"model_id": model})["lora_rank"] == 4
        outputs = tensor_bytes({"0.logprobs": np.array([-0.5, -1.0, -1.5], "<f4")})
        after.end(f"{model}:1", outputs=Octets(outputs), metrics={"loss:sum": 3.0})
        result = after.ask("retrieve_future", {"request_id": f"{model}:1"})
    assert result == {
        "loss_fn_output_type": "ArrayRecord",
        "loss_fn_outputs": [{"logprobs": {"data": [-0.5, -1.0, -1.5], "dtype": "float32", "shape": [3]}}],
        "metrics": {"loss:sum": 3.0},
    }


def test_a_result_is_protobuf_for_whom_accepts_it(loop: Loop) -> None:
    model = loop.model()
    loop.ask("forward_backward", forward_backward(model, 1, DATUM, DATUM))
    arrays = {"0.logprobs": np.array([-0.5, -1.0], "<f4"), "1.logprobs": np.array([[-1.5, -2.0]], "<f4")}
    loop.end(f"{model}:1", outputs=Octets(tensor_bytes(arrays)), metrics={"loss:sum": 3.0})
    accepts = {"accept": "application/x-protobuf"}
    answer = loop.send("retrieve_future", {"request_id": f"{model}:1"}, headers=accepts)
    message = protobuf.read("ForwardBackwardOutput", answer.content)
    assert answer.headers["content-type"] == "application/x-protobuf"
    records = [(each.num_datums, each.fields["logprobs"]) for each in message.loss_fn_outputs]
    assert [
        (number, list(np.frombuffer(field.data, "<f4")), list(field.trailing_shape)) for number, field in records
    ] == [(1, [-0.5, -1.0], []), (1, [-1.5, -2.0], [2])]


def test_a_place_of_a_prompt_without_likeliest_tokens_is_none_in_both_formats(loop: Loop) -> None:
    """As the SDK has it: token 0 with logprob -99999, for the first place and those before prompt_logprobs_last_n."""
    session = loop.session()
    name = loop.ask(
        "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0, "base_model": BASE}
    )
    sampler = name["sampling_session_id"]
    body = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 1},
        "num_samples": 1,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
    }
    call_id = loop.ask("asample", body)["request_id"]
    nan = np.nan
    arrays = {
        "0.tokens": np.array([8], "<i4"),
        "0.logprobs": np.array([-1.0], "<f4"),
        "prompt_logprobs": np.array([nan, nan, -2.0], "<f4"),
        "prompt_topk_tokens": np.array([[0, 0], [3, 4], [7, 8]], "<i4"),
        "prompt_topk_logprobs": np.array([[nan, nan], [nan, nan], [-0.5, -2.0]], "<f4"),
    }
    loop.end(call_id, outputs=Octets(tensor_bytes(arrays)), response='{"stop_reasons": ["length"]}')
    answer = loop.ask("retrieve_future", {"request_id": call_id})
    assert answer["prompt_logprobs"] == [None, None, -2.0]
    assert answer["topk_prompt_logprobs"] == [None, None, [[7, -0.5], [8, -2.0]]]
    accepts = {"accept": "application/x-protobuf"}
    content = loop.send("retrieve_future", {"request_id": call_id}, headers=accepts).content
    table = protobuf.read("SampleResponse", content).topk_prompt_logprobs
    assert np.frombuffer(table.token_ids, "<i4").tolist() == [0, 0, 0, 0, 7, 8]
    assert np.frombuffer(table.logprobs, "<f4").tolist() == [-99999.0] * 4 + [-0.5, -2.0]


def test_a_failure_is_told_with_its_category(loop: Loop) -> None:
    model = loop.model()
    loop.ask("optim_step", {"adam_params": {"learning_rate": 0.1}, "model_id": model, "seq_id": 1})
    loop.end(f"{model}:1", category="user", error="there are no gradients")
    assert loop.ask("retrieve_future", {"request_id": f"{model}:1"}) == {
        "error": "there are no gradients",
        "category": "user",
    }


def test_requests_that_wait_for_results_hold_no_thread(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more of them than a server has threads; others are answered meanwhile, and all of them at the end."""
    monkeypatch.setattr(futures, "POLL_S", 60.0)
    model = loop.model()
    loop.ask("optim_step", {"adam_params": {}, "model_id": model, "seq_id": 1})

    async def wait_and_ask() -> tuple[list[int], int]:
        async with loop.client() as client:
            waiting = [
                asyncio.create_task(client.post("retrieve_future", json={"request_id": f"{model}:1"}))
                for _ in range(200)
            ]
            await asyncio.sleep(0)
            other = await client.post("get_info", json={"model_id": model})
            await asyncio.to_thread(loop.end, f"{model}:1", metrics={"optim/norm:mean": 0.5})
            return [answer.status_code for answer in await asyncio.gather(*waiting)], other.status_code

    assert asyncio.run(wait_and_ask()) == ([200] * 200, 200)


def test_what_has_no_result_yet_is_asked_for_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "POLL_S", 0.05)
    model = loop.model()
    answer = loop.send("retrieve_future", {"request_id": model})
    assert (answer.status_code, answer.json()) == (
        408,
        {"type": "try_again", "request_id": model, "queue_state": "active"},
    )


def test_ended_samples_are_listed_once_in_their_order_by_any_server(settings: Settings) -> None:
    with serving(settings) as loop:
        sampler = loop.ask(
            "create_sampling_session",
            {"session_id": loop.session(), "sampling_session_seq_id": 0, "base_model": BASE},
        )["sampling_session_id"]
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}
        body = {"sampling_session_id": sampler, "prompt": prompt, "sampling_params": {"max_tokens": 2}}
        ids = [loop.ask("asample", body | {"seq_id": number, "num_samples": 2}) for number in (0, 1, 2_000_000_000)]
        assert ids[1]["sample_sequence_ids"] == [f"{sampler}:1:0", f"{sampler}:1:1"]
        for number in (1, 0, 2):
            arrays = {f"{each}.{name}": np.zeros(1, kind) for each in (0, 1)
                      for name, kind in (("tokens", "<i4"), ("logprobs", "<f4"))}  # fmt: skip
            response = json.dumps({"stop_reasons": ["stop", "length"]})
            loop.end(ids[number]["request_id"], outputs=Octets(tensor_bytes(arrays)), response=response)
    with serving(settings) as again:
        target = {"sampling_session_id": sampler, "cloned_sampler_id": 0}
        first = again.ask("retrieve_futures", {"target": target, "timeout": 0})
        assert [each["request_id"] for each in first["completions"]] == [f"{sampler}:1", f"{sampler}:0"]
        later = again.ask("retrieve_futures", {"target": target, "prev_cursor": first["cursor"], "timeout": 0})
        assert later == {"completions": [], "cursor": first["cursor"]}
        clone = again.ask("retrieve_futures", {"target": target | {"cloned_sampler_id": 2}, "timeout": 0})
        assert [each["request_id"] for each in clone["completions"]] == [f"{sampler}:2000000000"]
        sample = again.ask("retrieve_future", {"request_id": f"{sampler}:1"})
        assert [each["stop_reason"] for each in sample["sequences"]] == ["stop", "length"]


def test_a_tenant_sees_its_own_sessions_and_models_only(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {tenant: key("trainer", tenant=tenant) for tenant in ("red", "blue")}
    monkeypatch.setattr(loop, "principal", keys["red"])
    model = loop.model()
    assert model.startswith("red.")
    monkeypatch.setattr(loop, "principal", keys["blue"])
    for path, body in (
        ("get_info", {"model_id": model}),
        ("forward_backward", forward_backward(model, 1)),
        ("retrieve_future", {"request_id": model}),
        ("session_heartbeat", {"session_id": model.partition(":")[0]}),
    ):
        refused = loop.send(path, body)
        assert (refused.status_code, "there is no " in refused.text) == (404, True), path
    assert loop.ask("training_runs", method="GET")["cursor"]["total_count"] == 0
    assert loop.ask("sessions", method="GET") == {"sessions": []}


def test_a_session_that_has_finished_takes_no_calls_and_its_heartbeat_ends(loop: Loop) -> None:
    model = loop.model()
    session = model.partition(":")[0]
    assert loop.ask("session_heartbeat", {"session_id": session}) == {"type": "session_heartbeat"}
    body = {"reason": {"type": "success"}, "detail": None}
    assert loop.send(f"sessions/{session}/finish", body).status_code == 204
    assert loop.send("session_heartbeat", {"session_id": session}).status_code == 410
    refused = loop.send("forward_backward", forward_backward(model, 1))
    assert refused.status_code == 400 and f"session {session} has finished (success)" in refused.json()["detail"]


def test_weights_are_loaded_only_by_the_first_request_of_a_model(loop: Loop) -> None:
    model = loop.model()
    loop.ask("save_weights", {"model_id": model, "path": "one", "seq_id": 1})
    path = f"tinker://{model}/weights/one"
    loop.end(f"{model}:1", version=1, path=path, uri="file:///nowhere", response=json.dumps({"path": path}))
    assert loop.ask("retrieve_future", {"request_id": f"{model}:1"})["path"] == path
    refused = loop.send("load_weights", {"model_id": model, "seq_id": 2, "path": path, "optimizer": True})
    assert refused.status_code == 400
    assert "load_weights must be the model's first request" in refused.json()["detail"]
    begun = loop.ask(
        "load_weights", {"session_id": loop.session(), "model_seq_id": 0, "path": path, "optimizer": False}
    )
    [call] = [call for call in loop.calls() if call.call_id == begun["request_id"]]
    assert call.lora is not None and (call.source, call.lora.rank) == ("file:///nowhere", 4)


def test_a_refused_call_keeps_its_number_so_that_later_ones_do_not_wait_for_it(loop: Loop) -> None:
    """The SDK continues with the next number, and a model takes its calls in the order of their numbers."""
    model = loop.model()
    refusals = [
        loop.send("forward_backward", forward_backward(model, 1, loss="hinge")),
        loop.send("optim_step", {"model_id": model, "seq_id": 2, "optimizer_params": {"type": "dimuon"}}),
        loop.send("save_weights_external", {"model_id": model, "seq_id": 3, "path": "one"}),
        loop.send("load_weights", {"model_id": model, "seq_id": 4, "path": "tinker://m/weights/w", "optimizer": True}),
    ]
    assert [answer.status_code for answer in refusals] == [400, 400, 400, 404]
    calls = [call for call in loop.calls() if call.model == model and call.kind != "create_model"]
    with loop.log.state() as state:
        words = [line_refusal(state, call, T0) for call in calls]
    assert [(call.seq_id, call.kind, json.loads(call.request)["kind"]) for call in calls] == [
        (1, "refused", "forward_backward"),
        (2, "refused", "optim_step"),
        (3, "refused", "save_weights_external"),
        (4, "refused", "load_weights"),
    ]
    assert words == [answer.json()["detail"] for answer in refusals]
    again = loop.send("forward_backward", forward_backward(model, 1, loss="hinge"))
    assert (again.status_code, again.json()) == (400, refusals[0].json())
    assert loop.ask("optim_step", {"model_id": model, "seq_id": 5})["request_id"] == f"{model}:5"


def test_a_tenant_at_its_monthly_limit_is_refused_before_a_call_costs_something_and_can_save(
    settings: Settings,
) -> None:
    """Of the month of all tenants: another one continues, and what cost nothing does."""
    prices, jobs = Prices(prompt_usd=1.0, completion_usd=1.0), Jobs(trainer_hour_usd=1.0, tenant_month_usd=0.5)
    priced = settings.model_copy(update={"prices": prices, "jobs": jobs})
    with serving(priced) as loop:
        models = {}
        for tenant in ("shop", "bakery"):
            loop.principal = key("trainer", tenant=tenant)
            models[tenant] = loop.model()
            loop.ask("forward_backward", forward_backward(models[tenant], 1))
            cost = 0.5 if tenant == "shop" else 0.25
            loop.end(f"{models[tenant]}:1", created_at=times.now_ms(), cost_usd=cost, prompt_tokens=3, trainer_s=2.0)
            while not (month := loop.log.month(tenant, times.now_ms())) or month.spent_usd < cost:
                pass
        assert loop.ask("optim_step", {"model_id": models["bakery"], "seq_id": 2})
        loop.principal = key("trainer", tenant="shop")
        before = len(loop.calls())
        refused = loop.send("forward_backward", forward_backward(models["shop"], 2))
        month = loop.log.month("shop", times.now_ms())
        assert refused.status_code == 400 and refused.json()["detail"] == (
            f"0.5000 USD of 0.5000 are spent that are for {month}; save what was trained, and call again next month, "
            "or raise jobs.tenant_month_usd"
        )
        assert [call.kind for call in loop.calls()[before:]] == ["refused"]
        assert loop.ask("save_weights", {"model_id": models["shop"], "seq_id": 3, "path": "last"})


def test_saved_weights_are_listed_expire_and_are_deleted(loop: Loop) -> None:
    model = loop.model()
    loop.ask("save_weights", {"model_id": model, "path": "one", "seq_id": 1, "user_metadata": {"a": "b"}})
    path = f"tinker://{model}/weights/one"
    loop.end(f"{model}:1", version=1, path=path, uri="file:///nowhere", response=json.dumps({"path": path}))
    one = f"training_runs/{model}/checkpoints/weights/one"

    def listed() -> list[dict[str, Any]]:
        return list(loop.ask(f"training_runs/{model}/checkpoints", method="GET")["checkpoints"])

    assert [(each["checkpoint_id"], each["user_metadata"], each["expires_at"]) for each in listed()] == [
        ("weights/one", {"a": "b"}, None)
    ]
    assert loop.send(f"{one}/ttl", {"ttl_seconds": 60}, method="PUT").status_code == 400
    assert loop.send(f"{one}/ttl", {"ttl_seconds": 3600}, method="PUT").status_code == 204
    assert listed()[0]["expires_at"] is not None
    assert loop.send(one, method="DELETE").status_code == 204
    assert listed() == [] and loop.send(one, method="DELETE").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "auth/token", "auth/token"),
        ("GET", "audit", "audit"),
        ("GET", "billing/usage/events", "billing/usage/events"),
        ("POST", "sessions/search", "sessions/search"),
        ("POST", "training_runs/m/checkpoints/weights/one/publish", "publish"),
        ("DELETE", "training_runs/m/checkpoints/weights/one/publish", "publish"),
    ],
)
def test_what_is_not_offered_is_refused_by_its_name(loop: Loop, method: str, path: str, name: str) -> None:
    answer = loop.send(path, {} if method == "POST" else None, method=method)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"{name} is not offered by this server: ")


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        ("create_model", {"base_model": "Qwen/Qwen3-8B"}, "this server has HuggingFaceTB/SmolLM2-135M-Instruct or "),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, "the optimizer 'dimuon' is not offered here"),
        ("optim_step", {"optimizer_params": {"type": "dimuon"}}, "the optimizer 'dimuon' is not offered here"),
        ("asample", {"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k is not supported: "),
        (
            "asample",
            {"prompt": {"chunks": [{"type": "image", "data": "x", "format": "png"}]}},
            "a chunk of type 'image' is not offered here",
        ),
        ("asample", {"not_there": 2}, "there is no field not_there"),
        (
            "save_weights_for_sampler",
            {"kind": "inflight"},
            "kind is 'inflight': weights that change while they are sampled with are not offered",
        ),
    ],
)
def test_a_field_that_is_not_offered_is_refused_by_its_name(
    loop: Loop, path: str, change: dict[str, Any], says: str
) -> None:
    model = loop.model()
    bodies: dict[str, dict[str, Any]] = {
        "create_model": {
            "session_id": model.partition(":")[0], "model_seq_id": 1, "base_model": BASE, "lora_config": {"rank": 4},
        },
        "optim_step": {"model_id": model, "seq_id": 1},
        "asample": {
            "sampling_session_id": "s", "seq_id": 0, "sampling_params": {},
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        },
        "save_weights_for_sampler": {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0},
    }  # fmt: skip
    answer = loop.send(path, bodies[path] | change)
    assert answer.status_code == 400 and says in answer.json()["detail"], answer.text
