"""Every setting, section by section, and the combinations that are refused.

Each field gives its unit and the meaning of zero. A contradiction, or a setting without effect, is refused when its
section is built, with the way out. Values are loaded by streams/settings/load.py. No rule spans two sections.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import quote, unquote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from streams.advantage_formulas import FORMULAS
from streams.references import REFERENCE, checked_name, is_reference
from streams.settings.name_lists import split_names

FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""Names that may become folders or files: of policies, versions, parts of adapters."""
SECRET_NAME = re.compile(
    r"password|secret|token|\.key$|\.pem$|credential|sasl\.jaas|oauthbearer\.config", re.IGNORECASE
)
"""librdkafka settings in `kafka.client` whose values are secret."""


def is_secret_name(name: str) -> bool:
    """Return whether the value of this librdkafka setting is secret."""
    return SECRET_NAME.search(name) is not None


SETTING_OF_KEY = {
    "bootstrap.servers": "kafka.bootstrap",
    "metadata.broker.list": "kafka.bootstrap",
    "security.protocol": "kafka.security_protocol",
    "sasl.mechanism": "kafka.sasl_mechanism",
    "sasl.mechanisms": "kafka.sasl_mechanism",
    "sasl.username": "kafka.sasl_username",
    "sasl.password": "kafka.sasl_password",
    "ssl.ca.location": "kafka.ssl_ca_location",
    "ssl.certificate.location": "kafka.ssl_certificate_location",
    "ssl.key.location": "kafka.ssl_key_location",
    "socket.timeout.ms": "kafka.request_timeout_s",
    "topic.metadata.propagation.max.ms": "kafka.request_timeout_s",
    "group.protocol": "kafka.group_protocol",
    "session.timeout.ms": "kafka.session_timeout_s",
    "heartbeat.interval.ms": "kafka.session_timeout_s",
    "max.poll.interval.ms": "kafka.outage_s",
    "delivery.timeout.ms": "kafka.outage_s",
    "message.timeout.ms": "kafka.outage_s",
    "batch.size": "topics.max_record_bytes",
    "message.max.bytes": "topics.max_record_bytes",
    "receive.message.max.bytes": "topics.max_record_bytes",
    "queue.buffering.max.kbytes": "topics.max_record_bytes",
}
"""librdkafka settings that follow from one of ours."""

FIXED_KEYS = {
    # which member reads which partition, and from where
    "group.id",
    "group.instance.id",
    "group.protocol.type",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "isolation.level",
    # what a written record is, and that it is written once
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    "partitioner",
    "compression.type",
    "compression.codec",
    "linger.ms",
    "queue.buffering.max.ms",
    "queue.buffering.max.messages",
    # how much is read ahead
    "fetch.max.bytes",
    "fetch.wait.max.ms",
    "fetch.queue.backoff.ms",
    "queued.max.messages.kbytes",
    "topic.metadata.refresh.interval.ms",
    # functions
    "error_cb",
    "on_commit",
    "logger",
}
"""librdkafka settings that Streamward sets itself, and that none of ours changes."""

USER_IN_URL = re.compile(r"(?<=://)[^/@\s,]+(?=@)")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)|file(?=:)", re.IGNORECASE)


def without_user(text: str) -> str:
    """Return `text` with stars for user and password of the URLs in it.

    >>> without_user("http://ada:secret@judge/v1")
    'http://***@judge/v1'
    """
    return USER_IN_URL.sub("***", text)


@dataclass(frozen=True)
class OneOf:
    """The type of a setting that names an algorithm: one of `names`, or a function of the user's own."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^({'|'.join(self.names)}|{REFERENCE})$"}

    def _checked(self, name: str) -> str:
        return checked_name(name, self.names)


CREDITS = ("trajectory", "return_to_go", "gigpo", "turn_outcome")
LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "gspo")


def path_of(text: str) -> str:
    """Return the path that a file URL names, another URL with its scheme in lower case, any other text as it is.

    Raises ValueError for a file URL without a path.

    >>> path_of("file:///data/my%20archive")
    '/data/my archive'
    """
    if scheme := SCHEME.match(text):
        text = scheme[0].lower() + text[scheme.end() :]
    if not text.startswith("file:"):
        return text
    path = unquote(text.removeprefix("file:").removeprefix("//").removeprefix("localhost"), errors="strict")
    if not path.startswith("/") or "\0" in path:
        raise ValueError(
            "a file URL is file:// and an absolute path, e.g. file:///data/archive; or give the path alone"
        )
    return path


S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys, and passwords in URLs."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _decode_file_url(cls, value: object, info: ValidationInfo) -> object:
        """A store, a folder or a file may be given as a URL; a folder must not have a second name, with escapes."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        is_path = info.field_name == "store" or Path in (annotation, *get_args(annotation))
        if info.field_name == "store" and value == "":
            raise ValueError("is empty; name a folder or an object store, or leave the setting out")
        return path_of(value) if is_path and isinstance(value, str) else value

    @field_validator("*")
    @classmethod
    def _no_user_in_a_url(cls, value: object) -> object:
        """URLs are printed, in errors and by `config show`; secrets have settings of their own."""
        if isinstance(value, str) and USER_IN_URL.search(value):
            raise ValueError(
                "a URL must hold no user and no password, since URLs are printed; use the separate settings for user, "
                "password or key, or what the driver of the store documents"
            )
        return value


