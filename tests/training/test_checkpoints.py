"""Checkpoints: whole or absent, nothing pickled, errors that say what is missing."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import sharpwave as sw
from sharpwave.training.checkpoints import load_checkpoint, load_run_policy, save_checkpoint
from sharpwave.training.folder import checkpoints, chosen_checkpoint, steps_of

from ..agents.linear import make_dqn


def make_agent(units=3):
    return make_dqn(lambda: nn.Linear(2, units), units)


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
    assert load_checkpoint(checkpoints(run)[-1], loaded, resume=True)["steps"] == 20_000
    torch.testing.assert_close(loaded.online.weight, agents[2].online.weight, rtol=0, atol=0)


def test_the_same_steps_again_replace(run):
    first, second = make_agent(), make_agent()
    for agent in (first, second):
        save_checkpoint(run / "checkpoints", agent, {"steps": 5})
    loaded = make_agent()
    load_checkpoint(checkpoints(run)[-1], loaded)
    torch.testing.assert_close(loaded.online.weight, second.online.weight, rtol=0, atol=0)


def test_a_checkpoint_cut_short_is_not_seen_and_cleared_away(run):
    save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    (run / "checkpoints" / ".000000000009.partial").mkdir()
    assert checkpoints(run)[-1].name == "000000000005"
    save_checkpoint(run / "checkpoints", make_agent(), {"steps": 10})
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000000005", "000000000010"]


def test_checkpoints_of_a_future_that_was_left_go(run):
    """Resumed from 20, because 30 was damaged: what comes next follows on 20."""
    for steps in (10, 20, 30, 25):
        save_checkpoint(run / "checkpoints", make_agent(), {"steps": steps})
    assert [path.name[-2:] for path in checkpoints(run)] == ["20", "25"]


def test_a_failed_save_leaves_the_others_and_nothing_half(run):
    save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    with pytest.raises(TypeError):
        save_checkpoint(run / "checkpoints", make_agent(), {"steps": 10, "not json": object()})
    assert [path.name[-2:] for path in (run / "checkpoints").iterdir()] == ["05"]


def test_the_optimizer_comes_back_where_its_elements_lie():
    """Convolutions lie with the channels last; the next update must be the one that would have come."""

    def build():
        layers = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 2))
        return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def update(agent, obs):
        agent.optimizer.zero_grad()
        agent.online(obs).square().sum().backward()
        agent.optimizer.step()

    agents = [make_dqn(build), make_dqn(build)]
    obs = [torch.randn(5, 4, 4, 4).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    update(agents[0], obs[0])
    state = agents[0].state()
    saved = {name: tensor.contiguous().clone() for name, tensor in state["optimizer"].items()}
    agents[1].load({**state, "optimizer": saved})
    for agent in agents:
        update(agent, obs[1])
    for one, two in zip(agents[0].online.parameters(), agents[1].online.parameters(), strict=True):
        assert torch.equal(one, two)


def test_torch_s_random_state_is_part_of_it(run):
    agent = make_agent()
    folder = save_checkpoint(run / "checkpoints", agent, {"steps": 5})
    expected = torch.rand(4)
    load_checkpoint(folder, agent)
    assert not torch.equal(torch.rand(4), expected)  # playing leaves it alone
    load_checkpoint(folder, agent, resume=True)
    assert torch.equal(torch.rand(4), expected)


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
        checkpoints(tmp_path / "nowhere")[-1]
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        checkpoints(run)[-1]
    folder = save_checkpoint(run / "checkpoints", make_agent(), {"steps": 5})
    with pytest.raises(ValueError, match="do not fit the agent's online module"):
        load_checkpoint(folder, make_agent(units=4))
    weights = folder / "weights.safetensors"
    whole = bytearray(weights.read_bytes())
    whole[-1] ^= 1
    for damaged in (whole, whole[:40]):
        weights.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"000000000005.*weights.safetensors is damaged: checksum"):
            load_checkpoint(folder, make_agent())
    weights.unlink()
    with pytest.raises(ValueError, match=r"000000000005.* cannot be loaded: .*weights.safetensors"):
        load_checkpoint(folder, make_agent())
    (run / "config.json").unlink()
    with pytest.raises(ValueError, match="is not a run folder"):
        checkpoints(run)[-1]


def test_the_first_checkpoint_of_each_period_stays_without_its_replay_memory(run):
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=10) as store:
        for steps in (60, 110, 150, 290, 310, 390, 395):
            memories = {"replay": store, "demonstrations": store}
            save_checkpoint(run / "checkpoints", make_agent(), {"steps": steps}, memories, keep_every=100)
    found = checkpoints(run)
    assert [int(path.name) for path in found] == [110, 290, 310, 390, 395]
    for name in ("replay", "demonstrations"):
        assert [(path / name).is_dir() for path in found] == [False, False, False, True, True]
    assert len(list((run / "checkpoints").iterdir())) == 5
    assert load_checkpoint(found[0], make_agent(), resume=True)["steps"] == 110
    assert chosen_checkpoint(run, "290") == "290"
    assert load_run_policy(run, "290", make_agent)[1]["steps"] == 290
    with pytest.raises(
        ValueError, match=r"--checkpoint: got '300', expected best, last or .*: 110, 290, 310, 390, 395"
    ):
        chosen_checkpoint(run, "300")


def test_checkpoints_are_chosen_by_their_steps():
    names = {"000000050000": "50000", "000000000000": "0", "000000000040-2": "40-2"}
    assert {name: steps_of(Path(name)) for name in names} == names
