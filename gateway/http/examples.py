"""One request and one answer of each operation that has a body, for the description of the interface.

The names are those of operations (openapi.py). A test reads every request as the server does, and checks every answer
against its description.
"""

from __future__ import annotations

from typing import Any

_JOB = "5b0a3c1e-5d0c-5f0e-9a43-0d6f3c1d2f10"
_TURN = "9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61"
_FILE = "file-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
_ASKED = {"model": "sums", "messages": [{"role": "user", "content": "1 + 1 ="}]}
_GRADER = {
    "type": "string_check",
    "name": "right",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
_METHOD = {"type": "reinforcement", "reinforcement": {"grader": _GRADER}}
_QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(10)]
_TOKENS = {"access_token": "eyJ…", "token_type": "Bearer", "expires_in": 900, "refresh_token": "swr_…"}
_USAGE = {
    "prompt_tokens": 14,
    "completion_tokens": 2,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 0},
}
_STORED = {
    "id": _FILE,
    "object": "file",
    "bytes": 1290,
    "created_at": 1767225600,
    "filename": "sums.jsonl",
    "purpose": "fine-tune",
    "status": "processed",
    "expires_at": None,
    "status_details": None,
}
_FINE_TUNING = {
    "id": _JOB,
    "object": "fine_tuning.job",
    "created_at": 1767225600,
    "error": None,
    "estimated_finish": None,
    "fine_tuned_model": "sums@12",
    "finished_at": 1767229200,
    "hyperparameters": {},
    "integrations": [],
    "metadata": {"run": "7"},
    "method": _METHOD,
    "model": "sums",
    "organization_id": "streamward",
    "result_files": [],
    "seed": 0,
    "status": "succeeded",
    "trained_tokens": 48210,
    "training_file": _FILE,
    "validation_file": None,
}
_TRAINING = {
    "id": _JOB,
    "type": "RL_TRAINING",
    "status": "queued",
    "config": {"agent_id": "sums", "n_iterations": 3, "method": "grpo", "questions": 10, "held_out": 1},
    "metrics": {"iteration": 0, "cost_usd": None, "success_rate": None, "avg_reward": None, "success_gain": None},
    "created_at": "2026-01-01T00:00:00.000Z",
    "updated_at": "2026-01-01T00:00:00.000Z",
    "reason": "ordered",
    "code": None,
    "suggested_action": None,
}
_RUN = {"trajectory_id": "walk-1", "adapter_version": 7, "metadata": {}, "ending": None, "turns": None}

_DECISIONS = {"promote": "promoted", "reject": "rejected", "rollback": "rolled_back"}
_DECIDED = {
    "object": "adapter_decision",
    "policy": "sums",
    "version": 8,
    "actor": "key 00112233445566ff",
    "reason": "as the evaluation says",
    "before": 7,
    "serving": {"primary": 8, "candidate": None, "share": 0.0, "newest": 8, "primaries": [0, 7, 8]},
    "recorded_at": "streamward.adapters[0]@12",
}


def _page(*items: dict[str, Any]) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return {"object": "list", "data": list(items), "has_more": False, **ends}


