"""Settings: one frozen tree, its sources in order, nothing misspelt or contradictory in silence, no secret shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import traceback
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from pydantic import SecretStr, ValidationError

from streams.demo.settings_file import finds_settings, leave_settings
from streams.errors import SettingsError
from streams.kafka.client import client_config, consumer
from streams.kafka.node import config as node
from streams.kafka.reader import PartitionReader
from streams.settings.load import (
    ENV_CONFIG,
    describe,
    flatten,
    load,
    load_with_origins,
    save,
    secret_variable,
    to_env,
)
from streams.settings.model import (
    FIXED_KEYS,
    SETTING_OF_KEY,
    Adapters,
    Batches,
    Broker,
    Fleet,
    Kafka,
    Prices,
    Scoring,
    Settings,
)

SECURED = Kafka(
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="anna",
    sasl_password=SecretStr("hunter2"),
    ssl_ca_location=Path("ca.pem"),
    ssl_certificate_location=Path("me.pem"),
    ssl_key_location=Path("key.pem"),
    client={"ssl.key.password": SecretStr("hunter3"), "debug": SecretStr("broker")},
)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has no settings file: the demo leaves one where it ran."""
    (folder := tmp_path / "apart").mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "streamward.toml"
    path.write_text("[batches]\ngroups = 4\nmax_policy_lag = 3\n\n[topics]\nprefix = 'file.'\n")
    return path


def remember(folder: Path, port: int) -> None:
    folder.mkdir(parents=True)
    node.remember(folder, node.Node(pid=0, port=port, controller_port=port, cluster_id="c", client={}))


# --- where a value comes from ----------------------------------------------------------------------------------------


def test_without_any_source_everything_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_with_origins(env={}) == (Settings(), {})


def test_the_environment_beats_the_file_and_set_beats_both(file: Path) -> None:
    env = {"STREAMWARD_BATCHES__MAX_POLICY_LAG": "5", "STREAMWARD_TOPICS__PREFIX": "env."}
    settings, origins = load_with_origins(file=file, env=env, overrides=["topics.prefix=set."])
    assert (settings.batches, settings.topics.prefix) == (Batches(groups=4, max_policy_lag=5), "set.")
    assert origins == {
        "batches.groups": str(file),
        "batches.max_policy_lag": "STREAMWARD_BATCHES__MAX_POLICY_LAG",
        "topics.prefix": "--set topics.prefix",
    }


def test_a_file_named_in_the_environment_holds_the_value(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    env = {"STREAMWARD_SCORING__JUDGE_URL": "http://judge/v1", "STREAMWARD_SCORING__JUDGE_MODEL": "judge"}
    settings, origins = load_with_origins(env={**env, "STREAMWARD_SCORING__JUDGE_KEY_FILE": str(secret)})
    assert settings.scoring.judge_key == SecretStr("hunter2")
    assert origins["scoring.judge_key"] == "STREAMWARD_SCORING__JUDGE_KEY_FILE"


def test_the_variable_itself_beats_the_file_of_its_value() -> None:
    env = {"STREAMWARD_TOPICS__PREFIX": "a.", "STREAMWARD_TOPICS__PREFIX_FILE": "nowhere"}
    assert load(env=env).topics.prefix == "a."


def test_a_file_of_a_value_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"STREAMWARD_KAFKA__SASL_PASSWORD_FILE: nowhere cannot be read"):
        load(env={"STREAMWARD_KAFKA__SASL_PASSWORD_FILE": "nowhere"})


def test_of_two_overrides_the_last_wins() -> None:
    assert load(env={}, overrides=["batches.groups=2", "batches.groups=9"]).batches.groups == 9


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load(env={}, overrides=["policy.script=a=b"]).policy.script == "a=b"


def test_the_file_in_the_working_folder_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load(env={}).batches.groups == 4


