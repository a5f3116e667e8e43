"""Where a run leaves its settings, so that commands typed in its folder find its log, and what it never touches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.demo.demo_options import DemoOptions, check
from streams.demo.progress import Progress
from streams.demo.settings_file import finds_settings, leave_settings
from streams.demo.up_plan import UpPlan
from streams.errors import SettingsError
from streams.kafka.node.config import Node, remember
from streams.settings.load import CONFIG_FILE, load, save
from streams.settings.model import Settings

ROOT = Path(__file__).parents[2]
USERS = "[topics]\nprefix = 'mine.'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the demo runs in, without settings of anybody's."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("STREAMWARD_"):
            monkeypatch.delenv(name)
    return tmp_path


def started(options: DemoOptions, bootstrap: str = "127.0.0.1:21000") -> Path:
    """Do with the settings what a run of the demo does, and return its own settings file."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    config = save(options.settings(bootstrap), options.data_dir, by="streamward demo")
    leave_settings(config)
    return config


def test_a_command_in_the_folder_of_the_demo_has_its_settings() -> None:
    config = started(DemoOptions())
    assert finds_settings(config)
    assert load() == load(file=config)
    assert load().kafka.bootstrap == "127.0.0.1:21000"
    assert load().broker.data_dir == Path(".streamward/demo/kafka")  # moved with the folder, it is found there


def test_the_demo_learns_by_the_rule_of_a_settings_file_and_leaves_the_rest_as_it_learns_best() -> None:
    settings = DemoOptions(config=ROOT / "docs/examples/loop.toml", task="guess").settings()
    assert (settings.advantages.formula, settings.trainer.loss, settings.trainer.epsilon_high) == ("rloo", "bnpo", 0.2)
    assert (settings.batches.max_policy_lag, settings.trainer.learning_rate) == (0, 4e-4)
    assert DemoOptions(overrides=("advantages.formula=grpo",)).settings().advantages.formula == "grpo"


def test_commands_follow_the_node_of_a_demo_to_another_port() -> None:
    node = Path(".streamward/demo/kafka")
    node.mkdir(parents=True)
    remember(node, Node(pid=0, port=9092, controller_port=1, cluster_id="c", client={}))
    started(DemoOptions(), "127.0.0.1:9092")
    remember(node, Node(pid=0, port=20123, controller_port=1, cluster_id="c", client={}))
    assert load().kafka.bootstrap == "127.0.0.1:20123"


def test_commands_follow_the_node_of_up_from_another_folder_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Path(".streamward/kafka")
    node.mkdir(parents=True)
    remember(node, Node(pid=0, port=20123, controller_port=1, cluster_id="c", client={}))
    settings = UpPlan(steps=None, minutes=None).settings("127.0.0.1:20123")
    file = save(settings, folder, by="streamward up")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert load(file=file).kafka.bootstrap == "127.0.0.1:20123"


def test_settings_of_the_user_are_read_by_the_demo_and_left_as_they_are() -> None:
    Path(CONFIG_FILE).write_text(USERS)
    config = started(DemoOptions())
    assert Path(CONFIG_FILE).read_text() == USERS
    assert not finds_settings(config)
    assert load(file=config).topics.prefix == "mine."


def test_commands_next_to_the_users_file_have_the_settings_of_up(folder: Path) -> None:
    Path(CONFIG_FILE).write_text("[batches]\ngroups = 4\n")

    def up(*overrides: str) -> Path:
        plan = UpPlan(steps=None, minutes=None, overrides=overrides)
        plan.folder.mkdir(parents=True, exist_ok=True)
        config = save(plan.settings("127.0.0.1:21000"), plan.folder, by="streamward up")
        leave_settings(config)
        return config

    config = up("trainer.learning_rate=0.002")
    assert finds_settings(config)
    assert (load().batches.zero_variance, load().trainer.learning_rate, load().batches.groups) == ("keep", 0.002, 4)
    Path(CONFIG_FILE).write_text("[batches]\ngroups = 5\n")
    assert load().batches.groups == 5, "what the user says goes before it"
    assert load(file=Path(CONFIG_FILE)).batches.zero_variance == "drop", "a file that is named stands for itself"
    assert not finds_settings(up("batches.groups=6"))
    assert load(file=up()).trainer.learning_rate == Settings().trainer.learning_rate, "an option was for its run"