class Kafka(Section):
    """The Kafka cluster, and how to connect to it."""

    bootstrap: str = Field(
        "127.0.0.1:9092", description="host:port, comma separated; if not set, the node in broker.data_dir, if any"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: Path | None = Field(None, description="PEM file; empty: the system's certificate authorities")
    ssl_certificate_location: Path | None = Field(None, description="PEM file of the client certificate")
    ssl_key_location: Path | None = Field(None, description="PEM file of the client key")
    client: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="further librdkafka settings, passed through unchanged, and secret, e.g. ssl.key.password; those "
        "that Streamward sets itself are refused",
    )
    request_timeout_s: float = Field(10.0, gt=0, le=300, description="time limit of a broker's answer, seconds")
    outage_s: float = Field(
        600.0, ge=1, le=43_200, description="time that a running process waits for its broker, seconds"
    )
    session_timeout_s: float = Field(
        6.0, gt=0, description="time after which a silent group member is replaced, seconds"
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        "classic",
        description="how groups share partitions; consumer: the broker assigns (KIP-848, Kafka 4.0), and a change "
        "moves few partitions; `admin topics apply` then writes session_timeout_s into the groups",
    )

    @field_validator("client")
    @classmethod
    def _leaves_our_keys(cls, client: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for key in client:
            if (setting := SETTING_OF_KEY.get(key)) is not None:
                raise ValueError(f"{key} follows from {setting}: set that, and leave this key out")
            if key in FIXED_KEYS:
                raise ValueError(f"{key} is set by Streamward, whose promises rest on its value: leave this key out")
        return client

    @model_validator(mode="after")
    def _sasl_is_whole(self) -> Kafka:
        is_sasl = self.security_protocol.startswith("SASL")
        credentials = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if is_sasl and None in credentials:
            raise ValueError(
                f"security_protocol is {self.security_protocol}, so sasl_mechanism, sasl_username and sasl_password "
                "must all be set"
            )
        if not is_sasl and any(value is not None for value in credentials):
            raise ValueError(
                f"SASL settings are given but security_protocol is {self.security_protocol}; "
                "set it to SASL_SSL (or SASL_PLAINTEXT on a trusted network)"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Kafka:
        files = (self.ssl_ca_location, self.ssl_certificate_location, self.ssl_key_location)
        if not self.security_protocol.endswith("SSL") and any(path is not None for path in files):
            raise ValueError(
                f"TLS files are given but security_protocol is {self.security_protocol}, which would not use them; "
                "set it to SSL or SASL_SSL"
            )
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            raise ValueError("ssl_certificate_location and ssl_key_location go together; set both or neither")
        return self


class Topics(Section):
    """Names and shapes of the topics."""

    prefix: str = Field("streamward.", pattern=r"^[A-Za-z0-9._-]*$", description="prefix of each topic name")
    partitions: int = Field(
        8, ge=1, description="partitions of tasks, responses, rewards and group-control, which must agree"
    )
    policy_partitions: int = Field(4, ge=1, description="partitions of the other topics")
    replication: int = Field(1, ge=1, description="copies of each partition")
    retention_days: float = Field(
        30.0, ge=0, description="0: for ever; adapters, experiments, agents and jobs are always kept for ever"
    )
    max_record_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024, description="largest record the topics take, bytes"
    )


class Worker(Section):
    """The stream worker: advantages, batches and rollouts."""

    driver: Literal["faust", "loop"] = Field(
        "faust",
        description="driver of the stages: faust is the reference, loop handles many records at once, for high load; "
        "either can take over from the other (docs/architecture.md)",
    )


class Advantages(Section):
    """How responses are compared."""

    formula: Annotated[str, OneOf(tuple(FORMULAS))] = Field(
        "grpo", description="how a response is compared with its siblings; a name, or module:function of your own"
    )
    eps: float = Field(1e-4, ge=0, description="added to the standard deviation before dividing")
    ddof: int = Field(1, ge=0, le=1, description="1 divides the variance by n - 1, as TRL does; 0 by n")
    credit: Annotated[str, OneOf(CREDITS)] = Field(
        "trajectory",
        description="how the turns of a response get advantages: trajectory gives each the response's advantage, the "
        "others compare the rewards of turns (docs/credit.md); a name, or module:function of your own",
    )
    gamma: float = Field(1.0, gt=0, le=1, description="discount of later rewards, per turn between")
    turn_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the comparison of turns, relative to that of responses: gigpo and turn_outcome",
    )
    partial: Literal["emit", "drop"] = Field(
        "emit", description="what to do with a group that is incomplete at its deadline"
    )
    min_group: int = Field(2, ge=2, description="minimum of scored responses in a partial group")
    deadline_s: float = Field(
        600.0,
        ge=0,
        description="for tasks without a deadline, seconds: from its first response for a train task, which may wait "
        "for the trainer, from its record for any other; 0: no deadline",
    )
    grace_s: float = Field(5.0, ge=0, description="delay between the deadline and the close of a group, seconds")
    evict_after_s: float = Field(3600.0, ge=0, description="time to remember a closed group, seconds; 0: for ever")

    @model_validator(mode="after")
    def _credit_is_served(self) -> Advantages:
        fields = type(self).model_fields
        of_rules = {"gamma": ("return_to_go", "gigpo"), "turn_weight": ("gigpo", "turn_outcome")}
        for name, rules in of_rules.items():
            unused = self.credit not in rules and not is_reference(self.credit)
            if unused and getattr(self, name) != fields[name].default:
                other = " or ".join(rules)
                raise ValueError(f"{name} has no effect with credit {self.credit}; set credit={other}, or leave it out")
        if self.credit != "trajectory" and self.formula == "batch_std":
            raise ValueError(
                f"formula batch_std divides by the spread of whole responses, and credit {self.credit} compares turns; "
                "set formula=rloo or dr_grpo"
            )
        return self


class Batches(Section):
    """How groups become training steps."""

    groups: int = Field(16, ge=1, description="groups in one batch")
    zero_variance: Literal["drop", "keep"] = Field(
        "drop",
        description="groups whose rewards are all equal: drop, so that every group of a batch teaches something "
        "(dynamic sampling of DAPO, arXiv:2503.14476), or keep, as plain GRPO does",
    )
    max_policy_lag: int = Field(
        1, ge=0, description="maximum of versions between a group and its batch; 0: on-policy only"
    )


