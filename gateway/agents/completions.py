"""OpenAI's legacy completions: their parameters, and translation to and from the recorder's calls.

    POST …/v1/completions ──► ModelCall ──► pieces ──► text_completion, or chunks of it

A prompt of text gets the tokenizer's special tokens (vLLM's `add_special_tokens`); a prompt of tokens goes to the model
unchanged. No template is applied.

    echo, logprobs ──► a ModelCall for each prompt ──► PromptScores ──► text_completion

With `echo` the prompt is scored; nothing is sampled or recorded.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gateway.agents.caller import Caller
from gateway.agents.chat import usage
from gateway.agents.parameters import (
    ADDRESS,
    MOST_TOKENS,
    OWN_LOGPROBS,
    Choices,
    Model,
    Seed,
    Stop,
    Stream,
    StreamOptions,
    Temperature,
    TopP,
)
from gateway.agents.protocol_answers import (
    USAGE_EXAMPLE,
    CachedTokens,
    CallUsage,
    TextChoice,
    TextCompletion,
    TextLogprobs,
)
from gateway.http.body import Body, Whole, ignored
from schemas.events import Sampling, derive_id
from schemas.faults import Ignored, Refused
from streams.errors import CallError
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece, PromptScores, Token

UTF8 = getincrementaldecoder("utf-8")
MAX_TOKENS = 16
"""Default limit of an answer's tokens, from OpenAI's API."""
NO_PROMPTS = (
    "a prompt of the log has messages, and this is one text; send it to /chat/completions, /messages or /responses"
)
MOST_TEXTS = 128
"""Most prompts of a request that are scored."""
TokenId = Annotated[Whole, Field(ge=0, lt=2**31)]
Prompt = Annotated[str, Field(min_length=1)] | Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[Prompt], Field(min_length=1, max_length=MOST_TEXTS)]


def _one_prompt(value: object) -> object:
    """Return the prompt of a list that holds one. Raises ValueError for a prompt of the log."""
    if isinstance(value, dict):
        raise ValueError(NO_PROMPTS)
    first = value[0] if isinstance(value, list) and len(value) == 1 else None
    is_tokens = isinstance(first, list) and all(isinstance(token, int) for token in first)
    return first if is_tokens or isinstance(first, str) else value


class CompletionsBody(Body):
    """A completion that is wanted."""

    model: Model
    prompt: Annotated[
        Prompt | Prompts,
        BeforeValidator(_one_prompt, json_schema_input_type=Prompt | Prompts),
    ] = Field(description=f"text, or token ids; one prompt in a request, with `echo` up to {MOST_TEXTS}")
    add_special_tokens: bool | None = Field(
        None, description="whether a text gets what the tokenizer puts around one, such as BOS; default: true"
    )
    max_tokens: Whole | None = Field(
        None, ge=0, le=MOST_TOKENS, description=f"most tokens of an answer; default: {MAX_TOKENS}; with `echo` 0 or 1"
    )
    n: Choices = None
    temperature: Temperature = None
    top_p: TopP = None
    seed: Seed = None
    stop: Stop = None
    logprobs: Whole | None = Field(
        None,
        ge=0,
        le=5,
        description="logprobs of the sampled tokens, and no alternatives; with `echo` so many likeliest of each place",
    )
    echo: bool | None = Field(
        None, description="score the prompt: its text and logprobs, without sampling or recording; needs `logprobs`"
    )
    stream: Stream = None
    stream_options: StreamOptions | None = Field(None, description="`include_usage`")
    user: Annotated[str | None, Ignored(ADDRESS)] = None
    best_of: Annotated[Any, Refused("every answer is returned; use n", 1)] = None
    suffix: Annotated[Any, Refused("the model writes forward", "")] = None
    frequency_penalty: Annotated[Any, Refused(OWN_LOGPROBS, 0)] = None
    presence_penalty: Annotated[Any, Refused(OWN_LOGPROBS, 0)] = None
    logit_bias: Annotated[Any, Refused(OWN_LOGPROBS, {})] = None


def call(body: CompletionsBody, caller: Caller) -> ModelCall:
    """Return the protocol-neutral request. Raises CallError for what only a scored prompt may have."""
    if body.max_tokens == 0:
        raise CallError(
            "invalid", "max_tokens: 0 is for a prompt that is scored; set echo, or at least 1", "max_tokens"
        )
    first, *others = _prompts(body)
    if others:
        problem = f"prompt: {len(others) + 1} prompts, expected one; send a request for each, or set echo to score them"
        raise CallError("invalid", problem, "prompt")
    return _call(body, caller, first)


def scoring_calls(body: CompletionsBody, caller: Caller) -> list[ModelCall]:
    """Return a call for each prompt of a request with `echo`. Raises CallError for what no scored prompt can have."""
    sampled = body.max_tokens is None or body.max_tokens > 1
    for is_wrong, parameter, problem in (
        (body.logprobs is None, "logprobs", "echo scores the prompt; set logprobs, or leave echo out"),
        (body.stream, "stream", "scores of a prompt are not streamed; leave it out"),
        (body.n not in (None, 1), "n", "a prompt has one score; leave it out"),
        (sampled, "max_tokens", "with echo nothing is sampled; set it to 0, or to 1 for the likeliest next token"),
        (
            body.max_tokens == 1 and body.temperature != 0,
            "temperature",
            "the token after a scored prompt is the likeliest; set it to 0, or max_tokens to 0",
        ),
    ):
        if is_wrong:
            raise CallError("unsupported", f"{parameter}: {problem}", parameter)
    return [_call(body, caller, prompt) for prompt in _prompts(body)]


def _prompts(body: CompletionsBody) -> list[str | tuple[int, ...]]:
    """Return the prompts: a list holds either several, or the tokens of one."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    tokens = tuple(each for each in prompt if isinstance(each, int))
    several = [each if isinstance(each, str) else tuple(each) for each in prompt if not isinstance(each, int)]
    return [tokens] if tokens else several


