"""Settings from files: TOML, YAML and a run's config.json, the inverse of what a run writes; and ``--set``."""

import json

import pytest

from sharpwave.errors import NewerVersionError
from sharpwave.json_values import sealed
from sharpwave.training.folder import Config, read_config, write_config
from sharpwave.training.recipes import load_recipe, tables
from sharpwave.training.recipes.recipe import Gymnasium, Recipe
from sharpwave.training.recipes.settings_files import check_effects, read_recipe, with_values

TOML = """
recipe = "cartpole"
[agent]
lr = 1e-4
[agent.replay]
n_step = 3
[evaluation]
stop_reward = "none"
[training]
steps = 5_000
"""
YAML = """
recipe: cartpole
agent: {lr: 1e-4, replay: {n_step: 3}}
evaluation: {stop_reward: null}
training: {steps: 5e3}
"""
EXPECTED = load_recipe("cartpole").override(learning_rate=1e-4, n_step=3, stop_reward=None, steps=5_000)


@pytest.mark.parametrize(("name", "text"), [("run.toml", TOML), ("run.yaml", YAML), ("run.yml", YAML)])
def test_a_file_changes_what_it_names(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_recipe(tmp_path / name) == ("cartpole", EXPECTED)
    _, pong = read_recipe(tmp_path / name, load_recipe("pong"))
    assert pong == load_recipe("pong").override(learning_rate=1e-4, n_step=3, stop_reward=None, steps=5_000)


def test_a_file_may_have_the_name_of_the_recipe_that_it_changes(tmp_path):
    (tmp_path / "cartpole.toml").write_text(TOML)
    assert read_recipe(tmp_path / "cartpole.toml") == ("cartpole", EXPECTED)


def test_a_file_is_read_before_any_recipe_is(tmp_path):
    """The module of files is an attribute of the package then, beside the functions that read its tables."""
    tables.cache_clear()
    (tmp_path / "mine.toml").write_text(TOML)
    assert read_recipe(tmp_path / "mine.toml")[1].agent.lr == 1e-4


def test_without_a_recipe_it_changes_the_defaults(tmp_path):
    (tmp_path / "mine.toml").write_text('[env]\nkind = "gymnasium"\nname = "Acrobot-v1"\n')
    assert read_recipe(tmp_path / "mine.toml") == ("mine", Recipe(env=Gymnasium("Acrobot-v1")))


def test_what_a_file_asks_for_has_an_effect(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[agent]\nkind = "rainbow"\nhead = "qr"\natoms = 21\n')
    with pytest.raises(ValueError, match=r"mine.toml': --atoms: got 21, which has no effect here; it needs --head c51"):
        check_effects(file, None, read_recipe(file)[1])
    file.write_text('[agent]\nkind = "rainbow"\nhead = "qr"\natoms = 51\n')  # as without it
    assert read_recipe(file)[1].agent.head == "qr"
    check_effects(file, None, read_recipe(file)[1])
    written = load_recipe("minatar-rainbow").override(head="c51")
    (tmp_path / "table.json").write_text(json.dumps(written.to_table()))
    assert read_recipe(tmp_path / "table.json")[1] == written
    check_effects(tmp_path / "table.json", None, written)


def test_what_options_beside_a_file_add_counts(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[agent.replay]\npriority_alpha = 0.7\n")
    alone = read_recipe(file)[1]
    check_effects(file, None, alone.override(prioritized=True))
    with pytest.raises(ValueError, match=r"mine.toml': --priority-alpha: got 0.7, .* it needs --prioritized"):
        check_effects(file, None, alone)


def test_config_json_of_a_run_is_read_back(tmp_path):
    recipe = load_recipe("apex").override(seed=3)
    write_config(tmp_path, Config("apex", recipe, "ab" * 16))
    assert read_recipe(tmp_path / "config.json") == ("apex", recipe)
    (tmp_path / "table.json").write_text(json.dumps(recipe.to_table()))
    assert read_recipe(tmp_path / "table.json") == ("table", recipe)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[agent]\nlr = 'fast'", r"--config: '.*a\.toml': setting agent\.lr: got 'fast', expected float"),
        (
            "a.toml",
            "[agent]\nlearning_rate = 1",
            r"\.learning_rate \(did you mean agent\.lr\?\), expected .*agent\.lr,",
        ),
        ("a.toml", "", "it is empty, expected settings, as recipe ="),
        ("a.yaml", "# nothing\n", "it is empty"),
        ("a.json", "", "it is empty"),
        ("a.toml", "\0\1", "it cannot be read as TOML"),
        ("a.toml", "[training]\nsteps = 0.5", r"setting training\.steps: got 0\.5, expected int"),
        ("a.toml", "[evaluation]\nstop_reward = nan", "--stop-reward: got nan, expected a finite number"),
        ("a.toml", "agent = ", "Invalid value"),
        ("a.yaml", "{", "expected the node content"),
        ("a.yaml", "- 1", "it holds a list, expected tables of settings"),
        ("a.ini", "", r"ending in '\.ini', expected \.toml, \.yaml or \.json"),
        ("a.toml", "recipe = 'chess'", "unknown recipe 'chess', expected one of cartpole"),
        ("a.toml", "[env]\nkind = 'gymnasium'\nname = 'mine:Env-v0'", "would import the module 'mine'.*--trust"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipe(tmp_path / name)
    with pytest.raises(ValueError, match="No such file"):
        read_recipe(tmp_path / "none.toml")


def test_single_values_by_their_place():
    recipe = load_recipe("cartpole")
    found = with_values(
        recipe,
        ["agent.lr=1e-4", "training.steps=1e6", "agent.double=false", "evaluation.stop_reward=none", "env.name=A-v0"],
    )
    assert found == recipe.override(learning_rate=1e-4, steps=10**6, double=False, stop_reward=None, env="A-v0")
    one = with_values(
        recipe, ["evaluation.stop_reward=none"], evaluate_every=0
    )  # with a reward to stop at it may not be
    assert one.evaluation.evaluate_every == 0
    assert with_values(recipe, ["replay.capacity=10", "training.warmup_steps=10"]).replay.capacity == 10


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("agent.lr", "--set: got 'agent.lr', expected key=value"),
        ("agent.n_step=3", r"unknown setting 'agent\.n_step'; did you mean agent\.replay\.n_step\?"),
        ("agent.double=perhaps", r"setting agent\.double: got 'perhaps', expected bool"),
        ("training.steps=1.5", r"setting training\.steps: got '1\.5', expected int"),
        ("agent.lr=-1", "--learning-rate: got -1.0, expected above 0"),
    ],
)
def test_values_that_do_not_fit_are_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        with_values(load_recipe("cartpole"), [assignment])


def test_the_config_of_no_release_is_refused(tmp_path):
    table = load_recipe("pong").to_table()
    values = {"version": 2, "run": "ab" * 16, "replay": "", "recipe": "pong", "settings": table}
    (tmp_path / "config.json").write_bytes(sealed(values, indent=2))
    assert read_config(tmp_path) == Config("pong", load_recipe("pong"), "ab" * 16)
    for version in (1, 0, "2", None):
        (tmp_path / "config.json").write_bytes(sealed({**values, "version": version}, indent=2))
        for read in (read_config, lambda folder: read_recipe(folder / "config.json")):
            with pytest.raises(ValueError, match=f"version {version!r}, expected 2"):
                read(tmp_path)


def test_a_name_that_leads_elsewhere_is_refused(tmp_path):
    write_config(tmp_path, Config("../../elsewhere", load_recipe("cartpole"), "ab" * 16))
    with pytest.raises(ValueError, match=r"recipe '\.\./\.\./elsewhere', expected a name"):
        read_recipe(tmp_path / "config.json")


def test_what_a_later_release_wrote_is_refused(tmp_path):
    values = {"version": 3, "run": "", "replay": "", "recipe": "pong", "settings": {}}
    (tmp_path / "config.json").write_bytes(sealed(values, indent=2))
    with pytest.raises(NewerVersionError):
        read_recipe(tmp_path / "config.json")