class Learning(Section):
    """How a run ends: when it teaches nothing, and with its last tasks."""

    stop_after: int = Field(
        8,
        ge=0,
        description="steps in a row in which no group differs in reward, after which `up`, `demo` and jobs end with an "
        "error; 0: never, and to learn nothing is no error",
    )
    fill_last_step: bool = Field(
        True,
        description="whether `up` asks tasks once more where the rest fills no step; otherwise it waits for more",
    )


class Model(Section):
    """The language model that is trained."""

    base: str = Field(
        "smollm2-135m-instruct", description="a built-in name, a hub id, or a folder with config.json and safetensors"
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantization: Literal["none", "nf4"] = Field(
        "none", description="nf4: the base's linear layers in 4 bits, by bitsandbytes (extra `quantized`)"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1, ...")


class Policy(Section):
    """The agent that answers tasks."""

    name: str = Field(
        "default",
        pattern=f"^{FOLDER_NAME}$",
        description="policy that this process serves or trains; part of folder names",
    )
    engine: Literal["transformers", "scripted", "vllm"] = "transformers"
    threads: int = Field(1, ge=0, description="torch threads; 0: one per core")
    round_tasks: int = Field(16, ge=1, description="maximum of tasks decoded together")
    max_waiting: int = Field(
        10_000,
        ge=1,
        description="maximum of tasks in memory before reading pauses; at most half are train tasks, others are "
        "re-read later",
    )
    round_timeout_s: float = Field(
        600.0, ge=0, description="time limit of a round, after which the process ends, seconds; 0: none"
    )
    script: str = Field("{}", description="JSON settings of the scripted engine")
    servers: str | None = Field(None, description="base URLs of the vLLM servers of engine vllm, comma separated")
    server_key: SecretStr | None = Field(None, description="API key for the servers")
    server_model: str | None = Field(
        None, description="name of the base model at the servers; empty: the one that they list"
    )
    server_folder: Path = Field(
        Path(".streamward/served"), description="folder shared with the servers, which load adapters from it"
    )
    server_adapters: str | None = Field(None, description="path of server_folder at the servers; empty: the same path")
    server_timeout_s: float = Field(120.0, gt=0, description="time limit of a server for one task, seconds")
    server_retries: int = Field(3, ge=0, description="retries of a task after a server's error or malformed answer")
    max_concurrent: int = Field(32, ge=1, description="maximum of tasks in flight at one server")
    verify: Literal["logprobs", "listed"] = Field(
        "logprobs",
        description="how to verify that a server serves an adapter: by its logprobs, compared with those computed here "
        "from model.base (in memory), or by its list of models",
    )

    @model_validator(mode="after")
    def _servers_are_whole(self) -> Policy:
        if self.engine == "vllm" and not self.server_urls:
            raise ValueError("engine is vllm and servers is not set; name the servers, e.g. http://127.0.0.1:8000")
        bad = [url for url in self.server_urls if not url.startswith(("http://", "https://"))]
        if bad:
            raise ValueError(f"servers: {bad[0]!r} is no URL; write it as http://host:port")
        fields = type(self).model_fields
        for_servers = [name for name in fields if name.startswith("server") or name in ("max_concurrent", "verify")]
        changed = [name for name in for_servers if getattr(self, name) != fields[name].default]
        if self.engine != "vllm" and changed:
            raise ValueError(f"{changed[0]} has no effect with engine {self.engine}; set engine=vllm, or leave it out")
        longest_s = self.server_timeout_s * (self.server_retries + 1)
        if self.engine == "vllm" and 0 < self.round_timeout_s < longest_s:
            raise ValueError(
                f"server_timeout_s times the tries is {longest_s:g} s, and round_timeout_s ends the process "
                f"after {self.round_timeout_s:g} s; raise round_timeout_s, or lower server_timeout_s or server_retries"
            )
        return self

    @property
    def server_urls(self) -> tuple[str, ...]:
        """The servers, each once, without trailing slash and /v1."""
        urls = (url.strip().rstrip("/").removesuffix("/v1") for url in (self.servers or "").split(","))
        return tuple(dict.fromkeys(url for url in urls if url))


JUDGE_PARAMETERS = ("temperature", "max_tokens", "max_completion_tokens", "response_format")


VARIABLES = (
    "environment variables that its processes get in addition to PATH, HOME, locale and the like, comma separated; "
    "others, such as keys, they do not get"
)


class Scoring(Section):
    """The agent that judges responses."""

    timeout_s: float = Field(10.0, gt=0, description="time limit for one score, seconds")
    retries: int = Field(2, ge=0, description="retries after a failed score; none after a timeout of a worker process")
    processes: int = Field(1, ge=1, description="worker processes for slow or untrusted scorers")
    max_failures: int = Field(
        20,
        ge=0,
        description="consecutive failures after which a scorer is paused; 0: never, and each failed response goes "
        "unscored",
    )
    pause_s: float = Field(10.0, gt=0, description="interval between retries of a paused scorer, seconds")
    modules: str = Field(
        "",
        description="modules and packages whose functions tasks may name as scorers (module:function), comma "
        "separated; `.` also finds them in the working folder; empty: none",
    )
    variables: str = Field("", pattern=r"^[\w, ]*$", description=VARIABLES)
    judge_url: str | None = Field(None, description="OpenAI-compatible API of the LLM judge, up to /v1")
    judge_model: str | None = None
    judge_key: SecretStr | None = None
    judge_parameters: str = Field(
        "temperature, max_tokens, response_format",
        description="parameters that requests to the judge have, comma separated; models that think want "
        "max_completion_tokens in the place of max_tokens, and often no temperature",
    )
    judge_prompt_usd: float | None = Field(
        None, ge=0, description="USD per million tokens that the judge reads; rewards then have its cost"
    )
    judge_completion_usd: float | None = Field(None, ge=0, description="USD per million tokens that the judge writes")

    @field_validator("modules")
    @classmethod
    def _modules_are_names(cls, modules: str) -> str:
        for name in split_names(modules):
            if name != "." and not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"{name!r} is no name of a Python module, which has letters, digits and _ alone; rename the file"
                )
        return modules

    @field_validator("judge_parameters")
    @classmethod
    def _parameters_exist(cls, names: str) -> str:
        if unknown := [name for name in split_names(names) if name not in JUDGE_PARAMETERS]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(JUDGE_PARAMETERS)}")
        return names

    @property
    def parameters_of_judge(self) -> tuple[str, ...]:
        """The parameters that requests to the judge have."""
        return split_names(self.judge_parameters)

    @property
    def importable(self) -> tuple[str, ...]:
        """The modules and packages that may be imported, and `.`."""
        return split_names(self.modules)

    def lists(self, module: str) -> bool:
        """Return whether `modules` lists this module, or a package that it is in."""
        return any(module == package or module.startswith(f"{package}.") for package in self.importable)

    @model_validator(mode="after")
    def _judge_is_whole(self) -> Scoring:
        if self.judge_url is None and (self.judge_model is not None or self.judge_key is not None):
            raise ValueError("judge_model and judge_key have no effect without judge_url; set it, up to /v1")
        if self.judge_url is not None and self.judge_model is None:
            raise ValueError("judge_url is set but judge_model is not; name the model of the judge")
        if (self.judge_prompt_usd is None) != (self.judge_completion_usd is None):
            raise ValueError("judge_prompt_usd and judge_completion_usd go together; set both (0 is free) or none")
        if self.judge_url is None and self.judge_prompt_usd is not None:
            raise ValueError("judge_prompt_usd and judge_completion_usd have no effect without judge_url; set it")
        return self


