"""A scanner: every rule of the settings over every view of a text; its verdict, with reasons and places.

    text ──► views ──► injection, personal data, patterns ──► Finding, …      in this process, linear in the text
         ──► classifier, moderation API ───────────────────► Finding, …      `ask_models`, which wait

A finding names its rule with its version, and where in the text it is, as the text was sent. No error of this module
repeats a text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from plugins.guardrails.guardrail_settings import Guardrails, thresholds
from plugins.guardrails.rules import injection, linear_patterns, personal
from plugins.guardrails.rules.outside import OUTSIDE_ERRORS, ModerationEndpoint, OutsideModel, TextClassifier
from plugins.guardrails.rules.text_view import TextView, invisible_text, text_views
from schemas import json_text
from schemas.events import GuardrailDecision, GuardrailKind
from streams.errors import SettingsError
from streams.settings.name_lists import split_names

Spans = tuple[tuple[int, int], ...]
_ORDER: tuple[GuardrailDecision, ...] = ("pass", "flag", "block")
DEFAULT_SCORE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found in a text."""

    kind: GuardrailKind
    rule: str
    """NAME/VERSION."""
    verdict: GuardrailDecision
    reason: str
    spans: Spans = ()
    """In characters of the text, in order; empty: of no place alone."""
    score: float | None = None
    is_redacted: bool = False
    """Whether a door that blocks replaces it."""

    @property
    def name(self) -> str:
        """The rule without its version."""
        return self.rule.partition("/")[0]


class Scanner:
    """Looks at texts by the rules of the settings. Any thread may use it."""

    def __init__(self, rule: Guardrails) -> None:
        """Raises SettingsError for a pattern that is not run, or where a package is missing."""
        self._redacts = split_names(rule.redacts)
        self._kinds, self._blocks = rule.kinds, frozenset(split_names(rule.blocks)) - set(self._redacts)
        self._national_ids = split_names(rule.national_ids)
        self._patterns = linear_patterns.named_patterns(rule.patterns)
        known = {*personal.KIND_WORDS, *personal.NATIONAL_IDS, *self._patterns}
        if unknown := [name for name in self._redacts if name not in known]:
            raise SettingsError(f"guardrails.redacts has {unknown[0]!r}; expected of {', '.join(sorted(known))}")
        self._characters, self._closed = rule.characters, rule.on_failure == "closed"
        self.models = tuple(_models(rule))
        """Models that are asked, with the least score of each label; empty: every label at DEFAULT_SCORE."""

    def scan(self, text: str) -> list[Finding]:
        """Return what the rules find. It does not wait, and takes time linear in the text."""
        places: defaultdict[tuple[GuardrailKind, str, str], list[tuple[int, int]]] = defaultdict(list)
        for view in text_views(text[: self._characters]):
            for kind, name, reason, start, end in self._in_view(view):
                places[kind, name, reason].append(view.span(start, end))
        if "injection" in self._kinds and (hidden := invisible_text(text[: self._characters])):
            places["injection", f"invisible_text/{injection.VERSION}", injection.HIDDEN.reason] += hidden
        findings = [self._finding(*key, _merge(spans)) for key, spans in places.items()]
        if len(text) > self._characters:
            findings.append(self.failure("length", f"it has {len(text)} characters, and {self._characters} are read"))
        return findings

    def ask_models(self, text: str) -> tuple[list[Finding], dict[str, float]]:
        """Return what the models find, and the score of each label. A model that fails is a finding of kind `failure`.

        It waits for them.
        """
        findings, by_label = list[Finding](), dict[str, float]()
        for name, model, least in self.models:
            try:
                scores = model.scores(text[: self._characters])
            except OUTSIDE_ERRORS as exc:
                findings.append(self.failure(name, str(exc)))
                continue
            except Exception as exc:  # a model's code may raise anything, with the text in its message
                findings.append(self.failure(name, type(exc).__name__))
                continue
            by_label |= scores
            for label, score in scores.items():
                if score >= least.get(label.lower(), 2.0 if least else DEFAULT_SCORE):
                    rule = f"{name}.{label}/{model.name}"
                    verdict = self.verdict(f"{name}.{label}")
                    reason = f"{name} says {label}, {score:.2f}"
                    findings.append(Finding(kind="model", rule=rule, verdict=verdict, reason=reason, score=score))
        return findings, by_label

    def failure(self, name: str, reason: str) -> Finding:
        """Return that a text could not be looked at, or not all of it: flag, or with on_failure=closed block."""
        return Finding(kind="failure", rule=f"{name}/1", verdict="block" if self._closed else "flag", reason=reason)

    def _finding(self, kind: GuardrailKind, rule: str, reason: str, spans: Spans) -> Finding:
        is_redacted = rule.partition("/")[0] in self._redacts
        too_many = is_redacted and len(spans) >= linear_patterns.MOST_MATCHES  # more of them are not looked for
        verdict = "block" if too_many else self.verdict(rule)
        return Finding(kind=kind, rule=rule, verdict=verdict, reason=reason, spans=spans, is_redacted=is_redacted)

    def _in_view(self, view: TextView) -> Iterator[tuple[GuardrailKind, str, str, int, int]]:
        origin = f", decoded from {view.decoded}" if view.decoded else ""
        if "injection" in self._kinds:
            for rule, start, end in injection.injections(view.text):
                yield "injection", f"{rule.name}/{injection.VERSION}", rule.reason + origin, start, end
        if "pii" in self._kinds:
            for name, start, end in personal.personal(view.text, self._national_ids):
                yield "pii", f"{name}/{personal.VERSION}", personal.words(name) + origin, start, end
        if "patterns" in self._kinds:
            for name, pattern in self._patterns.items():
                for start, end in linear_patterns.matches(pattern, view.text):
                    yield "pattern", f"{name}/1", f"it matches the pattern {name}{origin}", start, end

    def verdict(self, rule: str) -> GuardrailDecision:
        """Return the verdict of a rule, NAME or NAME/VERSION, that found something."""
        return "block" if rule.partition("/")[0] in self._blocks else "flag"