ASKED: dict[str, Any] = {
    "create_chat_completion": {**_ASKED, "max_tokens": 64},
    "create_completion": {"model": "sums", "prompt": "1 + 1 ="},
    "create_response": {"model": "sums", "input": "1 + 1 ="},
    "create_message": {**_ASKED, "max_tokens": 64},
    "count_tokens": _ASKED,
    "give_feedback": {"id": _TURN, "value": 1, "reason": "It is right."},
    "begin_run": {
        "task_id": "3d9b51f0-7a52-5e0e-8f2b-6a2b8f0a9c11",
        "sampling_id": "0f6d8a51-0a3d-5f7e-9b4e-2f1c7d9a3b22",
        "slot": 0,
        "group_size": 8,
        "policy": "sums",
        "purpose": "train",
        "sampling": {"temperature": 1, "top_p": 1, "max_tokens": 64},
    },
    "end_run": {"ending": "completed", "reason": "it answered"},
    "call_jsonrpc": {"jsonrpc": "2.0", "method": "training.get_status", "params": {"job_id": _JOB}, "id": 1},
    "create_fine_tuning_job": {"model": "sums", "training_file": _FILE, "method": _METHOD},
    "create_training_job": {
        "type": "RL_TRAINING",
        "agent_id": "sums",
        "training_queries": _QUERIES,
        "config": {"n_iterations": 3},
    },
    "create_tuning_job": {"agent_id": "coach", "method": "sft", "training_file": _FILE, "config": {"epochs": 2}},
    "register_agent": {"agent_id": "calc", "model_id": "sums", "capabilities": ["arithmetic"]},
    "try_environment": {"environment": "calculator", "seed": 1},
    "submit_task": {"task_id": "sum-1", "input": "4 + 7 =", "answer": 11, "metadata": {"topic": "sums"}},
    "give_reward": {"task_id": "sum-1", "slot": 0, "score": 1, "scoring_agent_id": "people:ann"},
    "try_scorer": {"scorer": "exact", "texts": ["11", "12"], "answer": 11},
    "query_log": {"sql": "SELECT task_id, policy FROM tasks", "limit": 2},
    "promote_adapter": {"version": 8, "expected": 7, "reason": "it answers more questions"},
    "reject_adapter": {"version": 8, "reason": "it answers fewer questions"},
    "rollback_adapter": {"expected": 8, "reason": "it answers fewer questions"},
    "log_in": {"username": "ann", "password": "correct horse battery staple"},
    "refresh_tokens": {"refresh_token": "swr_…"},
    "log_out": {"refresh_token": "swr_…"},
}
ANSWERED: dict[str, Any] = {
    "create_chat_completion": {
        "id": f"chatcmpl-{_TURN}",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "sums@7",
        "system_fingerprint": "fp_1f0c",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "2", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    },
    "create_completion": {
        "id": f"cmpl-{_TURN}",
        "object": "text_completion",
        "created": 1767225600,
        "model": "sums@7",
        "system_fingerprint": "fp_1f0c",
        "choices": [{"index": 0, "text": " 2", "logprobs": None, "finish_reason": "stop"}],
        "usage": _USAGE,
    },
    "create_message": {
        "id": f"msg_{_TURN}",
        "type": "message",
        "role": "assistant",
        "model": "sums@7",
        "content": [{"type": "text", "text": "2"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 14,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    },
    "count_tokens": {"input_tokens": 14},
    "give_feedback": {
        "object": "feedback",
        "id": _TURN,
        "value": 1.0,
        "reason": "It is right.",
        "source": "feedback/default",
        "recorded_at": "streamward.rewards[3]@1041",
    },
    "list_models": {
        "object": "list",
        "data": [{"id": "sums", "object": "model", "created": 1767225600, "owned_by": "streamward"}],
    },
    "get_model": {"id": "sums", "object": "model", "created": 1767225600, "owned_by": "streamward"},
    "begin_run": _RUN,
    "end_run": {**_RUN, "ending": "completed", "turns": 3},
    "call_jsonrpc": {"jsonrpc": "2.0", "id": 1, "result": {"job_id": _JOB, "status": "running", "iteration": 2}},
    "upload_file": _STORED,
    "list_files": _page(_STORED),
    "get_file": _STORED,
    "delete_file": {"id": _FILE, "object": "file", "deleted": True},
    "create_fine_tuning_job": {
        **_FINE_TUNING,
        "fine_tuned_model": None,
        "finished_at": None,
        "status": "queued",
        "trained_tokens": None,
    },
    "list_fine_tuning_jobs": _page(_FINE_TUNING),
    "get_fine_tuning_job": _FINE_TUNING,
    "list_fine_tuning_events": _page(
        {
            "id": "c1d3e2f4-0a3d-5f7e-9b4e-2f1c7d9a3b22",
            "object": "fine_tuning.job.event",
            "created_at": 1767225600,
            "level": "info",
            "message": "iteration: version 9",
            "type": "metrics",
            "data": {"kind": "iteration", "step": 2, "actor": "controller", "reward": 0.62},
        }
    ),
    "list_fine_tuning_checkpoints": _page(
        {
            "id": "d1d3e2f4-0a3d-5f7e-9b4e-2f1c7d9a3b22",
            "object": "fine_tuning.job.checkpoint",
            "created_at": 1767225600,
            "fine_tuned_model_checkpoint": "sums@9",
            "fine_tuning_job_id": _JOB,
            "metrics": {"step": 2, "success": 0.75},
            "step_number": 2,
        }
    ),
    **{
        f"{command}_fine_tuning_job": _FINE_TUNING | {"status": status, "fine_tuned_model": None}
        for command, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled"))
    },
    "create_training_job": _TRAINING,
    "create_tuning_job": {
        **_TRAINING,
        "type": "FINE_TUNING",
        "config": {"agent_id": "coach", "n_iterations": 1, "method": "sft"},
    },
    "get_training_job": _TRAINING,
    "get_training_metrics": {
        "id": _JOB,
        "type": "RL_TRAINING",
        "status": "running",
        "metrics": {"success_rate": 0.75, "avg_reward": 0.62, "success_gain": 0.25},
        "usage": {"prompt_tokens": 4821.0, "completion_tokens": 913.0, "trainer_s": 12.5},
        "iterations": [{"iteration": 1, "version": 8, "at": "2026-01-01T00:10:00.000Z", "reward": 0.62}],
        "evaluations": [],
    },
    "register_agent": {
        "agent_id": "calc",
        "name": "calc",
        "type": "PROMPT_BASED",
        "model_id": "sums",
        "memory_config": {},
        "capabilities": ["arithmetic"],
        "tools": [],
        "created_at": "2026-01-01T00:00:00.000Z",
    },
    "submit_task": {
        "object": "task",
        "task_id": "sum-1",
        "policy": "sums",
        "purpose": "train",
        "tenant": None,
        "group_size": 8,
        "reward_sources": ["exact"],
        "created_at": 1767225600000,
        "recorded_at": "streamward.tasks[1]@17",
    },
    "give_reward": {
        "object": "reward",
        "reward_id": "7f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
        "task_id": "sum-1",
        "response_id": _TURN,
        "slot": 0,
        "source": "feedback/people:ann",
        "score": 1.0,
        "enters_group": False,
        "recorded_at": "streamward.rewards[3]@1042",
    },
    "try_scorer": {
        "object": "list",
        "scorer": "exact",
        "data": [
            {"value": 1.0, "version": "exact/1", **dict.fromkeys(("rationale", "error", "reason")), "components": {}}
        ],
    },
    "query_log": {
        "object": "query",
        "columns": ["task_id", "policy"],
        "rows": [["sum-1", "sums"]],
        "more": False,
        "left_out": [],
    },
    **{f"{name}_adapter": _DECIDED | {"kind": kind} for name, kind in _DECISIONS.items()},
    "get_permissions": {
        "who": "user ann",
        "roles": ["viewer"],
        "tenant": None,
        "agent_id": None,
        "actions": ["models.read", "jobs.read", "files.read", "agents.read"],
    },
    "log_in": _TOKENS,
    "refresh_tokens": _TOKENS,
    "finish_oidc_login": _TOKENS,
    "get_health": {"status": "ok"},
}