class Rollouts(Section):
    """How trained adapters reach the agents."""

    mode: Literal["direct", "guarded", "canary", "manual"] = Field(
        "direct",
        description="direct: the newest version serves at once; guarded: once it passes the guard's suite; canary: "
        "first on a growing share of the tasks, after the guard if it has a suite; manual: when a user promotes it",
    )
    follow_s: float = Field(
        10.0,
        gt=0,
        description="time after its replacement during which a version may still begin an answer without a report by "
        "`audit`, seconds: allows for clock skew and for events delayed by an outage",
    )


class Guard(Section):
    """The test of a version on a suite of held-out tasks, in modes `guarded` and `canary`."""

    suite: Path | None = Field(None, description="YAML file of the suite")
    every: int = Field(1, ge=1, description="evaluate every n-th version")
    decide: Literal["auto", "ask", "never"] = Field(
        "auto", description="auto: apply the verdict; ask: a user applies it; never: only record it"
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="confidence level of every interval in the verdict")
    min_tasks: int = Field(30, ge=1, description="minimum of paired tasks for a verdict; with fewer, a user decides")
    min_improvement: float = Field(0.0, description="lower bound of the gain in mean reward over the primary")
    max_scenario_loss: float = Field(0.05, ge=0, description="largest loss in mean reward on any one scenario")
    max_tokens_ratio: float = Field(1.5, gt=0, description="tokens per response, relative to the primary")
    max_latency_ratio: float = Field(1.5, gt=0, description="latency per response, relative to the primary")
    max_failed: float = Field(0.02, ge=0, le=1, description="share of slots without a score")
    max_cost_ratio: float | None = Field(
        None,
        gt=0,
        description="cost per response by the prices of [prices], relative to the primary; default: not judged",
    )
    max_recovery_loss: float | None = Field(
        None,
        ge=0,
        le=1,
        description="largest loss in the share of failed tool calls that a successful one follows; default: not judged",
    )


class Canary(Section):
    """How a candidate's share of the tasks grows, in mode `canary`."""

    steps: str = Field("0.05,0.25,0.5,1", description="growing shares of the tasks; promotion follows the last")
    alpha: float = Field(0.05, gt=0, lt=0.5, description="probability of a false verdict, under any number of looks")
    min_improvement: float = Field(0.0, description="gain in mean reward that a promotion must prove")
    step_groups: int = Field(20, ge=1, description="groups of each arm before a share may grow or a verdict may fall")
    max_groups: int = Field(2000, ge=1, description="groups of the candidate without a verdict before a user decides")
    decide: Literal["auto", "ask"] = Field("auto", description="ask: a user promotes; a roll-back is always automatic")
    max_truncated: float = Field(0.1, ge=0, le=1, description="rise of the share of responses cut at max_tokens")
    max_failed: float = Field(0.05, ge=0, le=1, description="rise of the share of slots without a score")
    max_tokens_ratio: float = Field(1.5, gt=0, description="tokens per response, relative to the primary")
    max_latency_ratio: float = Field(2.0, gt=0, description="latency per response, relative to the primary")

    @property
    def shares(self) -> tuple[float, ...]:
        """The steps as numbers."""
        return tuple(float(step) for step in self.steps.split(","))

    @model_validator(mode="after")
    def _steps_grow(self) -> Canary:
        try:
            shares = self.shares
        except ValueError:
            raise ValueError(
                f"canary.steps is {self.steps!r}; expected comma separated shares, e.g. 0.05,0.25,0.5,1"
            ) from None
        if not all(low < high for low, high in pairwise((0.0, *shares))) or not shares[-1] <= 1:
            raise ValueError(f"canary.steps is {self.steps!r}; expected shares above 0 that grow, up to 1 at most")
        if shares[0] == 1:
            raise ValueError(
                f"canary.steps is {self.steps!r}, which leaves the primary no tasks for comparison; begin with a share "
                "below 1, or set rollouts.mode=direct"
            )
        return self


