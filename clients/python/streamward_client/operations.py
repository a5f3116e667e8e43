"""Every operation of the server as a method. Made by `make clients`; do not edit."""

from __future__ import annotations

from typing import Literal

from . import models
from .sending import AsyncSender, Sender, part


class Operations(Sender):
    """What can be asked of a server. Each method raises ApiError for an answer that is an error."""

    def create_chat_completion(self, body: models.ChatBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ChatCompletion:
        """Answer a conversation."""
        answer: models.ChatCompletion = self.send("POST", "/v1/chat/completions", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    def create_completion(self, body: models.CompletionsBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.TextCompletion:
        """Continue a text."""
        answer: models.TextCompletion = self.send("POST", "/v1/completions", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    def create_response(self, body: models.ResponsesBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ModelResponse:
        """Answer a conversation, or continue one that the log has."""
        answer: models.ModelResponse = self.send("POST", "/v1/responses", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    def create_message(self, body: models.MessagesBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ModelMessage:
        """Answer a conversation, as Anthropic has it."""
        answer: models.ModelMessage = self.send("POST", "/v1/messages", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    def count_tokens(self, body: models.CountTokensBody, *, x_agent_id: str | None = None) -> models.TokenCount:
        """Count the tokens of a prompt."""
        answer: models.TokenCount = self.send("POST", "/v1/messages/count_tokens", json=body, headers={"X-Agent-ID": x_agent_id})
        return answer

    def list_models(self) -> models.ModelList | models.MessagesModelList:
        """List what can be asked for."""
        answer: models.ModelList | models.MessagesModelList = self.send("GET", "/v1/models")
        return answer

    def get_model(self, name: str) -> models.ModelCard | models.MessagesModelCard:
        """Look at one model."""
        answer: models.ModelCard | models.MessagesModelCard = self.send("GET", f"/v1/models/{part(name)}")
        return answer

    def give_feedback(self, body: models.FeedbackBody, *, x_agent_id: str | None = None) -> models.RecordedFeedback:
        """Say what you think of an answer."""
        answer: models.RecordedFeedback = self.send("POST", "/v1/feedback", json=body, headers={"X-Agent-ID": x_agent_id})
        return answer

    def get_health(self) -> models.HealthAnswer:
        """Say that the server answers."""
        answer: models.HealthAnswer = self.send("GET", "/healthz")
        return answer

    def submit_task(self, body: models.TaskBody) -> models.TaskAnswer:
        """Write a task. The same task again is the same; another one of its id is refused."""
        answer: models.TaskAnswer = self.send("POST", "/tasks", json=body)
        return answer

    def give_reward(self, body: models.RewardBody) -> models.RewardAnswer:
        """Write a score of exactly one answer."""
        answer: models.RewardAnswer = self.send("POST", "/rewards", json=body)
        return answer

    def try_scorer(self, body: models.ScoreBody) -> models.TriedScores:
        """Say what a scorer gives texts, and write nothing."""
        answer: models.TriedScores = self.send("POST", "/score", json=body)
        return answer

    def get_group(self, task_id: str) -> models.GroupAnswer:
        """Look at the answers to a task next to each other."""
        answer: models.GroupAnswer = self.send("GET", f"/groups/{part(task_id)}")
        return answer

    def list_runs(self, *, agent: str | None = None, policy: str | None = None, scenario: str | None = None, version: int | None = None, verdict: Literal["promote", "reject", "needs_human", "none"] | None = None, purpose: Literal["train", "serve", "eval"] | None = None, failed_tools: bool | None = None, text: str | None = None, offset: int | None = None, limit: int | None = None) -> models.RunFiguresList:
        """List runs: conversations, agents' runs and answers to tasks."""
        answer: models.RunFiguresList = self.send("GET", "/runs", params={"agent": agent, "policy": policy, "scenario": scenario, "version": version, "verdict": verdict, "purpose": purpose, "failed_tools": failed_tools, "text": text, "offset": offset, "limit": limit})
        return answer

    def get_run(self, run_id: str) -> models.RecordedRun:
        """Look at a run, or the conversation that it is of, turn by turn."""
        answer: models.RecordedRun = self.send("GET", f"/runs/{part(run_id)}")
        return answer

    def query_log(self, body: models.QueryBody) -> models.QueryAnswer:
        """Read the log by SQL."""
        answer: models.QueryAnswer = self.send("POST", "/query", json=body)
        return answer

    def list_adapters(self, *, policy: str | None = None) -> models.AdapterList:
        """List policies, their versions, and who serves."""
        answer: models.AdapterList = self.send("GET", "/adapters", params={"policy": policy})
        return answer

    def promote_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Make a version primary."""
        answer: models.AdapterDecisionAnswer = self.send("POST", f"/adapters/{part(policy)}/promote", json=body)
        return answer

    def reject_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Take a version out of service, or keep it out."""
        answer: models.AdapterDecisionAnswer = self.send("POST", f"/adapters/{part(policy)}/reject", json=body)
        return answer

    def retire_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Retire a version for good."""
        answer: models.AdapterDecisionAnswer = self.send("POST", f"/adapters/{part(policy)}/retire", json=body)
        return answer

    def rollback_adapter(self, policy: str, body: models.RollbackBody) -> models.AdapterDecisionAnswer:
        """Return to an older version."""
        answer: models.AdapterDecisionAnswer = self.send("POST", f"/adapters/{part(policy)}/rollback", json=body)
        return answer

    def upload_file(self, file: tuple[str, bytes], purpose: Literal["fine-tune"]) -> models.StoredFile:
        """Upload a file of questions or examples, in JSON lines."""
        answer: models.StoredFile = self.send("POST", "/v1/files", files={"file": file}, data={"purpose": purpose})
        return answer

    def list_files(self, *, after: str | None = None, limit: int | None = None, order: Literal["asc", "desc"] | None = None, purpose: str | None = None) -> models.FileList:
        """List files, page by page."""
        answer: models.FileList = self.send("GET", "/v1/files", params={"after": after, "limit": limit, "order": order, "purpose": purpose})
        return answer

    def get_file(self, file_id: str) -> models.StoredFile:
        """Look at a file."""
        answer: models.StoredFile = self.send("GET", f"/v1/files/{part(file_id)}")
        return answer

    def delete_file(self, file_id: str) -> models.DeletedFile:
        """Delete a file. Jobs that were ordered with it have its questions."""
        answer: models.DeletedFile = self.send("DELETE", f"/v1/files/{part(file_id)}")
        return answer

    def get_file_content(self, file_id: str) -> bytes:
        """Return a file as it was uploaded."""
        answer: bytes = self.send("GET", f"/v1/files/{part(file_id)}/content")
        return answer

    def get_status(self) -> models.LoopMotion:
        """Say whether anything is stuck."""
        answer: models.LoopMotion = self.send("GET", "/status")
        return answer

    def get_permissions(self) -> models.PermissionsAnswer:
        """Return who asks, and what they may do."""
        answer: models.PermissionsAnswer = self.send("GET", "/auth/permissions")
        return answer

    def begin_run(self, agent_id: str, trajectory_id: str, body: models.BeginBody) -> models.RunAnswer:
        """Begin the run of an agent on a task."""
        answer: models.RunAnswer = self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/begin", json=body)
        return answer

    def end_run(self, agent_id: str, trajectory_id: str, body: models.EndBody) -> models.RunAnswer:
        """End it, and record its response."""
        answer: models.RunAnswer = self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/end", json=body)
        return answer

    def register_agent(self, body: models.AgentConfig, *, idempotency_key: str | None = None) -> models.RegisteredAgent:
        """Write what an agent is."""
        answer: models.RegisteredAgent = self.send("POST", "/rl/agents", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def give_consent(self, body: models.ConsentBody) -> models.GivenConsent:
        """Consent to one call of a tool."""
        answer: models.GivenConsent = self.send("POST", "/guardrails/consents", json=body)
        return answer

    def moderate_content(self, body: models.ModerateBody) -> models.ModeratedText:
        """Look at a text by the rules of this server."""
        answer: models.ModeratedText = self.send("POST", "/guardrails/content/moderate", json=body)
        return answer

    def validate_answer(self, body: models.ValidateBody) -> models.ValidatedAnswer:
        """Check an answer: schema, pattern, length, language, tool, sources."""
        answer: models.ValidatedAnswer = self.send("POST", "/guardrails/validate", json=body)
        return answer

    def create_moderation(self, body: models.ModerationsBody) -> models.Moderations:
        """Tell the categories of texts, as OpenAI has them."""
        answer: models.Moderations = self.send("POST", "/v1/moderations", json=body)
        return answer

    def create_training_job(self, body: models.TrainingOrderBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that trains a policy by rewards, or tunes it on chosen answers or preferences."""
        answer: models.TrainingJob = self.send("POST", "/finetune/jobs", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def get_training_job(self, job_id: str) -> models.TrainingJob:
        """Look at a job."""
        answer: models.TrainingJob = self.send("GET", f"/finetune/jobs/{part(job_id)}/status")
        return answer

    def get_training_metrics(self, job_id: str) -> models.TrainingMetrics:
        """Return the figures of a job, iteration by iteration."""
        answer: models.TrainingMetrics = self.send("GET", f"/rl/training/{part(job_id)}/metrics")
        return answer

    def list_costs(self, *, by: str | None = None) -> models.CostList:
        """Sum the usage and cost of jobs and training calls; a key of a tenant sees its own."""
        answer: models.CostList = self.send("GET", "/costs", params={"by": by})
        return answer

    def call_jsonrpc(self, body: models.RpcCall | list[models.RpcCall]) -> models.RpcResult | models.RpcRefusal | list[models.RpcResult | models.RpcRefusal] | None:
        """Call methods of jobs in JSON-RPC 2.0, one or a batch of them."""
        answer: models.RpcResult | models.RpcRefusal | list[models.RpcResult | models.RpcRefusal] | None = self.send("POST", "/api/v1/jsonrpc", json=body)
        return answer

    def log_in(self, body: models.LoginBody) -> models.TokensAnswer:
        """Log in with a password."""
        answer: models.TokensAnswer = self.send("POST", "/auth/login", json=body)
        return answer

    def refresh_tokens(self, body: models.RefreshBody) -> models.TokensAnswer:
        """Exchange a refresh token for the next tokens. One that is used twice ends the login."""
        answer: models.TokensAnswer = self.send("POST", "/auth/tokens/refresh", json=body)
        return answer

    def log_out(self, body: models.RefreshBody) -> None:
        """End a login, if it has not ended."""
        self.send("POST", "/auth/logout", json=body)

    def list_public_keys(self) -> models.JwksAnswer:
        """Return the keys that verify access tokens (RFC 7517)."""
        answer: models.JwksAnswer = self.send("GET", "/.well-known/jwks.json")
        return answer

    def act_run(self, agent_id: str, trajectory_id: str, body: models.ActBody) -> models.ActAnswer:
        """Let the server answer the run of a registered agent on a task, with the agent's tools."""
        answer: models.ActAnswer = self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/act", json=body)
        return answer

    def create_template(self, body: models.TemplateBody) -> models.TemplateAnswer:
        """Create a version of a prompt. A text that a version has already is that version."""
        answer: models.TemplateAnswer = self.send("POST", "/prompts/templates", json=body)
        return answer

    def list_templates(self, *, name: str | None = None) -> models.TemplateList:
        """List versions of prompts."""
        answer: models.TemplateList = self.send("GET", "/prompts/templates", params={"name": name})
        return answer

    def activate_template(self, name: str, body: models.ActivateBody) -> models.AliasAnswer:
        """Let an alias of a prompt mean a version."""
        answer: models.AliasAnswer = self.send("POST", f"/prompts/templates/{part(name)}/activate", json=body)
        return answer

    def withdraw_template(self, name: str, body: models.WithdrawBody) -> models.TemplateAnswer:
        """Withdraw a version of a prompt: no alias, task, call or job can name it from now on."""
        answer: models.TemplateAnswer = self.send("POST", f"/prompts/templates/{part(name)}/withdraw", json=body)
        return answer

    def evaluate_prompt(self, *, name: str | None = None, version: int | None = None, against: int | None = None, policy: str | None = None, scenario: str | None = None) -> models.PromptEvaluation:
        """Return what the tasks with each version of a prompt earned, and one version against another."""
        answer: models.PromptEvaluation = self.send("GET", "/prompts/evaluate", params={"name": name, "version": version, "against": against, "policy": policy, "scenario": scenario})
        return answer

    def optimize_prompt(self, body: models.OptimizeBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that searches for a better version of a prompt."""
        answer: models.TrainingJob = self.send("POST", "/prompts/optimize", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def create_fine_tuning_job(self, body: models.CreateFineTuningBody, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Order a job, as OpenAI's clients do."""
        answer: models.FineTuningJob = self.send("POST", "/v1/fine_tuning/jobs", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def list_fine_tuning_jobs(self, *, after: str | None = None, limit: int | None = None) -> models.FineTuningJobList:
        """List jobs, the newest first. `metadata[NAME]=VALUE` lists those that were ordered with it."""
        answer: models.FineTuningJobList = self.send("GET", "/v1/fine_tuning/jobs", params={"after": after, "limit": limit})
        return answer

    def get_fine_tuning_job(self, job_id: str) -> models.FineTuningJob:
        """Look at a job."""
        answer: models.FineTuningJob = self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}")
        return answer

    def list_fine_tuning_events(self, job_id: str, *, after: str | None = None, limit: int | None = None) -> models.FineTuningEventList:
        """List what happened to a job, the newest first."""
        answer: models.FineTuningEventList = self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}/events", params={"after": after, "limit": limit})
        return answer

    def list_fine_tuning_checkpoints(self, job_id: str, *, after: str | None = None, limit: int | None = None) -> models.FineTuningCheckpointList:
        """List the versions that a job made and that can be asked for, the newest first."""
        answer: models.FineTuningCheckpointList = self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}/checkpoints", params={"after": after, "limit": limit})
        return answer

    def pause_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Pause a job."""
        answer: models.FineTuningJob = self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/pause", headers={"Idempotency-Key": idempotency_key})
        return answer

    def resume_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Resume a job."""
        answer: models.FineTuningJob = self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/resume", headers={"Idempotency-Key": idempotency_key})
        return answer

    def cancel_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Cancel a job."""
        answer: models.FineTuningJob = self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/cancel", headers={"Idempotency-Key": idempotency_key})
        return answer

    def create_tuning_job(self, body: models.PeftBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that tunes one version, by chosen answers or preferences."""
        answer: models.TrainingJob = self.send("POST", "/finetune/peft", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def list_tools(self) -> models.ToolRows:
        """List tools by their ids."""
        answer: models.ToolRows = self.send("GET", "/mcp/tools")
        return answer

    def add_tool(self, body: models.EntryBody) -> models.ToolRows:
        """Add an entry, and trust the description that its endpoint has now. The same again changes nothing."""
        answer: models.ToolRows = self.send("POST", "/mcp/tools", json=body)
        return answer

    def accept_tool(self, tool_id: str, body: models.AcceptBody) -> models.ToolRows:
        """Trust the newest description of an entry."""
        answer: models.ToolRows = self.send("POST", f"/mcp/tools/{part(tool_id)}/accept", json=body)
        return answer

    def remove_tool(self, tool_id: str) -> models.RemovedEntry:
        """Remove an entry."""
        answer: models.RemovedEntry = self.send("DELETE", f"/mcp/tools/{part(tool_id)}")
        return answer

    def invoke_tool(self, tool_id: str, body: models.InvokeBody) -> models.ToolResult:
        """Call a tool. One that is described otherwise than accepted is refused."""
        answer: models.ToolResult = self.send("POST", f"/mcp/tools/{part(tool_id)}/invoke", json=body)
        return answer

    def stream_tools(self, body: models.StreamBody) -> None:
        """Call several tools at once. Each answer, or error, is an event with the id of its call."""
        self.send("POST", "/mcp/stream", json=body)

    def list_environments(self) -> models.KeptEnvironments:
        """List the environments of the registry."""
        answer: models.KeptEnvironments = self.send("GET", "/rl/environments")
        return answer

    def try_environment(self, body: models.EnvironmentBody) -> models.TriedEnvironment:
        """Play an episode of an environment three times, say what it shows, and keep it if it gets a name."""
        answer: models.TriedEnvironment = self.send("POST", "/rl/environments", json=body)
        return answer

    def start_selfplay(self, body: models.SelfPlayBody, *, idempotency_key: str | None = None) -> models.SelfPlayRunAnswer:
        """Ask a policy the questions of a catalogue."""
        answer: models.SelfPlayRunAnswer = self.send("POST", "/run", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    def list_review_queue(self, *, policy: str | None = None, limit: int | None = None) -> models.ReviewQueue:
        """List the runs that wait for a person."""
        answer: models.ReviewQueue = self.send("GET", "/curation/queue", params={"policy": policy, "limit": limit})
        return answer

    def judge_run(self, run_id: str, body: models.VerdictBody) -> models.RecordedVerdict:
        """Say whether a run is good enough to learn from."""
        answer: models.RecordedVerdict = self.send("POST", f"/runs/{part(run_id)}/verdict", json=body)
        return answer

    def annotate_rows(self, body: models.AnnotateBody) -> models.AnnotatedRowsAnswer:
        """Label rows, and keep them as a file with the labels that count."""
        answer: models.AnnotatedRowsAnswer = self.send("POST", "/data/annotate", json=body)
        return answer

    def list_row_queue(self, *, limit: int | None = None) -> models.RowQueue:
        """List the rows that wait for a person."""
        answer: models.RowQueue = self.send("GET", "/data/annotations/queue", params={"limit": limit})
        return answer

    def label_row(self, row_id: str, body: models.VerdictBody) -> models.RecordedLabel:
        """Say whether a row is good enough to learn from."""
        answer: models.RecordedLabel = self.send("POST", f"/data/annotations/{part(row_id)}", json=body)
        return answer

    def list_datasets(self, *, dataset: str | None = None) -> models.DatasetListAnswer:
        """List the builds of data sets, and where they were sent."""
        answer: models.DatasetListAnswer = self.send("GET", "/datasets", params={"dataset": dataset})
        return answer

    def check_rows(self, body: models.CheckBody) -> models.CheckedRowsAnswer:
        """Say what is wrong with rows, and what is worth knowing."""
        answer: models.CheckedRowsAnswer = self.send("POST", "/data/check", json=body)
        return answer

    def ingest_rows(self, body: models.StepsBody) -> models.CleanedRowsAnswer:
        """Keep rows as a file, after the steps that are named."""
        answer: models.CleanedRowsAnswer = self.send("POST", "/data/ingest", json=body)
        return answer

    def clean_rows(self, body: models.StepsBody) -> models.CleanedRowsAnswer:
        """Keep the rows that are good enough as a file."""
        answer: models.CleanedRowsAnswer = self.send("POST", "/data/clean", json=body)
        return answer

    def generate_rows(self, body: models.GeneratedRowsBody) -> models.CleanedRowsAnswer:
        """Make rows with a generator, which knows the answers; its held-out questions are never drawn."""
        answer: models.CleanedRowsAnswer = self.send("POST", "/data/synthetic/generate", json=body)
        return answer

    def detect_bias(self, body: models.BiasBody) -> models.BiasFigures:
        """Compare scores of texts and of their swaps."""
        answer: models.BiasFigures = self.send("POST", "/guardrails/bias/detect", json=body)
        return answer

    def index_documents(self, body: models.IndexBody) -> models.IndexedDocuments:
        """Add documents, or replace those of their names. The same again changes nothing."""
        answer: models.IndexedDocuments = self.send("POST", "/rag/index", json=body)
        return answer

    def list_documents(self, *, index: str | None = None, after: str | None = None, limit: int | None = None) -> models.DocumentRows:
        """List documents by their names."""
        answer: models.DocumentRows = self.send("GET", "/rag/documents", params={"index": index, "after": after, "limit": limit})
        return answer

    def show_document(self, *, document_id: str | None = None) -> models.WholeDocument:
        """Show a document with its text."""
        answer: models.WholeDocument = self.send("GET", "/rag/document", params={"document_id": document_id})
        return answer

    def remove_document(self, body: models.RemoveBody) -> models.RemovedDocument:
        """Remove a document; no search finds it from then on."""
        answer: models.RemovedDocument = self.send("POST", "/rag/documents/remove", json=body)
        return answer

    def search_documents(self, body: models.SearchBody) -> models.SearchAnswer:
        """Find the chunks of documents that say most about a query."""
        answer: models.SearchAnswer = self.send("POST", "/rag/query", json=body)
        return answer

    def rerank_texts(self, body: models.RerankBody) -> models.RerankAnswer:
        """Order texts by how well they answer a query."""
        answer: models.RerankAnswer = self.send("POST", "/rag/rerank", json=body)
        return answer

    def create_embeddings(self, body: models.EmbeddingsBody) -> models.EmbeddingsAnswer:
        """Make vectors of texts."""
        answer: models.EmbeddingsAnswer = self.send("POST", "/v1/embeddings", json=body)
        return answer

    def erase_person(self, body: models.PersonBody) -> models.PersonAnswer:
        """Make a person's words unreadable, and delete the key."""
        answer: models.PersonAnswer = self.send("POST", "/privacy/erase", json=body)
        return answer

    def revoke_erasure(self, body: models.PersonBody) -> models.PersonAnswer:
        """Take an erasure back while its key exists."""
        answer: models.PersonAnswer = self.send("POST", "/privacy/revoke", json=body)
        return answer

    def restrict_person(self, body: models.RestrictBody) -> models.PersonAnswer:
        """Keep a person's words from training, or for a time of their own."""
        answer: models.PersonAnswer = self.send("POST", "/privacy/restrict", json=body)
        return answer

    def finish_erasures(self) -> models.PersonAnswers:
        """Delete the keys that are due, or that a backup brought back, and erase persons whose retention is over."""
        answer: models.PersonAnswers = self.send("POST", "/privacy/finish")
        return answer

    def list_persons(self) -> models.PersonAnswers:
        """List the persons that were erased or restricted, by their pseudonyms."""
        answer: models.PersonAnswers = self.send("GET", "/privacy/persons")
        return answer


class AsyncOperations(AsyncSender):
    """What can be asked of a server, without waiting. Each method raises ApiError for an answer that is an error."""

    async def create_chat_completion(self, body: models.ChatBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ChatCompletion:
        """Answer a conversation."""
        answer: models.ChatCompletion = await self.send("POST", "/v1/chat/completions", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    async def create_completion(self, body: models.CompletionsBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.TextCompletion:
        """Continue a text."""
        answer: models.TextCompletion = await self.send("POST", "/v1/completions", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    async def create_response(self, body: models.ResponsesBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ModelResponse:
        """Answer a conversation, or continue one that the log has."""
        answer: models.ModelResponse = await self.send("POST", "/v1/responses", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    async def create_message(self, body: models.MessagesBody, *, x_agent_id: str | None = None, idempotency_key: str | None = None) -> models.ModelMessage:
        """Answer a conversation, as Anthropic has it."""
        answer: models.ModelMessage = await self.send("POST", "/v1/messages", json=body, headers={"X-Agent-ID": x_agent_id, "Idempotency-Key": idempotency_key})
        return answer

    async def count_tokens(self, body: models.CountTokensBody, *, x_agent_id: str | None = None) -> models.TokenCount:
        """Count the tokens of a prompt."""
        answer: models.TokenCount = await self.send("POST", "/v1/messages/count_tokens", json=body, headers={"X-Agent-ID": x_agent_id})
        return answer

    async def list_models(self) -> models.ModelList | models.MessagesModelList:
        """List what can be asked for."""
        answer: models.ModelList | models.MessagesModelList = await self.send("GET", "/v1/models")
        return answer

    async def get_model(self, name: str) -> models.ModelCard | models.MessagesModelCard:
        """Look at one model."""
        answer: models.ModelCard | models.MessagesModelCard = await self.send("GET", f"/v1/models/{part(name)}")
        return answer

    async def give_feedback(self, body: models.FeedbackBody, *, x_agent_id: str | None = None) -> models.RecordedFeedback:
        """Say what you think of an answer."""
        answer: models.RecordedFeedback = await self.send("POST", "/v1/feedback", json=body, headers={"X-Agent-ID": x_agent_id})
        return answer

    async def get_health(self) -> models.HealthAnswer:
        """Say that the server answers."""
        answer: models.HealthAnswer = await self.send("GET", "/healthz")
        return answer

    async def submit_task(self, body: models.TaskBody) -> models.TaskAnswer:
        """Write a task. The same task again is the same; another one of its id is refused."""
        answer: models.TaskAnswer = await self.send("POST", "/tasks", json=body)
        return answer

    async def give_reward(self, body: models.RewardBody) -> models.RewardAnswer:
        """Write a score of exactly one answer."""
        answer: models.RewardAnswer = await self.send("POST", "/rewards", json=body)
        return answer

    async def try_scorer(self, body: models.ScoreBody) -> models.TriedScores:
        """Say what a scorer gives texts, and write nothing."""
        answer: models.TriedScores = await self.send("POST", "/score", json=body)
        return answer

    async def get_group(self, task_id: str) -> models.GroupAnswer:
        """Look at the answers to a task next to each other."""
        answer: models.GroupAnswer = await self.send("GET", f"/groups/{part(task_id)}")
        return answer

    async def list_runs(self, *, agent: str | None = None, policy: str | None = None, scenario: str | None = None, version: int | None = None, verdict: Literal["promote", "reject", "needs_human", "none"] | None = None, purpose: Literal["train", "serve", "eval"] | None = None, failed_tools: bool | None = None, text: str | None = None, offset: int | None = None, limit: int | None = None) -> models.RunFiguresList:
        """List runs: conversations, agents' runs and answers to tasks."""
        answer: models.RunFiguresList = await self.send("GET", "/runs", params={"agent": agent, "policy": policy, "scenario": scenario, "version": version, "verdict": verdict, "purpose": purpose, "failed_tools": failed_tools, "text": text, "offset": offset, "limit": limit})
        return answer

    async def get_run(self, run_id: str) -> models.RecordedRun:
        """Look at a run, or the conversation that it is of, turn by turn."""
        answer: models.RecordedRun = await self.send("GET", f"/runs/{part(run_id)}")
        return answer

    async def query_log(self, body: models.QueryBody) -> models.QueryAnswer:
        """Read the log by SQL."""
        answer: models.QueryAnswer = await self.send("POST", "/query", json=body)
        return answer

    async def list_adapters(self, *, policy: str | None = None) -> models.AdapterList:
        """List policies, their versions, and who serves."""
        answer: models.AdapterList = await self.send("GET", "/adapters", params={"policy": policy})
        return answer

    async def promote_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Make a version primary."""
        answer: models.AdapterDecisionAnswer = await self.send("POST", f"/adapters/{part(policy)}/promote", json=body)
        return answer

    async def reject_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Take a version out of service, or keep it out."""
        answer: models.AdapterDecisionAnswer = await self.send("POST", f"/adapters/{part(policy)}/reject", json=body)
        return answer

    async def retire_adapter(self, policy: str, body: models.DecisionBody) -> models.AdapterDecisionAnswer:
        """Retire a version for good."""
        answer: models.AdapterDecisionAnswer = await self.send("POST", f"/adapters/{part(policy)}/retire", json=body)
        return answer

    async def rollback_adapter(self, policy: str, body: models.RollbackBody) -> models.AdapterDecisionAnswer:
        """Return to an older version."""
        answer: models.AdapterDecisionAnswer = await self.send("POST", f"/adapters/{part(policy)}/rollback", json=body)
        return answer

    async def upload_file(self, file: tuple[str, bytes], purpose: Literal["fine-tune"]) -> models.StoredFile:
        """Upload a file of questions or examples, in JSON lines."""
        answer: models.StoredFile = await self.send("POST", "/v1/files", files={"file": file}, data={"purpose": purpose})
        return answer

    async def list_files(self, *, after: str | None = None, limit: int | None = None, order: Literal["asc", "desc"] | None = None, purpose: str | None = None) -> models.FileList:
        """List files, page by page."""
        answer: models.FileList = await self.send("GET", "/v1/files", params={"after": after, "limit": limit, "order": order, "purpose": purpose})
        return answer

    async def get_file(self, file_id: str) -> models.StoredFile:
        """Look at a file."""
        answer: models.StoredFile = await self.send("GET", f"/v1/files/{part(file_id)}")
        return answer

    async def delete_file(self, file_id: str) -> models.DeletedFile:
        """Delete a file. Jobs that were ordered with it have its questions."""
        answer: models.DeletedFile = await self.send("DELETE", f"/v1/files/{part(file_id)}")
        return answer

    async def get_file_content(self, file_id: str) -> bytes:
        """Return a file as it was uploaded."""
        answer: bytes = await self.send("GET", f"/v1/files/{part(file_id)}/content")
        return answer

    async def get_status(self) -> models.LoopMotion:
        """Say whether anything is stuck."""
        answer: models.LoopMotion = await self.send("GET", "/status")
        return answer

    async def get_permissions(self) -> models.PermissionsAnswer:
        """Return who asks, and what they may do."""
        answer: models.PermissionsAnswer = await self.send("GET", "/auth/permissions")
        return answer

    async def begin_run(self, agent_id: str, trajectory_id: str, body: models.BeginBody) -> models.RunAnswer:
        """Begin the run of an agent on a task."""
        answer: models.RunAnswer = await self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/begin", json=body)
        return answer

    async def end_run(self, agent_id: str, trajectory_id: str, body: models.EndBody) -> models.RunAnswer:
        """End it, and record its response."""
        answer: models.RunAnswer = await self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/end", json=body)
        return answer

    async def register_agent(self, body: models.AgentConfig, *, idempotency_key: str | None = None) -> models.RegisteredAgent:
        """Write what an agent is."""
        answer: models.RegisteredAgent = await self.send("POST", "/rl/agents", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def give_consent(self, body: models.ConsentBody) -> models.GivenConsent:
        """Consent to one call of a tool."""
        answer: models.GivenConsent = await self.send("POST", "/guardrails/consents", json=body)
        return answer

    async def moderate_content(self, body: models.ModerateBody) -> models.ModeratedText:
        """Look at a text by the rules of this server."""
        answer: models.ModeratedText = await self.send("POST", "/guardrails/content/moderate", json=body)
        return answer

    async def validate_answer(self, body: models.ValidateBody) -> models.ValidatedAnswer:
        """Check an answer: schema, pattern, length, language, tool, sources."""
        answer: models.ValidatedAnswer = await self.send("POST", "/guardrails/validate", json=body)
        return answer

    async def create_moderation(self, body: models.ModerationsBody) -> models.Moderations:
        """Tell the categories of texts, as OpenAI has them."""
        answer: models.Moderations = await self.send("POST", "/v1/moderations", json=body)
        return answer

    async def create_training_job(self, body: models.TrainingOrderBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that trains a policy by rewards, or tunes it on chosen answers or preferences."""
        answer: models.TrainingJob = await self.send("POST", "/finetune/jobs", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def get_training_job(self, job_id: str) -> models.TrainingJob:
        """Look at a job."""
        answer: models.TrainingJob = await self.send("GET", f"/finetune/jobs/{part(job_id)}/status")
        return answer

    async def get_training_metrics(self, job_id: str) -> models.TrainingMetrics:
        """Return the figures of a job, iteration by iteration."""
        answer: models.TrainingMetrics = await self.send("GET", f"/rl/training/{part(job_id)}/metrics")
        return answer

    async def list_costs(self, *, by: str | None = None) -> models.CostList:
        """Sum the usage and cost of jobs and training calls; a key of a tenant sees its own."""
        answer: models.CostList = await self.send("GET", "/costs", params={"by": by})
        return answer

    async def call_jsonrpc(self, body: models.RpcCall | list[models.RpcCall]) -> models.RpcResult | models.RpcRefusal | list[models.RpcResult | models.RpcRefusal] | None:
        """Call methods of jobs in JSON-RPC 2.0, one or a batch of them."""
        answer: models.RpcResult | models.RpcRefusal | list[models.RpcResult | models.RpcRefusal] | None = await self.send("POST", "/api/v1/jsonrpc", json=body)
        return answer

    async def log_in(self, body: models.LoginBody) -> models.TokensAnswer:
        """Log in with a password."""
        answer: models.TokensAnswer = await self.send("POST", "/auth/login", json=body)
        return answer

    async def refresh_tokens(self, body: models.RefreshBody) -> models.TokensAnswer:
        """Exchange a refresh token for the next tokens. One that is used twice ends the login."""
        answer: models.TokensAnswer = await self.send("POST", "/auth/tokens/refresh", json=body)
        return answer

    async def log_out(self, body: models.RefreshBody) -> None:
        """End a login, if it has not ended."""
        await self.send("POST", "/auth/logout", json=body)

    async def list_public_keys(self) -> models.JwksAnswer:
        """Return the keys that verify access tokens (RFC 7517)."""
        answer: models.JwksAnswer = await self.send("GET", "/.well-known/jwks.json")
        return answer

    async def act_run(self, agent_id: str, trajectory_id: str, body: models.ActBody) -> models.ActAnswer:
        """Let the server answer the run of a registered agent on a task, with the agent's tools."""
        answer: models.ActAnswer = await self.send("POST", f"/agents/{part(agent_id)}/trajectories/{part(trajectory_id)}/act", json=body)
        return answer

    async def create_template(self, body: models.TemplateBody) -> models.TemplateAnswer:
        """Create a version of a prompt. A text that a version has already is that version."""
        answer: models.TemplateAnswer = await self.send("POST", "/prompts/templates", json=body)
        return answer

    async def list_templates(self, *, name: str | None = None) -> models.TemplateList:
        """List versions of prompts."""
        answer: models.TemplateList = await self.send("GET", "/prompts/templates", params={"name": name})
        return answer

    async def activate_template(self, name: str, body: models.ActivateBody) -> models.AliasAnswer:
        """Let an alias of a prompt mean a version."""
        answer: models.AliasAnswer = await self.send("POST", f"/prompts/templates/{part(name)}/activate", json=body)
        return answer

    async def withdraw_template(self, name: str, body: models.WithdrawBody) -> models.TemplateAnswer:
        """Withdraw a version of a prompt: no alias, task, call or job can name it from now on."""
        answer: models.TemplateAnswer = await self.send("POST", f"/prompts/templates/{part(name)}/withdraw", json=body)
        return answer

    async def evaluate_prompt(self, *, name: str | None = None, version: int | None = None, against: int | None = None, policy: str | None = None, scenario: str | None = None) -> models.PromptEvaluation:
        """Return what the tasks with each version of a prompt earned, and one version against another."""
        answer: models.PromptEvaluation = await self.send("GET", "/prompts/evaluate", params={"name": name, "version": version, "against": against, "policy": policy, "scenario": scenario})
        return answer

    async def optimize_prompt(self, body: models.OptimizeBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that searches for a better version of a prompt."""
        answer: models.TrainingJob = await self.send("POST", "/prompts/optimize", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def create_fine_tuning_job(self, body: models.CreateFineTuningBody, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Order a job, as OpenAI's clients do."""
        answer: models.FineTuningJob = await self.send("POST", "/v1/fine_tuning/jobs", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def list_fine_tuning_jobs(self, *, after: str | None = None, limit: int | None = None) -> models.FineTuningJobList:
        """List jobs, the newest first. `metadata[NAME]=VALUE` lists those that were ordered with it."""
        answer: models.FineTuningJobList = await self.send("GET", "/v1/fine_tuning/jobs", params={"after": after, "limit": limit})
        return answer

    async def get_fine_tuning_job(self, job_id: str) -> models.FineTuningJob:
        """Look at a job."""
        answer: models.FineTuningJob = await self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}")
        return answer

    async def list_fine_tuning_events(self, job_id: str, *, after: str | None = None, limit: int | None = None) -> models.FineTuningEventList:
        """List what happened to a job, the newest first."""
        answer: models.FineTuningEventList = await self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}/events", params={"after": after, "limit": limit})
        return answer

    async def list_fine_tuning_checkpoints(self, job_id: str, *, after: str | None = None, limit: int | None = None) -> models.FineTuningCheckpointList:
        """List the versions that a job made and that can be asked for, the newest first."""
        answer: models.FineTuningCheckpointList = await self.send("GET", f"/v1/fine_tuning/jobs/{part(job_id)}/checkpoints", params={"after": after, "limit": limit})
        return answer

    async def pause_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Pause a job."""
        answer: models.FineTuningJob = await self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/pause", headers={"Idempotency-Key": idempotency_key})
        return answer

    async def resume_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Resume a job."""
        answer: models.FineTuningJob = await self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/resume", headers={"Idempotency-Key": idempotency_key})
        return answer

    async def cancel_fine_tuning_job(self, job_id: str, *, idempotency_key: str | None = None) -> models.FineTuningJob:
        """Cancel a job."""
        answer: models.FineTuningJob = await self.send("POST", f"/v1/fine_tuning/jobs/{part(job_id)}/cancel", headers={"Idempotency-Key": idempotency_key})
        return answer

    async def create_tuning_job(self, body: models.PeftBody, *, idempotency_key: str | None = None) -> models.TrainingJob:
        """Order a job that tunes one version, by chosen answers or preferences."""
        answer: models.TrainingJob = await self.send("POST", "/finetune/peft", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def list_tools(self) -> models.ToolRows:
        """List tools by their ids."""
        answer: models.ToolRows = await self.send("GET", "/mcp/tools")
        return answer

    async def add_tool(self, body: models.EntryBody) -> models.ToolRows:
        """Add an entry, and trust the description that its endpoint has now. The same again changes nothing."""
        answer: models.ToolRows = await self.send("POST", "/mcp/tools", json=body)
        return answer

    async def accept_tool(self, tool_id: str, body: models.AcceptBody) -> models.ToolRows:
        """Trust the newest description of an entry."""
        answer: models.ToolRows = await self.send("POST", f"/mcp/tools/{part(tool_id)}/accept", json=body)
        return answer

    async def remove_tool(self, tool_id: str) -> models.RemovedEntry:
        """Remove an entry."""
        answer: models.RemovedEntry = await self.send("DELETE", f"/mcp/tools/{part(tool_id)}")
        return answer

    async def invoke_tool(self, tool_id: str, body: models.InvokeBody) -> models.ToolResult:
        """Call a tool. One that is described otherwise than accepted is refused."""
        answer: models.ToolResult = await self.send("POST", f"/mcp/tools/{part(tool_id)}/invoke", json=body)
        return answer

    async def stream_tools(self, body: models.StreamBody) -> None:
        """Call several tools at once. Each answer, or error, is an event with the id of its call."""
        await self.send("POST", "/mcp/stream", json=body)

    async def list_environments(self) -> models.KeptEnvironments:
        """List the environments of the registry."""
        answer: models.KeptEnvironments = await self.send("GET", "/rl/environments")
        return answer

    async def try_environment(self, body: models.EnvironmentBody) -> models.TriedEnvironment:
        """Play an episode of an environment three times, say what it shows, and keep it if it gets a name."""
        answer: models.TriedEnvironment = await self.send("POST", "/rl/environments", json=body)
        return answer

    async def start_selfplay(self, body: models.SelfPlayBody, *, idempotency_key: str | None = None) -> models.SelfPlayRunAnswer:
        """Ask a policy the questions of a catalogue."""
        answer: models.SelfPlayRunAnswer = await self.send("POST", "/run", json=body, headers={"Idempotency-Key": idempotency_key})
        return answer

    async def list_review_queue(self, *, policy: str | None = None, limit: int | None = None) -> models.ReviewQueue:
        """List the runs that wait for a person."""
        answer: models.ReviewQueue = await self.send("GET", "/curation/queue", params={"policy": policy, "limit": limit})
        return answer

    async def judge_run(self, run_id: str, body: models.VerdictBody) -> models.RecordedVerdict:
        """Say whether a run is good enough to learn from."""
        answer: models.RecordedVerdict = await self.send("POST", f"/runs/{part(run_id)}/verdict", json=body)
        return answer

    async def annotate_rows(self, body: models.AnnotateBody) -> models.AnnotatedRowsAnswer:
        """Label rows, and keep them as a file with the labels that count."""
        answer: models.AnnotatedRowsAnswer = await self.send("POST", "/data/annotate", json=body)
        return answer

    async def list_row_queue(self, *, limit: int | None = None) -> models.RowQueue:
        """List the rows that wait for a person."""
        answer: models.RowQueue = await self.send("GET", "/data/annotations/queue", params={"limit": limit})
        return answer

    async def label_row(self, row_id: str, body: models.VerdictBody) -> models.RecordedLabel:
        """Say whether a row is good enough to learn from."""
        answer: models.RecordedLabel = await self.send("POST", f"/data/annotations/{part(row_id)}", json=body)
        return answer

    async def list_datasets(self, *, dataset: str | None = None) -> models.DatasetListAnswer:
        """List the builds of data sets, and where they were sent."""
        answer: models.DatasetListAnswer = await self.send("GET", "/datasets", params={"dataset": dataset})
        return answer

    async def check_rows(self, body: models.CheckBody) -> models.CheckedRowsAnswer:
        """Say what is wrong with rows, and what is worth knowing."""
        answer: models.CheckedRowsAnswer = await self.send("POST", "/data/check", json=body)
        return answer

    async def ingest_rows(self, body: models.StepsBody) -> models.CleanedRowsAnswer:
        """Keep rows as a file, after the steps that are named."""
        answer: models.CleanedRowsAnswer = await self.send("POST", "/data/ingest", json=body)
        return answer

    async def clean_rows(self, body: models.StepsBody) -> models.CleanedRowsAnswer:
        """Keep the rows that are good enough as a file."""
        answer: models.CleanedRowsAnswer = await self.send("POST", "/data/clean", json=body)
        return answer

    async def generate_rows(self, body: models.GeneratedRowsBody) -> models.CleanedRowsAnswer:
        """Make rows with a generator, which knows the answers; its held-out questions are never drawn."""
        answer: models.CleanedRowsAnswer = await self.send("POST", "/data/synthetic/generate", json=body)
        return answer

    async def detect_bias(self, body: models.BiasBody) -> models.BiasFigures:
        """Compare scores of texts and of their swaps."""
        answer: models.BiasFigures = await self.send("POST", "/guardrails/bias/detect", json=body)
        return answer

    async def index_documents(self, body: models.IndexBody) -> models.IndexedDocuments:
        """Add documents, or replace those of their names. The same again changes nothing."""
        answer: models.IndexedDocuments = await self.send("POST", "/rag/index", json=body)
        return answer

    async def list_documents(self, *, index: str | None = None, after: str | None = None, limit: int | None = None) -> models.DocumentRows:
        """List documents by their names."""
        answer: models.DocumentRows = await self.send("GET", "/rag/documents", params={"index": index, "after": after, "limit": limit})
        return answer

    async def show_document(self, *, document_id: str | None = None) -> models.WholeDocument:
        """Show a document with its text."""
        answer: models.WholeDocument = await self.send("GET", "/rag/document", params={"document_id": document_id})
        return answer

    async def remove_document(self, body: models.RemoveBody) -> models.RemovedDocument:
        """Remove a document; no search finds it from then on."""
        answer: models.RemovedDocument = await self.send("POST", "/rag/documents/remove", json=body)
        return answer

    async def search_documents(self, body: models.SearchBody) -> models.SearchAnswer:
        """Find the chunks of documents that say most about a query."""
        answer: models.SearchAnswer = await self.send("POST", "/rag/query", json=body)
        return answer

    async def rerank_texts(self, body: models.RerankBody) -> models.RerankAnswer:
        """Order texts by how well they answer a query."""
        answer: models.RerankAnswer = await self.send("POST", "/rag/rerank", json=body)
        return answer

    async def create_embeddings(self, body: models.EmbeddingsBody) -> models.EmbeddingsAnswer:
        """Make vectors of texts."""
        answer: models.EmbeddingsAnswer = await self.send("POST", "/v1/embeddings", json=body)
        return answer

    async def erase_person(self, body: models.PersonBody) -> models.PersonAnswer:
        """Make a person's words unreadable, and delete the key."""
        answer: models.PersonAnswer = await self.send("POST", "/privacy/erase", json=body)
        return answer

    async def revoke_erasure(self, body: models.PersonBody) -> models.PersonAnswer:
        """Take an erasure back while its key exists."""
        answer: models.PersonAnswer = await self.send("POST", "/privacy/revoke", json=body)
        return answer

    async def restrict_person(self, body: models.RestrictBody) -> models.PersonAnswer:
        """Keep a person's words from training, or for a time of their own."""
        answer: models.PersonAnswer = await self.send("POST", "/privacy/restrict", json=body)
        return answer

    async def finish_erasures(self) -> models.PersonAnswers:
        """Delete the keys that are due, or that a backup brought back, and erase persons whose retention is over."""
        answer: models.PersonAnswers = await self.send("POST", "/privacy/finish")
        return answer

    async def list_persons(self) -> models.PersonAnswers:
        """List the persons that were erased or restricted, by their pseudonyms."""
        answer: models.PersonAnswers = await self.send("GET", "/privacy/persons")
        return answer
