"""What OpenAI's clients order, as a job: only what means the same here.

    CreateFineTuningBody ──┐
    training file's lines ─┴──► questions, reward source, iterations ──► JobRequest ──► JobOrder
                                what has no meaning here ──► an error that names it, and says what is possible

`config` is Streamward's own field in addition to OpenAI's (`extra_body` of its clients): that of docs/jobs.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from gateway.http.body import Body, Whole, without_nulls
from plugins.jobs.fold.state import split
from plugins.jobs.orders import request as requests
from plugins.jobs.orders.request import MOST_ITERATIONS, JobOrder
from plugins.tuning.api.graders import Grading, read_grader
from schemas.conversation import Conversation, read_as
from schemas.events import JobQuestion, RewardSource
from schemas.faults import Refused
from streams.adapters.training_files import FileLine
from streams.errors import CallError, JobRequestError, RefusedError
from streams.rows.row_texts import variant_of
from streams.scorers.registry import parts
from streams.scorers.verdict import ScoreError
from streams.settings.model import Settings

ORDERED = "fine_tuning"
"""In the metadata of `created`: what of the order only OpenAI's interface shows."""
METHOD = "method.reinforcement"
PARAMETERS = f"{METHOD}.hyperparameters"
REQUEST_NAMES = {
    "config.n_iterations": f"{PARAMETERS}.n_epochs",
    "config.batch_size": f"{PARAMETERS}.batch_size",
    "config.checkpoint_interval": f"{PARAMETERS}.eval_interval",
    "config.reward_sources": f"{METHOD}.grader",
    "agent_id": "model",
    "training_queries": "training_file",
}
"""The names of a job's parameters in a request."""
Auto = Literal["auto"]


class ReinforcementHyperparameters(Body):
    """How the policy is trained."""

    n_epochs: Annotated[Whole, Field(ge=1, le=MOST_ITERATIONS)] | Auto | None = Field(
        None,
        description="over what is not held out, rounded up to whole iterations. auto: one",
    )
    batch_size: Annotated[Whole, Field(ge=1)] | Auto | None = Field(None, description="has to be batches.groups")
    eval_interval: Annotated[Whole, Field(ge=1)] | Auto | None = Field(
        None, description="iterations from one evaluation to the next. auto: 10"
    )
    learning_rate_multiplier: Annotated[Any, Refused("the rate is trainer.learning_rate of the loop", "auto", 1)] = None
    compute_multiplier: Annotated[
        Any, Refused("say how many answers each question gets: config.n_trajectories_per_query", "auto", 1)
    ] = None
    eval_samples: Annotated[Any, Refused("a held-out question is answered once, greedily", "auto", 1)] = None
    reasoning_effort: Annotated[str | None, Refused("the policy has no levels of effort", "default")] = None


class ReinforcementMethod(Body):
    """Reinforcement learning from a grader."""

    grader: dict[str, Any] = Field(description="string_check, or multi as a weighted sum of such")
    hyperparameters: ReinforcementHyperparameters | None = None


class SupervisedHyperparameters(Body):
    """How a version is tuned."""

    n_epochs: Annotated[Whole, Field(ge=1, le=10_000)] | Auto | None = Field(None, description="auto: 1")
    batch_size: Annotated[Whole, Field(ge=1, le=2**31 - 1)] | Auto | None = Field(
        None, description="examples of a step. auto: 8"
    )
    learning_rate_multiplier: Annotated[
        Any, Refused("the rate is trainer.learning_rate of the process that tunes", "auto", 1)
    ] = None


class SupervisedMethod(Body):
    """Supervised training: what the assistant says in the lines of the file."""

    hyperparameters: SupervisedHyperparameters | None = None


class DpoHyperparameters(SupervisedHyperparameters):
    """How a version is tuned by preferences."""

    beta: Annotated[float, Field(gt=0, le=2)] | Auto | None = Field(None, description="auto: 0.1")


class DpoMethod(Body):
    """Preferences: a better answer against a worse one, in the lines of the file."""

    hyperparameters: DpoHyperparameters | None = None


class FineTuningMethod(Body):
    """How to train."""

    type: Literal["reinforcement", "supervised", "dpo"]
    reinforcement: ReinforcementMethod | None = None
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None

    def check(self) -> None:
        """Raise CallError for what is of another type, or missing."""
        for name in ("reinforcement", "supervised", "dpo"):
            path = f"method.{name}"
            if name != self.type and getattr(self, name) is not None:
                raise CallError("invalid", f"{path}: method.type is {self.type}; leave it out", path)
        if self.type == "reinforcement" and self.reinforcement is None:
            raise CallError("invalid", f"{METHOD} is required", METHOD)


