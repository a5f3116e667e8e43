"""PromotionGuardAgent: apply the gates and then the judge to a run, and make the event of the verdict.

    EndedRun ──► a gate is not passed ──► reject                                        labeller gates
           └──► all are ──► no judge ──► needs_human, or promote if the settings say so       gates
                       └──► the judge's verdict ──► reject, needs_human                       judge
                                              └──► promote, if the judge is known to agree with people;
                                                   otherwise needs_human, with the reason     judge

A judge never promotes a cut transcript, or a run of a policy that it is a version of. The judge's own verdict is in the
event in any case: agreement is measured from it.

The id of an event is derived from the run, the labeller, the rubric, the transcript and the verdict that counted
before, so a curator that is killed and starts again writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plugins.improve.curation.agreement import Agreement, JudgeIdentity
from plugins.improve.curation.ended_run import EndedRun, asks_judge, ended_run
from plugins.improve.curation.gates import gates_in_words
from plugins.improve.curation.verdicts import PlacedVerdict, VerdictFold
from plugins.improve.curation.verifier import JudgeVerdict, VerifierAgent
from plugins.improve.settings import Improve
from schemas.conventions import CONVERSATION_TASKS
from schemas.events import (
    RATIONALE_CHARACTERS,
    CurationEvent,
    CurationJudge,
    JudgeAgreement,
    Labeller,
    RunVerdict,
    derive_id,
)
from streams.observability.trace_context import parse, sending
from streams.settings.model import Settings
from streams.tools.query.finished import Finished

STAGE = "curate"
"""The actor of verdicts of gates and judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedVerdict:
    """A verdict on a run, with what it rests on."""

    verdict: RunVerdict
    labeller: Labeller
    rationale: str
    judge: CurationJudge | None = None
    agreement: JudgeAgreement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJudges:
    """The agreement of judges with people when a run is judged."""

    of_judge: Callable[[JudgeIdentity], Agreement | None]
    counted: tuple[int, ...] = ()
    """By partition of curation: verdicts before this offset are in it."""


NO_JUDGES = MeasuredJudges(of_judge=lambda judge: None)


def gate_verdict(run: EndedRun, settings: Settings) -> GroundedVerdict | None:
    """Return what the gates decide alone; None: the judge is to be asked."""
    words = gates_in_words(run.gates)
    if not run.passes:
        return GroundedVerdict(verdict="reject", labeller="gates", rationale=words)
    if asks_judge(settings, run.row.scenario):
        return None
    if not settings.of_plugin(Improve).promotes_by_gates(run.row.scenario):
        no_judge = f"{words}, and no judge is configured (scoring.judge_url); a person has to decide"
        return GroundedVerdict(verdict="needs_human", labeller="gates", rationale=no_judge)
    if run.transcript.cut:
        return GroundedVerdict(verdict="needs_human", labeller="gates", rationale=f"{words}, and {_cut_in_words(run)}")
    return GroundedVerdict(verdict="promote", labeller="gates", rationale=words)


def verdict_after_judge(run: EndedRun, judged: JudgeVerdict, rule: Improve, judges: MeasuredJudges) -> GroundedVerdict:
    """Return the verdict on a run that passes the gates, which the judge has seen."""
    judge = judged.judge
    if judge.verdict != "promote":
        verdict = judge.verdict or "needs_human"
        return GroundedVerdict(verdict=verdict, labeller="judge", rationale=judged.rationale, judge=judge)
    agreement = judges.of_judge(JudgeIdentity.of(judge))
    doubt = _doubt(run, judge, agreement, rule)
    if doubt is not None or agreement is None:
        rationale = f"the judge would promote it, but {doubt}. Its reason: {judged.rationale}"
        return GroundedVerdict(verdict="needs_human", labeller="judge", rationale=rationale, judge=judge)
    evidence = agreement.evidence(rule, judges.counted)
    return GroundedVerdict(
        verdict="promote", labeller="judge", rationale=judged.rationale, judge=judge, agreement=evidence
    )