def test_up_starts_over_only_with_what_is_this_folders_own(folder: Path) -> None:
    for name in ("kafka", "adapters", "checkpoints", "up", "demo"):
        (folder / ".streamward" / name / "below").mkdir(parents=True)
    for key, value in {
        "adapters.store": "adapters",
        "broker.data_dir": "/elsewhere",
        "adapters.store ": "s3://b/a",
    }.items():
        with pytest.raises(
            SettingsError, match=f"only what is below .streamward: delete {key.strip()}={value} by hand"
        ):
            UpPlan(steps=None, minutes=None, overrides=(f"{key.strip()}={value}",)).delete_all()
    with pytest.raises(SettingsError, match=r"not on a node of this folder \(kafka\.bootstrap\)"):
        UpPlan(steps=None, minutes=None, overrides=("kafka.bootstrap=other:9092",)).delete_all()
    assert len(os.listdir(".streamward")) == 5
    UpPlan(steps=None, minutes=None).delete_all()
    assert os.listdir(".streamward") == ["demo"]


def test_another_seed_makes_other_tasks_and_goes_on_with_them() -> None:
    plans = [DemoOptions(task="lookup", seed=seed) for seed in (0, 1)]
    settings = plans[0].settings()
    train = [next(plan.tasks(settings, Progress(settings)).tasks).messages for plan in plans]
    held_out = [plan.suite() for plan in plans]
    assert train[0] != train[1] and held_out[0] != held_out[1]
    assert plans[1].to_continue()[-4:] == ["--task", "lookup", "--seed", "1"]
    assert settings.batches.groups == 8


def test_options_of_the_family_make_other_tasks_and_another_suite_and_are_kept_when_it_resumes() -> None:
    plans = [DemoOptions(task="distractor", options=options) for options in ({}, {"noise": 5})]
    settings = plans[0].settings()
    starts = [next(plan.tasks(settings, Progress(settings)).tasks).environment for plan in plans]
    assert [start and start.settings for start in starts] == ["{}", '{"noise": 5}']
    assert plans[0].suite().name == "distractor/n=35/seed=0"
    assert plans[1].suite().name == 'distractor/n=35/seed=0/{"noise": 5}'
    assert plans[1].to_continue()[-2:] == ["--options", '{"noise": 5}']


def test_a_run_takes_no_option_from_the_run_before() -> None:
    started(DemoOptions(overrides=("batches.groups=3",), engine="scripted"))
    started(DemoOptions(), "127.0.0.1:22000")
    assert (load().batches.groups, load().policy.engine) == (load(file=Path(os.devnull)).batches.groups, "transformers")
    assert load().kafka.bootstrap == "127.0.0.1:22000"


def test_of_two_demos_in_one_folder_the_later_is_found() -> None:
    first, second = (started(DemoOptions(data_dir=Path(name)), f"127.0.0.1:{name}") for name in ("21001", "21002"))
    assert not finds_settings(first)
    assert finds_settings(second)
    assert load().kafka.bootstrap == "127.0.0.1:21002"


def test_what_a_user_makes_of_the_file_stays_once_its_first_line_is_gone() -> None:
    started(DemoOptions())
    own = Path(CONFIG_FILE).read_text().partition("\n")[2] + "\n[topics]\nprefix = 'mine.'\n"
    Path(CONFIG_FILE).write_text(own)
    assert finds_settings(started(DemoOptions())), "they are those of the run"
    assert not finds_settings(started(DemoOptions(overrides=("batches.groups=3",))))
    assert Path(CONFIG_FILE).read_text() == own