NOT_RECIPE = frozenset(f"trainer.{name}" for name in ("checkpoints", "shard_base", "gradient_checkpointing"))
"""Settings of storage and memory, which change no byte of an adapter."""


class Trainer(Section):
    """The optimizer's step. Everything here but NOT_RECIPE is part of the recipe recorded with each adapter."""

    seed: int = 0
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="number of processes: each computes a fixed share of every batch, on its own device if "
        "model.device=cuda; affects the bytes of the result",
    )
    shard_base: bool = Field(
        False,
        description="each process holds its part of the base model's weights and gathers the rest layer by layer "
        "(FSDP2), for a base that fits on no single device; the bytes stay the same",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="keep only the inputs of each layer for the backward pass, and run the layer again there: less "
        "memory for more time; the bytes stay the same",
    )
    threads: int = Field(
        1, ge=0, description="torch threads of a process; affects the bytes of the result; 0: all cores, shared equally"
    )
    loss: Annotated[str, OneOf(LOSSES)] = Field(
        "dapo", description="the loss of a step (docs/algorithms.md); a name, or module:function of your own"
    )
    advantages: Literal["both", "positive"] = Field(
        "both",
        description="positive: responses with a negative advantage bear no loss. Good answers alone came close to GRPO "
        "(arXiv:2504.11343), and lost games kept a policy from converging where rewards are sparse; but nothing pushes "
        "away from bad answers, and what is sampled gets less diverse (arXiv:2506.01347)",
    )
    learning_rate: float = Field(1e-3, gt=0)
    epsilon_low: float = Field(0.2, ge=0, description="clip the ratio below 1 - epsilon_low")
    epsilon_high: float = Field(
        0.28, ge=0, description="clip the ratio above 1 + epsilon_high; for cispo the cap itself, e.g. 5.0"
    )
    beta: float = Field(0.0, ge=0, description="weight of the KL term; 0: no KL term")
    max_grad_norm: float = Field(1.0, ge=0, description="maximum of the gradient's norm; 0: no clipping")
    importance: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="correction of the difference of sampler's and trainer's logprobs, folded into the advantages",
    )
    importance_cap: float = Field(2.0, gt=0, description="cap of the importance ratio")
    micro_groups: int = Field(16, ge=1, description="maximum of groups per forward pass; fewer when they are long")
    lora_rank: int = Field(8, ge=1)
    lora_alpha: int = Field(16, ge=1)
    lora_targets: str = Field("all-linear", description="as peft's target_modules; comma separated, or all-linear")
    checkpoints: Path = Field(Path(".streamward/checkpoints"), description="folder of optimizer states")
    off_policy: bool = Field(
        False,
        description="the groups were sampled by another policy's versions, as in an experiment: their lag is the "
        "recorded one (metadata policy_lag), not computed from this policy's versions",
    )

    @model_validator(mode="after")
    def _combinations_have_effect(self) -> Trainer:
        if self.loss == "cispo" and self.epsilon_high < 1:
            raise ValueError(
                f"loss cispo reads epsilon_high as the cap of the ratio itself, and {self.epsilon_high} would cap "
                "every ratio below 1; set trainer.epsilon_high=5.0"
            )
        if self.loss != "cispo" and not is_reference(self.loss) and self.epsilon_high >= 1:
            raise ValueError(
                f"epsilon_high {self.epsilon_high} never clips with loss {self.loss}; set it below 1, e.g. 0.28"
            )
        if (
            self.advantages == "positive"
            and not is_reference(self.loss)
            and self.epsilon_low != type(self).model_fields["epsilon_low"].default
        ):
            raise ValueError(
                "epsilon_low has no effect with advantages=positive, since it holds back only tokens with a negative "
                "advantage; leave it out, or set trainer.advantages=both"
            )
        if self.importance == "none" and self.importance_cap != type(self).model_fields["importance_cap"].default:
            raise ValueError("importance_cap has no effect with importance=none; set importance=truncate or mask")
        return self


class Fleet(Section):
    """One process for many policies: `train --fleet` and `policy --fleet`."""

    name: str = Field(
        "default",
        pattern=f"^{FOLDER_NAME}$",
        description="processes with the same name share the policies; a fleet with another base model needs another "
        "name",
    )
    policies: str = Field("*", description="policies of this fleet: name patterns, comma separated")
    states: int = Field(
        16,
        ge=1,
        description="maximum of policies with their adapter in memory, in the trainer with the optimizer's state; "
        "others are re-read from checkpoint or store",
    )
    mixed: int = Field(
        4,
        ge=1,
        description="maximum of policies that the policy agent samples together, if the engine can; 1: one after the "
        "other",
    )
    weights: str = Field(
        "",
        description="weights of policies in the scheduling: PATTERN=WEIGHT, comma separated, e.g. chat=2,test-*=0.5; "
        "the first match counts, and other policies have weight 1",
    )

    def serves(self, policy: str) -> bool:
        """Whether the fleet includes a policy; none has a name that policy.name does not allow."""
        return re.fullmatch(FOLDER_NAME, policy) is not None and any(
            fnmatchcase(policy, pattern.strip()) for pattern in self.policies.split(",")
        )

    def weight_of(self, policy: str) -> float:
        """Return the scheduling weight of a policy."""
        return next((weight for pattern, weight in self.weight_patterns if fnmatchcase(policy, pattern)), 1.0)

    @property
    def weight_patterns(self) -> tuple[tuple[str, float], ...]:
        """The patterns of `weights` with their weights."""
        parts = (part.rpartition("=") for part in self.weights.split(",") if part.strip())
        return tuple((pattern.strip(), float(weight)) for pattern, _, weight in parts)

    @model_validator(mode="after")
    def _patterns_are_whole(self) -> Fleet:
        if not any(pattern.strip() for pattern in self.policies.split(",")):
            raise ValueError("policies is empty, so the fleet has none; name some, or * for all")
        try:
            good = all(pattern and 0.001 <= weight <= 1000 for pattern, weight in self.weight_patterns)
        except ValueError:
            good = False
        if not good:
            raise ValueError(
                f"weights is {self.weights!r}; expected comma separated PATTERN=WEIGHT, e.g. chat=2,test-*=0.5, "
                "and weights from 0.001 to 1000"
            )
        return self