def test_a_path_in_a_file_is_relative_to_the_file_and_elsewhere_to_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "there/model").mkdir(parents=True)
    file = tmp_path / "there/streamward.toml"
    file.write_text(
        "[broker]\ndata_dir = 'kafka'\n[archive]\nstore = 'kept'\n[adapters]\nstore = 's3://bucket/adapters'\n"
        "verify_key = '/keys/adapters.pub'\n[guard]\nsuite = '~/suite.yaml'\n[model]\nbase = 'model'\n"
    )
    found = load(
        file=file, env={"STREAMWARD_TRAINER__CHECKPOINTS": "steps"}, overrides=["adapters.signing_key=own.key"]
    )
    assert found.broker.data_dir == tmp_path / "there/kafka"
    assert found.archive.store == str(tmp_path / "there/kept")
    assert found.adapters.store == "s3://bucket/adapters"
    assert found.adapters.verify_key == Path("/keys/adapters.pub")
    assert found.guard.suite == Path("~/suite.yaml")
    assert found.model.base == str(tmp_path / "there/model")
    assert (found.trainer.checkpoints, found.adapters.signing_key) == (Path("steps"), Path("own.key"))
    file.write_text("[model]\nbase = 'smollm2-135m-instruct'\n")
    assert load(file=file, env={}).model.base == "smollm2-135m-instruct"


@pytest.mark.parametrize("name", ["plain", "my archive #1 (50% für Ulm)", "a+b?c=d&e", "100%25"])
@pytest.mark.parametrize("key", ["archive.store", "adapters.store", "trainer.checkpoints"])
def test_a_file_url_names_the_same_folder_as_its_path(key: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    file = tmp_path / "streamward.toml"
    section, _, setting = key.partition(".")
    file.write_text(f'{section}.{setting} = "{path.as_uri()}"\n')
    for loaded in (
        load(overrides=[f"{key}={path.as_uri()}"]),
        load(overrides=[f"{key}={path.as_uri().replace('file://', 'file://localhost')}"]),
        load(overrides=[f"{key}={path.as_uri().replace('file://', 'file:')}"]),
        load(overrides=[f"{key}={path.as_uri().replace('file://', 'FILE://')}"]),
        load(env={f"STREAMWARD_{section}__{setting}".upper(): path.as_uri()}),
        load(file=file),
    ):
        assert dict(flatten(loaded))[key] == dict(flatten(load(overrides=[f"{key}={path}"])))[key]
    if "%25" not in name:
        assert str(dict(flatten(load(overrides=[f"{key}=file://{path}"])))[key]) == str(path)


@pytest.mark.parametrize("url", ["file://data/archive", "file:archive", "file:///data/%00", "file:///data/%ff"])
def test_a_file_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"archive\.store, from --set"):
        load(overrides=[f"archive.store={url}"])


@pytest.mark.parametrize("key", ["archive.store", "adapters.store"])
def test_a_store_without_a_name_is_refused_and_the_scheme_of_a_url_may_have_capitals(key: str) -> None:
    with pytest.raises(SettingsError, match="is empty; name a folder"):
        load(env={f"STREAMWARD_{key.replace('.', '__')}".upper(): ""})
    assert dict(flatten(load(overrides=[f"{key}=S3://Bucket/Path"])))[key] == "s3://Bucket/Path"


@pytest.mark.parametrize(("url", "escape"), [("s3://bucket/my archive #1", "%23"), ("gs://bucket/a?b", "%3F")])
def test_what_ends_the_path_of_an_archive_s_url_is_refused(url: str, escape: str) -> None:
    with pytest.raises(SettingsError, match=f"archive.store, .* write {escape}"):
        load(overrides=[f"archive.store={url}"])


def test_saved_paths_mean_the_same_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    overrides = ["broker.data_dir=mine/kafka", "adapters.store=mine/adapters", "archive.store=s3://bucket/archive"]
    file = save(load(env={}, overrides=overrides), tmp_path, by="a test")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load(file=Path("..") / file.name, env={})
    paths = (found.broker.data_dir, found.adapters.store)
    assert [*map(os.path.abspath, paths)] == [str(here / "mine/kafka"), str(here / "mine/adapters")]
    assert found.archive.store == "s3://bucket/archive"