def _call(body: CompletionsBody, caller: Caller, prompt: str | tuple[int, ...]) -> ModelCall:
    return ModelCall(
        **caller._asdict(),
        protocol="completions",
        model=body.model,
        prompt=prompt,
        special_tokens=body.add_special_tokens is not False,
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            max_tokens=body.max_tokens or MAX_TOKENS,
            seed=body.seed,
            stop=tuple(body.stop or ()),
        ),
        count=body.n or 1,
        with_logprobs=body.logprobs is not None,
        ignored=(*ignored(body), *(["logprobs.alternatives"] if body.logprobs else [])),
    )


def completion(body: CompletionsBody, begun: Begun, answers: Sequence[Done], created_s: float) -> TextCompletion:
    """Return the whole answer; `created_s`: since the epoch."""
    choices = [
        TextChoice(
            index=done.choice,
            text=done.message.content,
            logprobs=_logprobs(body, done.tokens, 0),
            finish_reason=done.finish_reason,
        )
        for done in sorted(answers, key=lambda done: done.choice)
    ]
    return TextCompletion(**_shell(begun, created_s), choices=choices, usage=usage(begun, answers))


async def chunks(
    body: CompletionsBody, begun: Begun, pieces: AsyncIterator[Piece], created_s: float
) -> AsyncIterator[dict[str, Any]]:
    """Stream the answers: their text while it is sampled, the end of each once it is recorded."""
    answers: list[Done] = []
    written: dict[int, tuple[int, int]] = {}
    with_usage = body.stream_options is not None and body.stream_options.include_usage is True
    shell = _shell(begun, created_s) | ({"usage": None} if with_usage else {})
    async for piece in pieces:
        if isinstance(piece, Delta):
            count, offset = written.get(piece.choice, (0, 0))
            written[piece.choice] = count + len(piece.tokens), offset + len(piece.text)
            logprobs = _logprobs(body, piece.tokens, offset)
            yield shell | {"choices": [_choice(piece.choice, piece.text, logprobs, None)]}
        elif isinstance(piece, Done):
            answers.append(piece)
            count, offset = written.get(piece.choice, (0, 0))
            logprobs = _logprobs(body, piece.tokens[count:], offset)
            yield shell | {"choices": [_choice(piece.choice, "", logprobs, piece.finish_reason)]}
    if with_usage:
        yield shell | {"choices": [], "usage": usage(begun, answers).model_dump()}