class Adapters(Section):
    """The store of adapters."""

    store: str = Field(".streamward/adapters", description="a folder, or any fsspec URL, e.g. s3://bucket/path")
    signing_key: Path | None = Field(None, description="PEM file of the private key that the trainer signs with")
    verify_key: Path | None = Field(
        None, description="PEM file of the public key; agents refuse adapters without its signature"
    )


OUTSIDE_PARAMETERS = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed")
"""What a request to an outside model may say of its sampling."""


class Outside(Section):
    """The server of outside models, which may stand for versions of a policy."""

    url: str | None = Field(
        None,
        description="OpenAI-compatible API, up to /v1, that agents ask for versions which are outside models; no other "
        "URL is asked, whatever an event names",
    )
    key_env: str = Field("OPENAI_API_KEY", description="environment variable with its API key")
    tenants: str = Field(
        "", description="tenants whose tasks may be sent there, comma separated; *: all; tasks of no tenant always may"
    )
    prompt_usd: float | None = Field(
        None, ge=0, description="USD per million prompt tokens, recorded with each model that becomes a version"
    )
    completion_usd: float | None = Field(None, ge=0, description="USD per million tokens that it writes")
    parameters: str = Field(
        "temperature, top_p, max_tokens, stop, seed",
        description="parameters of requests, comma separated; some models want max_completion_tokens in the "
        "place of max_tokens",
    )
    timeout_s: float = Field(60.0, gt=0, description="time limit for one answer, seconds")
    retries: int = Field(2, ge=0, description="retries of a request that failed and may succeed")
    parallel: int = Field(8, ge=1, le=256, description="requests at once")

    @field_validator("parameters")
    @classmethod
    def _parameters_exist(cls, names: str) -> str:
        if unknown := [name for name in split_names(names) if name not in OUTSIDE_PARAMETERS]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(OUTSIDE_PARAMETERS)}")
        return names

    @model_validator(mode="after")
    def _is_whole(self) -> Outside:
        if self.url is not None and SCHEME.match(self.url) is None:
            raise ValueError(f"url is {self.url!r}; expected http:// or https:// and a path up to /v1")
        if (self.prompt_usd is None) != (self.completion_usd is None):
            raise ValueError("prompt_usd and completion_usd go together; set both (0 is free) or none")
        if self.url is None and (self.prompt_usd is not None or self.tenants):
            raise ValueError("tenants, prompt_usd and completion_usd have no effect without url; set it, up to /v1")
        return self

    @property
    def request_parameters(self) -> tuple[str, ...]:
        """The parameters that requests have."""
        return split_names(self.parameters)

    def takes(self, tenant: str | None) -> bool:
        """Return whether tasks of this tenant may be sent to the server."""
        return tenant is None or bool({tenant, "*"} & set(split_names(self.tenants)))


class Archive(Section):
    """The archive, which keeps topics beyond their retention."""

    store: str = Field(".streamward/archive", description="a folder, or an object store, e.g. s3://bucket/path")
    segment_records: int = Field(200_000, ge=1, description="maximum of records per file")
    segment_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1,
        description="maximum of payload bytes per file; writing one takes four times as much memory",
    )
    follow_s: float = Field(60.0, gt=0, description="with --follow: seconds between two syncs")

    @field_validator("store")
    @classmethod
    def _url_ends_with_its_path(cls, value: str) -> str:
        """Delta's driver would leave out what follows."""
        if "://" in value and (wrong := re.search("[?#]", value)):
            raise ValueError(f"{wrong[0]} ends the path of a URL; write {quote(wrong[0])} for one in a name")
        return value


class Schemas(Section):
    """The source of the schema ids in records."""

    registry_url: str | None = Field(
        None,
        description="URL of a Schema Registry with Confluent's API, or several, comma separated; empty: the ids are "
        "those of schemas/lock.json",
    )
    registry_username: str | None = None
    registry_password: SecretStr | None = None
    registry_ca_location: Path | None = Field(None, description="PEM file; empty: certifi's certificate authorities")
    own_ids: bool = Field(
        True,
        description="with a registry: whether older records may carry ids of schemas/lock.json; false: every id is the "
        "registry's",
    )

    @model_validator(mode="after")
    def _registry_is_whole(self) -> Schemas:
        urls = [url.strip() for url in (self.registry_url or "").split(",") if url.strip()]
        options = (self.registry_username, self.registry_password, self.registry_ca_location)
        if not urls and (any(value is not None for value in options) or not self.own_ids):
            raise ValueError(
                "settings of a Schema Registry have no effect without registry_url; set it, or leave them out"
            )
        if any(re.match(r"https?://[^/]+", url) is None for url in urls):
            raise ValueError("registry_url must begin with http:// or https://")
        if (self.registry_username is None) != (self.registry_password is None):
            raise ValueError("registry_username and registry_password go together; set both or neither")
        if self.registry_ca_location is not None and not any(url.startswith("https://") for url in urls):
            raise ValueError("registry_ca_location has no effect on a registry_url that begins with http://")
        return self