def verdict_of(findings: Iterable[Finding]) -> GuardrailDecision:
    """Return the strictest verdict; pass without findings."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="pass")


def redact(text: str, findings: Iterable[Finding], mark: str = "[{}]") -> str:
    """Return a text with the name of the rule, in `mark`, in place of each span of personal data or a pattern.

    >>> scanner = Scanner(Guardrails())
    >>> redact("Ask ann@example.org.", scanner.scan("Ask ann@example.org."))
    'Ask [email].'
    """
    spans = sorted((start, end, f.name) for f in findings if f.kind in ("pii", "pattern") for start, end in f.spans)
    parts, done = list[str](), 0
    for start, end, name in spans:
        if start >= done:
            parts += [text[done:start], mark.format(name)]
            done = end
        else:
            done = max(done, end)
    return "".join([*parts, text[done:]])


def redact_json(text: str, findings: Sequence[Finding]) -> str:
    """Return the same of a text that is JSON, and stays JSON.

    >>> redact_json('{"card": 4111111111111111}', Scanner(Guardrails()).scan('{"card": 4111111111111111}'))
    '{"card": "[card]"}'
    """
    versions = (redact(text, findings, mark) for mark in ("[{}]", '"[{}]"'))
    return next(filter(_is_json, versions), "{}") if _is_json(text) else redact(text, findings)


def _is_json(text: str) -> bool:
    try:
        json_text.parse(text)
    except ValueError:
        return False
    return True


def _models(rule: Guardrails) -> Iterator[tuple[str, OutsideModel, dict[str, float]]]:
    if rule.classifier:
        yield "classifier", TextClassifier(rule.classifier), thresholds(rule.classifier_labels, "classifier_labels")
    if rule.moderation_url:
        key = rule.moderation_key.get_secret_value() or None
        model = ModerationEndpoint(rule.moderation_url, rule.moderation_model, key, rule.timeout_s)
        yield "moderation", model, thresholds(rule.moderation_scores, "moderation_scores")


def _merge(spans: Sequence[tuple[int, int]]) -> Spans:
    """Return spans in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(set(spans)):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)