def test_a_working_folder_that_is_moved_has_its_settings_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    (before / ".streamward" / "up").mkdir(parents=True)
    monkeypatch.chdir(before)
    outside = tmp_path / "keys" / "sign.key"
    settings = Settings().model_copy(
        update={"broker": Broker(data_dir=Path(".streamward/up/kafka")), "adapters": Adapters(signing_key=outside)}
    )
    config = save(settings, Path(".streamward/up"), by="streamward up")
    assert leave_settings(config) and finds_settings(config)
    assert leave_settings(config), "the same again"
    shutil.copytree(before, after)
    monkeypatch.chdir(after)
    assert finds_settings(config)
    for file in (Path("streamward.toml"), config, after / config):
        found = load(file=file, env={})
        assert found.broker.data_dir.absolute() == after / ".streamward" / "up" / "kafka"
        assert found.adapters.signing_key == outside, "what lies outside stays where it is"


def test_a_variable_names_another_file(file: Path) -> None:
    assert load(env={ENV_CONFIG: str(file)}).topics.prefix == "file."


@pytest.mark.parametrize(("value", "says"), [("", "Is a directory"), ("missing.toml", "no such settings file")])
def test_a_variable_that_names_no_file_is_refused_by_its_name(value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=rf"STREAMWARD_CONFIG={value}: .*{says}; .* or unset STREAMWARD_CONFIG"):
        load(env={ENV_CONFIG: value})


def test_without_a_bootstrap_the_node_that_the_folder_remembers_is_the_log(tmp_path: Path) -> None:
    remember(Path(".streamward/kafka"), port=20123)
    remember(tmp_path / "mine", port=20124)
    here, origins = load_with_origins(env={})
    assert (here.kafka.bootstrap, origins) == (
        "127.0.0.1:20123",
        {"kafka.bootstrap": "the node in .streamward/kafka"},
    )
    assert load(env={}, overrides=[f"broker.data_dir={tmp_path}/mine"]).kafka.bootstrap == "127.0.0.1:20124"
    assert load(env={"STREAMWARD_KAFKA__BOOTSTRAP": "kafka:9092"}).kafka.bootstrap == "kafka:9092"


def test_what_is_saved_or_given_to_a_child_names_the_log_whatever_node_is_remembered_there(tmp_path: Path) -> None:
    settings = Settings()  # the address of the log is the default one
    remember(Path(".streamward/kafka"), port=20123)
    assert load(env=to_env(settings)) == settings
    assert load(file=save(settings, tmp_path, by="a test"), env={}) == settings


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: no such settings file"):
        load(file=tmp_path / "nowhere.toml", env={})