class CreateFineTuningBody(Body):
    """A job as OpenAI's clients order it."""

    model: str = Field(description="the policy, which is trained on from its newest version")
    training_file: str = Field(
        description="id of a file; reinforcement: each line has `messages`, one of the user, and what the grader "
        "compares with; supervised: a conversation; dpo: `input`, `preferred_output`, `non_preferred_output`"
    )
    method: FineTuningMethod = Field(FineTuningMethod(type="supervised"), description="default: supervised")
    seed: Whole | None = Field(None, description="has to be trainer.seed")
    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(min_length=1, max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = Field(None, description="recorded with the job; at most 16 pairs")
    config: dict[str, Any] | None = Field(
        None, description="Streamward's own: the rest of the order, as for `streamward jobs start` (jobs.md)"
    )
    hyperparameters: Annotated[
        dict[str, Any] | None,
        Refused("name those of the method, e.g. method.dpo.hyperparameters", {}),
    ] = None
    validation_file: Annotated[
        str | None,
        Refused("of questions a share of training_file is held out, by hash: config.held_out_share; of examples none"),
    ] = None
    suffix: Annotated[str | None, Refused("what is trained is called POLICY@VERSION")] = None
    integrations: Annotated[
        list[Any] | None, Refused("nothing is sent elsewhere; the events of a job have its figures", [])
    ] = None


@dataclass(frozen=True, slots=True)
class FineTuningOrder:
    """An order, with the lines of its file."""

    body: CreateFineTuningBody
    lines: Sequence[FileLine]

    def job(self, settings: Settings) -> JobOrder:
        """Return the job. Raises CallError that names what is wrong, in the words of the request."""
        body = self.body
        check_order(body, settings)
        grading = _grading(self._method.grader)
        fields = {
            "agent_id": body.model,
            "training_queries": self._questions(grading),
            "config": self._config(grading, settings),
        }
        try:
            request = requests.read_request(fields)
            order = requests.order(request, settings, policies={body.model}, agents={})
        except JobRequestError as exc:
            raise self._in_request_words(exc) from exc
        except RefusedError as exc:  # its estimate is over its budget
            raise CallError("invalid", str(exc), "config.max_budget_usd") from exc
        order_fields = json.dumps(self._order_fields(order, settings), sort_keys=True)
        return order.with_metadata({ORDERED: order_fields}, body.model_dump(mode="json"))

    @property
    def _method(self) -> ReinforcementMethod:
        method = self.body.method.reinforcement
        assert method is not None  # noqa: S101 - `check` was called
        return method

    def _questions(self, grading: Grading) -> list[dict[str, Any]]:
        questions, lines_by_query = [], dict[str, int]()
        for number, item in self.lines:
            try:
                query = _query(item)
                answer = grading.answer(item)
            except JobRequestError as exc:
                raise CallError("invalid", f"training_file: line {number}: {exc}", "training_file") from exc
            if (first := lines_by_query.setdefault(query, number)) != number:
                problem = f"training_file: line {number} has the same question as line {first}; give each once"
                raise CallError("invalid", problem, "training_file")
            expected: dict[str, Any] = {} if answer is None else {"expected_outcome": answer}
            questions.append({"query": query, "variant_of": variant_of(item), **expected})
        return questions

    def _config(self, grading: Grading, settings: Settings) -> dict[str, Any]:
        config = without_nulls(self.body.config)
        parameters = self._method.hyperparameters or ReinforcementHyperparameters()
        for option, name, value in (
            ("batch_size", "batch_size", _number(parameters.batch_size)),
            ("checkpoint_interval", "eval_interval", _number(parameters.eval_interval)),
            ("n_iterations", "n_epochs", _number(parameters.n_epochs)),
            ("reward_sources", "grader", grading.scorer),
        ):
            if option in config and value is not None:
                path = REQUEST_NAMES[f"config.{option}"]
                raise CallError(
                    "invalid", f"config.{option}: {path} says it, too; leave one of them out", f"config.{option}"
                )
            if value is not None and name not in ("n_epochs", "grader"):
                config[option] = value
        config["reward_sources"] = [{"name": grading.scorer, "settings": grading.settings}]
        if "n_iterations" not in config:
            epochs, share = _number(parameters.n_epochs), config.get("held_out_share")
            config["n_iterations"] = self._iterations(epochs, share, settings)
        return config

    def _iterations(self, epochs: int | None, share: Any, settings: Settings) -> int:
        """Return how many iterations go over the train questions so often: the last one begins them again."""
        default = requests.JobConfig.model_fields["held_out_share"].default
        share = default if not isinstance(share, int | float) else share  # of another type: refused where it is read
        train, _ = split(
            (JobQuestion(query=_query(item), variant_of=variant_of(item)) for _, item in self.lines), share
        )
        return max(1, math.ceil((epochs or 1) * len(train) / settings.batches.groups))

    def _in_request_words(self, exc: JobRequestError) -> CallError:
        """Return what is wrong with the job in the words of the request that it was made of."""

        def line(match: re.Match[str]) -> str:
            number = int(match[1])
            place = f"line {self.lines[number].number}" if number < len(self.lines) else f"question {number}"
            return f"training_file, {place}"

        def rename(text: str) -> str:
            text = re.sub(r"training_queries\[(\d+)\](?:\.query)?", line, text)
            for option, name in REQUEST_NAMES.items():
                if option.removeprefix("config.") not in (self.body.config or {}):
                    text = re.sub(rf"\b{re.escape(option)}\b", name, text)
            return text

        parameter = None if exc.parameter is None else rename(exc.parameter).partition(",")[0]
        return CallError("invalid", rename(str(exc)), parameter)

    def _order_fields(self, order: JobOrder, settings: Settings) -> dict[str, Any]:
        """Return what a client reads of the order, in addition to the state of the job."""
        parameters = self._method.hyperparameters or ReinforcementHyperparameters()
        return {
            "model": self.body.model,
            "training_file": self.body.training_file,
            "seed": settings.trainer.seed,
            "metadata": self.body.metadata,
            "method": {
                "type": "reinforcement",
                "reinforcement": {
                    "grader": self._method.grader,
                    "hyperparameters": {
                        "n_epochs": parameters.n_epochs or "auto",
                        "batch_size": order.spec.batch_size,
                        "eval_interval": order.spec.evaluate_every,
                    },
                },
            },
        }


def check_order(body: CreateFineTuningBody, settings: Settings) -> None:
    """Raise CallError for another policy than this server has, another seed than the trainer, or a wrong method."""
    body.method.check()
    if body.model != settings.policy.name:
        way = "a job begins with the newest version: name the policy alone" if "@" in body.model else "name it"
        problem = f"model: {body.model[:80]!r} cannot be trained; this server has {settings.policy.name}, {way}"
        raise CallError("not_found", problem, "model")
    if body.seed is not None and body.seed != settings.trainer.seed:
        raise CallError(
            "invalid",
            f"seed is {body.seed}, and would have no effect: trainer.seed is {settings.trainer.seed} here",
            "seed",
        )


def _grading(grader: dict[str, Any]) -> Grading:
    """Return what judges as the grader does. Raises CallError."""
    path = f"{METHOD}.grader"
    grading = read_grader(grader, path)
    try:
        parts(RewardSource(name=grading.scorer, settings=json.dumps(grading.settings)))
    except ScoreError as exc:
        raise CallError("invalid", f"{path}: {exc}", path) from exc
    return grading


def _number(value: int | str | None) -> int | None:
    return value if isinstance(value, int) else None


def _query(item: dict[str, Any]) -> str:
    """Return the question of a line. Raises JobRequestError."""
    if item.get("messages") is None:
        raise JobRequestError('messages is required, e.g. [{"role": "user", "content": "1 + 1 ="}]')
    try:
        conversation: Conversation = read_as(Conversation, item["messages"], "messages")
    except ValueError as exc:
        raise JobRequestError(str(exc)) from exc
    messages = [message.message for message in conversation]
    roles = [message.role for message in messages]
    if roles != ["user"]:
        raise JobRequestError(
            f"a question is one message of the user, and messages has the roles {str(roles)[:80]}; put instructions "
            "into that message"
        )
    if messages[0].name is not None:
        raise JobRequestError("messages[0].name has no effect; leave it out")
    if not messages[0].content:
        raise JobRequestError("messages[0].content is empty; expected a text")
    return messages[0].content
