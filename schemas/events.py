"""The events. Everything Streamward knows is a sequence of them.

    Task ──► Response ──► Reward ──► AdvantagedGroup ──► Batch ──► AdapterEvent
       └─► Turn ─┘               ▲ GroupControl                    DeadLetter (from anywhere)
           TrajectoryEvent, AgentEvent: the run and the agent of turns
    JobEvent                 ordered training, and its progress
    ExperimentEvent          a replay of others, in a log of its own
    PromptEvent, ToolEvent   versions of prompts and tools, which tasks and agents name
    CurationEvent, DatasetEvent, TriggerEvent     runs to learn from, data sets made of them, a cause to train again
    AnnotationEvent                               labels of rows of files
    MemoryEvent, ThreadEvent                      the memory of agents, and conversations with them
    DocumentEvent                                 documents that are searched
    PrivacyEvent                                  persons whose words are erased
    TrainingCall, TrainingResult, SampleEvent, QueueEvent   calls, results and samples of other trainers
    AccessEvent, RequestEvent                     principals with their roles, and their requests
    GuardrailVerdict                              what guardrails found in texts

These frozen dataclasses are the only definition of an event. The Avro files in `avro/` are derived from them (`python
-m schemas.generate`), `lock.json` gives each its id for ever, and a test fails when the two drift. Times are
milliseconds since the epoch, UTC. Ids are derived from a record's subject (UUID version 5, RFC 9562 section 5.5), so
the same fact sent twice has the same id.

`problems(event)` has the rules that a type cannot express, and is called both before a write and after a read. Whether
an event agrees with its siblings takes two events, so the stage that has both decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

from schemas.access_events import (
    ANONYMOUS,
    MAX_HASH_COSTS,
    AccessEvent,
    AccessKind,
    AccessRole,
    RequestEvent,
    access_problems,
    password_hash_problem,
    request_problems,
)
from schemas.adapter_events import (
    AdapterEvent,
    AdapterFile,
    AdapterKind,
    AnsweringAgent,
    CallOrigin,
    Outcome,
    OutsideModel,
    TunedGroup,
    Tuning,
    Verdict,
    adapter_problems,
)
from schemas.call_events import (
    CallAdam,
    CallFault,
    CallKind,
    CallLora,
    TrainingCall,
    TrainingResult,
    call_problems,
    result_problems,
)
from schemas.dead_letter_events import DeadLetter
from schemas.document_events import (
    DOCUMENT_ID,
    INDEX_NAME,
    DocumentEvent,
    DocumentKind,
    document_problems,
    text_digest,
)
from schemas.event_types import (
    MAX_GROUP_SIZE,
    MAX_REWARD,
    MAX_TURNS,
    NAMESPACE,
    Continuity,
    Coordinates,
    Int32,
    Purpose,
    Timestamp,
    TuningMethod,
    derive_id,
)
from schemas.experiment_events import ExperimentEvent, ExperimentKind, SourceRange
from schemas.guardrail_events import (
    GuardrailDecision,
    GuardrailKind,
    GuardrailMode,
    GuardrailPlace,
    GuardrailVerdict,
    TextSpan,
    verdict_problems,
)
from schemas.improvement_events import (
    AnnotationEvent,
    CurationEvent,
    CurationJudge,
    DatasetEvent,
    DatasetKind,
    GateResult,
    JudgeAgreement,
    Labeller,
    OutsideTuning,
    RowLabeller,
    RunVerdict,
    TriggerEvent,
    TriggerKind,
    annotation_problems,
    curation_problems,
    dataset_problems,
    trigger_problems,
)
from schemas.job_events import (
    JobEnvironment,
    JobEvent,
    JobKind,
    JobPrices,
    JobQuestion,
    JobSpec,
    JobTuning,
    PromptSearch,
    job_problems,
)
from schemas.message_types import Message, Tool, ToolCall
from schemas.privacy_events import PSEUDONYM, PrivacyEvent, PrivacyKind, privacy_problems
from schemas.prompt_events import (
    ALIAS,
    PROMPT_NAME,
    PromptArm,
    PromptEvent,
    PromptKind,
    PromptReflection,
    PromptUse,
    PromptVariable,
    prompt_digest,
    prompt_problems,
    prompt_use_problems,
)
from schemas.response_events import (
    COMPONENT_CHARACTERS,
    MAX_COMPONENTS,
    RATIONALE_CHARACTERS,
    AdvantagedGroup,
    Batch,
    Branch,
    ControlKind,
    CreditSpan,
    DroppedGroup,
    FinishReason,
    GroupControl,
    GroupResponse,
    LagCount,
    LeftOut,
    Response,
    ResponseTurn,
    Reward,
    TokensElsewhere,
    group_problems,
    response_problems,
    reward_problems,
)
from schemas.sample_events import (
    FieldEncoding,
    QueueEvent,
    QueueKind,
    SampleEvent,
    SampleField,
    SampleKind,
    queue_problems,
    sample_problems,
)
from schemas.task_events import (
    AgentProgram,
    EpisodeStart,
    ForkMode,
    ForkPoint,
    Observed,
    RewardSource,
    Sampling,
    Task,
    task_problems,
)
from schemas.thread_events import (
    ANSWERED_TASK,
    HANDOFF,
    MEMORY_LABEL,
    PROGRAM_RUN,
    RUN_TASK,
    CallDecision,
    CallWait,
    MemoryEvent,
    ParentCall,
    PausedCall,
    RunCall,
    RunEnding,
    ThreadEvent,
    ThreadKind,
    memory_problems,
    thread_problems,
)
from schemas.tool_events import ToolEvent, ToolKind, tool_problems
from schemas.turn_events import (
    AgentEvent,
    AgentType,
    AnswerRule,
    Ending,
    RowEnding,
    TrajectoryEvent,
    TrajectoryKind,
    Turn,
    trajectory_problems,
    turn_problems,
)

Event = (
    Task
    | Response
    | Reward
    | GroupControl
    | AdvantagedGroup
    | Batch
    | AdapterEvent
    | DeadLetter
    | ExperimentEvent
    | Turn
    | TrajectoryEvent
    | AgentEvent
    | JobEvent
    | AccessEvent
    | RequestEvent
    | CurationEvent
    | AnnotationEvent
    | DatasetEvent
    | TriggerEvent
    | SampleEvent
    | QueueEvent
    | PromptEvent
    | MemoryEvent
    | ThreadEvent
    | ToolEvent
    | TrainingCall
    | TrainingResult
    | DocumentEvent
    | GuardrailVerdict
    | PrivacyEvent
)
EVENTS: tuple[type[Event], ...] = get_args(Event)
_PROBLEMS: dict[type[Event], Callable[[Any], Iterator[str]]] = {
    Response: response_problems,
    Reward: reward_problems,
    Task: task_problems,
    AdvantagedGroup: group_problems,
    AdapterEvent: adapter_problems,
    Turn: turn_problems,
    TrajectoryEvent: trajectory_problems,
    JobEvent: job_problems,
    AccessEvent: access_problems,
    RequestEvent: request_problems,
    CurationEvent: curation_problems,
    AnnotationEvent: annotation_problems,
    DatasetEvent: dataset_problems,
    TriggerEvent: trigger_problems,
    SampleEvent: sample_problems,
    QueueEvent: queue_problems,
    PromptEvent: prompt_problems,
    MemoryEvent: memory_problems,
    ThreadEvent: thread_problems,
    ToolEvent: tool_problems,
    TrainingCall: call_problems,
    TrainingResult: result_problems,
    DocumentEvent: document_problems,
    GuardrailVerdict: verdict_problems,
    PrivacyEvent: privacy_problems,
}


def problems(event: Event) -> Iterator[str]:
    """Return one sentence for each rule `event` breaks: the field, expected and actual value, and the way out. None
    means good."""
    rules = _PROBLEMS.get(type(event))
    return iter(()) if rules is None else rules(event)
