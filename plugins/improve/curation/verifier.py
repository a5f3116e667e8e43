"""VerifierAgent: a model that reads the transcript of a run and judges whether it is good enough to learn from.

    Transcript ──► prompt ──► the judge of `scoring.judge_*` ──► {"verdict", "rationale"} ──► JudgeVerdict

Client, limits, tries, prices and the protection from forged verdicts are shared with the scorer `judge`
(streams/scorers/judge_client.py): the tags around the transcript have a random boundary per request, and an object that
the transcript contains word for word counts as a quotation. A transcript can still persuade the judge, so a judge
promotes nothing alone until it is known to agree with people (agreement.py).

If the last try gives no valid verdict, or is too late, there is none, and a person decides. A judge that is
unreachable, or refuses every request, raises ScoreError: its runs wait.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection
from functools import partial
from secrets import token_hex
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from plugins.improve.curation.rubric import PROMPT_VERSION, RUN, instructions_prompt, prompt_digest
from plugins.improve.curation.transcript import Transcript
from plugins.improve.settings import Improve
from schemas.events import RATIONALE_CHARACTERS, CurationJudge, RunVerdict
from streams.adapters.versions import known_policies
from streams.egress.retry_budget import budget_of
from streams.scorers.judge_client import JudgeClient, JudgeQuestion, model_of, own_object, text_of, unreadable
from streams.scorers.retries import persist, sum_of
from streams.scorers.verdict import ScoreError, storable
from streams.settings.model import Settings

VERDICTS: dict[str, RunVerdict] = {"promote": "promote", "reject": "reject", "needs_human": "needs_human"}
LIMIT = "improve.max_tokens"
OF_RUN = ("judge_answer", "timeout")
"""Reasons of errors that are about one run; others are about the judge."""
_PLACEHOLDER = re.compile(r"\{(boundary|transcript|cut)\}")
_VERSION = re.compile(r"(?P<policy>.+?)(?:@(?P<version>\d{1,9}))?")


class JudgeVerdict(NamedTuple):
    """What the judge says of a run; `judge.verdict` is None if it says nothing that can be read."""

    judge: CurationJudge
    rationale: str


class _ReadVerdict(NamedTuple):
    """A verdict that could be read."""

    verdict: RunVerdict
    rationale: str
    answer: str
    model: str
    spent: dict[str, float]


class VerifierAgent:
    """The judge of transcripts, shared by threads. Close it."""

    def __init__(
        self,
        settings: Settings,
        own_policies: Callable[[], Collection[str]] | None = None,
        stop: threading.Event | None = None,
        subject: str = RUN,
    ) -> None:
        """`own_policies`: the names of the log's policies; default: those that it has; `subject`: what it judges.

        Raises ScoreError(bad_settings) if no judge is configured.
        """
        self._rule, self._scoring, self._subject = settings.of_plugin(Improve), settings.scoring, subject
        self._client = JudgeClient(settings.scoring)
        self._own_policies = own_policies or partial(known_policies, settings)
        self._stop = stop or threading.Event()
        self._versions: dict[str, tuple[str | None, int | None]] = {}

    def close(self) -> None:
        """Close the connections; no further tries."""
        self._stop.set()
        self._client.close()

    def verify(self, transcript: Transcript) -> JudgeVerdict:
        """Return what the judge says of a run. Raises ScoreError if it says nothing about any run, LogError."""
        reply: list[tuple[str, str]] = []  # the newest answer with its model, read or not
        try:
            once, budget = partial(self._ask, transcript, reply), budget_of(self._client.url)
            statement, tries, spent = persist(once, self._scoring.retries, self._stop, budget=budget)
        except ScoreError as exc:
            if exc.reason not in OF_RUN and not exc.of_request:
                raise
            model, answer = reply[-1] if reply else (self._client.model, "")
            return JudgeVerdict(
                self._judge(model, answer, None, exc.spent, exc.tries), f"no verdict of the judge: {exc}"
            )
        total = sum_of(statement.spent, spent)
        judge = self._judge(statement.model, statement.answer, statement.verdict, total, tries)
        return JudgeVerdict(judge, statement.rationale)

    def _ask(self, transcript: Transcript, replies: list[tuple[str, str]]) -> _ReadVerdict:
        question = JudgeQuestion(
            text=prompt(instructions_prompt(self._rule, self._subject), transcript, token_hex(8)),
            max_tokens=self._rule.max_tokens,
            limit=LIMIT,
        )
        spent: dict[str, float] = {}
        try:
            reply = self._client.ask(question)
            spent = reply.spent
            model = model_of(reply.answer) or self._client.model
            replies.append((model, reply.answer.decode(errors="replace")))
            content = text_of(reply.answer, question, self._client.url)
            replies[-1] = (model, content)
            verdict, rationale = parse_verdict(content, transcript, self._client.url)
        except ScoreError as exc:
            exc.spent = spent
            raise
        return _ReadVerdict(verdict, rationale, content, model, spent)

    def _judge(
        self, model: str, answer: str, verdict: RunVerdict | None, spent: dict[str, float], tries: int
    ) -> CurationJudge:
        policy, version = self._own_version(model)
        return CurationJudge(
            model=storable(model)[:RATIONALE_CHARACTERS],
            endpoint=endpoint_of(self._scoring.judge_url or ""),
            policy=policy,
            version=version,
            prompt_version=PROMPT_VERSION,
            prompt_digest=prompt_digest(self._rule, self._subject),
            verdict=verdict,
            answer=storable(answer)[:RATIONALE_CHARACTERS],
            prompt_tokens=int(spent.get("prompt_tokens", 0)),
            completion_tokens=int(spent.get("completion_tokens", 0)),
            cost_usd=spent.get("cost_usd"),
            tries=tries,
        )

    def _own_version(self, model: str) -> tuple[str | None, int | None]:
        """Return the policy and the version of our own log that a model is, if it is one."""
        if model not in self._versions:
            match = _VERSION.fullmatch(model)
            is_own = match is not None and match["policy"] in self._own_policies()
            number = match["version"] if match is not None else None
            self._versions[model] = (
                (match["policy"], None if number is None else int(number)) if match and is_own else (None, None)
            )
        return self._versions[model]


def prompt(template: str, transcript: Transcript, boundary: str) -> str:
    """Return the prompt about a transcript. Only the template's own placeholders are filled, in one pass."""
    cut = " The transcript was too long, and parts are left out; it says where." if transcript.cut else ""
    fill = {"boundary": boundary, "transcript": transcript.text, "cut": cut}
    return _PLACEHOLDER.sub(lambda match: fill[match[1]], template)


def parse_verdict(content: str, transcript: Transcript, url: str) -> tuple[RunVerdict, str]:
    """Return verdict and rationale of what a judge says about a transcript. Raises ScoreError(judge_answer)."""
    own = own_object(content, "verdict", transcript.quotable, url)
    verdict, rationale = own["verdict"], own.get("rationale")
    if not isinstance(verdict, str) or verdict not in VERDICTS:
        raise unreadable(f"judge at {url} gave verdict {json.dumps(verdict)[:80]}; expected {', '.join(VERDICTS)}")
    if not isinstance(rationale, str) or not rationale.strip():
        raise unreadable(f"judge at {url} gave verdict {verdict} without a rationale")
    return VERDICTS[verdict], storable(rationale.strip())[:RATIONALE_CHARACTERS]


def endpoint_of(url: str) -> str:
    """Return a URL without user, password, query and fragment.

    >>> endpoint_of("http://judge:8000/v1?key=1")
    'http://judge:8000/v1'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
