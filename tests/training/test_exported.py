"""Exported policies make the actions of their agents, from raw observations, for any number of them."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete

import sharpwave as sw
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.registry import AGENTS
from sharpwave.extras import install
from sharpwave.training.exported import Acting

from .test_policies import MASKED, NUMBERS, policy_of, sampled, small_agent

FAMILIES = ("a2c", "dqn", "masac", "ppo", "r2d2", "rainbow", "sac")
ROWS = 200


def inputs_of(policy, obs):
    return [obs[name] for name in policy.observation_space.spaces] if isinstance(obs, dict) else [obs]


def check(policy, compute, count=ROWS):
    """Compare the results of ``compute``, of a list of arrays, with the policy's actions, alone and along episodes."""
    agent, rng = policy.agent, np.random.default_rng(3)
    for lanes, steps in ((1, 2), (count // 4, 4)):
        state = agent.begin(lanes)
        memory = {name: np.zeros((lanes, *shape), np.float32) for name, shape in agent.memory().items()}
        for step in range(steps):
            obs = sampled(policy.observation_space, lanes, step)
            acted = agent.act(obs, state, 0, explore=False)
            action, *after = compute([*inputs_of(policy, obs), *memory.values()])
            assert action.dtype == acted.action.dtype and action.shape == acted.action.shape
            np.testing.assert_allclose(action, acted.action, rtol=0, atol=1e-5)
            reward = rng.normal(size=lanes).astype(np.float32)
            state = agent.observe(acted.state, reward, np.zeros(lanes, np.bool_))
            known = dict(zip([name for name in memory if name != "reward"], after, strict=True)) | {"reward": reward}
            memory = {name: known[name] for name in memory}


ALWAYS = ("dqn", "masac", "ppo", "r2d2", "rainbow", "sac")
"""An algorithm of each family, which the default run exports; the nightly one exports the others."""


@pytest.mark.parametrize(
    "kind", [kind if kind in ALWAYS else pytest.param(kind, marks=pytest.mark.nightly) for kind in sorted(AGENTS)]
)
def test_a_program_of_torch_acts_alike(kind, tmp_path):
    policy = policy_of(small_agent(kind))
    module = torch.export.load(policy.export(tmp_path / "it.pt2")).module()

    def compute(arrays):
        return [one.numpy() for one in module(*map(torch.from_numpy, arrays))]

    check(policy, compute)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_onnxruntime_acts_alike(kind, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policy_of(small_agent(kind))
    path = policy.export(tmp_path / "it.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    space, memory = policy.observation_space, policy.agent.memory()
    assert names == [*(getattr(space, "spaces", None) or ["obs"]), *memory]
    outputs = [one.name for one in session.get_outputs()]
    assert outputs == ["action", *(f"next_{name}" for name in memory if name != "reward")]
    check(policy, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))


NAMED = {"action", "core", "linear", "next_core", "obs_action", "reward"}


@pytest.mark.parametrize("kind", ["dqn", "r2d2"])
def test_parts_may_have_names_of_other_inputs_and_outputs(kind):
    agent = small_agent(kind, Spaces(Dict(dict.fromkeys(NAMED, NUMBERS)), Discrete(3)))
    acting = Acting(agent, sorted(NAMED))
    assert len({*acting.inputs, *acting.outputs}) == len(NAMED) + 2 * len(agent.memory()) + (kind == "dqn")
    assert acting.inputs[: len(NAMED)] == [f"obs_{name}" for name in sorted(NAMED)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMED, {"linear", "angular"}])
def test_onnxruntime_loads_parts_of_any_name(names, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policy_of(small_agent("dqn", Spaces(Dict(dict.fromkeys(names, NUMBERS)), Discrete(3))))
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "it.onnx"), providers=["CPUExecutionProvider"])
    inputs = [one.name for one in session.get_inputs()]
    check(policy, lambda arrays: session.run(None, dict(zip(inputs, arrays, strict=True))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "r2d2", "ppo"])
def test_onnxruntime_leaves_out_illegal_actions(kind, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policy_of(small_agent(kind, MASKED))
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "it.onnx"), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    assert {"action_mask", "obs"} <= {*names}
    mask = np.array([[lane == legal for lane in range(4)] for legal in range(4)], np.int8)  # one is legal each time
    obs = {**sampled(MASKED.observation, 4), "action_mask": mask}
    arrays = [*inputs_of(policy, obs), *(np.zeros((4, *one), np.float32) for one in policy.agent.memory().values())]
    actions = session.run(["action"], dict(zip(names, arrays, strict=True)))[0]
    np.testing.assert_array_equal(actions, np.arange(4))


@pytest.mark.parametrize("name", ["it.pt2", pytest.param("it.onnx", marks=pytest.mark.slow)])
def test_agents_that_act_by_more_than_networks_are_refused(name, tmp_path, monkeypatch):
    if name == "it.onnx":
        pytest.importorskip("onnxscript")
    policy = policy_of(small_agent("dqn"))

    def decide(obs, memory):
        raise NotImplementedError("dqn has no form for other programs: it searches")

    monkeypatch.setattr(policy.agent, "decide", decide)
    with pytest.raises(ValueError, match="export: dqn has no form for other programs: it searches"):
        policy.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_program_of_torch_needs_no_sharpwave(tmp_path):
    """It is loaded in a process that cannot import the package."""
    policy = policy_of(small_agent("r2d2"))
    policy.export(tmp_path / "it.pt2")
    obs = sampled(policy.observation_space, 5)
    expected, _ = policy.predict(obs, deterministic=True)
    shapes = policy.agent.memory().values()
    arrays = [*inputs_of(policy, obs), *(np.zeros((5, *one), np.float32) for one in shapes)]
    np.savez(tmp_path / "inputs.npz", *arrays)
    code = (
        "import sys; sys.modules['sharpwave'] = None\n"  # an import of it is an error
        "import numpy, torch\n"
        "module = torch.export.load('it.pt2').module()\n"
        "print(module(*map(torch.from_numpy, numpy.load('inputs.npz').values()))[0].tolist())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == str(expected.tolist())


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    policy = policy_of(small_agent("sac"))
    with pytest.raises(ValueError, match=r"got 'it\.h5', expected a name that ends in \.onnx or \.pt2"):
        policy.export(tmp_path / "it.h5")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr("sharpwave.training.exported.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as error:
        policy.export(tmp_path / "it.onnx")
    assert f"needs onnx: {install('export')}" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_full_disk_is_an_error_and_leaves_the_older_file(suffix, tmp_path):
    resource = pytest.importorskip("resource")
    if suffix == "onnx":
        pytest.importorskip("onnxscript")
    policy, path = policy_of(small_agent("sac")), tmp_path / f"it.{suffix}"
    path.write_bytes(b"older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, before[1]))  # fewer bytes than the program has
    try:
        with pytest.raises(OSError):
            policy.export(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == [path.name] and path.read_bytes() == b"older"


def test_bfloat16_is_left_out(tmp_path, monkeypatch):
    """The program computes in float32; the agent goes on in its precision."""
    agent: Any = small_agent("sac")
    policy = policy_of(agent)
    expected = policy.act(obs := sampled(policy.observation_space, 6))
    agent._precision = "bfloat16"
    monkeypatch.setenv("HOME" if os.name != "nt" else "USERPROFILE", str(tmp_path))
    assert sw.Policy.export(policy, "~/it.pt2") == tmp_path / "it.pt2"
    module = torch.export.load(tmp_path / "it.pt2").module()
    np.testing.assert_allclose(module(torch.from_numpy(obs))[0].numpy(), expected, rtol=0, atol=1e-5)
    assert agent.precision == "bfloat16" and all(one.requires_grad for one in agent.actor.parameters())