def test_a_file_of_the_users_elsewhere_is_read_and_goes_before_the_one_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.toml").write_text(USERS)
    monkeypatch.setenv("STREAMWARD_CONFIG", "own.toml")
    config = started(DemoOptions())
    assert not finds_settings(config)  # STREAMWARD_CONFIG wins over the folder
    assert load(file=config).topics.prefix == "mine."
    monkeypatch.delenv("STREAMWARD_CONFIG")
    assert finds_settings(config)
    assert DemoOptions().settings("127.0.0.1:0").topics.prefix != "mine."
    assert DemoOptions(config=Path("own.toml")).settings("127.0.0.1:0").topics.prefix == "mine."


def test_a_folder_that_takes_no_file_is_no_failure(folder: Path) -> None:
    Path(CONFIG_FILE).mkdir()  # a folder by that name, since tests of root could write anywhere
    assert not leave_settings(
        save(DemoOptions(config=Path(os.devnull)).settings("h:1"), folder.parent, by="streamward demo")
    )


@pytest.mark.parametrize("name", [".", "..", "../.."])
def test_a_demo_is_not_kept_in_the_folder_one_works_in_since_fresh_would_delete_it(name: str) -> None:
    with pytest.raises(SettingsError, match="name a folder for the demo alone"):
        check(DemoOptions(data_dir=Path(name)))


def test_the_command_that_resumes_has_all_that_makes_it_this_demo() -> None:
    assert DemoOptions().to_continue() == ["demo", "--steps", "30"]
    one = DemoOptions(steps=3, engine="scripted", data_dir=Path("a b"), overrides=("batches.groups=4",))
    assert one.to_continue() == [
        "--set", "batches.groups=4", "demo", "--steps", "13", "--data-dir", "a b", "--engine", "scripted"
    ]  # fmt: skip


# --- up ---------------------------------------------------------------------------------------------------------------


def test_what_the_user_set_is_not_set_otherwise_by_up_and_the_rest_is_as_one_machine_learns_best() -> None:
    Path(CONFIG_FILE).write_text("[batches]\nmax_policy_lag = 2\n")
    settings = UpPlan(steps=None, minutes=None, overrides=("advantages.formula=rloo",)).settings("h:1")
    assert (settings.batches.max_policy_lag, settings.advantages.formula) == (2, "rloo")
    assert (settings.batches.zero_variance, settings.kafka.bootstrap) == ("keep", "h:1")
    assert settings.broker.data_dir == load().broker.data_dir  # where any command of this folder looks


def test_a_scorer_named_to_up_may_be_imported_unless_the_user_says_which_may() -> None:
    plan = UpPlan(steps=None, minutes=None, modules=("capscore",))
    assert plan.settings().scoring.importable == ("capscore", ".")
    Path(CONFIG_FILE).write_text("[scoring]\nmodules = 'other'\n")
    assert plan.settings().scoring.importable == ("other",)


def test_up_starts_the_node_of_the_folder_unless_a_kafka_is_named() -> None:
    assert UpPlan(steps=None, minutes=None).starts_node
    named = UpPlan(steps=None, minutes=None, overrides=("kafka.bootstrap=kafka:9092",))
    assert not named.starts_node
    assert named.settings().kafka.bootstrap == "kafka:9092"


def test_an_engine_without_weights_is_never_held_back_for_a_trainer() -> None:
    Path(CONFIG_FILE).write_text("[policy]\nengine = 'scripted'\n")
    assert UpPlan(steps=None, minutes=None).settings().batches.max_policy_lag > 10_000


def test_up_after_a_demo_in_the_same_folder_takes_nothing_of_it() -> None:
    started(DemoOptions(overrides=("batches.groups=3",)))
    assert UpPlan(steps=None, minutes=None).settings().policy.name == Settings().policy.name