TENANT_SCORERS = (
    "exact", "numeric", "math", "regex", "format", "length", "mix", "swapped", "environment", "tools", "verified",
    "reasoning-gym",
)  # fmt: skip
"""The built-in scorers without a cost for the operator: all but the judges."""


class Serve(Section):
    """The server that answers agents and records their calls."""

    host: str = Field("127.0.0.1", description="address to listen on; without keys 127.0.0.1, ::1 or localhost")
    auth: Literal["none", "keys"] = Field("none", description="keys: every request needs a key or a login")
    port: int = Field(8790, ge=0, le=65535, description="0: any free port, which is printed")
    tls_certificate: Path | None = Field(
        None,
        description="PEM file of the certificate chain; the server then speaks https",
    )
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    peer_url: str = Field(
        "",
        pattern=r"^(https?://[^\s/]+)?$",
        description="URL by which other servers of this log reach this one, e.g. http://10.0.0.7:8790; set, several "
        "may run: one answers, the others forward to it, and replace it; empty: a second server is refused",
    )
    model_names: str = Field(
        "",
        description="other names for models, which clients insist on: NAME=POLICY or NAME=POLICY@7, comma separated; * "
        "in a name is any text, and without =POLICY it is policy.name; e.g. gpt-4o-mini,claude-*=chat; the first match "
        "counts, after the names of policies; empty: none",
    )
    idle_s: float = Field(1800.0, gt=0, description="idle time after which a trajectory ends, seconds")
    longest_s: float = Field(
        86400.0,
        gt=0,
        description="maximum age of a trajectory, seconds; later calls start a new one",
    )
    remembered_mb: float = Field(
        1000.0,
        gt=0,
        description="memory for recorded turns, megabytes; beyond it the least recently used trajectory ends, and "
        "later calls start a new one",
    )
    escalation_tools: str = Field(
        "escalate, handoff, transfer_to_human",
        description="names of tools by which an agent hands a run over to a person, comma separated",
    )
    max_connections: int = Field(
        1000, ge=0, description="maximum of open connections; others get status 503; 0: no limit"
    )
    address_connections: int = Field(
        500,
        ge=0,
        description="maximum of open connections of one address (IPv6: of a /64 network); others get status 503; a "
        "proxy has the address of all its clients; 0: no limit",
    )
    max_calls: int = Field(256, ge=1, description="maximum of concurrent calls; others get status 503")
    max_body_mb: float = Field(
        16.0, gt=0, description="maximum body of a request, megabytes; larger ones get status 413"
    )
    acknowledge_s: float = Field(
        15.0,
        gt=0,
        description="time limit of the broker's acknowledgement, after which an answer gets status 503, seconds",
    )
    body_s: float = Field(
        60.0, gt=0, description="time limit of receiving a body, after which it gets status 408, seconds"
    )
    answer_s: float = Field(
        900.0, ge=0, description="time limit of a request, after which it gets status 504, seconds; 0: no limit"
    )
    key_per_s: float = Field(
        50.0,
        ge=0,
        description="sustained requests per second of one key; further ones get status 429; 0: no limit",
    )
    key_burst: int = Field(200, ge=1, description="burst of requests of one key, after a pause")
    key_at_once: int = Field(
        128,
        ge=0,
        description="concurrent requests of one key, streams included; further ones get status 429; 0: no limit",
    )
    key_tokens_per_min: int = Field(
        0,
        ge=0,
        description="tokens a minute of one key, of prompts and answers; beyond them requests get status 429 until "
        "they have come in again; 0: no limit",
    )

    requests: Literal["lossy", "required", "off"] = Field(
        "lossy",
        description="record requests with keys as events: lossy loses some while the broker is unreachable; required "
        "refuses requests that cannot be recorded; off records none",
    )
    tenant_scorers: str = Field(
        "built-in",
        pattern=r"^[\w.:, -]*$",
        description="scorers that the tasks and jobs of tenants may name, comma separated; built-in: all but the judge",
    )
    outside_scorers: str = Field(
        "",
        pattern=r"^[\w.:, ]*$",
        description="reward sources of tasks, module:function, comma separated, whose scores come by POST /rewards and "
        "enter the group; scoring.modules must not list them; any other score is feedback; empty: none",
    )
    key: SecretStr | None = Field(
        None, description="key that agents run here and their programs send to a server that requires keys"
    )

    @property
    def escalates(self) -> frozenset[str]:
        """The names of the tools that hand over to a person."""
        return frozenset(split_names(self.escalation_tools))

    @property
    def scorers_of_tenants(self) -> tuple[str, ...]:
        """The scorers that tenants may name."""
        scorers: list[str] = []
        for name in split_names(self.tenant_scorers):
            scorers += TENANT_SCORERS if name == "built-in" else (name,)
        return tuple(scorers)

    @property
    def scorers_outside(self) -> tuple[str, ...]:
        """The reward sources whose scores come by POST /rewards."""
        return split_names(self.outside_scorers)

    @property
    def model_targets(self) -> tuple[tuple[str, str], ...]:
        """The patterns of `model_names` with the models that they stand for; "": policy.name."""
        pairs = (part.partition("=") for part in split_names(self.model_names))
        return tuple((pattern.strip(), model.strip()) for pattern, _, model in pairs)

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        scheme = "http" if self.tls_certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @model_validator(mode="after")
    def _model_names_have_models(self) -> Serve:
        for part, (pattern, model) in zip(split_names(self.model_names), self.model_targets, strict=True):
            if not pattern or ("=" in part and not re.fullmatch(rf"{FOLDER_NAME}(@\d{{1,9}})?", model)):
                raise ValueError(
                    f"model_names has {part!r}; expected comma separated NAME, NAME=POLICY or NAME=POLICY@7, e.g. "
                    "gpt-4o-mini,claude-*=chat"
                )
        return self

    @model_validator(mode="after")
    def _tls_has_both_files(self) -> Serve:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together; set both, or neither")
        return self

    @model_validator(mode="after")
    def _is_guarded(self) -> Serve:
        if self.auth == "none" and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"host {self.host!r} is reachable from other machines, and without keys any client may call it. Use "
                "127.0.0.1, with an ssh tunnel from other machines; or serve.auth=keys, with a key for each client"
            )
        of_keys = ("key_per_s", "key_burst", "key_at_once", "key_tokens_per_min", "requests", "tenant_scorers")
        changed = [name for name in of_keys if getattr(self, name) != type(self).model_fields[name].default]
        if self.auth == "none" and changed:
            raise ValueError(f"{changed[0]} has no effect without keys; set auth=keys, or leave {changed[0]} out")
        return self


