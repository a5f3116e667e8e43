"""The events. Everything Streamward knows is a sequence of them.

    Task ──► Response ──► Reward ──► AdvantagedGroup ──► Batch ──► AdapterEvent
       └─► Turn ─┘               ▲ GroupControl                    DeadLetter (from anywhere)
           TrajectoryEvent, AgentEvent: the run and the agent of turns
    ExperimentEvent: a replay of others, in a log of its own JobEvent: ordered training, and its progress; a tenant's
    spending in a closed month CurationEvent, DatasetEvent, TriggerEvent: runs that are good enough to learn from, the
    data sets made of them, and the cause of a retraining TrainingCall, TrainingResult: the calls of a third-party
    training loop, one at a time, and their results SampleEvent, QueueEvent: samples of another trainer's queue, and the
    right to write to it PromptEvent: versions of a prompt, and the version of each name MemoryEvent, ThreadEvent: the
    memory of agents, and conversations with them, run by run ToolEvent: tools that tasks and agents name, their
    endpoints, and the accepted descriptions AccessEvent, RequestEvent: principals and their roles; their requests, and
    the outcomes

These frozen dataclasses are the only definition of an event. The Avro files in `avro/` are derived from them (`python
-m schemas.generate`), `lock.json` gives each its id for ever, and a test fails when the two drift. Times are
milliseconds since the epoch, UTC. Ids are derived from a record's subject (UUID version 5, RFC 9562 section 5.5), so
the same fact sent twice has the same id.

`problems(event)` has the rules that a type cannot express, and is called both before a write and after a read. Whether
an event agrees with its siblings takes two events, so the stage that has both decides.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from schemas.event_types import (
    MAX_GROUP_SIZE,
    MAX_REWARD,
    MAX_TURNS,
    NAMESPACE,
    Continuity,
    Coordinates,
    Int,
    Int32,
    Millis,
    Purpose,
    Timestamp,
    TuningMethod,
    derive_id,
)
from schemas.experiment_events import ExperimentEvent, ExperimentKind, SourceRange
from schemas.improvement_events import (
    CurationEvent,
    CurationJudge,
    DatasetEvent,
    DatasetKind,
    GateResult,
    JudgeAgreement,
    Labeller,
    OutsideTuning,
    RunVerdict,
    TriggerAction,
    TriggerEvent,
    TriggerKind,
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
    SearchMethod,
    job_problems,
)
from schemas.message_types import Message, Tool, ToolCall
from schemas.prompt_events import (
    ALIAS,
    MOST_VARIABLES,
    PROMPT_NAME,
    PROMPT_ROLES,
    PromptArm,
    PromptEvent,
    PromptKind,
    PromptReflection,
    PromptUse,
    PromptVariable,
    prompt_digest,
    prompt_problems,
    prompt_text_problems,
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
from schemas.task_events import AgentProgram, EpisodeStart, Observed, RewardSource, Sampling, Task, task_problems
from schemas.thread_events import (
    MEMORY_LABEL,
    MOST_KEY_CHARACTERS,
    MOST_LABELS,
    BusyStrategy,
    MemoryEvent,
    MemoryKind,
    RunEnding,
    ThreadEvent,
    ThreadKind,
    memory_problems,
    namespace_problem,
    thread_problems,
)
from schemas.tool_events import ToolEvent, ToolKind, tool_problems
from schemas.turn_events import (
    AgentEvent,
    AgentKind,
    AgentType,
    AnswerRule,
    Ending,
    Protocol,
    TrajectoryEvent,
    TrajectoryKind,
    Turn,
    TurnFinish,
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
)
EVENTS: tuple[type[Event], ...] = (
    Task,
    Response,
    Reward,
    GroupControl,
    AdvantagedGroup,
    Batch,
    AdapterEvent,
    DeadLetter,
    ExperimentEvent,
    Turn,
    TrajectoryEvent,
    AgentEvent,
    JobEvent,
    AccessEvent,
    RequestEvent,
    CurationEvent,
    DatasetEvent,
    TriggerEvent,
    SampleEvent,
    QueueEvent,
    PromptEvent,
    MemoryEvent,
    ThreadEvent,
    ToolEvent,
    TrainingCall,
    TrainingResult,
)


def problems(event: Event) -> Iterator[str]:
    """Return one sentence for each rule `event` breaks: the field, expected and actual value, and the way out. None
    means good."""
    match event:
        case Response():
            return response_problems(event)
        case Reward():
            return reward_problems(event)
        case Task():
            return task_problems(event)
        case AdvantagedGroup():
            return group_problems(event)
        case AdapterEvent():
            return adapter_problems(event)
        case Turn():
            return turn_problems(event)
        case TrajectoryEvent():
            return trajectory_problems(event)
        case JobEvent():
            return job_problems(event)
        case AccessEvent():
            return access_problems(event)
        case RequestEvent():
            return request_problems(event)
        case CurationEvent():
            return curation_problems(event)
        case DatasetEvent():
            return dataset_problems(event)
        case TriggerEvent():
            return trigger_problems(event)
        case SampleEvent():
            return sample_problems(event)
        case QueueEvent():
            return queue_problems(event)
        case PromptEvent():
            return prompt_problems(event)
        case MemoryEvent():
            return memory_problems(event)
        case ThreadEvent():
            return thread_problems(event)
        case ToolEvent():
            return tool_problems(event)
        case TrainingCall():
            return call_problems(event)
        case TrainingResult():
            return result_problems(event)
        case _:
            return iter(())


__all__ = [
    "ALIAS",
    "ANONYMOUS",
    "COMPONENT_CHARACTERS",
    "EVENTS",
    "MAX_COMPONENTS",
    "MAX_GROUP_SIZE",
    "MAX_HASH_COSTS",
    "MAX_REWARD",
    "MAX_TURNS",
    "MEMORY_LABEL",
    "MOST_KEY_CHARACTERS",
    "MOST_LABELS",
    "MOST_VARIABLES",
    "NAMESPACE",
    "PROMPT_NAME",
    "PROMPT_ROLES",
    "RATIONALE_CHARACTERS",
    "AccessEvent",
    "AccessKind",
    "AccessRole",
    "AdapterEvent",
    "AdapterFile",
    "AdapterKind",
    "AdvantagedGroup",
    "AgentEvent",
    "AgentKind",
    "AgentProgram",
    "AgentType",
    "AnswerRule",
    "AnsweringAgent",
    "Batch",
    "Branch",
    "BusyStrategy",
    "CallAdam",
    "CallFault",
    "CallKind",
    "CallLora",
    "CallOrigin",
    "Continuity",
    "ControlKind",
    "Coordinates",
    "CreditSpan",
    "CurationEvent",
    "CurationJudge",
    "DatasetEvent",
    "DatasetKind",
    "DeadLetter",
    "DroppedGroup",
    "Ending",
    "EpisodeStart",
    "Event",
    "ExperimentEvent",
    "ExperimentKind",
    "FieldEncoding",
    "FinishReason",
    "GateResult",
    "GroupControl",
    "GroupResponse",
    "Int",
    "Int32",
    "JobEnvironment",
    "JobEvent",
    "JobKind",
    "JobPrices",
    "JobQuestion",
    "JobSpec",
    "JobTuning",
    "JudgeAgreement",
    "Labeller",
    "LagCount",
    "LeftOut",
    "MemoryEvent",
    "MemoryKind",
    "Message",
    "Millis",
    "Observed",
    "Outcome",
    "OutsideModel",
    "OutsideTuning",
    "PromptArm",
    "PromptEvent",
    "PromptKind",
    "PromptReflection",
    "PromptSearch",
    "PromptUse",
    "PromptVariable",
    "Protocol",
    "Purpose",
    "QueueEvent",
    "QueueKind",
    "RequestEvent",
    "Response",
    "ResponseTurn",
    "Reward",
    "RewardSource",
    "RunEnding",
    "RunVerdict",
    "SampleEvent",
    "SampleField",
    "SampleKind",
    "Sampling",
    "SearchMethod",
    "SourceRange",
    "Task",
    "ThreadEvent",
    "ThreadKind",
    "Timestamp",
    "TokensElsewhere",
    "Tool",
    "ToolCall",
    "ToolEvent",
    "ToolKind",
    "TrainingCall",
    "TrainingResult",
    "TrajectoryEvent",
    "TrajectoryKind",
    "TriggerAction",
    "TriggerEvent",
    "TriggerKind",
    "TunedGroup",
    "Tuning",
    "TuningMethod",
    "Turn",
    "TurnFinish",
    "Verdict",
    "derive_id",
    "namespace_problem",
    "password_hash_problem",
    "problems",
    "prompt_digest",
    "prompt_text_problems",
    "prompt_use_problems",
]