def scores_answer(
    body: CompletionsBody, digest: str, prompts: Sequence[PromptScores], created_s: float
) -> TextCompletion:
    """Return the scores of prompts; `digest`: of the request, which the answer's id is made of."""
    count = body.max_tokens or 0
    read, drawn = sum(len(scores.tokens) for scores in prompts), count * len(prompts)
    return TextCompletion(
        id=f"cmpl-{derive_id('scores', digest)}",
        object="text_completion",
        created=int(created_s),
        model=prompts[0].model,
        system_fingerprint=prompts[0].fingerprint,
        choices=[_scored_choice(body, index, scores) for index, scores in enumerate(prompts)],
        usage=CallUsage(
            prompt_tokens=read,
            completion_tokens=drawn,
            total_tokens=read + drawn,
            prompt_tokens_details=CachedTokens(cached_tokens=0),
        ),
    )


def _scored_choice(body: CompletionsBody, index: int, scores: PromptScores) -> TextChoice:
    """Return a prompt and, if one more token is requested, the likeliest; each position has its own token's, too."""
    tokens = [*scores.tokens, *(place[0] for place in scores.likeliest[-1:] if body.max_tokens)]
    names, decoder, text, offsets = [_name(token) for token in tokens], UTF8(errors="replace"), "", []
    for token in tokens:
        offsets.append(len(text))
        text += decoder.decode(token.bytes)
    tops = [
        {_name(each): each.logprob for each in (token, *place[: body.logprobs])}
        for token, place in zip(tokens[1:], scores.likeliest, strict=False)
    ]
    return TextChoice(
        index=index,
        text=text + decoder.decode(b"", final=True),
        logprobs=TextLogprobs(
            tokens=names,
            token_logprobs=[None, *(token.logprob for token in tokens[1:])],
            top_logprobs=[None, *tops],
            text_offset=offsets,
        ),
        finish_reason="length",
    )


def _name(token: Token) -> str:
    """Return a token's text, or its bytes, as this protocol has them, where they are a part of a character."""
    try:
        return token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def _shell(begun: Begun, created_s: float) -> dict[str, Any]:
    return {
        "id": f"cmpl-{begun.turn_id}",
        "object": "text_completion",
        "created": int(created_s),
        "model": begun.model,
        "system_fingerprint": begun.fingerprint,
    }


def _logprobs(body: CompletionsBody, tokens: Sequence[Token], offset: int) -> TextLogprobs | None:
    """Return the tokens in this protocol's four lists; `offset`: where their text begins in the answer."""
    if body.logprobs is None:
        return None
    offsets = list(accumulate((len(token.text) for token in tokens), initial=offset))[:-1]
    return TextLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[{} for _ in tokens],
        text_offset=offsets,
    )


def _choice(index: int, text: str, logprobs: TextLogprobs | None, reason: str | None) -> dict[str, Any]:
    lists = None if logprobs is None else logprobs.model_dump()
    return {"index": index, "text": text, "logprobs": lists, "finish_reason": reason}


EXAMPLE = TextCompletion(
    id="cmpl-9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
    object="text_completion",
    created=1767225600,
    model="sums@7",
    system_fingerprint="fp_1f0c",
    choices=[TextChoice(index=0, text=" 2", logprobs=None, finish_reason="stop")],
    usage=USAGE_EXAMPLE,
)