def test_a_file_that_is_no_toml_says_where(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[kafka\n")
    with pytest.raises(SettingsError, match=r"broken\.toml: not TOML: .*line 1"):
        load(file=path, env={})


@pytest.mark.parametrize("name", ["", "../../x", "a/b", ".hidden", "a\0b", "x" * 129])
def test_a_policy_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(SettingsError, match=r"policy\.name"):
        load(env={}, overrides=[f"policy.name={name}"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[kafka]\nx = '\xff'\n", r":2: not UTF-8: byte 0xff, byte 5"),
        (b"[kafka]\nx = " + b"[" * 100_000, ": not TOML"),
    ],
    ids=["latin1", "deep"],
)
def test_a_file_that_no_parser_can_read_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "odd.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=rf"odd\.toml{problem}"):
        load(file=tmp_path / "odd.toml", env={})
    with pytest.raises(SettingsError, match=f"{tmp_path}: cannot be read"):
        load(file=tmp_path, env={})


def test_variables_of_other_programs_are_left_alone() -> None:
    assert load(env={"KAFKA_HOME": "/opt/kafka", "PATH": "/bin"}) == load(env={})


# --- nothing in silence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            {"env": {"STREAMWARD_BATCHES__GRUOPS": "4"}},
            "STREAMWARD_BATCHES__GRUOPS: no setting is called 'batches.gruops'; did you mean batches.groups?",
        ),
        ({"env": {"STREAMWARD_BOOTSTRAP": "b:1"}}, "no setting is called 'bootstrap'; did you mean kafka.bootstrap?"),
        ({"env": {}, "overrides": ["zzz.qqq=1"]}, "--set zzz.qqq: no setting is called 'zzz.qqq'; see `streamward"),
        ({"env": {}, "overrides": ["batches.groups"]}, "expected section.key=value, e.g. --set batches.groups=8"),
        (
            {"env": {"STREAMWARD_BATCHES__GROUPS": "many"}},
            "batches.groups, from STREAMWARD_BATCHES__GROUPS: Input should be a valid integer, unable to parse string "
            "as an integer (got 'many')",
        ),
        ({"env": {}, "overrides": ["batches.groups=0"]}, "batches.groups, from --set batches.groups: Input should be"),
        ({"env": {"STREAMWARD_KAFKA__CLIENT": "debug"}}, 'expected a JSON object of texts, e.g. {"debug": "broker"}'),
    ],
)
def test_what_nobody_knows_or_can_use_is_refused_with_its_source(source: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(**source)
    assert says in str(refused.value)


def test_a_misspelt_key_in_the_file_is_refused(file: Path) -> None:
    file.write_text("[trainer]\nlearning_rat = 1e-4\n")
    with pytest.raises(SettingsError, match=r"streamward\.toml: .*'trainer\.learning_rat'; did you mean trainer\.lea"):
        load(file=file, env={})


def test_a_key_outside_any_section_is_refused(file: Path) -> None:
    file.write_text("bootstrap = 'b:1'\n")
    with pytest.raises(
        SettingsError, match=r"bootstrap is outside a section; settings belong to sections, e\.g\. \[kafka\]"
    ):
        load(file=file, env={})


def test_every_bad_value_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        load(env={}, overrides=["batches.groups=0", "advantages.ddof=2"])
    assert [line.partition(",")[0] for line in str(refused.value).splitlines()] == ["advantages.ddof", "batches.groups"]


def test_a_bad_value_inside_a_mapping_names_its_file(file: Path) -> None:
    file.write_text("[kafka]\nclient = {debug = 1}\n")
    with pytest.raises(SettingsError, match=f"kafka.client.debug, from {file}: "):
        load(file=file, env={})


@pytest.mark.parametrize(
    ("overrides", "way_out"),
    [
        (["kafka.security_protocol=SASL_SSL"], "sasl_mechanism, sasl_username and sasl_password must all be set"),
        (["kafka.sasl_username=anna"], "set it to SASL_SSL (or SASL_PLAINTEXT on a trusted network)"),
        (["kafka.ssl_ca_location=ca.pem"], "set it to SSL or SASL_SSL"),
        (["kafka.security_protocol=SSL", "kafka.ssl_key_location=k.pem"], "go together; set both or neither"),
        (["schemas.own_ids=false"], "have no effect without registry_url; set it, or leave them out"),
        (["schemas.registry_url=registry:8081"], "must begin with http:// or https://"),
        (["schemas.registry_url=http://r", "schemas.registry_username=u"], "go together; set both or neither"),
        (
            ["schemas.registry_url=http://r", "schemas.registry_ca_location=c"],
            "no effect on a registry_url that begins",
        ),
        (["scoring.judge_model=m"], "no effect without judge_url; set it, up to /v1"),
        (["scoring.judge_url=http://j/v1"], "name the model of the judge"),
        (["scoring.judge_prompt_usd=1"], "judge_prompt_usd and judge_completion_usd go together"),
        (["serve.host=0.0.0.0"], "without keys any client may call it. Use 127.0.0.1"),
        (["policy.engine=vllm"], "name the servers, e.g. http://127.0.0.1:8000"),
        (["policy.servers=http://a:1"], "set engine=vllm, or leave it out"),
        (["policy.max_concurrent=1"], "set engine=vllm, or leave it out"),
        (["policy.engine=vllm", "policy.servers=a:1"], "write it as http://host:port"),
        (["policy.engine=vllm", "policy.servers=http://a:1", "policy.server_retries=9"], "raise round_timeout_s, or"),
        (["fleet.weights=chat"], "expected comma separated PATTERN=WEIGHT"),
        (["fleet.weights=chat=0"], "weights from 0.001 to 1000"),
        (["fleet.policies=,"], "name some, or * for all"),
        (["serve.model_names==chat"], "expected comma separated NAME, NAME=POLICY or NAME=POLICY@7"),
        (["serve.model_names=gpt="], "e.g. gpt-4o-mini,claude-*=chat"),
        (["serve.model_names=gpt=../x"], "expected comma separated NAME"),
        (["trainer.loss=cispo"], "set trainer.epsilon_high=5.0"),
        (["trainer.epsilon_high=5.0"], "set it below 1, e.g. 0.28"),
        (["trainer.importance_cap=3.0"], "set importance=truncate or mask"),
        (["trainer.epsilon_low=0.1", "trainer.advantages=positive"], "leave it out, or set trainer.advantages=both"),
    ],
)
def test_a_contradiction_is_refused_with_the_way_out(overrides: list[str], way_out: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(env={}, overrides=overrides)
    assert way_out in str(refused.value)
    assert overrides[0].partition("=")[0] in str(refused.value)  # where it came from


def test_the_first_pattern_that_matches_a_policy_is_its_weight_and_a_name_no_setting_allows_is_nobodys() -> None:
    rule = Fleet(policies="chat*, math", weights="chat-2=3, chat*=0.5")
    assert [rule.weight_of(name) for name in ("chat-2", "chat-1", "math")] == [3.0, 0.5, 1.0]
    assert [name for name in ("chat-1", "math", "maths", "chat/../x", "") if rule.serves(name)] == ["chat-1", "math"]


def test_the_server_listens_anywhere_once_it_asks_for_keys() -> None:
    assert load(env={}, overrides=["serve.host=10.0.0.1", "serve.auth=keys"]).serve.host == "10.0.0.1"


def test_settings_do_not_change_under_a_running_process() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().batches.groups = 2  # type: ignore[misc]


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_secret_is_shown() -> None:
    settings = Settings(kafka=SECURED, scoring=Scoring(judge_url="u", judge_model="m", judge_key=SecretStr("hunter4")))
    shown = [repr(settings), str(settings), repr(list(flatten(settings))), settings.model_dump_json()]
    shown += [repr(list(describe(settings, {})))]
    assert all("hunter" not in text for text in shown)


@pytest.mark.parametrize(
    "source",
    [
        {"env": {}, "overrides": ["kafka.sasl_password=hunter2"]},  # without the rest: a contradiction
        {"env": {"STREAMWARD_KAFKA__SASL_PASSWORD": "hunter2"}},
        {"env": {"STREAMWARD_KAFKA__CLIENT": '{"sasl.password": "hunter2", "debug": 7}'}},
        {"env": {"STREAMWARD_KAFKA__CLIENT": '["hunter2"]'}},
    ],
)
def test_no_secret_is_shown_by_an_error_and_its_traceback(source: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(**source)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_no_secret_of_the_wrong_type_is_shown(file: Path) -> None:
    file.write_text("[kafka]\nsasl_password = 20562056\nsasl_username = 'anna'\n")
    with pytest.raises(SettingsError) as refused:
        load(file=file, env={})
    assert "20562056" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "key", ["schemas.registry_url", "scoring.judge_url", "adapters.store", "tracing.otlp_endpoint"]
)
@pytest.mark.parametrize("user", ["anna:hunter2", "hunter2"])
def test_a_password_in_a_url_is_refused_and_not_shown(key: str, user: str) -> None:
    with pytest.raises(SettingsError, match=f"{key}.*must hold no user and no password") as refused:
        load(env={}, overrides=[f"{key}=http://{user}@host/path"])
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_the_content_of_a_file_that_a_variable_names_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "value").write_text("hunter2")
    with pytest.raises(SettingsError, match=r"batches\.groups, from STREAMWARD_BATCHES__GROUPS_FILE") as refused:
        load(env={"STREAMWARD_BATCHES__GROUPS_FILE": str(tmp_path / "value")})
    assert "hunter2" not in str(refused.value)
    loaded = load_with_origins(env={"STREAMWARD_POLICY__NAME_FILE": str(tmp_path / "value")})
    assert loaded[0].policy.name == "hunter2"
    assert "hunter2" not in repr(list(describe(*loaded)))


def test_a_price_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_usd and completion_usd go together"):
        Prices(prompt_usd=1.0)


@pytest.mark.parametrize(
    ("override", "variable"),
    [
        ("kafka.sasl_password=hunter2", "STREAMWARD_KAFKA__SASL_PASSWORD"),
        ('kafka.client={"ssl.key.password": "hunter2"}', "STREAMWARD_KAFKA__CLIENT"),
        ('kafka.client={"debug": "broker"}', None),
        ("batches.groups=8", None),
        ("nobody.knows=8", None),
    ],
)
def test_what_sets_a_secret_is_known(override: str, variable: str | None) -> None:
    assert secret_variable(override) == variable


def test_no_secret_is_shown_as_the_origin_of_a_value() -> None:
    overrides = [
        "kafka.security_protocol=SASL_SSL",
        "kafka.sasl_mechanism=PLAIN",
        "kafka.sasl_username=anna",
        "kafka.sasl_password=hunter2",
    ]
    _, origins = load_with_origins(env={}, overrides=overrides)
    assert "hunter2" not in repr(origins)


def test_the_client_gets_the_secrets_themselves() -> None:
    config = client_config(SECURED)
    wanted = {
        "sasl.password": "hunter2",
        "ssl.key.password": "hunter3",
        "debug": "broker",
        "ssl.key.location": "key.pem",
    }
    assert {key: config[key] for key in wanted} == wanted


# --- the keys of a Kafka client --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("group.protocol", "kafka.client, from --set kafka.client: group.protocol follows from kafka.group_protocol"),
        ("group.instance.id", "group.instance.id is set by Streamward"),
        (
            "isolation.level",
            "isolation.level is set by Streamward, whose promises rest on its value: leave this key",
        ),
        ("transactional.id", "transactional.id is set by Streamward"),
        ("session.timeout.ms", "session.timeout.ms follows from kafka.session_timeout_s: set that, and leave this key"),
        ("bootstrap.servers", "bootstrap.servers follows from kafka.bootstrap"),
    ],
)
def test_a_key_of_the_client_that_streamward_sets_itself_is_refused_by_name(key: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(env={}, overrides=["kafka.client=" + json.dumps({"debug": "broker", key: "hush"})])
    assert says in str(refused.value) and "hush" not in str(refused.value)


OVERRIDABLE = {"socket.keepalive.enable", "reconnect.backoff.max.ms"}
"""Set for every client, and free for a user to change."""
CLIENTS = (
    *("streams/kafka/client.py", "streams/kafka/consumer.py", "streams/kafka/producer.py", "streams/kafka/reader.py"),
    *("streams/arrow/bulk.py", "streams/worker/batched/worker_consumer.py", "trainer/batch_source.py"),
)


def test_every_key_that_a_client_of_ours_sets_is_refused_in_the_settings() -> None:
    sources = [(Path(__file__).parents[2] / place).read_text() for place in CLIENTS]
    keys = set(re.findall(r'"((?:[a-z]+\.)+[a-z]+|acks|partitioner)": ', "".join(sources)))
    assert len(keys) > 30 and not keys - SETTING_OF_KEY.keys() - FIXED_KEYS - OVERRIDABLE


def test_a_key_that_librdkafka_does_not_know_is_an_error_of_the_settings() -> None:
    with pytest.raises(SettingsError, match=r"kafka\.client \(no\.such\.key\).*: No such configuration property"):
        consumer(Kafka(client={"no.such.key": SecretStr("hush")}), {"group.id": "any"})


def test_every_consumer_asks_every_few_seconds_which_topics_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may report none: a group's member that asked then would ask again in 5 minutes."""
    made, real = list[dict[str, Any]](), ck.Consumer

    def make(config: dict[str, Any]) -> ck.Consumer:
        made.append(config)
        return real(config)

    monkeypatch.setattr(ck, "Consumer", make)
    PartitionReader(Settings(), {}).close()
    assert [config["topic.metadata.refresh.interval.ms"] for config in made] == [5000]
    root = Path(__file__).parents[2]
    sources = [path for part in ("gateway", "schemas", "streams", "trainer") for path in (root / part).rglob("*.py")]
    elsewhere = re.compile(r"(ck|confluent_kafka)\.(Deserializing)?Consumer\(|from confluent_kafka import .*Consumer")
    assert [str(path) for path in sources if elsewhere.search(path.read_text())] == []
