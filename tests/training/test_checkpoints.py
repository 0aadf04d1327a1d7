"""Checkpoints: whole or absent, nothing pickled, errors that say what is missing."""

import json

import pytest
import torch
from torch import nn

from sharpwave.agents.dqn import DQN
from sharpwave.training.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint


def make_agent(units=3):
    return DQN(lambda: nn.Linear(2, units), units)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_the_newest_is_loaded_and_the_oldest_leaves(run):
    agents = [make_agent() for _ in range(3)]
    for steps, agent in zip((900, 1_000, 20_000), agents, strict=True):
        save_checkpoint(run / "checkpoints", agent, {"steps": steps})
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000001000", "000000020000"]
    loaded = make_agent()
    assert load_checkpoint(latest_checkpoint(run), loaded, optimizer=True) == {"steps": 20_000}
    torch.testing.assert_close(loaded.online.weight, agents[2].online.weight, rtol=0, atol=0)


def test_the_same_steps_again_replace(run):
    first, second = make_agent(), make_agent()
    for agent in (first, second):
        save_checkpoint(run / "checkpoints", agent, {"steps": 5})
    loaded = make_agent()
    load_checkpoint(latest_checkpoint(run), loaded)
    torch.testing.assert_close(loaded.online.weight, second.online.weight, rtol=0, atol=0)


def test_a_checkpoint_cut_short_is_not_seen(run):
    save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    (run / "checkpoints" / ".000000000009.partial").mkdir()
    assert latest_checkpoint(run).name == "000000000005"


def test_nothing_is_pickled(run):
    folder = save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    for path in folder.iterdir():
        data = path.read_bytes()
        if path.suffix == ".safetensors":  # eight bytes of length, then a JSON header
            json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        else:
            json.loads(data)


def test_what_is_missing_or_damaged_is_named(run, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        latest_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        latest_checkpoint(run)
    folder = save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    with pytest.raises(ValueError, match="do not fit the agent's online module"):
        load_checkpoint(folder, make_agent(units=4))
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"000000000005.* is damaged"):
        load_checkpoint(folder, make_agent())
    (run / "config.json").unlink()
    with pytest.raises(ValueError, match="is not a run folder"):
        latest_checkpoint(run)
