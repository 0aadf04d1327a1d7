"""Agents of other libraries for ``learners.py``: train one, play held-out episodes, print a line of JSON.

    PYTHON benchmarks/learner_peers.py '{"library": "sbx", "algorithm": "CrossQ", "env": "Hopper-v5", "steps": 100000,
        "seed": 0, "episodes": 30, "held_out": 1879048192}'

Libraries: ``sb3`` (Stable-Baselines3, torch), ``sbx`` (its sibling in JAX), and ``d3rlpy``, which learns offline. Only
the standard library, gymnasium and the library itself are imported, so that each may have an environment of its own:
``learners.py --sbx PYTHON --d3rlpy PYTHON``.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}


def falling(begin: float) -> Callable[[float], float]:
    """Return a schedule that falls from ``begin`` to 0, as ``linear_schedule`` of the libraries' zoo."""
    return lambda left: left * begin


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings as the libraries take them: "lin_.001" is a schedule that falls to 0."""
    return {
        name: falling(float(one.removeprefix("lin_"))) if isinstance(one, str) and one.startswith("lin_") else one
        for name, one in given.items()
    }


def trained(
    library: str,
    algorithm: str,
    env: str,
    steps: int,
    seed: int,
    episodes: int,
    held_out: int,
    settings: dict[str, Any] | None = None,
    policy: str = "MlpPolicy",
    num_envs: int = 1,
    normalize: dict[str, Any] | None = None,
    action_noise: float = 0.0,
) -> dict[str, Any]:
    """Train an agent with fixed seeds on one thread, and measure its last policy, deterministic, on fresh episodes.

    Args:
        held_out: first seed of the measured episodes.
        normalize: arguments of ``VecNormalize``; None: observations and rewards as they are.
        action_noise: deviation of Gaussian noise on actions in -1 ... 1; 0: none.
    Returns:
        the figures of a line: score, scores, steps, minutes of training, and minutes that the processor took.
    """
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    if library == "sb3":
        import torch

        torch.set_num_threads(1)
    lanes: Any = make_vec_env(env, num_envs, seed=seed)
    given = settings_of(settings or {})
    if normalize is not None:
        lanes = VecNormalize(lanes, gamma=given.get("gamma", 0.99), **normalize)
    if action_noise:
        size = lanes.action_space.shape
        given["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, action_noise))
    made = getattr(importlib.import_module(LIBRARIES[library]), algorithm)
    model = made(policy, lanes, seed=seed, device="cpu", **given)
    before, processor = time.monotonic(), time.process_time()
    model.learn(steps)
    minutes, took = (time.monotonic() - before) / 60, (time.process_time() - processor) / 60

    fresh: Any = make_vec_env(env, 1, seed=held_out)
    if normalize is not None:
        fresh = VecNormalize(fresh, training=False, norm_reward=False, norm_obs=lanes.norm_obs)
        fresh.obs_rms = lanes.obs_rms
    scores, _ = evaluate_policy(model, fresh, episodes, return_episode_rewards=True)
    return {
        "score": statistics.fmean(scores), "scores": [*map(float, scores)], "steps": steps, "minutes": minutes,
        "reason": "its steps", "processor_minutes": took,
    }  # fmt: skip


def learned_offline(
    algorithm: str,
    env: str,
    steps: int,
    seed: int,
    episodes: int,
    held_out: int,
    data: str,
    settings: dict[str, Any],
    standardize: bool = False,
    return_scale: float = 0.0,
    critic: dict[str, Any] | None = None,
    actor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a learner of d3rlpy from recorded data alone, and measure its last policy on fresh episodes.

    Args:
        steps: updates.
        data: npz file of ``learner_data.as_arrays``.
        standardize: subtract the mean of the observations, and divide by their deviation.
        return_scale: divide rewards by the range of returns, and multiply by this; 0: rewards as they are.
        critic, actor: arguments of their networks; None: the library's.
    Returns:
        as ``trained``.
    """
    import d3rlpy
    import gymnasium
    import numpy as np
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    arrays = np.load(data)
    recorded = d3rlpy.dataset.MDPDataset(
        *(arrays[name] for name in ("observations", "actions", "rewards", "terminals", "timeouts"))
    )
    given = dict(settings)
    if standardize:
        given["observation_scaler"] = d3rlpy.preprocessing.StandardObservationScaler()
    if return_scale:
        given["reward_scaler"] = d3rlpy.preprocessing.ReturnBasedRewardScaler(multiplier=return_scale)
    for name, network in (("critic_encoder_factory", critic), ("actor_encoder_factory", actor)):
        if network is not None:
            given[name] = d3rlpy.models.VectorEncoderFactory(**network)
    learner = getattr(d3rlpy.algos, f"{algorithm}Config")(**given).create(device="cpu:0")
    before, processor = time.monotonic(), time.process_time()
    learner.fit(
        recorded, steps, n_steps_per_epoch=steps, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    minutes, took = (time.monotonic() - before) / 60, (time.process_time() - processor) / 60

    scores = []
    with gymnasium.make(env) as fresh:
        for episode in range(episodes):
            obs, _ = fresh.reset(seed=held_out + episode)
            score, ended = 0.0, False
            while not ended:
                obs, reward, terminated, truncated, _ = fresh.step(learner.predict(obs[None].astype(np.float32))[0])
                score, ended = score + float(reward), terminated or truncated
            scores.append(score)
    return {
        "score": statistics.fmean(scores), "scores": scores, "steps": steps, "minutes": minutes, "reason": "its steps",
        "processor_minutes": took,
    }  # fmt: skip


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    names = asked.pop("names", {})
    if asked.get("library") == "d3rlpy":
        del asked["library"]
        line = learned_offline(**asked)
    else:
        line = trained(**asked)
    print(json.dumps({**names, **line}))
