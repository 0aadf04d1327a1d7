"""Replay buffers for Stable-Baselines3 over a Sharpwave store.

Use ``DQN("CnnPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=dict(ram="2GiB"))``; the rest stays.
See docs/frameworks/sb3.md.
"""

from sharpwave.extras import install

try:
    import stable_baselines3  # noqa: F401
except ModuleNotFoundError as error:
    missing = f"buffers for Stable-Baselines3 need {error.name}: {install('sb3')}"
    raise ModuleNotFoundError(missing, name=error.name) from error

from sharpwave.integrations.sb3.her import HerReplayBuffer
from sharpwave.integrations.sb3.prioritized_dqn import PrioritizedDQN, PrioritizedReplayBuffer, PrioritizedSamples
from sharpwave.integrations.sb3.sb3_buffer import NStepReplayBuffer, ReplayBuffer

__all__ = [
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedDQN",
    "PrioritizedReplayBuffer",
    "PrioritizedSamples",
    "ReplayBuffer",
]