class Prices(Section):
    """Prices of tokens, for the view `runs`, for a limit of the guard, and for jobs, which record them."""

    prompt_usd: float | None = Field(None, ge=0, description="USD per million prompt tokens")
    completion_usd: float | None = Field(None, ge=0, description="USD per million sampled tokens")

    @model_validator(mode="after")
    def _are_whole(self) -> Prices:
        if (self.prompt_usd is None) != (self.completion_usd is None):
            raise ValueError("prompt_usd and completion_usd go together; set both (0 is free) or none")
        return self


class Metrics(Section):
    """The endpoints of each process of the loop: /metrics, /healthz, /readyz."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; 0.0.0.0 is every address, without any access check"
    )
    port: int = Field(0, ge=0, le=65535, description="port, different for each process of a machine; 0: no endpoints")
    stuck_s: float = Field(300.0, gt=0, description="time without progress after which a process is unhealthy, seconds")


class Logging(Section):
    """The log lines of each process on stderr."""

    format: Literal["text", "json"] = Field(
        "text", description="json: an object per line, with time, level, logger, coordinates and trace id"
    )


class Tracing(Section):
    """The receiver of spans. Records keep their trace whether or not spans are sent."""

    otlp_endpoint: str = Field(
        "",
        description="URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; empty: no spans are sent and no trace "
        "begins",
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of tasks without a trace that begin one; the same for every process"
    )
    queue_spans: int = Field(4096, ge=1, description="maximum queue of spans; further ones are dropped and counted")
    timeout_s: float = Field(10.0, gt=0, description="time limit of sending, retries included, seconds")

    @model_validator(mode="after")
    def _has_a_receiver(self) -> Tracing:
        url, fields = self.otlp_endpoint, type(self).model_fields
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"otlp_endpoint: {url!r} is no URL; write it as http://host:4318")
        changed = [name for name in fields if not url and getattr(self, name) != fields[name].default]
        if changed:
            raise ValueError(f"{changed[0]} has no effect without otlp_endpoint; set it, or leave {changed[0]} out")
        return self


class Egress(Section):
    """HTTP connections to servers outside of the loop: judge, model servers, tools, logins (docs/security.md)."""

    hosts: str = Field(
        "",
        description="hosts that may be connected to, comma separated, also as patterns (*.example.com); empty: all; "
        "does not apply to Kafka, object stores and the program's own server",
    )
    private: str = Field(
        "",
        description="networks that are not public and may be connected to by URLs that no setting names, comma "
        "separated, e.g. 10.1.0.0/16",
    )

    @field_validator("private")
    @classmethod
    def _networks_exist(cls, text: str) -> str:
        for network in split_names(text):
            try:
                ip_network(network)
            except ValueError as exc:
                raise ValueError(f"{network!r} is no network: {exc}; expected e.g. 10.1.0.0/16 or fd00::/8") from None
        return text

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, text: str) -> str:
        if bad := [host for host in split_names(text) if "/" in host or host.count(":") == 1]:
            raise ValueError(f"{bad[0]!r} is no host; write it without scheme, port and path, e.g. api.example.com")
        return text


class Broker(Section):
    """The embedded Kafka node."""

    data_dir: Path = Field(Path(".streamward/kafka"), description="folder of the node; one node per folder")
    heap_mb: int = Field(384, ge=128, description="JVM heap, megabytes")


class Plugins(Section):
    """Optional parts of the program (docs/plugins.md)."""

    load: str = Field(
        "*",
        pattern=r"^(\*|[a-z0-9_, ]*)$",
        description="plugins that a process loads, comma separated; *: all that are installed; empty: none",
    )


class Settings(Section):
    """The whole tree."""

    kafka: Kafka = Kafka()
    topics: Topics = Topics()
    worker: Worker = Worker()
    advantages: Advantages = Advantages()
    batches: Batches = Batches()
    learning: Learning = Learning()
    model: Model = Model()
    policy: Policy = Policy()
    scoring: Scoring = Scoring()
    rollouts: Rollouts = Rollouts()
    guard: Guard = Guard()
    canary: Canary = Canary()
    trainer: Trainer = Trainer()
    fleet: Fleet = Fleet()
    adapters: Adapters = Adapters()
    outside: Outside = Outside()
    archive: Archive = Archive()
    schemas: Schemas = Schemas()
    serve: Serve = Serve()
    prices: Prices = Prices()
    metrics: Metrics = Metrics()
    logging: Logging = Logging()
    tracing: Tracing = Tracing()
    egress: Egress = Egress()
    broker: Broker = Broker()
    plugins: Plugins = Plugins()

    def of_plugin(self, kind: type[S]) -> S:
        """Return the section that a plugin declares; its defaults in settings that were not loaded."""
        return next((section for _, section in self if isinstance(section, kind)), kind())