def _doubt(run: EndedRun, judge: CurationJudge, agreement: Agreement | None, rule: Improve) -> str | None:
    """Return why a judge may not promote a run alone; None if it may."""
    if judge.policy == run.row.policy:
        version = "" if judge.version is None else f" version {judge.version}"
        return f"the judge is{version} of {judge.policy}, whose run it judges"
    if run.transcript.cut:
        return _cut_in_words(run)
    return (agreement or Agreement.none(judge)).doubt(rule)


def _cut_in_words(run: EndedRun) -> str:
    return f"the transcript was cut ({run.transcript.cut[0]})"


def needs_verdict(run: EndedRun, fold: VerdictFold) -> bool:
    """Return whether a run has no verdict of a machine by its rubric, or one from before a figure of it was known."""
    placed = fold.machine_verdict(run.row.answer_id, run.rubric.digest, run.transcript.digest)
    if placed is None:
        return True
    missing = {gate.gate for gate in placed.event.gates if gate.value is None}
    return any(gate.gate in missing and gate.value is not None for gate in run.gates)


def event_of(
    run: EndedRun, verdict: GroundedVerdict, *, actor: str = STAGE, before: PlacedVerdict | None, now_ms: int
) -> CurationEvent:
    """Return the event of a verdict on a run; `before`: the verdict that counted until now."""
    row, finished, transcript = run.row, run.finished, run.transcript
    supersedes = None if before is None else before.event.event_id
    tasks = [run.task_id for run in finished.runs if run.response is not None]
    own_task = row.answer_id if finished.response is None else finished.response.task_id
    about = (row.answer_id, verdict.labeller, actor, run.rubric.digest, transcript.digest, supersedes or "")
    return CurationEvent(
        event_id=derive_id(*about),
        task_id=row.task_id,
        answer_id=row.answer_id,
        created_at=now_ms,
        metadata={CONVERSATION_TASKS: "\n".join(tasks)} if tasks else {},
        subject=finished.subject,
        policy=row.policy,
        agent_id=row.agent_id,
        scenario=row.scenario,
        tenant=row.tenant,
        source_topic=finished.position.topic,
        source_partition=finished.position.partition,
        source_offset=finished.position.offset,
        verdict=verdict.verdict,
        labeller=verdict.labeller,
        actor=actor,
        rationale=verdict.rationale[:RATIONALE_CHARACTERS],
        rubric=run.rubric.name,
        rubric_digest=run.rubric.digest,
        transcript_digest=transcript.digest,
        judge=verdict.judge,
        agreement=verdict.agreement,
        supersedes=supersedes,
        cut=transcript.cut,
        runs=finished.run_ids if finished.runs or row.task_id != own_task else (),
        gates=run.gates,
    )


class PromotionGuardAgent:
    """Gates and judge over a run. Close it.

    with closing(PromotionGuardAgent(settings)) as guard:
        guard.rule(finished).verdict
    """

    def __init__(self, settings: Settings, verifier: VerifierAgent | None = None) -> None:
        """`verifier`: default: the judge of the settings, if there is one."""
        self._settings = settings
        self._verifier = verifier or (VerifierAgent(settings) if settings.scoring.judge_url else None)

    def rule(self, finished: Finished, judges: MeasuredJudges = NO_JUDGES) -> GroundedVerdict:
        """Return the verdict on a run. Raises as `VerifierAgent.verify`."""
        run = ended_run(finished, self._settings)
        return self.verdict(run, self.ask_judge(run), judges)

    def ask_judge(self, run: EndedRun) -> JudgeVerdict | None:
        """Return what the judge says of a run; None: it is not asked. Raises as `VerifierAgent.verify`."""
        if self._verifier is None or gate_verdict(run, self._settings) is not None:
            return None
        with sending(parse(run.finished.traceparent)):
            return self._verifier.verify(run.transcript)

    def verdict(self, run: EndedRun, judge_verdict: JudgeVerdict | None, judges: MeasuredJudges) -> GroundedVerdict:
        """Return the verdict that follows from the gates and the judge's."""
        if judge_verdict is not None:
            return verdict_after_judge(run, judge_verdict, self._settings.of_plugin(Improve), judges)
        verdict = gate_verdict(run, self._settings)
        assert verdict is not None  # noqa: S101 - the judge is asked otherwise
        return verdict

    def close(self) -> None:
        """Close the judge's connections."""
        if self._verifier is not None:
            self._verifier.close()
